"""Logs with packed batches: readers get what they would get from plain ones, and damage loses only what is damaged."""

from __future__ import annotations

import asyncio
import errno
import random
import threading
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.storage.support.packed import PACKED, pack_everything, stored, usually
from tests.storage.support.segments import (
    FIRST_SEGMENT,
    append,
    expected,
    joined,
    messages_in,
    open_log,
    pieces,
    read_log,
    stamped,
)
from tests.storage.support.ways import WAYS
from tests.storage.support.world import opened, partition_in, payloads, sized, texts, with_topic
from tests.support.sizes import sized as of_size
from whippet.storage import packing
from whippet.storage.documents import StreamDocument, TopicDocument
from whippet.storage.errors import WriteFailed
from whippet.storage.files import Buffer, Files
from whippet.storage.index import HEADER_2, decode
from whippet.storage.packing import Compression
from whippet.storage.partition import Partition

SHAPES = [[40], [5, 60, 7], [25] * 14, [9, 9], [300] * 3, [1] * 30]
each_way = pytest.mark.parametrize("way", PACKED)


@pytest.fixture(autouse=True)
def _everything(monkeypatch: pytest.MonkeyPatch) -> None:
    pack_everything(monkeypatch)


def fill(folder: Path, way: str, segment_bytes: int = 1 << 20) -> None:
    log = open_log(folder, segment_bytes=segment_bytes, way=way)
    for shape in SHAPES:
        append(log.log, shape)
    log.close()


# -------------------------------------------------------------------------------------------------------------- reading


@each_way
@pytest.mark.parametrize("segment_bytes", [1, 700, 1 << 20])
def test_any_read_returns_the_same_bytes_as_from_a_plain_log(tmp_path: Path, way: str, segment_bytes: int) -> None:
    logs = []
    for name in ("plain", way):
        (tmp_path / name).mkdir()
        fill(tmp_path / name, name, segment_bytes)
        logs.append(open_log(tmp_path / name).log)
    plain, packed = logs
    assert packed.size_bytes != plain.size_bytes
    assert packed.size_bytes + packed.saved_bytes == plain.size_bytes
    end = plain.next_offset
    for offset in range(end):
        for count, room in ((1, 1), (3, 400), (7, 1000), (1000, 700), (1000, 1 << 20)):
            found, wanted = packed.read(offset, count, room, end), plain.read(offset, count, room, end)
            if segment_bytes == 1 << 20:
                assert b"".join(found.buffers) == b"".join(wanted.buffers)
                assert (found.messages, found.next_offset) == (wanted.messages, wanted.next_offset)
            else:
                assert messages_in(found) == messages_in(wanted)


@pytest.mark.parametrize("way", ["gzip", "zstd"])
def test_batches_that_are_stored_in_different_ways_follow_each_other(tmp_path: Path, way: str) -> None:
    log = open_log(tmp_path).log
    sizes = []
    for number, chosen in enumerate(("plain", way, "plain", "gzip", "plain")):
        log.compress(Compression[WAYS[chosen].get("compression", "none").upper()])
        append(log, SHAPES[number])
        sizes.append(log.saved_bytes)
    assert sizes[0] == 0 < sizes[1] == sizes[2] < sizes[3] == sizes[4]
    plain = read_log(log)
    log.close()
    again = open_log(tmp_path).log
    assert again.saved_bytes == sizes[-1]
    assert read_log(again) == plain
    assert [offset for offset, _ in plain] == list(range(sum(map(len, SHAPES[:5]))))


@each_way
@pytest.mark.parametrize("index_cache", ["all", "open_segment", "none"])
async def test_a_partition_counts_plain_bytes_and_bytes_on_the_disk(tmp_path: Path, way: str, index_cache: str) -> None:
    options = {**WAYS[way], "segment_bytes": 2000, "index_cache": index_cache, "tail_bytes_max": 0}
    async with partition_in(tmp_path / "plain", segment_bytes=2000) as plain:
        for number in range(20):
            await plain.append(texts(*(f"{number} {i}" * 20 for i in range(5))))
        wanted = plain.size_bytes, plain.message_bytes
        assert plain.disk_bytes == plain.size_bytes
    async with partition_in(tmp_path / "packed", **options) as partition:
        for number in range(20):
            await partition.append(texts(*(f"{number} {i}" * 20 for i in range(5))))
        on_disk = sum(path.stat().st_size for path in tmp_path.glob("packed/streams/0/topics/0/partitions/0/*.log"))
        assert (partition.size_bytes, partition.message_bytes) == wanted
        assert partition.disk_bytes == on_disk != wanted[0]
        assert on_disk < wanted[0] * 2 // 3 or "encrypted" in way
    async with partition_in(tmp_path / "packed", **options) as partition:
        assert (partition.size_bytes, partition.message_bytes) == wanted
        assert partition.disk_bytes == on_disk
        await partition.trim(partition.appended)
        assert partition.disk_bytes < on_disk
        await partition.purge()
        assert (partition.size_bytes, partition.disk_bytes) == (0, 0)


