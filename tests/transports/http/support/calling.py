"""The whole API on a store of its own, called without a socket: a gateway, an application, and callers."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any, TypeVar

import httpx
import msgspec
from starlette.types import ASGIApp

from tests.app.access.support.world import ROOT, World, world
from whippet.app.access.access_tokens import AccessTokens
from whippet.app.config.listeners import Http
from whippet.storage.store import Store
from whippet.transports.http import application, routes
from whippet.transports.http.api import Api
from whippet.transports.http.operation import Operation

Answer = TypeVar("Answer")
JSON = {"content-type": "application/json"}
ALL_FLAGS = (
    *("manage_servers", "read_servers", "manage_users", "read_users", "manage_streams", "read_streams"),
    *("manage_topics", "read_topics", "poll_messages", "send_messages"),
)


class Caller:
    """A client with or without a token."""

    def __init__(self, client: httpx.AsyncClient, token: str | None = None) -> None:
        self._client = client
        self.token = token

    async def ask(self, method: str, path: str, json: Any = None, **headers: str) -> httpx.Response:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.token is not None:
            sent.setdefault("authorization", f"Bearer {self.token}")
        if json is None:
            return await self._client.request(method, path, headers=sent)
        content = json if isinstance(json, bytes) else msgspec.json.encode(json)
        return await self._client.request(method, path, headers=JSON | sent, content=content)

    async def get(self, path: str, **headers: str) -> Any:
        response = await self.ask("GET", path, **headers)
        assert response.status_code == 200, response.text
        return response.json()

    async def post(self, path: str, json: Any) -> Any:
        response = await self.ask("POST", path, json)
        assert response.status_code in (200, 201), response.text
        return response.json() if response.content else None

    async def put(self, path: str, json: Any) -> None:
        response = await self.ask("PUT", path, json)
        assert response.status_code == 204, response.text
        assert response.content == b""

    async def delete(self, path: str) -> None:
        response = await self.ask("DELETE", path)
        assert response.status_code == 204, response.text
        assert response.content == b""

    async def refused(self, method: str, path: str, json: Any = None, **headers: str) -> tuple[int, int, str | None]:
        """Returns status, number and field of an error."""
        return refusal(await self.ask(method, path, json, **headers))


def refusal(response: httpx.Response) -> tuple[int, int, str | None]:
    body = response.json()
    assert list(body) == ["id", "code", "reason", "field"], response.text
    assert response.headers["content-type"] == "application/json"
    assert "Traceback" not in response.text
    return response.status_code, body["id"], body["field"]


def permissions(*flags: str, streams: Any = None) -> dict[str, Any]:
    return {"global": {flag: flag in flags for flag in ALL_FLAGS}, "streams": streams}


class Calling:
    def __init__(self, made: World, api: Api, application: ASGIApp, client: httpx.AsyncClient) -> None:
        self.world = made
        self.application = application
        self.api = api
        self.gateway = made.gateway
        self.clock = made.clock
        self.client = client
        self.stranger = Caller(client)
        self.root = Caller(client)

    async def log_in(self, username: str, password: str, **more: str) -> Caller:
        reply = await self.stranger.post("/users/login", {"username": username, "password": password, **more})
        return Caller(self.client, reply["access_token"]["token"])

    async def user(self, name: str = "alice", permissions: Any = None) -> Caller:
        await self.root.post(
            "/users", {"username": name, "password": name * 2, "status": "active", "permissions": permissions}
        )
        return await self.log_in(name, name * 2)


async def make_api(made: World, store: Store, config: Http | None = None) -> Api:
    if config is not None:
        made.gateway.config = msgspec.structs.replace(made.gateway.config, http=config)
    gateway = made.gateway
    tokens = await AccessTokens.open(gateway.config.http.jwt, store.options.path, gateway.users, gateway.clock)
    return Api(gateway, tokens)


@contextlib.asynccontextmanager
async def calling(
    path: object,
    config: Http | None = None,
    operations: Sequence[Operation] = routes.OPERATIONS,
    **options: Any,
) -> AsyncIterator[Calling]:
    async with world(path, **options) as made:
        api = await make_api(made, made.store, config)
        created = application.Application(api, operations)
        transport = httpx.ASGITransport(created, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            found = Calling(made, api, created, client)
            found.root = await found.log_in(ROOT["IGGY_ROOT_USERNAME"], ROOT["IGGY_ROOT_PASSWORD"])
            yield found
        await api.close()
        assert api.budgets.used == 0


@contextlib.asynccontextmanager
async def with_topic(
    path: object, config: Http | None = None, partitions: int = 3, **options: Any
) -> AsyncIterator[Calling]:
    """Starts a server with stream `s` and topic `t`."""
    async with calling(path, config, **options) as world:
        await world.root.post("/streams", {"name": "s"})
        await world.root.post("/streams/s/topics", {"name": "t", "partitions_count": partitions})
        yield world
