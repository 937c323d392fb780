"""A server with a consumer group, and members that poll with leases."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx

from tests.app.access.support.world import ROOT
from tests.transports.http.support.serving import Serving, serving
from whippet.app.client import Client
from whippet.app.commands import requests
from whippet.app.config.formats import Address
from whippet.app.config.listeners import Http, HttpLeases
from whippet.transports.tcp import TcpListener

GROUP = "/streams/s/topics/t/consumer-groups/g"


LEASES = f"{GROUP}/leases"


class Member:
    """A client with a lease."""

    def __init__(self, client: httpx.AsyncClient, response: httpx.Response) -> None:
        assert response.status_code == 201, response.text
        self.client = client
        self.path = response.headers["location"]
        self.lease: dict[str, Any] = response.json()

    async def poll(self, **query: Any) -> dict[str, Any]:
        return self._keep(await self.client.get(f"{self.path}/messages", params=query))

    async def look(self) -> dict[str, Any]:
        return self._keep(await self.client.get(self.path))

    async def commit(self, polled: dict[str, Any], generation: int | None = None) -> httpx.Response:
        """Commits what was polled."""
        body = {
            "generation": self.lease["generation"] if generation is None else generation,
            "partition_id": polled["partition_id"],
            "offset": polled["messages"][-1]["header"]["offset"],
        }
        return await self.client.put(f"{self.path}/offsets", json=body)

    async def drain(self) -> list[str]:
        """Polls everything that is available, and commits each message before the next poll."""
        found: list[str] = []
        while (polled := await self.poll(count=3))["count"]:
            found += texts(polled)
            response = await self.commit(polled)
            assert response.status_code == 200, response.text
            self._keep(response)
        return found

    async def give_back(self) -> None:
        assert (await self.client.delete(self.path)).status_code == 204

    def _keep(self, response: httpx.Response) -> dict[str, Any]:
        assert response.status_code == 200, response.text
        reply: dict[str, Any] = response.json()
        self.lease |= {name: reply[name] for name in ("generation", "partitions", "finishing")}
        return reply


class World:
    """Stream s with topic t, of two partitions, and its group g, over HTTP and TCP."""

    def __init__(self, served: Serving, client: httpx.AsyncClient, tcp: Client) -> None:
        self.served = served
        self.gateway = served.world.gateway
        self.client = client
        self.tcp = tcp

    async def lease(self, **query: str) -> Member:
        return Member(self.client, await self.client.post(LEASES, params=query))

    def fresh_token(self) -> dict[str, str]:
        """Returns headers with a new token, after the clock was moved."""
        return {"authorization": f"Bearer {self.served.api.access_tokens.issue(self.gateway.users.root).text}"}

    async def send(self, partition: int, *payloads: str) -> None:
        value = base64.b64encode(partition.to_bytes(4, "little")).decode()
        messages = [{"payload": base64.b64encode(payload.encode()).decode()} for payload in payloads]
        body = {"partitioning": {"kind": "partition_id", "value": value}, "messages": messages}
        response = await self.client.post("/streams/s/topics/t/messages", json=body)
        assert response.status_code == 201, response.text

    async def group(self) -> dict[str, Any]:
        found: dict[str, Any] = (await self.client.get(GROUP)).json()
        return found

    async def until(self, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        while not holds(group := await self.group()):
            pass
        return group


@contextlib.asynccontextmanager
async def world(path: Path, partitions: int = 2, **leases: Any) -> AsyncIterator[World]:
    config = Http(leases=HttpLeases(**{"expiry_min": 0.01, **leases}))
    async with serving(path, config) as served:
        listener = TcpListener(served.world.gateway)
        await listener.listen(Address("127.0.0.1", 0), "tcp.address", None)
        user, password = ROOT["IGGY_ROOT_USERNAME"], ROOT["IGGY_ROOT_PASSWORD"]
        where = f"iggy://{user}:{password}@127.0.0.1:{listener.address.port}?heartbeat_interval=0"
        headers = {"authorization": f"Bearer {served.token}"}
        try:
            async with (
                httpx.AsyncClient(
                    base_url=f"http://{served.server.address}", headers=headers, trust_env=False
                ) as client,
                await Client.connect(where) as tcp,
            ):
                await tcp.create_stream("s")
                await tcp.create_topic("s", "t", partitions)
                await tcp.call(requests.CreateConsumerGroup("s", "t", "g"))
                yield World(served, client, tcp)
        finally:
            await listener.stop(10)


def texts(polled: dict[str, Any]) -> list[str]:
    return [base64.b64decode(message["payload"]).decode() for message in polled["messages"]]
