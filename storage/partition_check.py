"""Checks everything in the folder of one partition, which no server has open: logs, indexes, stored offsets, numbered
sends. For `whippet check` and `whippet repair`. It changes nothing.

What opening the partition would cut off or finish is reported as it is. A missing index is no damage, because a crash
may leave a segment without one; and an index that describes the first batches of a log, because it was written earlier.
"""

from __future__ import annotations

import enum
from itertools import pairwise

import msgspec

from whippet.storage import offsets, packing, producer_file, recovery, scan
from whippet.storage.batch import HEADER_BYTES
from whippet.storage.document_checksums import State, without_checksum
from whippet.storage.encryption import Seal
from whippet.storage.errors import InvalidBatch, KeyMissing
from whippet.storage.files import Files, read_all, read_fully
from whippet.storage.index import Index
from whippet.storage.layout import (
    HISTORY_FILE,
    OFFSETS_FOLDER,
    index_file,
    log_file,
    number,
    producers_file,
    segment_of,
)
from whippet.storage.segment import Damage, Segment

CHECKSUM_FAULT = "it is not what was written: its checksum does not match"


class Part(enum.Enum):
    """A part of a data folder that may be damaged."""

    LOG = "log"
    TAIL = "end of the last log"
    MISSING = "missing log"
    INDEX = "index"
    OFFSETS = "stored offset"
    PRODUCERS = "results of numbered sends"
    HISTORY = "history"
    DOCUMENT = "document"
    FOLDER = "folder"
    OBJECT = "object of the archive"


class Found(msgspec.Struct, frozen=True):
    part: Part
    damage: Damage


class Seals(msgspec.Struct, frozen=True):
    """The keys for the batches and the offsets of a partition; None: the key is not known here."""

    batches: Seal | None = None
    offsets: Seal | None = None


class CheckedSegment:
    """A segment whose log was read completely. The index of `segment` has its whole batches."""

    def __init__(self, segment: Segment, is_last: bool) -> None:
        self.segment = segment
        self.is_last = is_last
        self.found: list[Found] = []
        self.described: Index | None = None
        """The entries of the index file; None if there is no valid one."""
        self.has_index = False
        self.is_foreign = False
        """Its batches are intact, but they belong somewhere else."""
        self.is_unreadable = False
        """The disk fails to read the log."""

    @property
    def start(self) -> int:
        return self.segment.start_offset

    @property
    def entries(self) -> Index:
        assert self.segment.index is not None
        return self.segment.index

    @property
    def log_is_damaged(self) -> bool:
        return any(found.part in (Part.LOG, Part.TAIL) for found in self.found)


class CheckedPartition:
    def __init__(self) -> None:
        self.segments: list[CheckedSegment] = []
        self.rest: list[Found] = []
        """Damage in anything besides the segments that exist."""

    @property
    def found(self) -> list[Found]:
        return [found for segment in self.segments for found in segment.found] + self.rest


def check(files: Files, folder: str, partition_id: int, seals: Seals) -> CheckedPartition:
    checked = CheckedPartition()
    items = {item.name: item for item in files.list(folder)}
    named = [(segment_of(item.name), item) for item in items.values() if not item.is_folder]
    logs = {name[0]: item.size for name, item in named if name is not None and name[1] == "log"}
    kept_indexes = {name[0] for name, _ in named if name is not None and name[1] == "index"}
    segments = [Segment(start, logs[start]) for start in sorted(logs)]
    for segment, following in pairwise(segments):
        segment.next_offset = following.start_offset
    for i, segment in enumerate(segments):
        one = CheckedSegment(segment, i == len(segments) - 1)
        one.has_index = segment.start_offset in kept_indexes
        check_segment(files, folder, one, partition_id, seals.batches)
        checked.segments.append(one)
    checked.rest += _lost_logs(files, folder, sorted(kept_indexes - set(logs)), segments)
    if OFFSETS_FOLDER in items:
        checked.rest += _check_offsets(files, f"{folder}/{OFFSETS_FOLDER}", seals.offsets)
    checked.rest += [Found(Part.PRODUCERS, damage) for damage in _check_producers(files, folder)]
    if HISTORY_FILE in items:
        checked.rest += _check_history(files, f"{folder}/{HISTORY_FILE}")
    return checked


# ------------------------------------------------------------------------------------------------------------- segments


def check_segment(files: Files, folder: str, one: CheckedSegment, partition_id: int, seal: Seal | None) -> None:
    """Reads a segment; its `next_offset` must be known unless it is the last one."""
    segment = one.segment
    try:
        damage, end = _read(files, folder, one, partition_id)
    except OSError as error:
        segment.index, one.is_unreadable = Index(), True
        reason = f"cannot be read: {error.strerror}"
        path, offset = log_file(folder, segment.start_offset), segment.start_offset
        one.found.append(Found(Part.LOG, Damage(path, 0, segment.log_bytes, offset, segment.next_offset, reason)))
        return
    one.found += [Found(Part.LOG, each) for each in damage]
    if end is not None:
        one.found.append(Found(Part.TAIL, end))
    if not one.log_is_damaged and (place := _foreign(files, folder, one, seal)):
        one.is_foreign = True
        path = log_file(folder, segment.start_offset)
        lost = Damage(path, 0, segment.log_bytes, segment.start_offset, segment.next_offset, place)
        one.found.append(Found(Part.LOG, lost))
    if one.has_index:
        _check_index(files, folder, one)