async def test_the_loop_neither_packs_nor_unpacks(tmp_path: Path) -> None:
    async with opened(tmp_path, tail_bytes_max=0, **WAYS["zstd"]) as store:
        (partition,) = await with_topic(store)
        for _ in range(10):
            await partition.append(texts("a" * 500))
            assert payloads(await partition.read(partition.appended - 1, 1)) == [b"a" * 500]
        assert sum(shard.loop_writes for shard in store.shards) == 0
        assert partition._pipeline.read_on_loop(0, 1, 1 << 20, partition.written) is None


async def test_a_topic_compresses_from_a_change_on_also_after_reopening(tmp_path: Path) -> None:
    async with opened(tmp_path, tail_bytes_max=0) as store:
        await store.create_stream(StreamDocument(id=0, name="s", created_at=1))
        document = TopicDocument(id=0, name="t", created_at=1, partitions_count=1)
        await store.create_topic(0, document)
        partition = store.partition(0, 0, 0)
        assert partition is not None

        async def saved_by(algorithm: int, *, reopen: bool = False) -> bool:
            changed = TopicDocument(id=0, name="t", created_at=1, partitions_count=1, compression_algorithm=algorithm)
            await store.update_topic(0, changed)
            if reopen:
                await store.reopen(partition)
            before = partition.size_bytes - partition.disk_bytes
            await partition.append(sized(10, 200))
            return partition.size_bytes - partition.disk_bytes > before

        assert [await saved_by(algorithm) for algorithm in (1, 3, 2, 1, 200)] == [False, True, True, False, False]
        assert [await saved_by(algorithm, reopen=True) for algorithm in (3, 1)] == [True, False]
        assert payloads(await partition.read(0, 100)) == [b"x" * 200] * 70


@each_way
async def test_long_reads_unpack_what_they_send(tmp_path: Path, way: str) -> None:
    async def drained(partition: Partition, offset: int, count: int, room: int) -> bytes:
        long = await partition.read_long(offset, count, room)
        assert long is not None
        size, sent = len(long), []
        while (piece := long.next_piece()) is not None:
            sent.append(bytes(await piece))
        assert sum(map(len, sent)) == size
        return b"".join(sent)

    for again in (False, True):
        async with partition_in(tmp_path, tail_bytes_max=0, segment_bytes=1500, **WAYS[way]) as partition:
            if not again:
                for shape in SHAPES * 3:
                    await partition.append(texts(*(b"x" * size for size in shape)))
            choice = random.Random(1)
            for offset in range(0, partition.appended, 3):
                count, room = choice.choice((1, 2, 5, 17, 1000)), choice.choice((1, 500, 1500, 1 << 30))
                held = partition._pipeline.log.read(offset, count, room, partition.written)
                assert await drained(partition, offset, count, room) == b"".join(held.buffers), (offset, count, room)


# -------------------------------------------------------------------------------------------------------------- indexes


@each_way
def test_the_index_of_a_closed_segment_has_both_lengths(tmp_path: Path, way: str) -> None:
    fill(tmp_path, way, segment_bytes=1)
    content = (tmp_path / f"{FIRST_SEGMENT}.index").read_bytes()
    known = decode(content, 0)
    assert known is not None
    index, log_bytes = known
    assert log_bytes == (tmp_path / f"{FIRST_SEGMENT}.log").stat().st_size == index.stored_length(0)
    assert index.length(0) == len(stamped(SHAPES[0], 0))
    assert len(content) == HEADER_2.size + 40


@pytest.mark.parametrize("change", [*range(0, HEADER_2.size, 3), "short", "gone"])
def test_a_damaged_index_of_packed_batches_is_made_again(tmp_path: Path, change: int | str) -> None:
    fill(tmp_path, "zstd", segment_bytes=700)
    before = open_log(tmp_path).log
    path = tmp_path / f"{FIRST_SEGMENT}.index"
    content = bytearray(path.read_bytes())
    if change == "gone":
        path.unlink()
    elif isinstance(change, int):
        content[change] ^= 1
        path.write_bytes(content)
    else:
        path.write_bytes(content[:-1])
    again = open_log(tmp_path)
    served = read_log(again.log)
    assert served == read_log(before)
    assert (again.log.saved_bytes, again.log.size_bytes) == (before.saved_bytes, before.size_bytes)
    assert again.damage == []


# --------------------------------------------------------------------------------------------------------------- damage


