"""Repairs the log of one segment with its copy in the archive: exactly the batches that are damaged.

A batch of the local log is kept if it is whole and the archive has the same one, or nothing in its place. So a log
whose batches are where they are in the archive is repaired in place, batch by batch; one in which they have moved, or
that is missing, is written anew and renamed into its place. The bytes that are replaced are copied and synced before
anything changes. After a kill at any point, all healthy batches are there, and the repair can be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from whippet.storage import recovery
from whippet.storage.batch import HEADER_BYTES
from whippet.storage.files import Files, read_fully, write_all
from whippet.storage.index import Index
from whippet.storage.layout import ASIDE_FOLDER, log_file
from whippet.storage.partition_check import rows
from whippet.storage.repair_source import ArchivedSegment

COPIED_BYTES = 1 << 20

BASE, POSITION, TIME, LENGTH, STORED = range(5)


class Range(NamedTuple):
    position: int
    end: int


class Plan(NamedTuple):
    """How a log is to be changed. Without `rewritten`, ranges of it are replaced in place."""

    patches: list[Range]
    """Bytes to take from the archive, at the same positions."""
    cut_at: int | None
    """Where the log is to end."""
    rewritten: list[Range] | None
    """The local bytes that follow those of the archive in a new file; None: the file stays."""
    reason: str | None
    """Why nothing can be done."""

    @property
    def is_empty(self) -> bool:
        return not self.patches and self.cut_at is None and self.rewritten is None


NOTHING: Plan = Plan([], None, None, None)


class NotArchived:
    """A last segment of which the archive has nothing."""

    def __init__(self, start: int) -> None:
        self.entries, self.end, self.notes = Index(), 0, list[str]()
        self.next_offset = start

    def read(self, position: int, length: int) -> bytes:
        raise AssertionError(f"{length} bytes at {position} of nothing are read")


def plan(
    files: Files, path: str, local: Index, size: int, archived: ArchivedSegment, *, cuts: bool, trusts_archive: bool
) -> Plan:
    """`local` has the whole batches of the log, `cuts` tells whether bytes after the last batch may be cut off. With
    `trusts_archive`, local batches that are whole, but not those of the archive, are replaced."""
    wanted = rows(archived.entries)
    by_offset = {row[BASE]: row for row in wanted}
    kept: list[tuple[int, ...]] = []
    newer: list[tuple[int, ...]] = []
    has_moved = False
    handle = files.open_for_reading(path)
    try:
        for row in rows(local):
            twin = by_offset.get(row[BASE])
            if twin is not None and _same(files, handle, row, archived, twin):
                kept.append(row)
                has_moved |= row[POSITION] != twin[POSITION]
            elif row[BASE] >= archived.next_offset:
                newer.append(row)
                has_moved |= row[POSITION] < archived.end
            elif twin is None and not _overlaps(archived.entries, row) and not trusts_archive:
                # The archive has damage in its place.
                kept.append(row)
            elif not trusts_archive:
                return NOTHING._replace(
                    reason=f"the archive has other messages from offset {row[BASE]} on, and both are intact"
                )
            else:
                newer.clear()
                has_moved = True
    finally:
        files.close(handle)
    if trusts_archive and len(kept) < len(rows(local)):
        newer = []
    if has_moved:
        return NOTHING._replace(rewritten=_joined(Range(row[POSITION], row[POSITION] + row[STORED]) for row in newer))
    known = {row[BASE] for row in kept}
    patches = _joined(Range(row[1], row[1] + row[STORED]) for row in wanted if row[BASE] not in known)
    end = max([archived.end if wanted else 0, *(row[POSITION] + row[STORED] for row in (*kept, *newer))])
    return Plan(patches, end if cuts and size > end else None, None, None)


def _same(files: Files, handle: int, row: tuple[int, ...], archived: ArchivedSegment, twin: tuple[int, ...]) -> bool:
    """Both are whole, so their headers with the checksums tell whether they are the same."""
    if row[TIME:] != twin[TIME:]:
        return False
    return read_fully(files, handle, HEADER_BYTES, row[POSITION]) == archived.read(twin[POSITION], HEADER_BYTES)


def _overlaps(entries: Index, row: tuple[int, ...]) -> bool:
    """Whether the archive has any message of a batch."""
    count = row[LENGTH] >> 32
    first = entries.holding(row[BASE])
    return first < len(entries) and entries.base_offset(first) < row[BASE] + count


def _joined(ranges: Iterator[Range]) -> list[Range]:
    """Adjacent ranges as one."""
    found: list[Range] = []
    for each in sorted(ranges):
        if found and found[-1].end == each.position:
            found[-1] = Range(found[-1].position, each.end)
        else:
            found.append(each)
    return found


# ---------------------------------------------------------------------------------------------------------- the changes


def apply(files: Files, folder: str, start: int, size: int, wanted: Plan, archived: ArchivedSegment) -> list[str]:
    """Changes the log, and returns where the bytes that it had are kept. Everything is synced."""
    path = log_file(folder, start)
    kept: list[str] = []
    if wanted.rewritten is not None:
        kept.append(_keep(files, folder, start, Range(0, size)))
        _write_anew(files, folder, start, wanted.rewritten, archived)
        return kept
    replaced = [Range(patch.position, min(patch.end, size)) for patch in wanted.patches if patch.position < size]
    if wanted.cut_at is not None and wanted.cut_at < size:
        replaced.append(Range(wanted.cut_at, size))
    kept += [_keep(files, folder, start, each) for each in replaced]
    handle = files.open_for_writing(path)
    try:
        for patch in wanted.patches:
            _copy(files, archived.read, patch, handle, patch.position)
        if wanted.cut_at is not None:
            files.truncate(handle, wanted.cut_at)
        files.sync(handle)
    finally:
        files.close(handle)
    return kept


def create(files: Files, folder: str, start: int, archived: ArchivedSegment) -> None:
    """Makes a log that is missing."""
    _write_anew(files, folder, start, [], archived)


def _write_anew(files: Files, folder: str, start: int, newer: list[Range], archived: ArchivedSegment) -> None:
    path = log_file(folder, start)
    handle = files.open_for_writing(f"{path}.new")
    try:
        files.truncate(handle, 0)
        _copy(files, archived.read, Range(0, archived.end), handle, 0)
        position = archived.end
        for each in newer:
            _copy_file(files, path, each, handle, position)
            position += each.end - each.position
        files.sync(handle)
    finally:
        files.close(handle)
    files.rename(f"{path}.new", path)
    files.sync_folder(folder)


def _keep(files: Files, folder: str, start: int, what: Range) -> str:
    """Copies bytes of a log into a file of their own, and returns its path once they are synced."""
    kept = recovery.free_name_aside(files, folder, f"{start:020}.log@{what.position}")
    handle = files.open_for_writing(kept)
    try:
        _copy_file(files, log_file(folder, start), what, handle, 0)
        files.sync(handle)
    finally:
        files.close(handle)
    files.sync_folder(f"{folder}/{ASIDE_FOLDER}")
    files.sync_folder(folder)
    return kept


def _copy_file(files: Files, path: str, what: Range, target: int, position: int) -> None:
    source = files.open_for_reading(path)
    try:
        _copy(files, lambda at, length: read_fully(files, source, length, at), what, target, position)
    finally:
        files.close(source)


def _copy(files: Files, read: Callable[[int, int], bytes], what: Range, target: int, position: int) -> None:
    for start in range(what.position, what.end, COPIED_BYTES):
        piece = read(start, min(COPIED_BYTES, what.end - start))
        write_all(files, target, [piece], position + start - what.position)
