"""Numbered producers: what was accepted is stored once, in order, whatever breaks meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.app.access.support.world import refusal
from tests.app.client.support.reading import stored
from tests.app.client.support.server import SOON, connected
from whippet.app.client import Producer
from whippet.app.errors import Code
from whippet.storage.producers import Producer as Number


async def test_a_send_with_a_number_is_stored_once(tmp_path: Path) -> None:
    async with connected(tmp_path) as (_, client):
        number = Number(b"web-1", 1, 7)
        first = await client.send_messages("s", "t", [b"a"], number=number)
        again = await client.send_messages("s", "t", [b"a"], number=number)
        assert first is not None
        assert again is not None
        assert (first.base_offset, first.messages_count, first.repeated) == (0, 1, False)
        assert (again.base_offset, again.repeated) == (0, True)
        passed = client.send_messages("s", "t", [b"b"], number=Number(b"web-1", 1, 6))
        assert await refusal(passed) == Code.PRODUCER_SEQUENCE_PASSED
        fenced = client.send_messages("s", "t", [b"b"], number=Number(b"web-1", 0, 8))
        assert await refusal(fenced) == Code.PRODUCER_FENCED
        large = await client.send_messages("s", "t", [b"x" * 500_000] * 3, number=Number(b"web-1", 1, 8))
        assert large is not None
        assert (large.base_offset, large.messages_count) == (1, 3)
        assert await refusal(client.send_messages("s", "no", [b"b"], number=number)) == Code.TOPIC_ID_NOT_FOUND
        assert len(await stored(client)) == 4


async def test_the_later_of_two_producers_with_the_same_id_fences_the_earlier(tmp_path: Path) -> None:
    async with connected(tmp_path) as (_, client):
        earlier = Producer(client, "s", "t", linger_ms=0, producer_id="web-1")
        earlier._next_number = Number(b"web-1", 5, 0)
        await (await earlier.send(b"a"))
        async with Producer(client, "s", "t", linger_ms=0, producer_id="web-1") as later:
            await (await later.send(b"b"))
            assert await refusal(await earlier.send(b"c")) == Code.PRODUCER_FENCED
        async with Producer(client, "s", "t", linger_ms=0, producer_id="web-1") as again:
            await (await again.send(b"d"))
        assert await stored(client) == [b"a", b"b", b"d"]


async def test_everything_is_stored_once_and_in_order_despite_cut_connections_and_a_restart(tmp_path: Path) -> None:
    async with connected(tmp_path) as (server, _), await server.client(SOON) as client:
        payloads = [b"%d" % number for number in range(2000)]
        async with Producer(client, "s", "t", linger_ms=0, batch_messages=10, numbered=True) as producer:
            for number, payload in enumerate(payloads):
                await producer.send(payload)
                if number % 300 == 299:
                    await asyncio.sleep(0)
                    server.cut()
                elif number == 1000:
                    await server.stop()
                    await server.start()
                elif number % 100 == 0:
                    await asyncio.sleep(0)
        assert await stored(client) == payloads


async def test_invalid_options_are_refused(tmp_path: Path) -> None:
    async with connected(tmp_path) as (_, client):
        with pytest.raises(ValueError, match="at most 16"):
            Producer(client, "s", "t", numbered=True, in_flight=17)
        for wrong in ("", "x" * 65):
            with pytest.raises(ValueError, match="1 to 64 bytes"):
                Producer(client, "s", "t", producer_id=wrong)
