"""The producer: what is collected, when it is sent, in which order, and what happens to refused messages."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.app.access.support.world import refusal
from tests.app.client.support.server import SOON, connected, until
from tests.storage.support.world import SlowDisk, reached, settled, texts
from whippet.app.client import Client, Disconnected, FailedSend, Producer, SendsFailed
from whippet.app.client.commands import FIRST, by_key, to_partition
from whippet.app.commands.requests import Consumer, ConsumerKind
from whippet.app.errors import Code, CommandError
from whippet.storage import batch as batches
from whippet.storage.batch import Message

ME = Consumer(ConsumerKind.CONSUMER, "me")


UNKNOWN_TOKEN = (Code.RESOURCE_NOT_FOUND, Code.INVALID_PERSONAL_ACCESS_TOKEN)
"""The classic protocol has one number, the others another one."""


async def stored(client: Client, partition_id: int = 0) -> list[list[bytes]]:
    """The payloads of every batch of a partition, as they were sent."""
    polled = await client.poll_messages("s", "t", ME, partition_id=partition_id, strategy=FIRST, count=100_000)
    return [[message.payload for message in batches.messages(batch)] for batch in polled.batches]


def numbered(count: int) -> list[bytes]:
    return [str(number).encode() for number in range(count)]


async def test_messages_within_the_linger_time_are_sent_together(tmp_path: Path) -> None:
    async with connected(tmp_path) as (_, client), Producer(client, "s", "t", linger_ms=1) as producer:
        first = await producer.send(b"a")
        assert await producer.send(b"b") is first
        assert not first.done
        await first
        assert await stored(client) == [[b"a", b"b"]]


async def test_without_a_linger_time_concurrent_messages_are_still_sent_together(tmp_path: Path) -> None:
    async with connected(tmp_path) as (_, client), Producer(client, "s", "t", linger_ms=0) as producer:
        deliveries = [await producer.send(payload) for payload in numbered(3)]
        await deliveries[0]
        await (await producer.send(b"later"))
        assert await stored(client) == [[b"0", b"1", b"2"], [b"later"]]


async def test_a_full_batch_does_not_wait(tmp_path: Path) -> None:
    async with connected(tmp_path) as (_, client):
        async with Producer(client, "s", "t", linger_ms=3_600_000, batch_messages=3) as by_number:
            deliveries = [await by_number.send(payload) for payload in numbered(7)]
            await deliveries[5]
            assert not deliveries[6].done
        async with Producer(client, "s", "t", linger_ms=3_600_000, batch_bytes=1000) as by_size:
            for size in (300, 300, 300, 5000, 300, 800):
                await by_size.send(bytes(size) or b"")
        sizes = [list(map(len, batch)) for batch in await stored(client)]
        assert sizes == [[1] * 3, [1] * 3, [1], [300, 300], [300], [5000], [300], [800]]


async def test_flush_returns_when_everything_has_its_response(tmp_path: Path) -> None:
    async with connected(tmp_path) as (_, client):
        producer = Producer(client, "s", "t", linger_ms=3_600_000)
        deliveries = [await producer.send(payload) for payload in numbered(10)]
        await producer.flush()
        assert all(delivery.done for delivery in deliveries)
        assert producer.buffered_bytes == 0
        assert await stored(client) == [numbered(10)]
        await producer.flush()
        await producer.close()
        await producer.close()
        assert await refusal(producer.send(b"late")) == Code.INVALID_COMMAND
        assert await refusal(producer.send_all([b"late"])) == Code.INVALID_COMMAND


async def test_the_order_is_kept_for_any_batch_size(tmp_path: Path) -> None:
    async with connected(tmp_path) as (_, client):
        payloads = numbered(5000)
        async with Producer(client, "s", "t", linger_ms=0, batch_messages=70, in_flight=3) as producer:
            for start in range(0, 5000, 500):
                for payload in payloads[start : start + 300]:
                    await producer.send(payload)
                await producer.send_all(payloads[start + 300 : start + 450])
                await producer.send_all(texts(*payloads[start + 450 : start + 500]))
                await asyncio.sleep(0)
        found = await stored(client)
        assert [payload for batch in found for payload in batch] == payloads
        assert len(found) > 50


async def test_messages_may_have_their_own_ids_headers_and_destinations(tmp_path: Path) -> None:
    async with connected(tmp_path, partitions=3) as (_, client):
        async with Producer(client, "s", "t", partitioning=to_partition(2)) as producer:
            await producer.send(Message(b"a", id=9, user_headers=b"h"))
            await producer.send(b"b", to_partition(1))
            await producer.send(b"c")
            for _ in range(5):
                await producer.send(b"d", by_key(b"k"))
        polled = await client.poll_messages("s", "t", ME, partition_id=2, strategy=FIRST, count=1)
        (message,) = batches.messages(polled.batches[0])
        assert (message.payload, message.id, message.user_headers) == (b"a", 9, b"h")
        everything = [await stored(client, partition_id) for partition_id in range(3)]
        assert everything[2][0] == [b"a", b"c"]
        assert everything[1][0] == [b"b"]
        assert sum(batch == [b"d"] * 5 for partition in everything for batch in partition) == 1


async def test_balanced_batches_go_to_the_partitions_in_turn(tmp_path: Path) -> None:
    async with connected(tmp_path, partitions=3) as (_, client):
        async with Producer(client, "s", "t", batch_messages=2) as producer:
            for payload in numbered(12):
                await producer.send(payload)
        for partition_id in range(3):
            assert [len(batch) for batch in await stored(client, partition_id)] == [2, 2]


async def test_a_sender_that_is_faster_than_the_server_has_to_wait(tmp_path: Path) -> None:
    disk = SlowDisk()
    async with connected(tmp_path, files=disk) as (_, client):
        producer = Producer(client, "s", "t", linger_ms=0, batch_messages=1, buffered_bytes_max=3 * 1064)
        disk.stop()
        try:
            for _ in range(3):
                await producer.send(b"x" * 1000)
            waiting = [asyncio.create_task(producer.send(bytes([number]) * 1000)) for number in range(4)]
            await reached(disk.reached)
            await settled()
            assert producer.buffered_bytes == 3 * 1064
            assert not any(task.done() for task in waiting)
            waiting[1].cancel()
        finally:
            disk.go()
        for number in (0, 2, 3):
            await (await waiting[number])
        await producer.close()
        assert producer.buffered_bytes == 0
        assert [batch[0][0] for batch in await stored(client)][3:] == [0, 2, 3]


async def test_a_message_larger_than_the_buffers_is_sent_alone(tmp_path: Path) -> None:
    async with (
        connected(tmp_path) as (_, client),
        Producer(client, "s", "t", linger_ms=3_600_000, buffered_bytes_max=100) as producer,
    ):
        await producer.send(b"small")
        await producer.send(b"x" * 1000)
        await producer.send_all([b"y" * 1000, b"z"])
        await producer.flush()
        assert [len(batch) for batch in await stored(client)] == [1, 1, 2]


async def test_closing_refuses_senders_that_wait_for_room(tmp_path: Path) -> None:
    disk = SlowDisk()
    async with connected(tmp_path, files=disk) as (_, client):
        producer = Producer(client, "s", "t", buffered_bytes_max=1)
        disk.stop()
        try:
            await producer.send(b"taken on")
            waiting = asyncio.create_task(producer.send(b"not taken on"))
            await reached(disk.reached)
            closing = asyncio.create_task(producer.close())
            assert await refusal(waiting) == Code.INVALID_COMMAND
            assert not closing.done()
        finally:
            disk.go()
        await closing
        assert await stored(client) == [[b"taken on"]]


async def test_a_refusal_is_raised_only_where_the_delivery_is_awaited(tmp_path: Path) -> None:
    async with connected(tmp_path) as (_, client), Producer(client, "s", "t") as producer:
        delivery = await producer.send(b"a", to_partition(7))
        for _ in range(2):
            with pytest.raises(CommandError) as raised:
                await delivery
            assert raised.value.code is Code.PARTITION_NOT_FOUND
        await producer.flush()


async def test_flush_raises_refusals_that_nobody_awaits_with_their_messages(tmp_path: Path) -> None:
    async with connected(tmp_path) as (_, client):
        producer = Producer(client, "s", "t")
        await producer.send(b"a", to_partition(7))
        await producer.send(b"b", to_partition(7))
        await producer.send(b"good")
        await producer.send_all([])
        with pytest.raises(SendsFailed) as raised:
            await producer.flush()
        refused = {tuple(failure.messages): failure for failure in raised.value.failures}
        assert refused.keys() == {(b"a", b"b"), ()}
        assert refused[b"a", b"b"].partitioning == to_partition(7)
        assert isinstance(refused[b"a", b"b"].error, CommandError)
        await producer.close()
        assert await stored(client) == [[b"good"]]


async def test_failures_are_passed_to_the_callback(tmp_path: Path) -> None:
    failures: list[FailedSend] = []
    async with connected(tmp_path) as (_, client):
        async with Producer(client, "s", "t", on_failure=failures.append) as producer:
            await producer.send(b"a", to_partition(7))
        assert [failure.messages for failure in failures] == [[b"a"]]


async def test_a_pending_send_fails_with_the_connection_unless_it_is_resent(
    tmp_path: Path,
) -> None:
    disk = SlowDisk()
    async with connected(tmp_path, files=disk) as (server, _), await server.client(SOON) as client:
        producer = Producer(client, "s", "t", linger_ms=0)
        disk.stop()
        try:
            delivery = await producer.send(b"a")
            await reached(disk.reached)
            server.cut()
            assert await refusal(delivery) == Code.DISCONNECTED
        finally:
            disk.go()
        await (await producer.send(b"b"))
        await producer.close()
        assert await stored(client) == [[b"a"], [b"b"]]
    async with connected(tmp_path / "2") as (server, client):
        producer = Producer(client, "s", "t", linger_ms=0, resend=True)
        server.cut()
        await until(lambda: not client.is_connected)
        assert await refusal(await producer.send(b"a")) == Code.DISCONNECTED
        await producer.close()


async def test_with_resend_everything_is_stored_in_order_despite_a_restart(tmp_path: Path) -> None:
    async with connected(tmp_path) as (server, _), await server.client(SOON) as client:
        payloads = numbered(3000)
        async with Producer(client, "s", "t", linger_ms=0, batch_messages=10, resend=True) as producer:
            for number, payload in enumerate(payloads):
                await producer.send(payload)
                if number in (500, 1500):
                    await asyncio.sleep(0)
                    server.cut()
                elif number == 1000:
                    await server.stop()
                    for late in (b"late 1", b"late 2"):
                        await producer.send(late, to_partition(0))
                    await server.start()
                elif number % 100 == 0:
                    await asyncio.sleep(0)
        found = [batch for batch in await stored(client) if not batch[0].startswith(b"late")]
        firsts = [int(batch[0]) for batch in found]
        assert {int(payload) for batch in found for payload in batch} == set(range(3000))
        # What was stored twice came as the same batches again, from the first one without a response on.
        seen: list[int] = []
        for first in firsts:
            if seen and first <= seen[-1]:
                assert len(seen) - seen.index(first) <= 4
                seen = seen[: seen.index(first)]
            seen.append(first)
        assert seen == sorted(set(firsts))


async def test_everything_that_waits_fails_if_the_server_does_not_return(tmp_path: Path) -> None:
    async with connected(tmp_path) as (server, _):
        client = await server.client(SOON)
        producer = Producer(client, "s", "t", linger_ms=0, resend=True)
        await server.stop()
        await until(lambda: not client.is_connected)
        delivery = await producer.send(b"a")
        await settled()
        assert not delivery.done
        await client.close()
        with pytest.raises(Disconnected):
            await delivery
        await server.start()


async def test_a_login_refused_after_a_reconnection_is_reported(tmp_path: Path) -> None:
    async with connected(tmp_path) as (server, root):
        token = (await root.create_personal_access_token("build")).token
        address = server.at(token)
        async with await Client.connect(address, reconnect=SOON) as client:
            producer = Producer(client, "s", "t", linger_ms=0, resend=True)
            await (await producer.send(b"a"))
            await root.delete_personal_access_token("build")
            server.cut()
            await until(lambda: not client.is_connected)
            assert await refusal(await producer.send(b"b")) in UNKNOWN_TOKEN
            assert await refusal(client.ping()) in UNKNOWN_TOKEN
            await producer.close()
        await root.reconnect()
        assert await stored(root) == [[b"a"]]


async def test_invalid_limits_are_refused(tmp_path: Path) -> None:
    async with connected(tmp_path) as (_, client):
        for limits in ({"batch_messages": 0}, {"buffered_bytes_max": 0}, {"in_flight": 0}, {"linger_ms": -1}):
            with pytest.raises(ValueError):
                Producer(client, "s", "t", **limits)  # type: ignore[arg-type]
