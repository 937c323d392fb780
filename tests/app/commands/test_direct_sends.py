"""Sends without `execute`: they do the same as with it, and what cannot be sent in this way is left alone."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from tests.app.access.support.world import everywhere
from tests.app.commands.support.reading import FIRST, Reading, payloads, reading
from tests.storage.support.world import texts
from whippet.app.commands import direct_sends, requests
from whippet.app.commands.direct_sends import Sending
from whippet.app.commands.requests import Consumer, ConsumerKind, Partitioning, PartitioningKind
from whippet.app.errors import Code, CommandError
from whippet.app.model.identity import UserStatus
from whippet.app.model.options import from_text
from whippet.app.model.sessions import Session
from whippet.storage.batch import Limits, check
from whippet.storage.errors import TopicFull
from whippet.storage.files import Buffer, Files
from whippet.storage.options import TopicOptions
from whippet.storage.placing import Placing
from whippet.storage.single_batch import Single

SINGLE = Single(bytes(16), 5, 0, 1, b"x")
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
    content: Single | None = None,
) -> Sending | None:
    batch = texts(text)
    checked = check(batch, Limits.of(made.gateway.store.options))
    return direct_sends.begin(
        made.gateway, session or made.root.session, stream, topic, where, content or (batch, checked)
    )


async def sent(
    made: Reading, text: str = "x", where: Partitioning = TURNS, session: Session | None = None
) -> tuple[int, int]:
    """Returns the partition and the offset, when it is written."""
    sending = begin(made, text, where, session=session)
    assert sending is not None
    found = await sending.result()
    assert (found.stream_id, found.topic_id, found.messages_count) == (0, 0, 1)
    assert found.durability is made.topic.served[0].durability
    return found.partition_id, found.base_offset


async def contents(made: Reading) -> list[list[str]]:
    consumer = Consumer(ConsumerKind.CONSUMER, "reads all")
    return [
        payloads(await made.root.poll(number, consumer=consumer, strategy=FIRST))
        for number in range(len(made.topic.partitions))
    ]


async def test_sends_take_turns_follow_keys_and_numbers_and_are_counted(tmp_path: Path) -> None:
    async with reading(tmp_path) as made:
        measured = made.gateway.measurements
        assert [await sent(made, "a"), await sent(made, "b"), await sent(made, "c", to(2))] == [(0, 0), (1, 0), (2, 0)]
        key = Partitioning(PartitioningKind.MESSAGES_KEY, key=b"some key")
        keyed, offset = await sent(made, "d", key)
        assert offset == 1
        before = await contents(made)
        await made.root.execute(requests.SendMessages("s", "t", key, (texts("e"),)))
        await made.root.execute(requests.SendMessages("s", "t", TURNS, (texts("f"),)))
        after = await contents(made)
        assert sorted(itertools.chain(*before)) == ["a", "b", "c", "d"]
        assert (before[0][0], before[1][0], before[2][0]) == ("a", "b", "c")
        assert "d" in before[keyed]
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
        await sent(made, session=alice)
        await made.root.execute(requests.UpdatePermissions("alice", everywhere(poll_messages=True)))
        assert begin(made, session=alice) is None
        await made.root.execute(requests.UpdatePermissions("alice", everywhere(send_messages=True)))
        await sent(made, session=alice)
        await made.root.execute(requests.UpdateUser("alice", None, UserStatus.INACTIVE))
        assert begin(made, session=alice) is None


ENDINGS = {
    "rights": requests.UpdatePermissions("alice", everywhere(poll_messages=True)),
    "status": requests.UpdateUser("alice", None, UserStatus.INACTIVE),
    "password": requests.ChangePassword("alice", "alicealice", "another secret"),
    "sessions": requests.EndSessions("alice"),
    "user": requests.DeleteUser("alice"),
    "name of the stream": requests.UpdateStream("s", "other"),
    "name of the topic": requests.UpdateTopic("s", "t", "other"),
    "stream": requests.DeleteStream("s"),
    "topic": requests.DeleteTopic("s", "t"),
    "partitions": requests.DeletePartitions("s", "t", 3),
    "deduplication": requests.UpdateTopic("s", "t", "t", options=(from_text("message_deduplication", "true"),)),
}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("single", [True, False])
async def test_what_a_sender_has_found_is_not_used_after_a_change(tmp_path: Path, ending: str, single: bool) -> None:
    async with reading(tmp_path) as made:
        await made.world.user("alice", permissions=everywhere(send_messages=True))
        alice = (await made.world.logged_in("alice")).session
        content = SINGLE if single else None
        assert begin(made, session=alice, content=content) is not None
        route = alice.route
        assert route is not None
        assert begin(made, session=alice, content=content) is not None
        assert alice.route is route
        await made.root.execute(ENDINGS[ending])
        assert begin(made, session=alice, content=content) is None


async def test_another_login_destination_or_topic_of_the_same_name_is_another_route(tmp_path: Path) -> None:
    async with reading(tmp_path) as made:
        await made.world.user("alice", permissions=everywhere(read_streams=True))
        session = made.root.session
        await sent(made, "to the first")
        assert begin(made, topic="no such topic") is None
        await sent(made, "to the first again")
        await made.root.execute(requests.DeleteTopic("s", "t"))
        await made.root.execute(requests.CreateTopic("s", "t", 1))
        await sent(made, "to the second")
        assert await contents(made) == [["to the second"]]
        session.login = made.gateway.users.get("alice").login
        assert begin(made) is None
        session.login = None
        assert begin(made) is None


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

        monkeypatch.setattr(Placing, "of_batch", full)
        assert begin(made) is None
        assert made.topic.turn == 0


async def test_the_sender_learns_when_the_batch_is_written_or_why_it_is_not(tmp_path: Path) -> None:
    disk = FullDisk()
    async with reading(tmp_path, files=disk, loop_append_bytes_max=0) as made:
        first, second = begin(made, "a", to(0)), begin(made, "b", to(0))
        assert first is not None
        assert second is not None
        told = list[CommandError | None]()
        second.on_done = told.append
        assert [first.is_done, second.is_done, told] == [False, False, []]
        await made.topic.served[0].flush()
        assert [first.is_done, second.is_done, told] == [True, True, [None]]
        assert (await second.result()).base_offset == 1
        disk.is_full = True
        third = begin(made, "c", to(0))
        assert third is not None
        with pytest.raises(CommandError) as info:
            await third.result()
        refused = info.value
        assert third.refused is refused
        assert refused.code is Code.CANNOT_SAVE_MESSAGES_TO_SEGMENT
        assert "No space left on device" in str(refused)
        measured = made.gateway.measurements
        assert measured.messages_sent == 2
        assert measured.refusals == {("send_messages", "cannot_save_messages_to_segment"): 1}
        assert sum(measured.commands[requests.SendMessages][made.root.session.transport].counts) == 3
        disk.is_full = False
        assert (await contents(made))[0] == ["a", "b"]
