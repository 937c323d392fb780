"""Repairs the log of one segment with its copy in the archive: exactly the batches that are damaged.

A batch of the local log is kept if it is whole and the archive has the same one, or nothing in its place. So a log
whose batches are where they are in the archive is repaired in place, batch by batch; one in which they have moved, or
that is missing, is written anew and renamed into its place. The bytes that are replaced are copied and synced before
anything changes. After a kill at any point, all healthy batches are there, and the repair can be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from whippet.storage import recovery
from whippet.storage.batch import HEADER_BYTES
from whippet.storage.files import Files, read_fully, write_all
from whippet.storage.index import Index
from whippet.storage.layout import ASIDE_FOLDER, log_file
from whippet.storage.partition_check import row
from whippet.storage.repair_source import ArchivedSegment

COPIED_BYTES = 1 << 20


class Range(NamedTuple):
    position: int
    end: int


class Plan(NamedTuple):
    """The changes to a log. Without `rewritten`, ranges of it are replaced in place."""

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
    wanted = archived.entries
    kept = bytearray(len(wanted))
    newer: list[Range] = []
    only_here: list[Range] = []
    """Batches in whose place the archive has damage."""
    end = archived.end if len(wanted) else 0
    has_moved = differs = False
    handle = files.open_for_reading(path)
    try:
        for i in range(len(local)):
            here = Range(local.position(i), local.end_position(i))
            twin = wanted.holding(local.base_offset(i))
            if twin < len(wanted) and _same(files, handle, local, i, archived, twin):
                kept[twin] = True
                has_moved |= local.position(i) != wanted.position(twin)
            elif local.base_offset(i) >= archived.next_offset:
                newer.append(here)
                has_moved |= here.position < archived.end
            elif twin < len(wanted) and wanted.base_offset(twin) < local.next_offset(i):
                differs = True
                if not trusts_archive:
                    offset = local.base_offset(i)
                    return NOTHING._replace(reason=f"the archive has other messages from offset {offset} on")
            else:
                only_here.append(here)
            end = max(end, here.end)
    finally:
        files.close(handle)
    if differs:
        return NOTHING._replace(rewritten=[])
    if has_moved and not only_here:
        return NOTHING._replace(rewritten=_joined(newer))
    patches = _joined(Range(wanted.position(i), wanted.end_position(i)) for i in range(len(wanted)) if not kept[i])
    if has_moved or any(a.position < b.end and b.position < a.end for a in patches for b in only_here):
        return NOTHING._replace(reason="batches have moved, and the archive does not have all of them")
    return Plan(patches, end if cuts and size > end else None, None, None)


def _same(files: Files, handle: int, local: Index, i: int, archived: ArchivedSegment, twin: int) -> bool:
    """Both are whole, so their headers with the checksums tell whether they are the same."""
    mine, its = row(local, i), row(archived.entries, twin)
    if mine[:1] + mine[2:] != its[:1] + its[2:]:
        return False
    return read_fully(files, handle, HEADER_BYTES, mine[1]) == archived.read(its[1], HEADER_BYTES)


def _joined(ranges: Iterable[Range]) -> list[Range]:
    """Adjacent ranges as one."""
    found: list[Range] = []
    for each in sorted(ranges):
        if found and found[-1].end == each.position:
            found[-1] = Range(found[-1].position, each.end)
        else:
            found.append(each)
    return found


# ---------------------------------------------------------------------------------------------------------- the changes


def replace_unreadable(files: Files, folder: str, start: int, archived: ArchivedSegment) -> str:
    """Puts the archive's log in the place of one that the disk cannot read any more, and returns where that is kept."""
    _write_beside(files, folder, start, [], archived)
    path = log_file(folder, start)
    kept = recovery.move_aside(files, folder, path.rpartition("/")[2])
    files.rename(f"{path}.new", path)
    files.sync_folder(f"{folder}/{ASIDE_FOLDER}")
    files.sync_folder(folder)
    return kept


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
    _write_beside(files, folder, start, newer, archived)
    path = log_file(folder, start)
    files.rename(f"{path}.new", path)
    files.sync_folder(folder)


def _write_beside(files: Files, folder: str, start: int, newer: list[Range], archived: ArchivedSegment) -> None:
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