@of_size("step", 31, long=1)
@pytest.mark.parametrize("way", usually(PACKED[-1]))
def test_bit_rot_in_any_byte_is_named_and_loses_only_its_own_batch(tmp_path: Path, way: str, step: int) -> None:
    """In a closed segment with an index, and found when it is read."""
    laid = pieces(SHAPES, way=way)
    log, end = joined(laid), laid[-1].next_offset
    path = tmp_path / f"{FIRST_SEGMENT}.log"
    (tmp_path / f"{end:020}.log").write_bytes(b"")
    path.write_bytes(log)
    open_log(tmp_path).close()
    chance = random.Random(3)
    for position in range(0, len(log), step):
        content = bytearray(log)
        content[position] ^= 1 << chance.randrange(8)
        path.write_bytes(content)
        hit = next(piece for piece in laid if piece.position <= position < piece.end)
        opened = open_log(tmp_path)
        assert read_log(opened.log) == expected(piece for piece in laid if piece is not hit), position
        found = [damage for damage in opened.damage if damage.length or damage.offset < damage.next_offset]
        assert [(damage.file, damage.position) for damage in found] == [(str(path), hit.position)], position
        assert (found[0].offset, found[0].next_offset) == (hit.base_offset, hit.next_offset)
        opened.abandon()
        path.write_bytes(log)
        (tmp_path / f"{FIRST_SEGMENT}.index").unlink()
        open_log(tmp_path).abandon()


def forged(batch: bytes, compression: Compression, body: bytes) -> bytes:
    """An intact packed batch with any body."""
    return packing.stored(batch[:52], body, compression) + body


@each_way
@pytest.mark.parametrize("torn", [False, True], ids=["damaged", "torn"])
def test_batches_inside_a_packed_batch_are_never_served(tmp_path: Path, way: str, torn: bool) -> None:
    """Even where it is damaged, its end is known."""
    inner = stamped([30], 50) + stored(stamped([40] * 20, 60), "zstd")
    outer = stamped([], 0, payloads=[b"x" * 500 + inner + b"x" * 500, b"y"])
    # Without compression, gzip has the payload as it is.
    content = bytearray(forged(outer, Compression.GZIP, zlib.compress(outer[256:], 0, wbits=31)))
    assert inner in content
    content[400] ^= 1
    after = stored(stamped([40] * 5, 2), way)
    log = bytes(content[:-10]) if torn else bytes(content) + after
    (tmp_path / f"{FIRST_SEGMENT}.log").write_bytes(log)
    opened = open_log(tmp_path)
    assert [offset for offset, _ in read_log(opened.log)] == ([] if torn else [2, 3, 4, 5, 6])
    assert len(opened.damage) == 1
    opened.abandon()


def test_an_intact_batch_that_cannot_be_unpacked_is_reported_and_skipped(tmp_path: Path) -> None:
    laid = pieces(SHAPES, way="zstd")
    bad = laid[2]
    body = packing.compress(b"something else", Compression.ZSTD)
    wrong = forged(bad.plain, Compression.ZSTD, body)
    log = b"".join(wrong if piece is bad else piece.content for piece in laid)
    (tmp_path / f"{FIRST_SEGMENT}.log").write_bytes(log)
    for reader in ("read", "locate"):
        opened = open_log(tmp_path)
        assert opened.damage == []
        if reader == "locate":
            end = opened.log.next_offset
            assert opened.log.locate(bad.base_offset + 1, 2, 1 << 20, end).next_offset > bad.next_offset
        assert read_log(opened.log) == expected(piece for piece in laid if piece is not bad)
        (damage,) = opened.damage
        assert (damage.position, damage.length) == (bad.position, len(wrong))
        assert (damage.offset, damage.next_offset) == (bad.base_offset, bad.next_offset)
        opened.abandon()


@pytest.mark.parametrize("way", ["zstd", "zstd, encrypted"])
async def test_large_batches_are_packed_on_several_threads_and_written_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    threads = set()
    compress = packing.compress

    def watched(*arguments: Any) -> bytes:
        threads.add(threading.current_thread().name.partition("_")[0])
        return compress(*arguments)

    monkeypatch.setattr(packing, "compress", watched)
    async with partition_in(tmp_path, tail_bytes_max=0, **WAYS[way]) as partition:
        marks = [b"%03d" % number for number in range(40)]
        await asyncio.gather(*(partition.append(sized(100, 1000, mark)) for mark in marks))
        found = payloads(await partition.read(0, 4000))
        assert found == [(mark * 334)[:1000] for mark in marks for _ in range(100)]
        assert partition.disk_bytes < partition.size_bytes // 5
    assert threads == {"packing"}


async def test_after_a_failed_write_nothing_that_was_packed_ahead_is_written(tmp_path: Path) -> None:
    disk = FullDisk()
    async with partition_in(tmp_path, tail_bytes_max=0, files=disk, **WAYS["zstd"]) as partition:
        disk.is_full = True
        lost = [partition.append(sized(100, 1000, mark)) for mark in (b"a", b"b", b"c")]
        assert all(isinstance(each, WriteFailed) for each in await asyncio.gather(*lost, return_exceptions=True))
        disk.is_full = False
        await asyncio.gather(*(partition.append(sized(100, 1000, mark)) for mark in (b"d", b"e")))
        assert payloads(await partition.read(0, 1000)) == [mark * 1000 for mark in (b"d", b"e") for _ in range(100)]


class FullDisk(Files):
    """A disk that may have no room for logs."""

    is_full = False

    def write(self, handle: int, buffers: Sequence[Buffer], position: int) -> int:
        if self.is_full and len(buffers) > 1:
            raise OSError(errno.ENOSPC, "no room")
        return super().write(handle, buffers, position)
