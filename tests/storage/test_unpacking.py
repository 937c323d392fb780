"""Batches that are unpacked ahead, and for several readers: the same messages, and nothing is unpacked in vain."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.storage.support.packed import pack_everything
from tests.storage.support.segments import FIRST_SEGMENT, append, messages_in, open_log
from whippet.storage import packed_reads, packing, unpacking
from whippet.storage.batch import Readable, header
from whippet.storage.errors import BatchFault, InvalidBatch, KeyMissing
from whippet.storage.log import Log
from whippet.storage.segment import Segment
from whippet.storage.unpacking import REST_READS, Parts, Readers, Unpacked, UnpackedBatches

BATCHES = 12
MESSAGES = 5


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch) -> UnpackedBatches:
    """What is kept, for this test alone, in which all batches are large."""
    pack_everything(monkeypatch)
    found = UnpackedBatches()
    monkeypatch.setattr(packed_reads, "LARGE_BYTES", 0)
    for module in ("packed_reads", "log_reader"):
        monkeypatch.setattr(f"whippet.storage.{module}.unpacked_batches", found)
    return found


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[bytes]:
    """How often each batch was unpacked."""
    count: Counter[bytes] = Counter()
    unpack = packing.unpack

    def counting(batch: Readable, seal: Any = None) -> packing.Unpacked:
        count[bytes(batch[:16])] += 1
        return unpack(batch, seal)

    monkeypatch.setattr(packing, "unpack", counting)
    return count


def begun_later(patch: pytest.MonkeyPatch) -> list[Unpacked]:
    """Returns the batches that other threads would unpack; a test does it instead, or never."""
    begun: list[Unpacked] = []
    patch.setattr(Unpacked, "begin", lambda batch: begun.append(batch))  # noqa: PLW0108 -- a list is no method
    return begun


def filled(folder: Path, way: str = "zstd", batches: int = BATCHES) -> Log:
    log = open_log(folder, segment_bytes=1 << 20, way=way).log
    for _ in range(batches):
        append(log, [300] * MESSAGES)
    return log


def read(log: Log, offset: int, count: int = MESSAGES) -> list[tuple[int, bytes]]:
    return messages_in(log.read(offset, count, 1 << 20, log.next_offset))


def whole(log: Log) -> list[tuple[int, bytes]]:
    return messages_in(log.read(0, 10**6, 1 << 30, log.next_offset))


# ----------------------------------------------------------------------------------------------------------- of a log


@pytest.mark.parametrize("way", ["zstd", "zstd, encrypted"])
def test_one_reader_gets_every_batch_and_each_is_unpacked_once(
    tmp_path: Path, counted: Counter[bytes], way: str, kept: UnpackedBatches
) -> None:
    log = filled(tmp_path, way)
    found = [message for offset in range(0, log.next_offset, MESSAGES) for message in read(log, offset)]
    assert [offset for offset, _ in found] == list(range(log.next_offset))
    assert set(counted.values()) == {1}
    assert len(counted) == BATCHES
    assert kept.used == 0
    log.close()


def test_a_reader_that_goes_on_has_the_next_batch_unpacked_meanwhile(
    tmp_path: Path, counted: Counter[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    log, begun = filled(tmp_path), begun_later(monkeypatch)
    read(log, 0)
    assert (len(counted), len(begun)) == (1, 0)
    read(log, MESSAGES)
    assert (len(counted), len(begun)) == (2, 1)
    begun[0].parts()
    assert len(counted) == 3
    read(log, 2 * MESSAGES)
    assert (len(counted), len(begun)) == (3, 2)
    # Nobody has read what comes before this.
    read(log, 7 * MESSAGES)
    assert (len(counted), len(begun)) == (4, 2)
    log.close()


def test_batches_of_one_read_are_unpacked_side_by_side(
    tmp_path: Path, counted: Counter[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    log, begun = filled(tmp_path), begun_later(monkeypatch)
    assert len(read(log, 2, 4 * MESSAGES)) == 4 * MESSAGES
    assert len(begun) == 4
    assert len(counted) == 5
    log.close()


def test_readers_that_follow_each_other_share_what_was_unpacked(
    tmp_path: Path, counted: Counter[bytes], kept: UnpackedBatches
) -> None:
    log = filled(tmp_path)
    positions = {"first": 0, "second": 0, "third": 0}
    found: dict[str, list[tuple[int, bytes]]] = {name: [] for name in positions}
    while min(positions.values()) < log.next_offset:
        for name, offset in positions.items():
            if offset < log.next_offset:
                messages = read(log, offset)
                found[name] += messages
                positions[name] += len(messages)
    assert found["first"] == found["second"] == found["third"]
    # Until a second reader is known, nothing is kept.
    assert sum(counted.values()) <= BATCHES + 2
    assert kept.used > 0
    log.close()


@pytest.mark.parametrize("limit", [0, 3_000, 1 << 20])
def test_any_reads_in_any_order_return_the_same_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    found = UnpackedBatches(limit)
    for module in ("packed_reads", "log_reader"):
        monkeypatch.setattr(f"whippet.storage.{module}.unpacked_batches", found)
    log = filled(tmp_path)
    expected, chance = whole(log), random.Random(1)
    offset = 0
    for _ in range(400):
        count = chance.choice([1, MESSAGES, 2 * MESSAGES, 13])
        messages = read(log, offset, count)
        assert messages == expected[offset : offset + count]
        offset = (offset + len(messages)) % len(expected) if chance.random() < 0.8 else chance.randrange(len(expected))
        assert found.used <= limit
    log.close()


def test_a_batch_that_cannot_be_unpacked_is_reported_and_skipped_by_a_reader_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_log(tmp_path, segment_bytes=1 << 20, way="zstd")
    log = opened.log
    for _ in range(BATCHES):
        append(log, [300] * MESSAGES)
    unpack = packing.unpack

    def failing(batch: Readable, seal: Any = None) -> packing.Unpacked:
        if header(batch).base_offset == 4 * MESSAGES:
            raise InvalidBatch(BatchFault.LENGTH, "it is something else")
        return unpack(batch, seal)

    monkeypatch.setattr(packing, "unpack", failing)
    found, offset = [], 0
    while offset < log.next_offset:
        fetched = log.read(offset, MESSAGES, 1 << 20, log.next_offset)
        found += [offset for offset, _ in messages_in(fetched)]
        offset = fetched.next_offset
    assert found == [n for n in range(log.next_offset) if not 4 * MESSAGES <= n < 5 * MESSAGES]
    assert [(each.offset, each.next_offset) for each in opened.damage] == [(4 * MESSAGES, 5 * MESSAGES)]
    log.close()


def test_damage_in_the_batches_ahead_is_reported_and_what_is_wanted_is_returned(tmp_path: Path) -> None:
    log = filled(tmp_path)
    expected = whole(log)
    log.close()
    path = tmp_path / f"{FIRST_SEGMENT}.log"
    content = bytearray(path.read_bytes())
    content[len(content) // BATCHES * 2 + 300] ^= 1
    path.write_bytes(content)
    opened = open_log(tmp_path, segment_bytes=1 << 20, way="zstd")
    assert read(opened.log, 0) == expected[:MESSAGES]
    assert read(opened.log, MESSAGES) == expected[MESSAGES : 2 * MESSAGES]
    assert [(each.offset, each.next_offset) for each in opened.damage] == [(2 * MESSAGES, 3 * MESSAGES)]
    opened.log.close()


# ------------------------------------------------------------------------------------------------------ what is kept


def work(parts: Parts = (b"head", b"frames")) -> Callable[[], Parts]:
    return lambda: parts


def test_a_batch_is_unpacked_by_whoever_needs_it_first(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def count() -> Parts:
        calls.append("once")
        return (b"head", b"frames")

    batch = Unpacked(count)
    batch.begin()
    assert batch.parts() == batch.parts() == (b"head", b"frames")
    assert calls == ["once"]


def test_an_error_reaches_the_reader() -> None:
    def fail() -> Parts:
        raise KeyMissing("no key")

    for begins in (False, True):
        batch = Unpacked(fail)
        if begins:
            batch.begin()
        with pytest.raises(KeyMissing, match="no key"):
            batch.parts()


def test_the_least_recently_used_batches_are_dropped() -> None:
    kept, segment = UnpackedBatches(100), Segment(0)
    for position in range(3):
        kept.put(segment, position, Unpacked(work()), 30, was_read=True)
    assert kept.take(segment, 0, keep=True) is not None
    kept.put(segment, 3, Unpacked(work()), 30, was_read=True)
    assert [kept.has(segment, position) for position in range(4)] == [True, False, True, True]
    assert kept.take(segment, 1, keep=True) is None
    assert kept.take(segment, 3, keep=False) is not None
    assert not kept.has(segment, 3)
    assert kept.used == 60
    assert not kept.has(Segment(0), 0)
    kept.put(segment, 4, Unpacked(work()), 101, was_read=True)
    assert kept.used == 0


def test_nothing_is_unpacked_ahead_for_a_while_after_it_was_done_in_vain() -> None:
    kept, segment = UnpackedBatches(50), Segment(0)
    kept.put(segment, 0, Unpacked(work()), 30, was_read=True)
    kept.put(segment, 1, Unpacked(work()), 30, was_read=False)
    assert kept.may_go_ahead()
    kept.put(segment, 2, Unpacked(work()), 30, was_read=False)
    answers = [kept.may_go_ahead() for _ in range(REST_READS)]
    assert answers == [False] * (REST_READS - 1) + [True]


def test_putting_a_batch_again_counts_it_once() -> None:
    kept, segment = UnpackedBatches(100), Segment(0)
    for _ in range(3):
        kept.put(segment, 0, Unpacked(work()), 40, was_read=True)
    assert kept.used == 40


def test_several_readers_are_known_by_reading_the_same() -> None:
    readers = Readers()
    for offset in (10, 20, 30):
        readers.ended(offset)
    assert not readers.are_several
    assert readers.goes_on(20)
    assert not readers.goes_on(25)
    readers.ended(20)
    answers = []
    for offset in range(40, 40 + 10 * unpacking.READS_REMEMBERED, 10):
        answers.append(readers.are_several)
        readers.ended(offset)
    assert answers == [True] * unpacking.READS_REMEMBERED
    assert readers.are_several is False


@pytest.fixture(scope="module", autouse=True)
def _threads_end() -> Iterator[None]:
    yield
    unpacking._threads().shutdown()
    unpacking._threads.cache_clear()
