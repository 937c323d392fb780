"""Damaged folders: what is whole is imported, the rest is named with file and position, and nothing is invented."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.app.importing.iggy.support import made
from tests.app.importing.iggy.support.made import ORDERS, Classic, Modern, Sent, numbered
from tests.app.importing.iggy.support.record import Folder, folder_at
from tests.app.importing.iggy.support.running import imported
from tests.support.sizes import mostly_long
from whippet.app.importing.iggy.report import Refused, Report

Build = Callable[[Path], Classic | Modern]
PLACES = 40
"""How many places of a file are damaged in the quick run of a test that could damage every one."""


@pytest.fixture(params=[made.small_classic, made.small_modern], ids=["classic", "modern"])
def build(request: pytest.FixtureRequest) -> Build:
    chosen: Build = request.param
    return chosen


@pytest.fixture
def small(build: Build, tmp_path: Path) -> Classic | Modern:
    return build(tmp_path / "iggy")


def result(folder: Classic | Modern, target: str = "data") -> tuple[Report, Folder]:
    path = folder.root.parent / target
    report = imported(folder.root, path)
    return report, folder_at(path)


def offsets_of(folder: Folder) -> list[int]:
    """Also checks that every message is the one that had this offset."""
    assert folder.problems == []
    kept = folder.partitions["shop", ORDERS, 0].messages
    assert [m.payload for m in kept] == [b"message %d" % m.offset for m in kept]
    return [m.offset for m in kept]


def first_log(folder: Classic | Modern, start: int = 0) -> Path:
    return folder.partition(0, 0, 0) / f"{start:020}.log"


def test_missing_indexes_do_not_matter(small: Classic | Modern) -> None:
    for path in small.root.rglob("*.index"):
        path.unlink()
    report, folder = result(small)
    assert offsets_of(folder) == list(range(30))
    assert report.lost == []


@pytest.mark.parametrize("content", [b"", b"garbage", bytes(16), b"\xff" * 4800])
def test_wrong_indexes_do_not_matter(small: Classic | Modern, content: bytes) -> None:
    for path in small.root.rglob("*.index"):
        path.write_bytes(content)
    report, folder = result(small)
    assert offsets_of(folder) == list(range(30))
    assert [line for line in report.lost if "the next file begins" in line] == []


def test_a_cut_file_in_the_middle_loses_only_what_is_cut(small: Classic | Modern) -> None:
    path = first_log(small, 10)
    path.write_bytes(path.read_bytes()[:-1])
    report, folder = result(small)
    found = offsets_of(folder)
    assert set(range(30)) - set(found) <= set(range(15, 20))
    assert 19 not in found
    assert len(report.lost) == 1
    assert f"{path}: " in report.lost[0]
    assert folder.partitions["shop", ORDERS, 0].next_offset == 30


def test_a_cut_file_at_the_end_does_not_give_its_offsets_to_new_messages(small: Classic | Modern) -> None:
    """The stored offset of a group and the index know that there were 30 messages."""
    path = first_log(small, 20)
    path.write_bytes(path.read_bytes()[:100])
    report, folder = result(small)
    assert set(offsets_of(folder)) >= set(range(20))
    assert folder.partitions["shop", ORDERS, 0].next_offset == 30
    assert any(f"{path}: " in line for line in report.lost)


def test_a_missing_file_in_the_middle_is_reported(small: Classic | Modern) -> None:
    first_log(small, 10).unlink()
    report, folder = result(small)
    assert offsets_of(folder) == [*range(10), *range(20, 30)]
    assert any("10 messages" in line for line in report.lost)


def test_missing_logs_are_reported_by_their_indexes(small: Classic | Modern) -> None:
    for path in small.partition(0, 0, 0).glob("*.log"):
        path.unlink()
    report, folder = result(small)
    assert offsets_of(folder) == []
    assert folder.partitions["shop", ORDERS, 0].next_offset == 30
    assert [line.partition(": ")[2] for line in report.lost] == [
        f"the log beside it is missing; its messages from offset {start} on are lost" for start in (0, 10, 20)
    ]


def test_a_damaged_message_does_not_hide_the_next_ones(build: Build, tmp_path: Path) -> None:
    folder = build(tmp_path / "iggy")
    path = first_log(folder)
    content = bytearray(path.read_bytes())
    at = content.index(b"message 3")
    content[at] ^= 1
    path.write_bytes(content)
    report, found = result(folder)
    missing = sorted(set(range(30)) - set(offsets_of(found)))
    # In 0.9, a batch is whole or it is not.
    assert missing == ([3] if isinstance(folder, Classic) else [0, 1, 2, 3, 4])
    assert len(report.lost) == 1
    assert str(path) in report.lost[0]


def test_a_payload_that_contains_messages_is_not_mistaken_for_them(tmp_path: Path) -> None:
    folder = Classic(tmp_path / "iggy")
    folder.stream(0, "shop")
    folder.topic("shop", 0, ORDERS)
    inner = folder.message(Sent(1, b"message 1")) + folder.message(Sent(2, b"message 2"))
    messages = [Sent(0, inner), *numbered(1, 3)]
    path = folder.segment(folder.partition(0, 0, 0), messages, index=False)
    content = bytearray(path.read_bytes())
    content[8] ^= 1
    path.write_bytes(content)
    assert offsets_of(result(folder)[1]) == [1, 2, 3]


def test_after_a_damaged_header_the_next_message_is_found_without_an_index(tmp_path: Path) -> None:
    folder = Classic(tmp_path / "iggy")
    folder.stream(0, "shop")
    folder.topic("shop", 0, ORDERS)
    path = folder.segment(folder.partition(0, 0, 0), numbered(0, 5), index=False)
    content = bytearray(path.read_bytes())
    content[48:64] = b"\xff" * 16
    path.write_bytes(content)
    report, found = result(folder)
    assert offsets_of(found) == [1, 2, 3, 4]
    assert re.search(r"bytes at position 0: not a message; the message with offset 0 is lost", report.lost[0])


def test_messages_behind_any_number_of_zeros_are_found(tmp_path: Path) -> None:
    """A disk that has lost a block returns zeros."""
    folder = Classic(tmp_path / "iggy")
    folder.stream(0, "shop")
    folder.topic("shop", 0, ORDERS)
    path = folder.segment(folder.partition(0, 0, 0), numbered(0, 4), index=False)
    content = path.read_bytes()
    second = len(content) // 4
    path.write_bytes(content[:second] + bytes(20 << 20) + content[2 * second :] + bytes(1 << 20))
    report, found = result(folder)
    assert offsets_of(found) == [0, 2, 3]
    assert [line.rpartition(": ")[2].partition(";")[2] for line in report.lost] == [
        " the message with offset 1 is lost",
        " messages from offset 4 on may be lost",
    ]


@pytest.mark.parametrize("place", mostly_long(range(200), range(0, 200, 20)))
def test_garbage_anywhere_in_a_log_loses_only_what_it_covers(build: Build, place: int, tmp_path: Path) -> None:
    folder = build(tmp_path / "iggy")
    rng = random.Random(place)
    path = rng.choice([first_log(folder, start) for start in (0, 10, 20)])
    content = bytearray(path.read_bytes())
    at, length = rng.randrange(len(content)), rng.choice((1, 8, 64, 300))
    content[at : at + length] = rng.randbytes(len(content[at : at + length]))
    path.write_bytes(content)
    report, found = result(folder)
    start = int(path.stem)
    offsets = offsets_of(found)
    assert set(offsets) >= set(range(30)) - set(range(start, start + 10))
    assert bool(report.lost) == (len(offsets) < 30)
    assert all(str(path) in line for line in report.lost)


@pytest.mark.parametrize("place", mostly_long(range(200), range(0, 200, 20)))
def test_a_log_that_is_cut_anywhere_keeps_what_is_whole(build: Build, place: int, tmp_path: Path) -> None:
    folder = build(tmp_path / "iggy")
    rng = random.Random(place)
    path = rng.choice([first_log(folder, start) for start in (0, 10, 20)])
    path.write_bytes(path.read_bytes()[: rng.randrange(path.stat().st_size)])
    report, found = result(folder)
    offsets = offsets_of(found)
    assert set(offsets) >= set(range(30)) - set(range(int(path.stem), int(path.stem) + 10))
    assert report.lost
    assert found.partitions["shop", ORDERS, 0].next_offset == 30


@pytest.mark.parametrize("place", mostly_long(range(300), range(0, 300, 20)))
def test_a_damaged_catalogue_is_imported_in_part_or_refused(build: Build, place: int, tmp_path: Path) -> None:
    """What is imported is right: nothing appears under the name or number of something else."""
    folder = build(tmp_path / "iggy")
    rng = random.Random(place)
    path = folder.state if isinstance(folder, Classic) else folder.journal
    content = bytearray(path.read_bytes())
    at = rng.randrange(len(content))
    if rng.random() < 0.5:
        del content[at:]
    else:
        content[at : at + 4] = rng.randbytes(len(content[at : at + 4]))
    path.write_bytes(content)
    try:
        report, found = result(folder)
    except Refused as refused:
        assert "checksum" in str(refused) or "entry" in str(refused) or "neither" in str(refused)
        assert not (tmp_path / "data/streams").exists() or not list((tmp_path / "data/streams").iterdir())
        return
    if ("shop", ORDERS, 0) in found.partitions:
        assert offsets_of(found) == list(range(30))
    assert set(found.streams) <= {"shop"}
    assert set(found.users) <= {"iggy", "alice"}
    whole = len(found.topics) == 1 and len(found.users) == 2 and report.groups == 1
    # A journal that ends between two entries is whole, so only what refers to the missing ones tells.
    assert whole or report.lost or report.notes


def test_a_damaged_command_is_left_out_and_named(tmp_path: Path) -> None:
    folder = made.small_classic(tmp_path / "iggy")
    content = bytearray(folder.state.read_bytes())
    at = content.index(b"alice")
    content[at] ^= 1
    folder.state.write_bytes(content)
    report, found = result(folder)
    assert set(found.users) == {"iggy"}
    position = next(start for start in reversed(folder.starts) if start < at)
    assert [line for line in report.lost if f"{folder.state}: " in line] == report.lost
    assert f"position {position}" in report.lost[0]


def test_a_command_about_something_unknown_is_named(tmp_path: Path) -> None:
    folder = made.small_classic(tmp_path / "iggy")
    folder.record(203, made.named("nothing"))
    report, _ = result(folder)
    assert report.lost == [
        f"{folder.state}: the entry at position {folder.starts[-1]} (delete_stream) has no effect: "
        "there is no stream 'nothing'"
    ]


def test_messages_of_what_the_catalogue_does_not_have_are_reported(small: Classic | Modern) -> None:
    other = small.partition(5, 0, 0)
    (other / f"{0:020}.log").write_bytes(first_log(small).read_bytes())
    report, _ = result(small)
    (line,) = report.lost
    assert line.startswith(f"{other}: ")
    assert "the catalogue does not have this partition" in line


def test_the_folder_of_a_partition_may_be_missing(small: Classic | Modern) -> None:
    folder = small.partition(0, 0, 1)
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    report, found = result(small)
    assert offsets_of(found) == list(range(30))
    assert report.lost == [f"{folder}: the folder is missing; the partition is empty"]


@pytest.mark.parametrize("content", [b"", b"\1\2\3", b"\0" * 9, b"\0" * 15 + b"\1"])
def test_a_stored_offset_that_cannot_be_read_is_reported(small: Classic | Modern, content: bytes) -> None:
    path = small.partition(0, 0, 0) / "offsets/consumers/7"
    path.write_bytes(content)
    report, found = result(small)
    assert (1, 7) not in found.partitions["shop", ORDERS, 0].offsets
    assert report.lost[0].startswith(f"{path}: no stored offset can be read from it")


def test_files_that_do_not_belong_there_are_left_alone(small: Classic | Modern) -> None:
    folder = small.partition(0, 0, 0)
    (folder / "notes.txt").write_text("not a segment")
    (folder / "1.log").write_bytes(b"not a segment")
    (folder / "offsets/consumers/alice").write_bytes(bytes(8))
    (small.root / "streams/strange").mkdir()
    report, found = result(small)
    assert offsets_of(found) == list(range(30))
    assert report.lost == [f"{folder}/offsets/consumers/alice: not the file of a stored offset; not imported"]
