"""Stored offsets of consumers and groups, and which partition a poll reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import xxhash

from tests.app.access.support.world import refusal
from tests.app.commands.support.reading import FIRST, GROUP, Reader, Reading, payloads, reading
from whippet.app.commands import groups, requests, responses
from whippet.app.commands.requests import Consumer, ConsumerKind, Strategy, StrategyKind
from whippet.app.errors import Code
from whippet.app.model.sessions import Registration
from whippet.storage.offsets import Kind
from whippet.storage.partition import Partition

ONE = Consumer(ConsumerKind.CONSUMER, 1)
BILLING = Consumer(ConsumerKind.CONSUMER, "billing")
NOBODY = Consumer(ConsumerKind.GROUP, "nobody")

# ------------------------------------------------------------------------------------------------------------ consumers


async def test_an_offset_is_stored_returned_moved_and_deleted(tmp_path: Path) -> None:
    async with reading(tmp_path) as made:
        await made.fill(20)
        root = made.root
        assert await root.stored(0, ONE) is None
        await root.store(10, 0, ONE)
        answer = await root.execute(requests.GetConsumerOffset(ONE, "s", "t", 0))
        assert answer == responses.ConsumerOffset(partition_id=0, current_offset=19, stored_offset=10)
        assert payloads(await root.poll(0, consumer=ONE, auto_commit=True))[0] == "0/11"
        assert await root.stored(0, ONE) == 19
        await root.store(3, 0, ONE)
        assert await root.stored(0, ONE) == 3
        await root.forget(0, ONE)
        assert await root.stored(0, ONE) is None
        assert await refusal(root.forget(0, ONE)) == Code.CONSUMER_OFFSET_NOT_FOUND


async def test_a_named_consumer_has_the_hash_of_its_name_as_number(tmp_path: Path) -> None:
    async with reading(tmp_path) as made:
        await made.fill()
        await made.root.store(4, 1, BILLING)
        number = xxhash.xxh32_intdigest(b"billing")
        assert await made.root.stored(1, Consumer(ConsumerKind.CONSUMER, number)) == 4


async def test_without_a_partition_a_consumer_uses_the_first_one(tmp_path: Path) -> None:
    async with reading(tmp_path) as made:
        await made.fill()
        await made.root.store(4, None, ONE)
        assert await made.root.stored(0, ONE) == await made.root.stored(None, ONE) == 4
        assert payloads(await made.root.poll(consumer=ONE))[0] == "0/5"
        await made.root.forget(None, ONE)
        assert await made.root.stored(0, ONE) is None


async def test_consumers_and_groups_with_the_same_number_are_separate(tmp_path: Path) -> None:
    async with reading(tmp_path) as made:
        await made.fill()
        await made.root.join()
        await made.root.store(4, 0)
        await made.root.store(7, 0, Consumer(ConsumerKind.CONSUMER, 0))
        assert await made.root.stored(0) == 4
        await made.root.forget(0, Consumer(ConsumerKind.CONSUMER, 0))
        assert await made.root.stored(0) == 4


async def test_offsets_survive_a_restart(tmp_path: Path) -> None:
    async with reading(tmp_path) as made:
        await made.fill()
        await made.root.store(4, 2, BILLING)
    async with reading(tmp_path) as made:
        assert await made.root.stored(2, BILLING) == 4


@pytest.mark.parametrize(
    ("offset", "partition", "consumer", "code"),
    [
        (10, 0, ONE, Code.INVALID_OFFSET),
        (2**64 - 1, 0, ONE, Code.INVALID_OFFSET),
        (0, 1, ONE, Code.INVALID_OFFSET),
        (0, 3, ONE, Code.PARTITION_NOT_FOUND),
        (0, 2**32 - 1, ONE, Code.PARTITION_NOT_FOUND),
        (10, 0, GROUP, Code.INVALID_OFFSET),
        (0, 1, GROUP, Code.INVALID_OFFSET),
        (0, 3, GROUP, Code.PARTITION_NOT_FOUND),
        (0, 0, NOBODY, Code.CONSUMER_GROUP_ID_NOT_FOUND),
    ],
)
async def test_an_offset_beyond_the_partition_cannot_be_stored(
    tmp_path: Path, offset: int, partition: int, consumer: Consumer, code: Code
) -> None:
    """Partition 0 has ten messages, 1 and 2 have none, and there is no 3."""

    async with reading(tmp_path) as made:
        await made.send(0, *"0123456789")
        await made.root.join()
        assert await refusal(made.root.store(offset, partition, consumer)) == code
        if code is not Code.PARTITION_NOT_FOUND:
            assert await made.root.stored(partition, consumer) is None


@pytest.mark.parametrize(
    "question",
    [
        requests.GetConsumerOffset(ONE, "s", "t", 0),
        requests.GetConsumerOffset(ONE, "s", "x", 0),
        requests.GetConsumerOffset(ONE, "x", "t", 0),
        requests.GetConsumerOffset(GROUP, "s", "t", None),
        requests.GetConsumerOffset(NOBODY, "s", "t", 0),
    ],
)
async def test_a_query_for_a_missing_offset_gets_an_empty_response(
    tmp_path: Path, question: requests.GetConsumerOffset
) -> None:
    async with reading(tmp_path) as made:
        assert await made.root.execute(question) is None


@pytest.mark.parametrize("consumer", [ONE, GROUP])
async def test_a_query_for_an_offset_in_a_missing_partition_is_refused(tmp_path: Path, consumer: Consumer) -> None:
    async with reading(tmp_path) as made:
        assert (
            await refusal(made.root.execute(requests.GetConsumerOffset(consumer, "s", "t", 3)))
            == Code.PARTITION_NOT_FOUND
        )


@pytest.mark.parametrize(("partition", "code"), [(0, Code.CONSUMER_OFFSET_NOT_FOUND), (3, Code.PARTITION_NOT_FOUND)])
@pytest.mark.parametrize("consumer", [ONE, GROUP])
async def test_only_stored_offsets_can_be_deleted(
    tmp_path: Path, consumer: Consumer, partition: int, code: Code
) -> None:
    async with reading(tmp_path) as made:
        await made.root.join()
        assert await refusal(made.root.forget(partition, consumer)) == code


async def test_the_current_offset_of_an_empty_partition_is_0(tmp_path: Path) -> None:
    async with reading(tmp_path) as made:
        polled = await made.root.poll(1, consumer=ONE)
        assert (polled.partition_id, polled.current_offset, polled.messages_count) == (1, 0, 0)


async def test_a_consumer_cannot_poll_a_missing_partition(tmp_path: Path) -> None:
    async with reading(tmp_path) as made:
        assert await refusal(made.root.poll(3, consumer=ONE)) == Code.PARTITION_NOT_FOUND


# ---------------------------------------------------------------------------------------------------------- auto-commit


async def test_an_auto_commit_stores_the_last_returned_offset(tmp_path: Path) -> None:
    async with reading(tmp_path) as made:
        await made.fill()
        for expected in (3, 7, 9, 9):
            await made.root.poll(0, consumer=ONE, count=4, auto_commit=True)
            assert await made.root.stored(0, ONE) == expected
        assert payloads(await made.root.poll(0, consumer=ONE)) == []


async def test_without_auto_commit_next_returns_the_same_messages_again(tmp_path: Path) -> None:
    async with reading(tmp_path) as made:
        await made.fill()
        for _ in range(2):
            assert payloads(await made.root.poll(0, consumer=ONE, count=2)) == ["0/0", "0/1"]


async def test_an_auto_commit_never_moves_back_but_a_commit_may(tmp_path: Path) -> None:
    async with reading(tmp_path) as made:
        await made.fill()
        await made.root.join()
        for consumer in (ONE, GROUP):
            await made.root.store(7, 0, consumer)
            again = await made.root.poll(0, consumer=consumer, strategy=FIRST, count=2, auto_commit=True)
            assert payloads(again) == ["0/0", "0/1"]
            assert await made.root.stored(0, consumer) == 7
            await made.root.store(2, 0, consumer)
            assert payloads(await made.root.poll(0, consumer=consumer, count=1)) == ["0/3"]


async def test_nothing_is_stored_for_an_empty_poll(tmp_path: Path) -> None:
    async with reading(tmp_path) as made:
        await made.fill()
        beyond = Strategy(StrategyKind.OFFSET, 10)
        assert payloads(await made.root.poll(0, consumer=ONE, strategy=beyond, auto_commit=True)) == []
        assert await made.root.stored(0, ONE) is None


# --------------------------------------------------------------------------------------------------------------- groups


async def test_a_member_polls_its_partitions_in_turn_and_commits_the_last_one(tmp_path: Path) -> None:
    async with reading(tmp_path) as made:
        await made.fill()
        await made.root.join()
        for partition in (0, 1, 2, 0):
            polled = await made.root.poll(count=2)
            assert polled.partition_id == partition
            assert polled.current_offset == 9
            last = int(payloads(polled)[-1][2:])
            await made.root.store(last)
            assert await made.root.stored(partition) == last
        await made.root.forget()
        assert [await made.root.stored(partition) for partition in range(3)] == [None, 1, 1]


async def test_a_late_commit_does_not_set_the_group_back(tmp_path: Path) -> None:
    async with reading(tmp_path, partitions=2) as made:
        await made.fill(20)
        first, second, third = await made.readers(3)
        for one in (first, second, third):
            await one.join()
        await second.poll(1, count=5)
        await first.leave()
        assert await made.owned() == [[0], [1]]
        await third.poll(1, count=10)
        await third.store(9, 1)
        await third.leave()
        assert await made.owned() == [[0, 1]]
        assert await refusal(second.store(4, 1)) == Code.NOT_RESOLVED_CONSUMER
        assert await made.root.stored(1) == 9
        assert payloads(await second.poll(1, count=1)) == ["1/10"]
        await second.store(10, 1)
        await second.store(3, 1)
        assert await made.root.stored(1) == 3


async def test_non_members_may_read_the_offset_of_a_group(tmp_path: Path) -> None:
    async with reading(tmp_path) as made:
        await made.fill()
        await made.root.join()
        await made.root.store(4, 0)
        await made.root.leave()
        stranger = await made.reader()
        assert await stranger.stored() == 4


async def test_non_members_can_neither_poll_nor_commit(tmp_path: Path) -> None:
    async with reading(tmp_path) as made:
        await made.fill()
        for partition in (None, 0):
            for asked in (made.root.poll(partition), made.root.store(0, partition), made.root.forget(partition)):
                assert await refusal(asked) == Code.CONSUMER_GROUP_MEMBER_NOT_FOUND


async def test_any_0_9_client_may_set_the_offsets_of_a_group_without_members(tmp_path: Path) -> None:
    """An operator sets where a group begins: `iggy consumer-offset set`. Members are not affected."""
    async with reading(tmp_path) as made:
        await made.fill()
        operator = await made.reader()
        operator.session.registration = Registration(b"operator".ljust(16), 1)
        await operator.store(4, 0)
        assert await operator.stored(0) == 4
        await operator.forget(0)
        assert await operator.stored(0) is None
        await operator.store(3, 0)
        for asked in (operator.store(4), operator.forget(), operator.poll(0)):
            assert await refusal(asked) == Code.CONSUMER_GROUP_MEMBER_NOT_FOUND
        await made.root.join()
        assert payloads(await made.root.poll(0))[0] == "0/4"
        for asked in (operator.store(0, 0), operator.forget(0)):
            assert await refusal(asked) == Code.CONSUMER_GROUP_MEMBER_NOT_FOUND
        assert await operator.stored(0) == 3
        await made.root.leave()
        assert await refusal(operator.store(0, 0, NOBODY)) == Code.CONSUMER_GROUP_ID_NOT_FOUND
        assert await refusal(operator.store(0, 9)) == Code.PARTITION_NOT_FOUND


async def test_a_session_that_was_removed_can_neither_poll_nor_commit(tmp_path: Path) -> None:
    async with reading(tmp_path) as made:
        reader = await made.reader()
        await reader.join()
        made.gateway.sessions.remove(reader.session)
        for asked in (reader.poll(), reader.store(0), reader.forget()):
            assert await refusal(asked) == Code.STALE_CLIENT


async def test_a_missing_group_cannot_be_polled(tmp_path: Path) -> None:
    async with reading(tmp_path) as made:
        assert await refusal(made.root.poll(consumer=NOBODY)) == Code.CONSUMER_GROUP_ID_NOT_FOUND
        assert await refusal(made.root.forget(consumer=NOBODY)) == Code.CONSUMER_GROUP_ID_NOT_FOUND


async def test_a_partition_of_another_member_is_polled_empty_and_not_committed(tmp_path: Path) -> None:
    async with reading(tmp_path) as made:
        await made.fill()
        anne, bert = await made.readers(2)
        await anne.join()
        await bert.join()
        assert await made.owned() == [[0, 1], [2]]
        assert (await bert.poll(0)).messages_count == 0
        assert (await bert.poll(3)).messages_count == 0
        assert await refusal(bert.store(0, 0)) == Code.NOT_RESOLVED_CONSUMER
        assert await refusal(bert.forget(0)) == Code.NOT_RESOLVED_CONSUMER


async def test_a_member_without_partitions_gets_empty_polls_and_cannot_commit(tmp_path: Path) -> None:
    async with reading(tmp_path, partitions=1) as made:
        await made.fill()
        anne, bert = await made.readers(2)
        await anne.join()
        await bert.join()
        polled = await bert.poll()
        assert (polled.partition_id, polled.current_offset, polled.messages_count) == (0, 0, 0)
        assert await refusal(bert.store(0)) == Code.NOT_RESOLVED_CONSUMER


async def test_a_group_of_a_topic_without_partitions_has_nothing_to_poll(tmp_path: Path) -> None:
    async with reading(tmp_path, partitions=0) as made:
        await made.root.join()
        assert (await made.root.poll()).messages_count == 0


# ---------------------------------------------------------------------------------------- while messages are being read


class Poll:
    """A poll that has read its messages, and returns them when it is released."""

    def __init__(self) -> None:
        self.has_read = asyncio.Event()
        self.may_go_on = asyncio.Event()


@asynccontextmanager
async def a_slow_poll(reader: Reader, patch: pytest.MonkeyPatch, **how: Any) -> AsyncIterator[asyncio.Task[Any]]:
    """The block runs between the read and the response."""
    read: Callable[..., Awaitable[Any]] = Partition.read
    slow = Poll()

    async def stop(*arguments: Any) -> Any:
        found = await read(*arguments)
        slow.has_read.set()
        await slow.may_go_on.wait()
        return found

    with patch.context() as patched:
        patched.setattr(Partition, "read", stop)
        task = asyncio.create_task(reader.poll(**how))
        await slow.has_read.wait()
    yield task
    slow.may_go_on.set()


@pytest.mark.parametrize("auto_commit", [False, True])
async def test_messages_of_a_partition_that_moves_during_a_poll_go_to_one_member_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, auto_commit: bool
) -> None:
    async with reading(tmp_path) as made:
        await made.fill()
        anne, bert = await made.readers(2)
        await anne.join()
        async with a_slow_poll(anne, monkeypatch, partition=2, auto_commit=auto_commit) as poll:
            await bert.join()
            assert len(payloads(await bert.poll())) == 10
        assert payloads(await poll) == []
        assert await made.root.stored(2) is None


async def _purge(made: Reading, _reader: Reader) -> None:
    await made.root.execute(requests.PurgeTopic("s", "t"))


async def _delete_the_group(made: Reading, _reader: Reader) -> None:
    await made.root.execute(requests.DeleteConsumerGroup("s", "t", "g"))


async def _make_the_group_again(made: Reading, reader: Reader) -> None:
    await made.root.execute(requests.DeleteConsumerGroup("s", "t", "g"))
    await made.root.execute(requests.CreateConsumerGroup("s", "t", "g"))
    await reader.join()


async def _disconnect(made: Reading, reader: Reader) -> None:
    groups.leave_all(made.gateway, reader.session)


async def _fewer_partitions(made: Reading, _reader: Reader) -> None:
    await made.root.execute(requests.DeletePartitions("s", "t", 1))


@pytest.mark.parametrize("event", [_purge, _delete_the_group, _make_the_group_again, _disconnect, _fewer_partitions])
@pytest.mark.parametrize("auto_commit", [False, True])
async def test_messages_are_not_returned_to_a_member_that_lost_the_partition(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    event: Callable[[Reading, Reader], Awaitable[None]],
    auto_commit: bool,
) -> None:
    async with reading(tmp_path) as made:
        await made.fill()
        reader = await made.reader()
        await reader.join()
        async with a_slow_poll(reader, monkeypatch, partition=2, auto_commit=auto_commit) as poll:
            await event(made, reader)
        assert payloads(await poll) == []
        assert all(partition.offset_of(Kind.GROUP, 0) is None for partition in made.topic.served)


async def test_an_auto_commit_into_a_purged_partition_returns_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with reading(tmp_path) as made:
        await made.fill()
        async with a_slow_poll(made.root, monkeypatch, consumer=ONE, auto_commit=True) as poll:
            await made.root.execute(requests.PurgeTopic("s", "t"))
        assert payloads(await poll) == []
        assert await made.root.stored(0, ONE) is None
