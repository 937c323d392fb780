"""A log that ends or is damaged at any byte: every whole batch is served, nothing is thrown away, no offset is reused.

Every cut and every flip is tried on the log itself (recovery and `Log`, on the real disk), but `make test` tries only
some of them. A sample goes through the whole store.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pytest

from tests.storage.support.packed import pack_everything, seal_of, usually
from tests.storage.support.segments import (
    FIRST_SEGMENT,
    Opened,
    Piece,
    append,
    expected,
    joined,
    messages_in,
    open_log,
    payload_of,
    pieces,
    read_log,
    stamped,
    tree,
)
from tests.storage.support.ways import WAYS
from tests.support.sizes import sized
from whippet.storage.batch import Message, build
from whippet.storage.documents import StreamDocument, TopicDocument
from whippet.storage.index import Index, encode
from whippet.storage.options import StoreOptions
from whippet.storage.packing import is_packed
from whippet.storage.partition import Partition
from whippet.storage.store import Store

UNIFORM = [25] * 14
MIXED = [1, 60, 7, 33]
SINGLE = [40]
MIXED_MANY = [3 + i % 5 for i in range(13)]

SHAPES = [SINGLE, MIXED, UNIFORM, [9, 9], MIXED_MANY, SINGLE, MIXED]
NEXT_OFFSET = sum(map(len, SHAPES))
FEWER = 5
"""With packed batches, `make test` tries only every fifth of the places that it tries with plain ones."""


def index_of(batch_pieces: list[Piece]) -> bytes:
    """The index after a clean close."""
    index = Index()
    for piece in batch_pieces:
        index.add(
            piece.base_offset,
            piece.position,
            1_700_000_000_000_000 + piece.base_offset,
            len(piece.plain),
            piece.count,
            len(piece.content),
        )
    return encode(index, 0, batch_pieces[-1].end)


@dataclass(frozen=True)
class Laid:
    """A log whose batches are stored in one of the ways, and its index after a clean close."""

    way: str
    batches: list[Piece]
    log: bytes
    index: bytes

    def step(self, step: int) -> int:
        return step if step == 1 or self.way == "plain" else step * FEWER


@pytest.fixture(params=usually("plain", "zstd", "zstd, encrypted"))
def laid(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Laid:
    pack_everything(monkeypatch)
    way = str(request.param)
    batches = pieces(SHAPES, way=way)
    if way != "plain":
        assert sum(is_packed(piece.content) for piece in batches) > len(batches) // 2
    return Laid(way, batches, joined(batches), index_of(batches))


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[Iterator[Path]]:
    """Returns a new empty folder with each call."""

    def made() -> Iterator[Path]:
        for number in range(1 << 30):
            folder = tmp_path / str(number)
            folder.mkdir()
            yield folder

    yield made()


def lay(folder: Path, log: bytes, index: bytes | None) -> Path:
    path = folder / f"{FIRST_SEGMENT}.log"
    path.write_bytes(log)
    if index is not None:
        (folder / f"{FIRST_SEGMENT}.index").write_bytes(index)
    return path


def kept_aside(folder: Path) -> bytes:
    aside = folder / "damaged"
    return b"".join(tree(aside).values()) if aside.exists() else b""


def check_continues(folder: Path, opened: Opened, served: list[tuple[int, bytes]], next_offset: int, way: str) -> None:
    """Checks that the log serves what it must, appends at `next_offset`, and is the same after opening it twice
    more."""
    assert read_log(opened.log) == served
    reported = list(opened.damage)
    assert append(opened.log, MIXED) == next_offset
    served = [*served, *((next_offset + i, payload_of(next_offset + i, size, "new")) for i, size in enumerate(MIXED))]
    assert read_log(opened.log) == served
    opened.abandon()
    for _ in range(2):
        files = {name: content for name, content in tree(folder).items() if name.endswith(".log") or "damaged" in name}
        again = open_log(folder, way=way)
        assert all(damage.kept_in is None for damage in again.damage), "something was cut off a second time"
        known = {(damage.file, damage.position) for damage in reported}
        assert {(damage.file, damage.position) for damage in again.damage} <= known
        assert read_log(again.log) == served
        assert again.log.next_offset == next_offset + len(MIXED)
        again.close()
        now = {name: content for name, content in tree(folder).items() if name.endswith(".log") or "damaged" in name}
        assert now == files, "an opening changed a log"


def cuts(laid: Laid, step: int) -> list[int]:
    """Some of the positions at which a log can be cut, including all those around the ends of its batches."""
    ends = [0, *(piece.end for piece in laid.batches)]
    around = {end + off for end in ends for off in (-1, 0, 1) if 0 <= end + off <= len(laid.log)}
    return sorted(around | set(range(0, len(laid.log) + 1, step)))


@sized("step", 7, long=1)
@pytest.mark.parametrize("clean", [False, True], ids=["after a kill", "after a clean close"])
def test_a_log_cut_at_any_byte_serves_every_whole_batch_and_continues(
    folders: Iterator[Path], laid: Laid, clean: bool, step: int
) -> None:
    for cut in cuts(laid, laid.step(step)):
        folder = next(folders)
        path = lay(folder, laid.log[:cut], laid.index if clean else None)
        whole = [piece for piece in laid.batches if piece.end <= cut]
        end = whole[-1].end if whole else 0
        lost_from = whole[-1].next_offset if whole else 0
        # The index of a clean close shows that the offsets after the cut were given out, so they are not reused.
        next_offset = NEXT_OFFSET if clean else lost_from
        opened = open_log(folder, way=laid.way)
        assert opened.log.next_offset == next_offset, cut
        if end == cut and next_offset == lost_from:
            assert opened.damage == []
        else:
            assert len(opened.damage) == 1, (cut, opened.damage)
            damage = opened.damage[0]
            assert (damage.file, damage.position, damage.length) == (str(path), end, cut - end)
            assert (damage.offset, damage.next_offset) == (lost_from, next_offset)
            assert (damage.kept_in is not None) == (end != cut)
        assert kept_aside(folder) == laid.log[end:cut]
        check_continues(folder, opened, expected(whole), next_offset, laid.way)


def flips(laid: Laid) -> Iterator[tuple[int, int]]:
    """Every byte of the last two batches, with all of its bits flipped and with one."""
    chance = random.Random(7)
    for position in range(laid.batches[-2].position, len(laid.log)):
        yield position, 0xFF
        yield position, 1 << chance.randrange(8)


@sized("step", 7, long=1)
@pytest.mark.parametrize("clean", [False, True], ids=["after a kill", "after a clean close"])
def test_a_flipped_byte_loses_only_its_own_batch(folders: Iterator[Path], laid: Laid, clean: bool, step: int) -> None:
    last, before_last = laid.batches[-1], laid.batches[-2]
    for position, bits in islice(flips(laid), 0, None, laid.step(step)):
        folder = next(folders)
        content = bytearray(laid.log)
        content[position] ^= bits
        path = lay(folder, bytes(content), laid.index if clean else None)
        opened = open_log(folder, way=laid.way)
        assert len(opened.damage) == 1, (position, bits, opened.damage)
        damage = opened.damage[0]
        if position >= last.position:
            next_offset = NEXT_OFFSET if clean else last.base_offset
            assert (damage.file, damage.position, damage.length) == (str(path), last.position, len(last.content))
            assert (damage.offset, damage.next_offset) == (last.base_offset, next_offset)
            assert kept_aside(folder) == content[last.position :]
            assert path.read_bytes() == laid.log[: last.position]
            check_continues(folder, opened, expected(laid.batches[:-1]), next_offset, laid.way)
        else:
            found = (damage.file, damage.position, damage.length, damage.offset, damage.next_offset)
            assert found == (
                str(path),
                before_last.position,
                len(before_last.content),
                before_last.base_offset,
                before_last.next_offset,
            ), (position, bits)
            assert damage.kept_in is None
            assert kept_aside(folder) == b""
            assert path.read_bytes() == content
            check_continues(folder, opened, expected([*laid.batches[:-2], last]), NEXT_OFFSET, laid.way)


@sized("step", 5, long=1)
def test_whatever_happens_to_the_index_readers_see_the_same(folders: Iterator[Path], laid: Laid, step: int) -> None:
    chance = random.Random(8)
    indexes = [laid.index[:cut] for cut in range(len(laid.index))]
    for position in range(len(laid.index)):
        for bits in (0xFF, 1 << chance.randrange(8)):
            changed = bytearray(laid.index)
            changed[position] ^= bits
            indexes.append(bytes(changed))
    for index in indexes[:: laid.step(step)]:
        folder = next(folders)
        path = lay(folder, laid.log, index)
        opened = open_log(folder, way=laid.way)
        assert opened.damage == []
        assert path.read_bytes() == laid.log
        check_continues(folder, opened, expected(laid.batches), NEXT_OFFSET, laid.way)
        assert kept_aside(folder) == b""


@sized("step", 5, long=1)
def test_whatever_happens_to_the_index_of_a_closed_segment_readers_see_the_same(
    folders: Iterator[Path], laid: Laid, step: int
) -> None:
    for position in range(0, len(laid.index), laid.step(step)):
        for index in (
            laid.index[:position],
            laid.index[:position] + bytes([laid.index[position] ^ 0xFF]) + laid.index[position + 1 :],
        ):
            folder = next(folders)
            lay(folder, laid.log, index)
            (folder / f"{NEXT_OFFSET:020}.log").write_bytes(stamped(SINGLE, NEXT_OFFSET))
            opened = open_log(folder, way=laid.way)
            assert [offset for offset, _ in read_log(opened.log)] == list(range(NEXT_OFFSET + 1))
            assert opened.damage == []
            opened.abandon()


def test_an_index_of_other_bytes_is_ignored(folders: Iterator[Path]) -> None:
    """A valid index of the same segment and size that was copied from another partition."""
    folder = next(folders)
    batches = pieces(SHAPES)
    other = pieces([MIXED, SINGLE, [9, 9], UNIFORM, SINGLE, MIXED_MANY, MIXED])
    assert len(joined(other)) == len(joined(batches))
    lay(folder, joined(batches), index_of(other))
    (folder / f"{NEXT_OFFSET:020}.log").write_bytes(b"")
    opened = open_log(folder)
    for offset in range(NEXT_OFFSET):
        assert messages_in(opened.log.read(offset, 1, 1 << 20, NEXT_OFFSET)) == [expected(batches)[offset]]
    assert read_log(opened.log) == expected(batches)
    opened.abandon()


# ------------------------------------------------------------------------------------------------------ the whole store


def through_the_store(
    root: Path, patch: pytest.MonkeyPatch, way: str, log: bytes, index: bytes | None
) -> tuple[list[tuple[int, bytes]], int, list[str]]:
    """Opens a store on the files. Returns what it serves, where it continues, and what it reports."""
    options = StoreOptions(path=str(root), saver_interval_s=None, catalog_syncs=False, **WAYS[way])

    async def made() -> None:
        store = await Store.open(options)
        await store.create_stream(StreamDocument(id=0, name="s", created_at=1))
        await store.create_topic(0, TopicDocument(id=0, name="t", created_at=1, partitions_count=4))
        await store.close()

    async def opened() -> tuple[list[tuple[int, bytes]], int, list[str]]:
        store = await Store.open(options)
        partition = store.partition(0, 0, 3)
        assert partition is not None
        served = await everything(partition)
        answer = await partition.append(build([Message(b"after")], 1, os.urandom))
        assert await everything(partition) == [*served, (answer.base_offset, b"after")]
        reported = [str(damage) for damage in store.damage]
        await store.close()
        return served, answer.base_offset, reported

    async def again(served: list[tuple[int, bytes]], base: int) -> None:
        store = await Store.open(options)
        partition = store.partition(0, 0, 3)
        assert partition is not None
        assert await everything(partition) == [*served, (base, b"after")]
        await store.close()

    # The batches are bound to another place than this one.
    patch.setattr(Store, "_seal", lambda *_: seal_of(way))
    asyncio.run(made())
    lay(root / "streams/0/topics/0/partitions/3", log, index)
    served, base, reported = asyncio.run(opened())
    asyncio.run(again(served, base))
    return served, base, reported


async def everything(partition: Partition) -> list[tuple[int, bytes]]:
    found, offset = [], 0
    while offset < partition.readable:
        fetched = await partition.read(offset, 1 << 20)
        found += messages_in(fetched)
        assert fetched.next_offset > offset
        offset = fetched.next_offset
    return found


@pytest.mark.parametrize("clean", [False, True], ids=["after a kill", "after a clean close"])
@pytest.mark.parametrize(
    "place", ["0", "1", "255", "256", "400", "after a batch", "in the last batch", "before the end"]
)
def test_a_torn_tail_loses_no_whole_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, laid: Laid, place: str, clean: bool
) -> None:
    named = {
        "after a batch": laid.batches[3].end,
        "in the last batch": laid.batches[-1].position + 300,
        "before the end": len(laid.log) - 1,
    }
    cut = named[place] if place in named else int(place)
    whole = [piece for piece in laid.batches if piece.end <= cut]
    end = whole[-1].end if whole else 0
    served, base, reported = through_the_store(
        tmp_path, monkeypatch, laid.way, laid.log[:cut], laid.index if clean else None
    )
    assert served == expected(whole)
    assert base == (NEXT_OFFSET if clean else len(served))
    assert bool(reported) == (clean or end != cut)
    assert all(f"{FIRST_SEGMENT}.log" in line and f"position {end}" in line for line in reported)
    assert kept_aside(tmp_path / "streams/0/topics/0/partitions/3") == laid.log[end:cut]


@pytest.mark.parametrize("clean", [False, True], ids=["after a kill", "after a clean close"])
@pytest.mark.parametrize("batch", range(len(SHAPES)))
def test_a_damaged_batch_loses_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, laid: Laid, batch: int, clean: bool
) -> None:
    piece = laid.batches[batch]
    content = bytearray(laid.log)
    content[piece.position + 270] ^= 4
    served, base, reported = through_the_store(
        tmp_path, monkeypatch, laid.way, bytes(content), laid.index if clean else None
    )
    assert served == expected(other for other in laid.batches if other is not piece)
    assert base == (piece.base_offset if piece is laid.batches[-1] and not clean else NEXT_OFFSET)
    assert len(reported) == 1
    assert f"offset {piece.base_offset}" in reported[0]
    assert f"position {piece.position}" in reported[0]
