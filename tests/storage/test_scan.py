"""Scanning a log: whole batches are found, whatever is between them, also across the pieces in which a file is read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.storage.support.packed import PACKED, stored
from tests.storage.support.world import sized
from whippet.storage import batch as batches
from whippet.storage import packing, scan
from whippet.storage.files import Files
from whippet.storage.index import Index
from whippet.storage.scan import Scan, Window
from whippet.storage.segment import Damage

PARTITION = 3


def stamped(base_offset: int, count: int = 1, payload: bytes = b"x" * 40, partition: int = PARTITION) -> bytes:
    whole = sized(count, len(payload), payload)
    batches.stamp(whole, partition, base_offset, 1000 + base_offset, batches.check(whole).checksums)
    return bytes(whole)


def scanned(path: Path, *pieces: bytes, offset: int = 0, ceiling: int = 2**64) -> tuple[Scan, list[tuple[int, int]]]:
    """The scan, with the offset and position of every batch that it found."""
    (path / "log").write_bytes(b"".join(pieces))
    files = Files()
    handle = files.open_for_reading(str(path / "log"))
    try:
        index = Index()
        found = scan.scan(Window(files, handle, files.size(handle)), index, "log", PARTITION, 0, offset, ceiling)
    finally:
        files.close(handle)
    return found, [(index.base_offset(i), index.position(i)) for i in range(len(index))]


def positions(pieces: Sequence[bytes]) -> list[int]:
    found = [0]
    for piece in pieces:
        found.append(found[-1] + len(piece))
    return found


def test_a_scan_of_whole_batches_is_an_index_of_them(tmp_path: Path) -> None:
    pieces = [stamped(0, 3), stamped(3), stamped(4, 20)]
    found, known = scanned(tmp_path, *pieces)
    assert found == Scan(len(b"".join(pieces)), 24, [], None)
    assert known == list(zip((0, 3, 4), positions(pieces)[:-1], strict=True))


def test_a_scan_of_an_empty_file_finds_nothing(tmp_path: Path) -> None:
    assert scanned(tmp_path, offset=7) == (Scan(0, 7, [], None), [])


GARBAGE = {
    "zeros": bytes(1000),
    "a header's worth of zeros": bytes(256),
    "ones": b"\xff" * 700,
    "a batch of another partition": stamped(1, partition=PARTITION + 1),
    "a batch from before": stamped(0),
    "a batch with a flipped bit": bytes([*stamped(1)[:300], stamped(1)[300] ^ 1, *stamped(1)[301:]]),
    "the end of a batch": stamped(1)[250:],
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
@pytest.mark.parametrize("after", [1, 2, 50])
def test_a_scan_continues_with_the_next_whole_batch_after_garbage(tmp_path: Path, garbage: bytes, after: int) -> None:
    first, second, third = stamped(0), stamped(after, 5), stamped(after + 5)
    found, known = scanned(tmp_path, first, garbage, second, third)
    begin = len(first) + len(garbage)
    assert known == [(0, 0), (after, begin), (after + 5, begin + len(second))]
    assert (found.next_offset, found.reason) == (after + 6, None)
    assert [(d.position, d.length) for d in found.damage if d.length] == [(len(first), len(garbage))]
    assert {d.next_offset for d in found.damage} == {after}


def test_a_scan_continues_at_the_end_that_the_header_of_half_a_batch_states(
    tmp_path: Path,
) -> None:
    """Anything before that may be part of its payload, however much it looks like a batch."""
    half, second, third = stamped(1)[:200], stamped(1, 5), stamped(6)
    found, known = scanned(tmp_path, stamped(0), half, second, third)
    assert known == [(0, 0), (6, len(stamped(0)) + len(half) + len(second))]
    assert found.next_offset == 7


@pytest.mark.parametrize("garbage", [*GARBAGE.values(), b"\1", stamped(1)[:200]])
def test_a_scan_reports_where_garbage_at_the_end_begins_and_why(tmp_path: Path, garbage: bytes) -> None:
    found, known = scanned(tmp_path, stamped(0), garbage)
    assert known == [(0, 0)]
    assert (found.end, found.next_offset, found.damage) == (len(stamped(0)), 1, [])
    assert found.reason


def test_a_scan_reports_the_gap_of_a_missing_batch(tmp_path: Path) -> None:
    found, known = scanned(tmp_path, stamped(0, 2), stamped(7))
    assert [offset for offset, _ in known] == [0, 7]
    (damage,) = found.damage
    assert (damage.offset, damage.next_offset, damage.length) == (2, 7, 0)


def changed(content: bytes, at: int, value: bytes) -> bytes:
    return content[:at] + value + content[at + len(value) :]


def u64(value: int) -> bytes:
    return value.to_bytes(8, "little")


SIZE = len(stamped(1))

REASONS = {
    "a byte less than a header": (stamped(1)[:255], "the file ends inside a batch header, after 255 bytes of it"),
    "another partition": (stamped(1, partition=9), "not a batch of partition 3"),
    "a length without frames": (
        changed(stamped(1), 32, u64(256)),
        f"a batch of 256 bytes, but the file has only {SIZE} left",
    ),
    "a length that is too large": (
        changed(stamped(1), 32, u64(SIZE + 1)),
        f"a batch of {SIZE + 1} bytes, but the file has only {SIZE} left",
    ),
    "cut off": (stamped(1)[:-1], f"a batch of {SIZE} bytes, but the file has only {SIZE - 1} left"),
    "from before": (stamped(0), "a batch with offset 0, where 1 was expected"),
    "of the next segment": (stamped(19, 2), "a batch with offset 19, which belongs to the next segment"),
    "damaged": (changed(stamped(1), 24, b"?"), "the checksum of the batch does not match"),
}


@pytest.mark.parametrize(("garbage", "reason"), REASONS.values(), ids=REASONS)
def test_the_reason_why_bytes_are_no_batch_is_exact(tmp_path: Path, garbage: bytes, reason: str) -> None:
    first = stamped(0)
    assert scanned(tmp_path, first, garbage, ceiling=20)[0] == Scan(len(first), 1, [], reason)


def test_damage_before_another_batch_is_reported_with_its_reason(tmp_path: Path) -> None:
    first, garbage = stamped(0), REASONS["damaged"][0]
    found, _ = scanned(tmp_path, first, garbage, stamped(5), stamped(9))
    assert found.damage == [
        Damage("log", SIZE, SIZE, 1, 5, REASONS["damaged"][1]),
        Damage("log", 3 * SIZE, 0, 6, 9, "the messages before it are missing"),
    ]


def test_a_batch_may_end_where_the_next_segment_begins(tmp_path: Path) -> None:
    assert scanned(tmp_path, stamped(18, 2), offset=18, ceiling=20)[0].reason is None


NESTED = stamped(2)
"""A whole batch of this partition with a later offset, as a payload."""


def outer(base_offset: int = 1, nested: int = 1) -> bytes:
    """A batch of three messages, one of which has a whole batch in its payload."""
    payloads = [NESTED if i == nested else b"x" * 10 for i in range(3)]
    whole = batches.build([batches.Message(payload, 1, b"header") for payload in payloads], 1, os.urandom)
    batches.stamp(whole, PARTITION, base_offset, 1000, batches.check(whole).checksums)
    return bytes(whole)


HEADERS = {
    "partition": [(0, b"?")],
    "base offset": [(8, b"?")],
    "base timestamp": [(16, b"?")],
    "a length that is too large": [(32, u64(len(outer()) + 100))],
    "a length far beyond the end": [(32, u64(1 << 40))],
    "a length inside a frame": [(32, u64(300))],
    "a length of only the header": [(32, u64(256))],
    "no length": [(32, u64(0))],
    "checksum": [(40, b"????")],
    "a count that is too large": [(48, b"?")],
    "a count that is too small": [(48, b"\1")],
    "a count of 0": [(48, b"\0")],
    "a count that is too large, and a length inside a frame": [(48, b"?"), (32, u64(300))],
    "one reserved byte": [(200, b"?")],
    "two reserved bytes": [(200, b"??")],
}


@pytest.mark.parametrize("changes", HEADERS.values(), ids=HEADERS)
@pytest.mark.parametrize("nested", range(3))
def test_with_good_frames_a_damaged_header_hides_its_own_messages_only(
    tmp_path: Path, changes: list[tuple[int, bytes]], nested: int
) -> None:
    """The frames tell where the batch ends. What is in their payloads is never served."""
    damaged = outer(nested=nested)
    for at, value in changes:
        damaged = changed(damaged, at, value)
    pieces = [stamped(0), damaged, stamped(4), stamped(5, 40)]
    found, known = scanned(tmp_path, *pieces)
    assert known == [(0, 0), *zip((4, 5), positions(pieces)[2:], strict=False)]
    assert [(damage.position, damage.length) for damage in found.damage] == [(len(pieces[0]), len(pieces[1]))]
    found, known = scanned(tmp_path, *pieces[:2])
    assert (known, found.end) == ([(0, 0)], len(pieces[0]))


FRAME = 48 + 6 + 10
FRAMES = {
    "the id in the first": [(256 + 10, b"?")],
    "the id in the first, and the count": [(256 + 10, b"?"), (48, b"\0")],
    "the payload of the first": [(256 + FRAME - 1, b"?")],
    "the id in the second": [(256 + FRAME + 10, b"?")],
    "the payload of the second": [(256 + FRAME + 60, b"?")],
    "the last byte": [(len(outer()) - 1, b"?")],
}


@pytest.mark.parametrize("base_offset", [1, 2])
@pytest.mark.parametrize("changes", FRAMES.values(), ids=FRAMES)
@pytest.mark.parametrize("reserved", [0, 1])
def test_with_damaged_frames_the_header_tells_where_the_batch_ends(
    tmp_path: Path, changes: list[tuple[int, bytes]], base_offset: int, reserved: int
) -> None:
    """Even if a byte of it is damaged as well, or messages before the batch are missing."""
    damaged = outer(base_offset)
    for at, value in changes:
        if at != 48 or base_offset == 1:
            damaged = changed(damaged, at, value)
    if reserved:
        damaged = changed(damaged, 200, b"?")
    pieces = [stamped(0), damaged, stamped(5), stamped(6)]
    assert scanned(tmp_path, *pieces)[1] == [(0, 0), *zip((5, 6), positions(pieces)[2:], strict=False)]


@pytest.mark.parametrize("length", [0, 256])
def test_a_batch_is_found_after_one_whose_header_and_frames_are_damaged(tmp_path: Path, length: int) -> None:
    damaged = changed(changed(stamped(1), 32, u64(length)), SIZE - 1, b"?")
    assert scanned(tmp_path, stamped(0), damaged, stamped(4))[1] == [(0, 0), (4, 2 * SIZE)]


@pytest.mark.parametrize("inside", [49, 50, 51, 52, 100])
def test_a_batch_that_begins_before_a_damaged_one_ends_is_not_taken(tmp_path: Path, inside: int) -> None:
    """According to the header of the damaged one, it may be part of a payload."""
    half, second, third = stamped(1)[: SIZE - inside], stamped(2), stamped(3)
    _, known = scanned(tmp_path, stamped(0), half, second, third)
    assert known == [(0, 0), (3, 2 * SIZE + len(half))]


@pytest.mark.parametrize(
    ("count", "others", "is_believed"), [(0, b"", False), (1, b"", True), (1, b"?", True), (1, b"??", False)]
)
def test_zeros_with_a_length_are_believed_only_if_they_resemble_a_header(
    tmp_path: Path, count: int, others: bytes, is_believed: bool
) -> None:
    garbage = changed(changed(changed(bytes(256), 32, u64(256 + SIZE)), 48, bytes([count])), 200, others)
    found, known = scanned(tmp_path, stamped(0), garbage, stamped(1), stamped(2))
    assert [offset for offset, _ in known] == ([0, 2] if is_believed else [0, 1, 2])
    assert [damage.length for damage in found.damage] == [256 + SIZE if is_believed else 256]


@pytest.mark.parametrize("count", [255, 256, 65_536])
def test_a_batch_of_many_messages_is_found_after_garbage(tmp_path: Path, count: int) -> None:
    """The zeros after the count begin at another byte."""
    _, known = scanned(tmp_path, b"\xff" * 700, stamped(7, count, b"x"))
    assert known == [(7, 700)]


@pytest.mark.parametrize("garbage", [b"\xff" * 700, bytes(700), b"\xff" * 300 + bytes(204) + packing.MAGIC * 2])
@pytest.mark.parametrize("way", PACKED)
def test_a_packed_batch_is_found_after_garbage(tmp_path: Path, way: str, garbage: bytes) -> None:
    packed = [stored(stamped(offset, 1, b"x" * 5000), way) for offset in (5, 6)]
    assert all(packing.is_packed(one) for one in packed)
    pieces = [stamped(0), garbage, *packed]
    assert scanned(tmp_path, *pieces)[1] == list(zip((0, 5, 6), [0, *positions(pieces)[2:-1]], strict=True))


@pytest.mark.parametrize("way", PACKED)
def test_a_batch_is_found_after_a_packed_one_whose_lengths_are_lost(tmp_path: Path, way: str) -> None:
    packed = stored(stamped(1, 1, b"x" * 5000), way)
    damaged = changed(changed(packed, 32, bytes(8)), batches.RESERVED_AT + 8, bytes(40))
    assert damaged.startswith(packing.MAGIC, batches.RESERVED_AT)
    pieces = [stamped(0), damaged, stamped(5)]
    assert scanned(tmp_path, *pieces)[1] == [(0, 0), (5, SIZE + len(packed))]


def test_a_scan_does_not_take_batches_of_the_next_segment(tmp_path: Path) -> None:
    found, known = scanned(tmp_path, stamped(0, 2), stamped(2, 2), stamped(4), ceiling=4)
    assert [offset for offset, _ in known] == [0, 2]
    assert found.next_offset == 4
    assert "next segment" in (found.reason or "")


@pytest.mark.parametrize("shift", [*range(-300, 20, 13), 0, 1])
def test_a_scan_after_damage_finds_a_batch_at_the_end_of_a_piece(
    tmp_path: Path, shift: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is read in pieces, and a header may extend across two of them."""
    monkeypatch.setattr(scan, "CHUNK_BYTES", 4096)
    garbage = os.urandom(4096 + shift)
    second = stamped(9, 2)
    found, known = scanned(tmp_path, garbage, second)
    assert known == [(9, len(garbage))]
    assert found.next_offset == 11


