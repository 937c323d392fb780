"""The client over WebSocket: responses of any size, in order, refusals, and connections that end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from websockets.asyncio.server import ServerConnection, serve

from tests.app.support.process import starting
from whippet.app.client import Client, Disconnected
from whippet.app.client.commands import FIRST, to_partition
from whippet.app.commands.requests import Consumer, ConsumerKind
from whippet.app.errors import Code, CommandError
from whippet.storage.batch import messages

PASSWORD = "the root's password"


@contextlib.asynccontextmanager
async def connected(folder: Path) -> AsyncIterator[Client]:
    with starting(folder / "data") as start:
        gateway = start(IGGY_ROOT_USERNAME="iggy", IGGY_ROOT_PASSWORD=PASSWORD, IGGY_WEBSOCKET_ADDRESS="127.0.0.1:0")
        address = await asyncio.to_thread(lambda: gateway.line(r"ws://(\S+)").group(1))
        async with await Client.connect(f"iggy+ws://iggy:{PASSWORD}@{address}") as client:
            yield client


async def test_requests_travel_together_and_large_responses_arrive(tmp_path: Path) -> None:
    async with connected(tmp_path) as client:
        await client.create_stream("s")
        await client.create_topic("s", "t")
        payloads = [bytes([i]) * 300_000 for i in range(1, 11)]
        sends = [client.send_messages("s", "t", [payload], to_partition(0)) for payload in payloads]
        await client.drained()
        await asyncio.gather(*sends)
        consumer = Consumer(ConsumerKind.CONSUMER, 1)
        poll = client.poll_messages("s", "t", consumer, partition_id=0, strategy=FIRST)
        stream, polled, missing = await asyncio.gather(client.get_stream("s"), poll, client.get_stream("no"))
        assert stream is not None
        assert missing is None
        assert [one.payload for batch in polled.batches for one in messages(batch)] == payloads
        with pytest.raises(CommandError) as refused:
            await client.create_stream("s")
        assert refused.value.code is Code.STREAM_NAME_ALREADY_EXISTS


async def test_requests_on_a_closed_connection_are_disconnected(tmp_path: Path) -> None:
    async with connected(tmp_path) as client:
        await client.close()
        with pytest.raises(Disconnected):
            await client.ping()


@pytest.mark.parametrize("answer", [b"", bytes(4) + b"\xff" * 96], ids=["leaves", "nonsense"])
async def test_a_server_that_leaves_or_talks_nonsense_ends_the_requests(answer: bytes) -> None:
    async def respond(connection: ServerConnection) -> None:
        await connection.recv()
        if answer:
            await connection.send(answer)

    async with serve(respond, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        with pytest.raises(Disconnected):
            await Client.connect(f"iggy+ws://iggy:{PASSWORD}@127.0.0.1:{port}")
