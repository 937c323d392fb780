"""Sends without `execute`: they do the same as with it, and what cannot be sent in this way is left alone."""

from __future__ import annotations

import asyncio
import errno
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from tests.app.access.support.world import everywhere
from tests.app.commands.support.reading import FIRST, Reading, payloads, reading
from tests.storage.support.world import texts
from whippet.app.commands import direct_sends, requests
from whippet.app.commands.requests import Consumer, ConsumerKind, Partitioning, PartitioningKind
from whippet.app.errors import Code, CommandError
from whippet.app.model.identity import UserStatus
from whippet.app.model.sessions import Session
from whippet.storage.batch import Limits, check
from whippet.storage.errors import StorageError, TopicFull
from whippet.storage.files import Buffer, Files
from whippet.storage.options import TopicOptions
from whippet.storage.partition import Partition

TURNS = Partitioning(PartitioningKind.BALANCED)


class FullDisk(Files):
    is_full = False

    def write(self, handle: int, buffers: Sequence[Buffer], position: int) -> int:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(handle, buffers, position)


def to(partition: int) -> Partitioning:
    return Partitioning(PartitioningKind.PARTITION_ID, partition)


def begin(
    made: Reading,
    text: str = "x",
    where: Partitioning = TURNS,
    *,
    session: Session | None = None,
    topic: str = "t",
    stream: str = "s",
    on_done: Callable[[CommandError | None], None] | None = None,
) -> bool | None:
    """What is not expected to be sent needs no `on_done`."""

    def unexpected(_: CommandError | None) -> None:
        raise AssertionError("it was sent")

    batch = texts(text)
    checked = check(batch, Limits.of(made.gateway.store.options))
    sender = session or made.root.session
    return direct_sends.begin(made.gateway, sender, stream, topic, where, batch, checked, on_done or unexpected)


async def sent(made: Reading, text: str = "x", where: Partitioning = TURNS, session: Session | None = None) -> bool:
    """Returns True when it is written."""
    told = asyncio.Queue[CommandError | None]()
    is_done = begin(made, text, where, session=session, on_done=told.put_nowait)
    return is_done or (is_done is False and await told.get() is None)


async def contents(made: Reading) -> list[list[str]]:
    consumer = Consumer(ConsumerKind.CONSUMER, "reads all")
    return [
        payloads(await made.root.poll(number, consumer=consumer, strategy=FIRST))
        for number in range(len(made.topic.partitions))
    ]


async def test_sends_take_turns_follow_keys_and_numbers_and_are_counted(tmp_path: Path) -> None:
    async with reading(tmp_path) as made:
        measured = made.gateway.measurements
        assert await sent(made, "a")
        assert await sent(made, "b")
        assert await sent(made, "c", to(2))
        key = Partitioning(PartitioningKind.MESSAGES_KEY, key=b"some key")
        assert await sent(made, "d", key)
        before = await contents(made)
        await made.root.execute(requests.SendMessages("s", "t", key, (texts("e"),)))
        await made.root.execute(requests.SendMessages("s", "t", TURNS, (texts("f"),)))
        after = await contents(made)
        assert sorted(itertools.chain(*before)) == ["a", "b", "c", "d"]
        assert (before[0][0], before[1][0], before[2][0]) == ("a", "b", "c")
        (keyed,) = [number for number in range(3) if "d" in before[number]]
        assert "e" in after[keyed]
        assert after[2][-1] == "f"
        assert (measured.messages_sent, measured.bytes_sent) == (6, 6 * len(texts("a")))
        assert sum(measured.commands[requests.SendMessages][made.root.session.transport].counts) == 6


async def test_what_would_be_refused_is_left_alone(tmp_path: Path) -> None:
    async with reading(tmp_path) as made:
        root = made.root.session
        stranger = made.world.person()
        await made.world.user("alice", permissions=everywhere(read_streams=True))
        alice = await made.world.logged_in("alice")
        assert begin(made, session=stranger.session) is None
        assert begin(made, session=alice.session) is None
        assert begin(made, topic="no such topic") is None
        assert begin(made, stream="no such stream") is None
        assert begin(made, where=to(3)) is None
        root.stale = True
        assert begin(made) is None
        root.stale = False
        assert made.topic.turn == 0
        assert not made.gateway.measurements.refusals
        assert await contents(made) == [[], [], []]


async def test_a_sender_who_loses_the_right_or_is_deactivated_sends_no_more(tmp_path: Path) -> None:
    async with reading(tmp_path) as made:
        await made.world.user("alice", permissions=everywhere(send_messages=True))
        alice = (await made.world.logged_in("alice")).session
        assert await sent(made, session=alice)
        await made.root.execute(requests.UpdatePermissions("alice", everywhere(poll_messages=True)))
        assert begin(made, session=alice) is None
        await made.root.execute(requests.UpdatePermissions("alice", everywhere(send_messages=True)))
        assert await sent(made, session=alice)
        await made.root.execute(requests.UpdateUser("alice", None, UserStatus.INACTIVE))
        assert begin(made, session=alice) is None


async def test_topics_that_deduplicate_are_full_or_have_no_partitions_are_left_to_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with reading(tmp_path) as made:
        await made.root.execute(requests.CreateTopic("s", "empty", 0))
        assert begin(made, topic="empty") is None
        document = made.topic.document
        made.topic.document = msgspec.structs.replace(document, options=TopicOptions(message_deduplication=True))
        assert begin(made) is None
        made.topic.document = document

        def full(*_: object) -> None:
            raise TopicFull("s", "t", 2, 1, 1)

        monkeypatch.setattr(Partition, "_place", full)
        assert begin(made) is None
        assert made.topic.turn == 0


async def test_the_sender_learns_when_the_batch_is_written_or_why_it_is_not(tmp_path: Path) -> None:
    disk = FullDisk()
    async with reading(tmp_path, files=disk, loop_append_bytes_max=0) as made:
        told = list[CommandError | None]()
        assert begin(made, "a", to(0), on_done=told.append) is begin(made, "b", to(0), on_done=told.append) is False
        assert told == []
        await made.topic.served[0].flush()
        assert told == [None, None]
        disk.is_full = True
        assert begin(made, "c", to(0), on_done=told.append) is False
        with pytest.raises(StorageError):
            await made.topic.served[0].flush()
        (refused,) = told[2:]
        assert refused is not None
        assert refused.code is Code.CANNOT_SAVE_MESSAGES_TO_SEGMENT
        assert "No space left on device" in str(refused)
        measured = made.gateway.measurements
        assert measured.messages_sent == 2
        assert measured.refusals == {("send_messages", "cannot_save_messages_to_segment"): 1}
        assert sum(measured.commands[requests.SendMessages][made.root.session.transport].counts) == 3
        disk.is_full = False
        assert (await contents(made))[0] == ["a", "b"]
