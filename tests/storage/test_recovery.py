"""How much of a log is read when it is opened, and the report on a closed segment that is read completely."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.storage.support.segments import (
    FIRST_SEGMENT,
    PARTITION,
    FilesInMemoryOfTheSystem,
    append,
    expected,
    joined,
    open_log,
    pieces,
    read_log,
)
from whippet.storage import recovery
from whippet.storage.files import Files
from whippet.storage.segment import Damage, Segment

KIB = 1 << 10


class Reading(FilesInMemoryOfTheSystem):
    """Records from which position on a log was read."""

    def __init__(self) -> None:
        self.first_read = 1 << 62
        self._logs: set[int] = set()

    def open_for_writing(self, path: str) -> int:
        handle = super().open_for_writing(path)
        if path.endswith(".log"):
            self._logs.add(handle)
        return handle

    def close(self, handle: int) -> None:
        self._logs.discard(handle)
        super().close(handle)

    def read(self, handle: int, length: int, position: int) -> bytes:
        if handle in self._logs:
            self.first_read = min(self.first_read, position)
        return super().read(handle, length, position)


@pytest.mark.parametrize(
    ("batches", "batch_kib", "checked_again"),
    [
        (40, 64, 15),  # those that begin in the last mebibyte
        (40, 340, 3),
        (6, 1500, 2),  # at least two batches, however large they are
        (2, 1500, 2),
        (1, 1500, 1),
    ],
)
def test_opening_reads_only_the_end_of_a_log_that_was_closed(
    tmp_path: Path, batches: int, batch_kib: int, checked_again: int
) -> None:
    whole = pieces([[batch_kib * KIB]] * batches)
    (tmp_path / f"{FIRST_SEGMENT}.log").write_bytes(joined(whole))
    closing = open_log(tmp_path)
    closing.close()
    files = Reading()
    opened = open_log(tmp_path, files=files)
    assert files.first_read == whole[-checked_again].position
    assert opened.damage == []
    assert opened.log.next_offset == batches
    assert opened.log.state.batches == batches
    assert opened.log.segments[-1].log_bytes == whole[-1].end
    assert [offset for offset, _ in read_log(opened.log)] == list(range(batches))
    opened.close()


def test_opening_finds_everything_in_a_log_that_has_grown_since_its_index_was_written(tmp_path: Path) -> None:
    whole = pieces([[64 * KIB]] * 40)
    path = tmp_path / f"{FIRST_SEGMENT}.log"
    path.write_bytes(joined(whole[:30]))
    open_log(tmp_path).close()
    path.write_bytes(joined(whole))
    files = Reading()
    opened = open_log(tmp_path, files=files)
    assert files.first_read == whole[30 - 15].position
    assert opened.damage == []
    assert read_log(opened.log) == expected(whole)
    opened.close()


def test_opening_checks_the_last_batches_that_a_log_still_has(tmp_path: Path) -> None:
    """Those that were cut off since its index was written do not count."""
    whole = pieces([[1500 * KIB]] * 6)
    path = tmp_path / f"{FIRST_SEGMENT}.log"
    path.write_bytes(joined(whole))
    open_log(tmp_path).close()
    path.write_bytes(joined(whole)[:-10])
    files = Reading()
    opened = open_log(tmp_path, files=files)
    assert files.first_read == whole[3].position
    assert read_log(opened.log) == expected(whole[:5])
    opened.close()


def test_a_log_with_a_damaged_end_serves_everything_before_it(tmp_path: Path) -> None:
    """All batches are damaged for which the index is not trusted."""
    whole = pieces([[1500 * KIB]] * 5)
    path = tmp_path / f"{FIRST_SEGMENT}.log"
    path.write_bytes(joined(whole))
    open_log(tmp_path).close()
    with path.open("r+b") as log:
        for piece in whole[-2:]:
            log.seek(piece.position)
            log.write(bytes(300))
    opened = open_log(tmp_path)
    assert read_log(opened.log) == expected(whole[:3])
    assert opened.log.next_offset == 5
    assert [damage.offset for damage in opened.damage] == [3]
    opened.close()


CLOSED = pieces([[9, 9], [30], [5] * 20])
NEXT = CLOSED[-1].next_offset


@pytest.mark.parametrize("kept", range(len(CLOSED) + 1))
@pytest.mark.parametrize("after", [b"", b"x", b"\0" * 300])
def test_opening_reports_what_is_wrong_with_the_end_of_a_closed_segment(
    tmp_path: Path, kept: int, after: bytes
) -> None:
    content = joined(CLOSED[:kept]) + after
    end = CLOSED[kept - 1].end if kept else 0
    next_offset = CLOSED[kept - 1].next_offset if kept else 0
    path = tmp_path / f"{FIRST_SEGMENT}.log"
    path.write_bytes(content)
    segment = Segment(0, 12345, NEXT)
    found = recovery.check_closed(FilesInMemoryOfTheSystem(), str(tmp_path), segment, PARTITION)
    assert (segment.log_bytes, segment.batches, segment.whole) == (len(content), kept, True)
    if kept == len(CLOSED) and not after:
        assert found == []
        return
    (damage,) = found
    assert damage == Damage(str(path), end, len(after), next_offset, NEXT, damage.reason)
    if not after:
        assert damage.reason == "the file ends before the next segment begins"
    else:
        assert damage.reason.startswith(
            "the file ends inside a batch header" if after == b"x" else f"not a batch of partition {PARTITION}"
        )


@pytest.mark.parametrize("check_all", [False, True])
def test_damage_in_a_closed_segment_is_found_by_opening_only_if_everything_is_checked(
    tmp_path: Path, check_all: bool
) -> None:
    filling = open_log(tmp_path, segment_bytes=1000)
    for _ in range(3):
        append(filling.log, [400, 400])
    filling.close()
    log = tmp_path / f"{FIRST_SEGMENT}.log"
    content = bytearray(log.read_bytes())
    content[-1] ^= 1
    log.write_bytes(content)
    opened = open_log(tmp_path, check_all=check_all)
    found = [(damage.file, damage.position, damage.offset, damage.next_offset) for damage in opened.damage]
    assert found == ([(str(log), 0, 0, 2)] if check_all else [])
    assert [offset for offset, _ in read_log(opened.log)] == [2, 3, 4, 5]
    opened.close()


def test_a_deletion_that_could_not_be_decided_leaves_no_intent(tmp_path: Path) -> None:
    disk, folder = Files(), str(tmp_path)
    recovery.withdraw_intent(disk, folder)
    recovery.write_intent(disk, folder, recovery.Intent(purge=True))
    assert [path.name for path in tmp_path.iterdir()] == ["intent.json"]
    recovery.withdraw_intent(disk, folder)
    assert not list(tmp_path.iterdir())


def test_an_intent_that_cannot_be_decoded_is_set_aside_and_loses_no_message(
    tmp_path: Path,
) -> None:
    (tmp_path / "intent.json").write_bytes(b"\xff")
    (damage,) = recovery.recover(Files(), str(tmp_path), PARTITION).damage
    note = str(tmp_path / "intent.json")
    assert damage == Damage(note, 0, 0, 0, 0, damage.reason, damage.kept_in)
    assert damage.reason.startswith("a deletion was in progress and its intent cannot be decoded")
    assert damage.kept_in is not None
    assert Path(damage.kept_in).read_bytes() == b"\xff"
