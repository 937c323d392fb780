"""One topic and three protocols: with headers of 56 bytes (0.6), of 64 bytes (0.7, 0.8), and as batches (0.9).

Whatever one of them sends, all three read the same messages with the same ids, offsets, times, payloads and headers.
"""

from __future__ import annotations

import random
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.transports.support.modern import ME, Modern, resealed, root, with_topic
from tests.transports.support.raw import OK, Raw, asked, frame, served
from tests.transports.wire.classic.support.plainly import TO_PARTITION_10, Classic, parse, send_body
from whippet.app.commands import requests
from whippet.app.commands.requests import Partitioning, PartitioningKind
from whippet.app.errors import Code
from whippet.storage import batch as batches

SEND = 101
SHORT, LONG = 56, 64
TO_PARTITION_0 = TO_PARTITION_10[:-4] + bytes(4)
LATEST = 2**64 - 2**32
FOO_BAR = bytes.fromhex("02 03000000 666f6f 02 03000000 626172")
NUMBER_KEY = bytes.fromhex("0b 04000000 01000000 09 01000000 05")
GARBAGE = [b"\0", b"\xff" * 7, b"\2\xff\xff\xff\xff", FOO_BAR[:-1], FOO_BAR + b"\2", NUMBER_KEY, FOO_BAR + NUMBER_KEY]


class Plain(NamedTuple):
    """The parts of a message that are the same in all protocols."""

    id: int
    origin: int
    payload: bytes
    headers: bytes = b""


def short(headers: bytes) -> bytes:
    """Returns user headers that a 0.6 client can read: their only key is a text."""
    return headers[1:] if headers == FOO_BAR else headers


class Party:
    """A client of each protocol on the same topic."""

    def __init__(self, old: Raw, middle: Raw, new: Modern) -> None:
        self.classic = {SHORT: old, LONG: middle}
        self.new = new

    async def send(self, way: int, messages: Sequence[Plain]) -> None:
        if way in self.classic:
            sent = [Classic(m.id, 0, 0, m.origin, m.payload, m.headers) for m in messages]
            if way == SHORT:
                sent = [one._replace(user_headers=short(one.user_headers)) for one in sent]
            await self.classic[way].send(frame(SEND, send_body(sent, way, TO_PARTITION_0)))
            assert await self.classic[way].answer() == OK
            return
        made = batches.build([batches.Message(m.payload, m.id, m.headers, m.origin) for m in messages], 0, bytes)
        to = Partitioning(PartitioningKind.PARTITION_ID, 0)
        assert not await self.new.refused(requests.SendMessages(0, 0, to, (made,)))

    async def read(self, way: int, strategy: requests.Strategy, count: int) -> list[Classic]:
        """User headers as the other clients have them."""
        if way not in self.classic:
            found = await self.new.polled(strategy=strategy, count=count)
            return [Classic(m.id, m.offset, m.timestamp, m.origin_timestamp, m.payload, m.user_headers) for m in found]
        link = self.classic[way]
        status, payload = await link.ask(requests.PollMessages(ME, 0, 0, 0, strategy, count, False))
        assert status == 0
        messages = parse(payload[16:], way)
        assert struct.unpack_from("<I", payload, 12)[0] == len(messages)
        if way == SHORT:
            with_kind = {short(FOO_BAR): FOO_BAR}
            messages = [
                one._replace(user_headers=with_kind.get(one.user_headers, one.user_headers)) for one in messages
            ]
        return messages

    async def all_read_the_same(self, strategy: requests.Strategy, count: int = 10_000) -> list[Classic]:
        old, middle, new = [await self.read(way, strategy, count) for way in (SHORT, LONG, 0)]
        assert old == middle == new
        return new


FIRST = requests.Strategy(requests.StrategyKind.FIRST)
WAYS = (SHORT, LONG, 0)


def offset(value: int) -> requests.Strategy:
    return requests.Strategy(requests.StrategyKind.OFFSET, value)


@asynccontextmanager
async def party(path: Path) -> AsyncIterator[Party]:
    async with served(path) as world:
        new = await with_topic(world)
        yield Party(await world.root(), await world.root(), new)