@pytest.mark.parametrize("chunk", [2048, 2500, 5000])
def test_a_scan_in_small_pieces_finds_the_same(tmp_path: Path, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = [stamped(0, 30), GARBAGE["ones"], stamped(30, 2), bytes(3000), stamped(40, 90), stamped(130)]
    whole = scanned(tmp_path, *pieces)
    monkeypatch.setattr(scan, "CHUNK_BYTES", chunk)
    assert scanned(tmp_path, *pieces) == whole
    assert [offset for offset, _ in whole[1]] == [0, 30, 40, 130]


def test_a_window_returns_the_bytes_of_the_file_at_any_position(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "CHUNK_BYTES", 100)
    content = os.urandom(1000)
    (tmp_path / "log").write_bytes(content)
    files = Files()
    handle = files.open_for_reading(str(tmp_path / "log"))
    window = Window(files, handle, 1000)
    for position in (0, 50, 950, 10, 999, 1000, 1001, 500):
        for length in (0, 1, 60, 300, 2000):
            assert window.view(position, length) == content[position : position + length]
    files.close(handle)


def test_a_window_shows_nothing_after_the_end_that_it_was_given(tmp_path: Path) -> None:
    """The file may be longer: what follows is not part of the log yet."""
    content = os.urandom(1000)
    (tmp_path / "log").write_bytes(content)
    files = Files()
    handle = files.open_for_reading(str(tmp_path / "log"))
    for position in (0, 500, 599, 600, 700):
        assert Window(files, handle, 600).view(position, 300) == content[position : min(position + 300, 600)]
    files.close(handle)


class CountedReads(Files):
    def __init__(self) -> None:
        self.read_bytes = 0

    def read(self, handle: int, length: int, position: int) -> bytes:
        content = super().read(handle, length, position)
        self.read_bytes += len(content)
        return content


def test_a_scan_of_whole_batches_reads_every_byte_once(tmp_path: Path) -> None:
    pieces = [stamped(i) for i in range(10)]
    (tmp_path / "log").write_bytes(b"".join(pieces))
    files = CountedReads()
    handle = files.open_for_reading(str(tmp_path / "log"))
    size = files.size(handle)
    assert scan.scan(Window(files, handle, size), Index(), "log", PARTITION, 0, 0).next_offset == 10
    assert files.read_bytes == size
    files.close(handle)
