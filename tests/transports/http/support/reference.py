"""A live server with a real client, for the tests of the reference."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx

from tests.app.access.support.world import ROOT
from tests.support.running import run
from tests.transports.http.support.calling import Caller
from tests.transports.http.support.serving import Serving, serving
from whippet.app.config.listeners import Http, HttpCors

U64_MAX = 2**64 - 1
TOPIC = "/streams/s/topics/t"
MESSAGES, OFFSETS, GROUPS = f"{TOPIC}/messages", f"{TOPIC}/consumer-offsets", f"{TOPIC}/consumer-groups"
PATS = "/personal-access-tokens"
LOGIN = {"username": ROOT["IGGY_ROOT_USERNAME"], "password": ROOT["IGGY_ROOT_PASSWORD"]}
FIRST = {"kind": "partition_id", "value": "AAAAAA=="}
ONE = {"partitioning": FIRST, "messages": [{"payload": "aGVsbG8="}]}
Test = Callable[["Live"], Awaitable[None]]
ANY_ORIGIN = Http(cors=HttpCors(allowed_origins=("*",)))
"""The default of Iggy."""


class Live:
    """Root and a caller without a token, with a real client on real connections."""

    def __init__(self, world: Serving, client: httpx.AsyncClient) -> None:
        self.world = world
        self.client = client
        self.root = Caller(client, world.token)
        self.stranger = Caller(client)

    async def log_in(self, **login: str) -> Caller:
        reply = await self.stranger.post("/users/login", LOGIN | login)
        return Caller(self.client, reply["access_token"]["token"])

    async def topic(self, **more: Any) -> dict[str, Any]:
        await self.root.ask("POST", "/streams", {"name": "s"})
        body = {"name": "t", "partitions_count": 3, **more}
        found: dict[str, Any] = await self.root.post("/streams/s/topics", body)
        return found


@contextlib.asynccontextmanager
async def living(path: Path, config: Http | None = None, **store: Any) -> AsyncIterator[Live]:
    async with serving(path, config, store=store) as world:
        base = f"http://127.0.0.1:{world.server.address.port}"
        async with httpx.AsyncClient(base_url=base, trust_env=False) as client:
            yield Live(world, client)


def on(tmp_path: Path, test: Test, config: Http | None = None, **store: Any) -> None:
    async def main() -> None:
        async with living(tmp_path, config, **store) as live:
            await test(live)

    run(main())
