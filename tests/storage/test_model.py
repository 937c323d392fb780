"""Random operations in any order: a partition is a list of messages that grows at one end and is cut at the other."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.storage.support.packed import pack_everything
from tests.storage.support.segments import FilesInMemoryOfTheSystem
from tests.storage.support.ways import WAYS
from tests.storage.support.world import random_bytes, stored, with_topic
from tests.support.clocks import Clock
from tests.support.running import HANGS_S
from tests.support.sizes import sized
from whippet.storage import early_sync, shard
from whippet.storage.batch import Message, build
from whippet.storage.errors import InvalidOffset
from whippet.storage.fetched import Fetched
from whippet.storage.offsets import Kind
from whippet.storage.options import Durability, StoreOptions
from whippet.storage.partition import Partition
from whippet.storage.retention import RESPECTED
from whippet.storage.store import Store

Answer = TypeVar("Answer")

STEP_BYTES = shard.STEP_BYTES
EARLY_BYTES = early_sync.EARLY_BYTES


class Kept(NamedTuple):
    offset: int
    timestamp: int
    payload: bytes
    user_headers: bytes
    id: int


payload_sizes = st.sampled_from((1, 1, 10, 10, 60, 300))
batch_shapes = st.lists(st.tuples(payload_sizes, st.sampled_from((0, 0, 9))), min_size=1, max_size=16)
counts = st.sampled_from((0, 1, 2, 7, 30, 1000))
rooms = st.sampled_from((None, 1, 400, 700, 2000, 100_000))


class PartitionMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.root = Path(tempfile.mkdtemp(prefix="whippet-model-"))
        self.lives = 0
        self.clock = Clock()
        self.kept: list[Kept] = []
        self.next_offset = 0
        self.next_id = 1
        self.last_timestamp = 0
        self.consumers: dict[tuple[Kind, int], int] = {}

    def wait(self, act: Coroutine[Any, Any, Answer]) -> Answer:
        async def bounded() -> Answer:
            async with asyncio.timeout(HANGS_S):
                return await act

        return self.loop.run_until_complete(bounded())

    # ------------------------------------------------------------------------------------------------ beginning, ending

    @initialize(
        durability=st.sampled_from(Durability),
        segment_bytes=st.sampled_from((1, 700, 3000, 100_000)),
        tail_bytes_max=st.sampled_from((0, 1500, 100_000)),
        respects_consumers=st.sampled_from(("none", "groups", "all")),
        index_cache=st.sampled_from(("all", "open_segment", "none")),
        index_cache_bytes=st.sampled_from((100, 10_000)),
        messages_required_to_save=st.sampled_from((2, 10, 1000)),
        open_files_max=st.sampled_from((2, 100)),
        loop_append_bytes_max=st.sampled_from((0, 700, 64 << 10)),
        validate_checksum=st.booleans(),
        unflushed=st.sampled_from((700, 100_000)),
        step_bytes=st.sampled_from((1, 1000, STEP_BYTES)),
        early_bytes=st.sampled_from((1, 1000, EARLY_BYTES)),
        way=st.sampled_from(("plain", *WAYS)),
    )
    def begin(self, unflushed: int, step_bytes: int, early_bytes: int, way: str, **options: Any) -> None:
        self.patch = pytest.MonkeyPatch()
        pack_everything(self.patch)
        options |= WAYS[way]
        shard.STEP_BYTES = step_bytes
        early_sync.EARLY_BYTES = early_bytes
        self.options = options | {"unflushed_bytes_max": unflushed, "partition_unflushed_bytes_max": unflushed}
        self.open()

    @property
    def path(self) -> Path:
        return self.root / str(self.lives)

    def open(self) -> None:
        options = StoreOptions(path=str(self.path), saver_interval_s=None, **self.options)
        self.store: Store = self.wait(Store.open(options, clock=self.clock, files=FilesInMemoryOfTheSystem()))
        assert not self.store.damage
        assert not self.store.problems
        (self.partition,) = self.wait(with_topic(self.store))
        # Nothing is known of deleted messages, not even when they were appended.
        self.last_timestamp = self.kept[-1].timestamp if self.kept else 0

    def teardown(self) -> None:
        shard.STEP_BYTES = STEP_BYTES
        early_sync.EARLY_BYTES = EARLY_BYTES
        if hasattr(self, "store"):
            self.wait(self.store.close())
            self.patch.undo()
        self.loop.close()
        shutil.rmtree(self.root)

    @rule()
    def restart(self) -> None:
        self.wait(self.store.close())
        self.open()

    @rule(way=st.sampled_from(tuple(WAYS)))
    def restart_with_batches_stored_in_another_way(self, way: str) -> None:
        self.wait(self.store.close())
        self.options |= {"compression": "none", "compression_override": True} | WAYS[way]
        self.open()

    @precondition(lambda self: self.partition.durability is not Durability.MEMORY)
    @rule()
    def crash(self) -> None:
        """Only what the operating system has is left, and that is enough."""
        shutil.copytree(self.path, self.root / str(self.lives + 1))
        self.wait(self.store.close())
        self.lives += 1
        self.open()

    @precondition(lambda self: self.partition.durability is Durability.MEMORY)
    @rule(sync=st.booleans())
    def crash_after_a_flush(self, sync: bool) -> None:
        self.wait(self.partition.flush(sync=sync))
        shutil.copytree(self.path, self.root / str(self.lives + 1))
        self.wait(self.store.close())
        self.lives += 1
        self.open()

    # -------------------------------------------------------------------------------------------------------- appending

    def plain(self, shape: list[tuple[int, int]]) -> list[Message]:
        made = []
        for payload_bytes, header_bytes in shape:
            mark = b"%d " % self.next_id
            made.append(Message((mark * payload_bytes)[:payload_bytes], self.next_id, (mark * 9)[:header_bytes]))
            self.next_id += 1
        return made

    def remember(self, messages: list[Message], base_offset: int, timestamp: int) -> None:
        assert base_offset == self.next_offset
        assert timestamp >= max(self.last_timestamp, self.clock.now)
        self.last_timestamp = timestamp
        for i, m in enumerate(messages):
            self.kept.append(Kept(base_offset + i, timestamp, m.payload, m.user_headers, m.id))
        self.next_offset += len(messages)

    @rule(shape=batch_shapes, passed=st.sampled_from((0, 1, 1000, -500)))
    def append(self, shape: list[tuple[int, int]], passed: int) -> None:
        self.clock.now += passed
        messages = self.plain(shape)
        answer = self.wait(self.partition.append(build(messages, 0, random_bytes)))
        assert answer.messages == len(messages)
        self.remember(messages, answer.base_offset, answer.timestamp)

    @rule(shapes=st.lists(batch_shapes, min_size=2, max_size=6))
    def append_several_at_once(self, shapes: list[list[tuple[int, int]]]) -> None:
        several = [self.plain(shape) for shape in shapes]

        async def together() -> list[Any]:
            return await asyncio.gather(*(self.partition.append(build(m, 0, random_bytes)) for m in several))

        for messages, answer in zip(several, self.wait(together()), strict=True):
            self.remember(messages, answer.base_offset, answer.timestamp)

    @rule(shape=batch_shapes)
    def wait_for_the_next(self, shape: list[tuple[int, int]]) -> None:
        messages = self.plain(shape)

        async def both() -> Any:
            waiting = asyncio.create_task(self.partition.until(self.next_offset))
            answer = await self.partition.append(build(messages, 0, random_bytes))
            await waiting
            return answer

        answer = self.wait(both())
        self.remember(messages, answer.base_offset, answer.timestamp)

    @rule(sync=st.booleans())
    def flush(self, sync: bool) -> None:
        self.wait(self.partition.flush(sync=sync))
        assert self.partition.written == self.next_offset
        assert not sync or self.partition.synced == self.next_offset

    @rule()
    def save(self) -> None:
        self.wait(self.store.save())
        assert self.partition.synced == self.next_offset

    # ---------------------------------------------------------------------------------------------------------- reading

    def same(self, fetched: Fetched, start: int, count: int, room: int | None) -> None:
        found = [Kept(m.offset, m.timestamp, m.payload, m.user_headers, m.id) for m in stored(fetched)]
        wanted = [message for message in self.kept if message.offset >= start][:count]
        if room is None:
            assert found == wanted
            return
        assert found == wanted[: len(found)]
        assert bool(found) is bool(wanted)
        assert sum(map(len, fetched.buffers)) <= room or len(found) == 1

    @rule(back=st.integers(0, 60), count=counts, room=rooms)
    def read_from_an_offset_near_the_end(self, back: int, count: int, room: int | None) -> None:
        offset = max(self.next_offset - back, 0)
        self.same(self.wait(self.partition.read(offset, count, room)), offset, count, room)

    @rule(ahead=st.integers(0, 40), count=counts, room=rooms)
    def read_from_an_offset_near_the_start(self, ahead: int, count: int, room: int | None) -> None:
        self.same(self.wait(self.partition.read(ahead, count, room)), ahead, count, room)

    @rule()
    def read_past_the_end(self) -> None:
        assert self.wait(self.partition.read(self.next_offset + 5, 10)).messages == 0

    @rule(count=counts, room=rooms)
    def read_the_last(self, count: int, room: int | None) -> None:
        start = max(self.next_offset - count, 0)
        self.same(self.wait(self.partition.read_last(count, room)), start, count, room)

    @rule(back=st.sampled_from((-1, 0, 1, 500, 1000, 10**12)), count=counts, room=rooms)
    def read_from_a_time(self, back: int, count: int, room: int | None) -> None:
        time = max(self.last_timestamp - back, 0)
        start = next((message.offset for message in self.kept if message.timestamp >= time), self.next_offset)
        assert self.wait(self.partition.offset_at(time)) == start
        self.same(self.wait(self.partition.read_from_time(time, count, room)), start, count, room)

    @rule(room=st.sampled_from((1, 700, 100_000)), count=st.sampled_from((1, 5, 1000)))
    def read_everything_in_steps(self, room: int, count: int) -> None:
        async def all_of_it() -> list[Kept]:
            offset, found = 0, []
            while (fetched := await self.partition.read(offset, count, room)).messages:
                found += [Kept(m.offset, m.timestamp, m.payload, m.user_headers, m.id) for m in stored(fetched)]
                offset = fetched.next_offset
            return found

        assert self.wait(all_of_it()) == self.kept

    # --------------------------------------------------------------------------------------------------------- deleting

    @rule()
    def purge(self) -> None:
        self.wait(self.partition.purge())
        self.kept, self.next_offset, self.consumers = [], 0, {}

    def forget_before(self, deleted: int) -> None:
        first = self.partition.first_offset
        gone = [message for message in self.kept if message.offset < first]
        assert bool(gone) is bool(deleted)
        self.kept = self.kept[len(gone) :]
        respected = RESPECTED[self.options["respects_consumers"]]
        barrier = min((offset for (kind, _), offset in self.consumers.items() if kind in respected), default=None)
        assert not gone or barrier is None or gone[-1].offset <= barrier

    @rule(count=st.integers(0, 3))
    def delete_segments(self, count: int) -> None:
        if self.partition.durability is Durability.MEMORY:
            self.wait(self.partition.flush())  # so that the segments are known
        closed = self.partition.segments_count - 1
        deleted = self.wait(self.store.delete_segments(self.partition.place, count))
        assert deleted <= min(count, closed)
        assert deleted == min(count, closed) or self.consumers
        self.forget_before(deleted)

    @rule(expiry=st.sampled_from((None, 0, 500, 10**9)), size=st.sampled_from((None, 1, 2000, 10**6)))
    def retain(self, expiry: int | None, size: int | None) -> None:
        deleted = self.wait(self.store.retain(0, 0, expiry_us=expiry, max_bytes=size))
        self.forget_before(deleted)
        if expiry == 10**9 and size == 10**6:
            assert not deleted

    # ------------------------------------------------------------------------------------------------- consumer offsets

    @rule(kind=st.sampled_from((Kind.CONSUMER, Kind.GROUP)), identity=st.integers(0, 1), back=st.integers(-1, 20))
    def store_offset(self, kind: Kind, identity: int, back: int) -> None:
        offset = self.next_offset - 1 - back
        if not 0 <= offset < self.next_offset:
            with pytest.raises(InvalidOffset):
                self.wait(self.partition.store_offset(kind, identity, offset))
            return
        self.wait(self.partition.store_offset(kind, identity, offset))
        self.consumers[kind, identity] = offset

    @rule(kind=st.sampled_from((Kind.CONSUMER, Kind.GROUP)), identity=st.integers(0, 1))
    def delete_offset(self, kind: Kind, identity: int) -> None:
        known = self.consumers.pop((kind, identity), None)
        assert self.wait(self.partition.delete_offset(kind, identity)) is (known is not None)

    # ------------------------------------------------------------------------------------------------ what always holds

    @invariant()
    def offsets_are_in_their_order(self) -> None:
        if not hasattr(self, "store"):
            return
        partition: Partition = self.partition
        assert partition.synced <= partition.written <= partition.appended
        assert partition.first_offset <= partition.written
        assert partition.appended == partition.readable == self.next_offset
        assert partition.messages_count == len(self.kept)
        if self.kept:
            assert partition.first_offset == self.kept[0].offset
        for kind in Kind:
            for identity in range(2):
                assert partition.offset_of(kind, identity) == self.consumers.get((kind, identity))
        assert not self.store.damage


@sized("lives", 40, long=200)
def test_a_partition_is_a_list_of_messages_whatever_is_done_in_whatever_order(lives: int) -> None:
    run_state_machine_as_test(
        PartitionMachine,
        settings=settings(
            max_examples=lives,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