def plain(rng: random.Random, count: int, *, uniform: bool = False, headers: bool = True) -> list[Plain]:
    return [
        Plain(
            rng.getrandbits(128) or 1,
            10**15 + rng.getrandbits(31),
            rng.randbytes(50 if uniform else rng.randrange(1, 200)),
            FOO_BAR if headers and (uniform or rng.random() < 0.5) else b"",
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("headers", [False, True])
@pytest.mark.parametrize("uniform", [False, True])
@pytest.mark.parametrize("count", [1, 5, 40])
async def test_messages_of_any_client_are_read_unchanged_by_all(
    tmp_path: Path, count: int, uniform: bool, headers: bool
) -> None:
    rng = random.Random(count)

    async with party(tmp_path) as friends:
        sent = []
        for way in WAYS * 2:
            messages = plain(rng, count, uniform=uniform, headers=headers)
            await friends.send(way, messages)
            sent += messages
        read = await friends.all_read_the_same(FIRST)
        assert [Plain(m.id, m.origin, m.payload, m.user_headers) for m in read] == sent
        assert [m.offset for m in read] == list(range(len(sent)))
        # One time for each send, never decreasing.
        times = [m.timestamp for m in read]
        assert times == sorted(times)
        assert all(len(set(times[at : at + count])) == 1 for at in range(0, len(sent), count))


@pytest.mark.parametrize("sender", WAYS)
async def test_a_slice_from_the_middle_of_a_batch_is_the_same_for_all(tmp_path: Path, sender: int) -> None:
    rng = random.Random(sender)

    async with party(tmp_path) as friends:
        # Each client sends once, so that the size of its message headers is known.
        for way in WAYS:
            await friends.send(way, plain(rng, 3))
        for uniform in (False, True):
            await friends.send(sender, plain(rng, 60, uniform=uniform))
        whole = await friends.all_read_the_same(FIRST)
        assert len(whole) == 9 + 120
        for start, count in ((1, 1), (2, 3), (9, 60), (10, 1), (10, 58), (30, 60), (68, 2), (128, 5), (0, 129)):
            assert await friends.all_read_the_same(offset(start), count) == whole[start : start + count]
        last = requests.Strategy(requests.StrategyKind.LAST)
        assert await friends.all_read_the_same(last, 70) == whole[-70:]
        since = requests.Strategy(requests.StrategyKind.TIMESTAMP, whole[70].timestamp)
        found = await friends.all_read_the_same(since)
        assert found == [message for message in whole if message.timestamp >= whole[70].timestamp]


@pytest.mark.parametrize("count", [1, 40])
async def test_undecodable_user_headers_reach_all_clients_unchanged(tmp_path: Path, count: int) -> None:
    async with party(tmp_path) as friends:
        rng = random.Random(1)
        for way in WAYS:
            await friends.send(way, plain(rng, 1))
        for block in GARBAGE:
            await friends.send(0, [Plain(7, 10**15, b"x" * (1 + number), block) for number in range(count)])
        read = await friends.all_read_the_same(offset(3))
        assert [m.user_headers for m in read] == [block for block in GARBAGE for _ in range(count)]


@pytest.mark.parametrize("count", [1, 3, 40])
async def test_the_latest_times_are_the_same_for_all(tmp_path: Path, count: int) -> None:
    async with party(tmp_path) as friends:
        rng = random.Random(1)
        for way in WAYS:
            await friends.send(way, plain(rng, 1))
        made = batches.build([batches.Message(b"x", 1, b"", LATEST)] * count, 0, bytes)
        for at in range(256, len(made), 49):
            struct.pack_into("<I", made, at + 28, 2**32 - 1)
        to = Partitioning(PartitioningKind.PARTITION_ID, 0)
        assert not await friends.new.refused(requests.SendMessages(0, 0, to, (resealed(made),)))
        read = await friends.all_read_the_same(offset(3))
        assert [m.origin for m in read] == [2**64 - 1] * count


async def test_a_message_without_an_id_has_none_for_all(tmp_path: Path) -> None:
    async with party(tmp_path) as friends:
        rng = random.Random(1)
        for way in WAYS:
            await friends.send(way, plain(rng, 1))
        made = batches.build([batches.Message(b"x", 1, b"", 1)], 0, bytes)
        made[256 + 8 : 256 + 24] = bytes(16)
        to = Partitioning(PartitioningKind.PARTITION_ID, 0)
        assert not await friends.new.refused(requests.SendMessages(0, 0, to, (resealed(made),)))
        # In the classic protocol the server sets one.
        for way in (SHORT, LONG):
            await friends.send(way, [Plain(0, 10**15, b"y")])
        nothing, first, second = [m.id for m in await friends.all_read_the_same(offset(3))]
        assert nothing == 0
        assert 0 not in (first, second)
        assert first != second


async def test_each_protocol_reports_the_sizes_that_its_servers_count(tmp_path: Path) -> None:
    """117 messages of 57 bytes: with headers of 64 bytes before 0.9, and as they are in the log since."""
    async with served(tmp_path) as world:
        new, old = await with_topic(world), await world.root()
        made = batches.build([batches.Message(bytes(57), number + 1) for number in range(117)], 0, bytes)
        to = Partitioning(PartitioningKind.PARTITION_ID, 0)
        assert not await new.refused(requests.SendMessages(0, 0, to, (made,)))
        whole, topic = await new.get(requests.GetStream("s")), await new.get(requests.GetTopic("s", "t"))
        (listed,) = await new.get(requests.GetStreams())
        in_log = 256 + (48 + 57) * 117
        sizes = {listed.size_bytes, whole.info.size_bytes, whole.topics[0].size_bytes, topic.info.size_bytes}
        assert sizes | {topic.partitions[0].size_bytes} == {in_log}
        assert (await new.get(requests.GetStats())).messages_size_bytes == in_log
        for request in (
            requests.GetStream("s"),
            requests.GetTopic("s", "t"),
            requests.GetStreams(),
            requests.GetStats(),
        ):
            status, payload = await old.ask(request)
            assert status == 0
            assert struct.pack("<Q", (64 + 57) * 117) in payload
            assert struct.pack("<Q", in_log) not in payload


async def test_stored_offsets_and_partitioning_are_shared(tmp_path: Path) -> None:
    """Keys select the same partition in both protocols; one resumes from the offset that the other has committed."""

    async with served(tmp_path) as world:
        new = await with_topic(world, 3)
        old = await world.root()
        rng = random.Random(4)
        for number in range(20):
            key = rng.randbytes(rng.randrange(1, 256))
            to = Partitioning(PartitioningKind.MESSAGES_KEY, key=key)
            made = batches.build([batches.Message(b"new %d" % number, 1)], 1, bytes)
            (confirmation,) = await new.get(requests.SendMessages(0, 0, to, (bytearray(made),)))
            assert (await old.ask(requests.SendMessages(0, 0, to, (bytearray(made),)))) == OK
            polled = await new.polled(confirmation.partition_id)
            assert [m.payload for m in polled[-2:]] == [b"new %d" % number] * 2
        assert not await new.refused(requests.StoreConsumerOffset(ME, 0, 0, 1, 2))
        status, payload = await old.ask(requests.GetConsumerOffset(ME, 0, 0, 1))
        assert (status, struct.unpack("<IQQ", payload)[2]) == (0, 2)
        assert await old.ask(requests.StoreConsumerOffset(ME, 0, 0, 1, 0)) == OK
        assert (await new.get(requests.GetConsumerOffset(ME, 0, 0, 1))).stored_offset == 0
        missing = requests.GetConsumerOffset(ME, 0, 0, 7)
        assert await old.ask(missing) == OK
        assert await new.refused(missing) == Code.PARTITION_NOT_FOUND
        group = ("s", "t", "g")
        assert (await old.ask(requests.CreateConsumerGroup(*group)))[0] == 0
        assert await old.ask(requests.JoinConsumerGroup(*group)) == OK
        assert not await new.refused(requests.JoinConsumerGroup(*group))
        other = await root(world, b"o" * 16)
        details = await other.get(requests.GetConsumerGroup(*group))
        assert [len(member.partitions) for member in details.members] == [2, 1]
        assert asked(requests.JoinConsumerGroup(*group))[8:] == new.asked(requests.JoinConsumerGroup(*group))[256:]