def _read(files: Files, folder: str, one: CheckedSegment, partition_id: int) -> tuple[list[Damage], Damage | None]:
    """The damage in a log, and that at the end of the last one, which the next start cuts off."""
    segment = one.segment
    if not one.is_last:
        return recovery.check_closed(files, folder, segment, partition_id), None
    path = log_file(folder, segment.start_offset)
    segment.index = Index()
    handle = files.open_for_reading(path)
    try:
        window = scan.Window(files, handle, segment.log_bytes)
        found = scan.scan(window, segment.index, path, partition_id, 0, segment.start_offset)
    finally:
        files.close(handle)
    segment.next_offset = offset = found.next_offset
    if found.reason is None:
        return found.damage, None
    return found.damage, Damage(path, found.end, segment.log_bytes - found.end, offset, offset, found.reason)


def _foreign(files: Files, folder: str, one: CheckedSegment, seal: Seal | None) -> str | None:
    """Returns why the first or the last batch of a segment cannot be decrypted in this place. No damage explains that,
    because their checksums are right."""
    if seal is None or not len(one.entries):
        return None
    handle = files.open_for_reading(log_file(folder, one.start))
    try:
        for i in {0, len(one.entries) - 1}:
            batch = read_fully(files, handle, one.entries.stored_length(i), one.entries.position(i))
            if packing.is_packed(batch[:HEADER_BYTES]):
                packing.unpack(batch, seal)
    except KeyMissing:
        return None
    except InvalidBatch as error:
        return f"the batches do not belong here: {error}"
    finally:
        files.close(handle)
    return None


def _check_index(files: Files, folder: str, one: CheckedSegment) -> None:
    path, start, log_bytes = index_file(folder, one.start), one.start, one.segment.log_bytes
    known = recovery.load_index(files, folder, start)
    if known is None:
        one.found.append(Found(Part.INDEX, Damage(path, 0, 0, start, start, "it is not an index of the segment")))
        return
    one.described, described_bytes = known
    end = _end_of(one.described)
    if described_bytes > log_bytes and one.is_last and end > one.segment.next_offset:
        log, offset = log_file(folder, start), one.segment.next_offset
        short = Damage(log, log_bytes, 0, offset, end, "the file ends before its index does")
        if one.found and one.found[-1].part is Part.TAIL:
            tail = one.found.pop().damage
            short = msgspec.structs.replace(tail, next_offset=end)
        one.found.append(Found(Part.TAIL, short))
    elif not one.log_is_damaged and not _is_beginning(one.described, one.entries):
        reason = "it describes other batches than the log has"
        one.found.append(Found(Part.INDEX, Damage(path, 0, 0, start, start, reason)))
    elif one.log_is_damaged and not one.is_foreign:
        inside = one.entries.before(min(described_bytes, log_bytes))
        if not all(_has(one.described, one.entries, i) for i in range(inside)):
            reason = "it describes other batches than the log has"
            one.found.append(Found(Part.INDEX, Damage(path, 0, 0, start, start, reason)))


def row(index: Index, i: int) -> tuple[int, int, int, int, int, int]:
    """All that an index says of a batch."""
    return (
        index.base_offset(i),
        index.position(i),
        index.timestamp(i),
        index.length(i),
        index.count(i),
        index.stored_length(i),
    )


def _has(described: Index, entries: Index, i: int) -> bool:
    """Returns whether an index has the same entry as another one."""
    at = described.holding(entries.base_offset(i))
    return at < len(described) and row(described, at) == row(entries, i)


def _is_beginning(described: Index, entries: Index) -> bool:
    """Returns whether an index describes the log, or its first batches."""
    return described.describes_as(entries.part(0, len(described)))


def _end_of(index: Index) -> int:
    return index.next_offset(len(index) - 1) if len(index) else 0


def _lost_logs(files: Files, folder: str, orphans: list[int], segments: list[Segment]) -> list[Found]:
    """The logs of which only the index exists."""
    starts = sorted({*orphans, *(segment.start_offset for segment in segments)})
    found = []
    for start in orphans:
        known = recovery.load_index(files, folder, start)
        end = start + 1 if known is None else max(_end_of(known[0]), start)
        after = next((each for each in starts if each > start), end)
        reason = "the file is missing although its index exists"
        found.append(Found(Part.MISSING, Damage(log_file(folder, start), 0, 0, start, after, reason)))
    return found


# ---------------------------------------------------------------------------------------------------------- other files


def _check_offsets(files: Files, folder: str, seal: Seal | None) -> list[Found]:
    found = []
    for name in offsets.FOLDERS.values():
        if not files.exists(f"{folder}/{name}"):
            continue
        for item in files.list(f"{folder}/{name}"):
            path = f"{folder}/{name}/{item.name}"
            if item.is_folder or number(item.name) is None:
                continue
            part = None if seal is None else seal.for_part(f"{name}/{item.name}")
            reason = offsets.fault_in(read_all(files, path), part)
            if reason is not None:
                found.append(Found(Part.OFFSETS, Damage(path, 0, 0, 0, 0, reason)))
    return found


def _check_producers(files: Files, folder: str) -> list[Damage]:
    """Records without a batch are not damage: a crash leaves them, and the next start removes them."""
    path = producers_file(folder)
    if not files.exists(path):
        return []
    return producer_file.faults_in(path, read_all(files, path))


class _History(msgspec.Struct):
    first_offset: int


def _check_history(files: Files, path: str) -> list[Found]:
    content = read_all(files, path)
    reason = document_fault(content, _History)
    return [] if reason is None else [Found(Part.HISTORY, Damage(path, 0, 0, 0, 0, reason))]


def document_fault(content: bytes, kind: type[object]) -> str | None:
    """Returns what is wrong with a JSON document; None if nothing is."""
    document, state = without_checksum(content)
    try:
        msgspec.json.decode(document, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return f"it cannot be decoded: {error}"
    return CHECKSUM_FAULT if state is State.CHANGED else None
