"""`/mcp`: the Model Context Protocol over streamable HTTP, by the session manager of the package `mcp`.

The endpoint has checked the host and the token and read the body, like for every other operation; the package gets the
whole request, and its response is sent as a whole. It keeps no sessions: each request stands for itself, with the
rights of its token, so that there is nothing that a client could leave open. Tools execute commands in this process.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Awaitable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.types import Message, Receive, Scope

from whippet.app.commands import audited
from whippet.app.commands.requests import PollMessages, Request
from whippet.app.config import ConfigError
from whippet.app.config.listeners import Http, Mcp
from whippet.app.mcp.work import READ_ONLY, Group, Limits, Work
from whippet.transports.http.errors import CLOSE, Refused
from whippet.transports.http.forms.responses import NO_STORE, HttpResponse
from whippet.transports.http.operation import Call, Operation
from whippet.transports.http.serving.origins import check_origin

if TYPE_CHECKING:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

PATH = "/mcp"
WORK = "whippet.work"
"""The key in the scope of what the tools of a request work with."""
NOT_PASSED_ON = frozenset({b"authorization", b"content-length", b"transfer-encoding"})


def require_package(config: Mcp) -> None:
    if config.enabled and importlib.util.find_spec("mcp") is None:
        raise ConfigError("mcp.enabled needs the extra mcp: install it with pip install 'whippet-gateway[mcp]'")


class Assistants:
    """Created by `open`; ended by `close`."""

    def __init__(self, config: Mcp, http: Http, manager: StreamableHTTPSessionManager) -> None:
        self._config = config
        self._http = http
        self._manager = manager
        self._limits = Limits(config.max_items, config.max_response_size)
        self._allowed = READ_ONLY | _permitted(config)
        self._started = asyncio.Event()
        self._stopping = asyncio.Event()
        self._running = asyncio.get_running_loop().create_task(self._run(), name="mcp")
        self.operation = Operation(
            name="mcp",
            method="POST",
            path=PATH,
            summary="Send a message of the Model Context Protocol",
            subject="mcp",
            handler=self._respond,
            body=msgspec.Raw,
            decode=_undecoded,
        )

    @classmethod
    async def open(cls, config: Mcp, http: Http) -> Assistants:
        # The package takes a second to import.
        manager = await asyncio.to_thread(_manager)
        made = cls(config, http, manager)
        await made._started.wait()
        return made

    async def close(self) -> None:
        self._stopping.set()
        await self._running

    async def _run(self) -> None:
        """The package needs one task that begins and ends its own tasks."""
        async with self._manager.run():
            self._started.set()
            await self._stopping.wait()

    async def _respond(self, call: Call) -> HttpResponse:
        limit = self._config.max_request_size
        if len(call.body) > limit:
            sentence = f"The request has {len(call.body)} bytes (mcp.max_request_size = {limit})"
            raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, sentence, headers=(CLOSE,))
        if (origin := call.headers.get(b"origin")) is not None:
            host = call.headers.get(b"host", b"").decode("latin-1")
            check_origin(origin.decode("latin-1"), call.scope["scheme"], host, self._http.cors)
        answer = Answer()
        scope = {**_plain(call.scope), WORK: self._work(call)}
        handling = self._manager.handle_request(scope, _receiving(call.body, call.receive), answer.send)
        # anyio, which the package is built on, needs a task; a request that is executed at once has none.
        await asyncio.get_running_loop().create_task(handling, name="mcp request")
        return answer.response()

    def _work(self, call: Call) -> Work:
        def execute(request: Request) -> Awaitable[Any]:
            return call.poll(request) if isinstance(request, PollMessages) else call.execute(request)

        return Work(
            execute=execute,
            user=call.bearer.user.username,
            peer=call.session.address,
            limits=self._limits,
            consumer_name=self._config.consumer,
            allowed=self._allowed,
            record=lambda change: audited.record(
                call.api.gateway,
                call.session,
                "assistant",
                change.outcome,
                tool=change.tool,
                request=change.arguments,
                may_repeat=change.outcome != "done",
            ),
            keeps_settings=True,
        )


def _permitted(config: Mcp) -> frozenset[Group]:
    if config.read_only:
        return frozenset()
    given = config.permissions
    groups = {Group.CREATE: given.create, Group.UPDATE: given.update, Group.DELETE: given.delete}
    return frozenset(group for group, is_allowed in groups.items() if is_allowed)


def _manager() -> StreamableHTTPSessionManager:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager  # noqa: PLC0415 -- of an extra

    from whippet.app.mcp import protocol  # noqa: PLC0415

    server = protocol.create(lambda request: request.scope[WORK])
    return StreamableHTTPSessionManager(server, json_response=True, stateless=True)


def _undecoded(decoder: Any, body: bytes) -> bytes:
    """The package decodes it."""
    return body


def _plain(scope: Scope) -> dict[str, Any]:
    """Returns the scope without what is ours, and without the token."""
    headers = [(name, value) for name, value in scope["headers"] if name not in NOT_PASSED_ON]
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": scope["http_version"],
        "method": "POST",
        "scheme": scope["scheme"],
        "path": PATH,
        "raw_path": PATH.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": headers,
        "client": scope.get("client"),
        "server": scope.get("server"),
    }


def _receiving(body: bytes, receive: Receive) -> Receive:
    """The body is there already; what follows it is that the client goes."""
    left = [body]

    async def received() -> Message:
        if left:
            return {"type": "http.request", "body": left.pop(), "more_body": False}
        return await receive()

    return received


class Answer:
    """Collects what the package sends."""

    def __init__(self) -> None:
        self._status = 0
        self._headers: list[tuple[bytes, bytes]] = []
        self._parts: list[bytes] = []

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._headers = [(name.lower(), value) for name, value in message["headers"]]
        else:
            self._parts.append(message.get("body", b""))

    def response(self) -> HttpResponse:
        if not self._status:
            # The client has gone before there was a response.
            return HttpResponse(HTTPStatus.NO_CONTENT)
        kept = [header for header in self._headers if header[0] not in (b"content-length", b"connection")]
        return HttpResponse(self._status, b"".join(self._parts), (*kept, NO_STORE))
