"""Opens the folder of a partition after a crash, a full disk, or careless changes by hand.

It finishes a deletion that was in progress, lists the segments, checks the end of the last one (or all of every
segment), truncates the last one after its last whole batch, sets the cut bytes aside, and reports damage. It never
removes a byte that it has not set aside, and the partition's next offset is one that was never assigned before.
"""

from __future__ import annotations

import errno
from itertools import pairwise
from typing import Annotated, NamedTuple

import msgspec

from whippet.storage import scan
from whippet.storage.documents import NOT_UNDERSTOOD
from whippet.storage.files import Files, make_folders, read_all, read_fully, replace, write_all
from whippet.storage.index import HEADER_2, Index, decode, encode, entries_in, has_version_2, plain_bytes_in
from whippet.storage.layout import (
    ASIDE_FOLDER,
    INTENT_FILE,
    OFFSETS_FOLDER,
    index_file,
    left_out_file,
    log_file,
    producers_file,
    segment_of,
)
from whippet.storage.segment import Damage, Segment

RECHECKED_BYTES = 1 << 20
"""How much of a log is checked again although it has an index, written when the log was closed and synced."""
RECHECKED_BATCHES = 2


class Intent(msgspec.Struct, frozen=True):
    """A deletion of several files, recorded before the first one is removed, so that it can be finished after a
    crash."""

    delete_before: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """Delete the segments that end at or before this offset."""
    purge: bool = False
    """Delete everything, including stored offsets and results of numbered sends. The next offset is 0 again."""


class Recovered(NamedTuple):
    """A partition ready for appending. Only the last segment grows."""

    segments: list[Segment]
    last_timestamp: int
    damage: list[Damage]


def recover(files: Files, folder: str, partition_id: int, *, check_all: bool = False) -> Recovered:
    damage = _finish_noted(files, folder)
    logs, indexes, strange = _list(files, folder)
    damage += strange
    starts = sorted(logs)
    segments = [Segment(start, logs[start]) for start in starts]
    for segment, after in pairwise(segments):
        segment.next_offset = after.start_offset
    for segment in segments[:-1]:
        if not segment.log_bytes and files.exists(left_out_file(folder, segment.start_offset)):
            mark_left_out(segment)
            continue
        if not _takes_counts(files, folder, segment, indexes.get(segment.start_offset, 0)) or check_all:
            damage += _rebuild_if_readable(files, folder, segment, partition_id)
    cut, given_out = True, 0
    if segments:
        last = segments[-1]
        found, cut, given_out = _recover_last(
            files, folder, last, partition_id, check_all, last.start_offset in indexes
        )
        damage += found
    orphans = sorted(start for start in indexes if start not in logs)
    last_orphans = [start for start in orphans if not segments or start > segments[-1].start_offset]
    if last_orphans or not segments or not cut or given_out > segments[-1].next_offset:
        _continue_after(files, folder, segments, last_orphans, given_out)
    damage += _missing(folder, orphans, segments)
    last_timestamp, found = _last_timestamp(files, folder, segments, partition_id)
    return Recovered(segments, last_timestamp, damage + found)


def _list(files: Files, folder: str) -> tuple[dict[int, int], dict[int, int], list[Damage]]:
    """The sizes of the logs and of the indexes, by start offset, and anything with a similar name that is neither."""
    logs: dict[int, int] = {}
    indexes: dict[int, int] = {}
    strange: list[Damage] = []
    for item in files.list(folder):
        path = f"{folder}/{item.name}"
        name = segment_of(item.name)
        if name is not None and item.is_folder:
            kept = move_aside(files, folder, item.name)
            strange.append(Damage(path, 0, 0, name[0], name[0], "a folder in the place of a file", kept))
        elif name is not None:
            (logs if name[1] == "log" else indexes)[name[0]] = item.size
        elif item.name.lower().endswith((".log", ".index")):
            strange.append(Damage(path, 0, 0, 0, 0, "not the name of a segment; left alone"))
    return logs, indexes, strange


def _takes_counts(files: Files, folder: str, segment: Segment, index_bytes: int) -> bool:
    """Takes the number of batches in a closed segment, and what packing them has saved, from the size and the first
    bytes of its index. Returns False if that does not tell."""
    batches = entries_in(index_bytes)
    if batches is None:
        return False
    if has_version_2(index_bytes):
        head = _read_start(files, index_file(folder, segment.start_offset), HEADER_2.size)
        plain_bytes = plain_bytes_in(head, segment.start_offset, segment.log_bytes)
        if plain_bytes is None:
            return False
        segment.saved_bytes = plain_bytes - segment.log_bytes
    segment.batches = batches
    return True


def _read_start(files: Files, path: str, length: int) -> bytes:
    """The first bytes of a file; none if they cannot be read."""
    try:
        handle = files.open_for_reading(path)
    except OSError:
        return b""
    try:
        return read_fully(files, handle, length, 0)
    except OSError:
        return b""
    finally:
        files.close(handle)


def _rebuild_if_readable(files: Files, folder: str, segment: Segment, partition_id: int) -> list[Damage]:
    """A segment that cannot be read does not prevent reading the others. Reading it reports the error."""
    try:
        return rebuild_closed(files, folder, segment, partition_id)
    except OSError as error:
        path = log_file(folder, segment.start_offset)
        reason = f"cannot be read: {error.strerror}"
        return [Damage(path, 0, segment.log_bytes, segment.start_offset, segment.next_offset, reason)]


def _missing(folder: str, orphans: list[int], segments: list[Segment]) -> list[Damage]:
    """The logs of which only the index exists: each reaches to the next log, or to the next missing one."""
    starts = sorted({*orphans, *(segment.start_offset for segment in segments)})
    reason = "the file is missing although its index exists"
    return [
        Damage(log_file(folder, start), 0, 0, start, starts[starts.index(start) + 1], reason)
        for start in orphans
        if start != starts[-1]
    ]


# ------------------------------------------------------------------------------------------------ deletions in progress


def write_intent(files: Files, folder: str, intent: Intent) -> None:
    replace(files, f"{folder}/{INTENT_FILE}", msgspec.json.encode(intent))


def withdraw_intent(files: Files, folder: str) -> None:
    path = f"{folder}/{INTENT_FILE}"
    if files.exists(path):
        files.remove(path)
        files.sync_folder(folder)


def finish_intent(files: Files, folder: str) -> None:
    """Carries out a recorded deletion. May be repeated after a crash at any point."""
    path = f"{folder}/{INTENT_FILE}"
    if not files.exists(path):
        return
    intent = msgspec.json.decode(read_all(files, path), type=Intent)
    starts = sorted({name[0] for item in files.list(folder) if (name := segment_of(item.name)) and not item.is_folder})
    if intent.purge:
        doomed = starts
        if files.exists(f"{folder}/{OFFSETS_FOLDER}"):
            files.remove_tree(f"{folder}/{OFFSETS_FOLDER}")
        if files.exists(producers_file(folder)):
            files.remove(producers_file(folder))
    else:
        before = intent.delete_before or 0
        doomed = [start for start, end in pairwise(starts) if end <= before]
    for start in doomed:
        remove_segment(files, folder, start)
    if intent.purge:
        create_log(files, folder, 0)
    files.sync_folder(folder)
    files.remove(path)
    files.sync_folder(folder)


def remove_segment(files: Files, folder: str, start_offset: int) -> None:
    """Removes the index first: a log without an index is complete, an index without a log looks like a loss. The log is
    last, because a segment is there as long as its log is, also for the caller if an error comes in between."""
    remove_index(files, folder, start_offset)
    for path in (left_out_file(folder, start_offset), log_file(folder, start_offset)):
        if files.exists(path):
            files.remove(path)


def remove_index(files: Files, folder: str, start_offset: int) -> None:
    if files.exists(path := index_file(folder, start_offset)):
        files.remove(path)


def move_aside(files: Files, folder: str, name: str) -> str:
    """Moves a file that is in the way into the folder of damaged files, and returns its new path."""
    kept = free_name_aside(files, folder, name)
    files.rename(f"{folder}/{name}", kept)
    return kept


def _finish_noted(files: Files, folder: str) -> list[Damage]:
    """Finishes a deletion. If its intent cannot be decoded, nothing is deleted, and the intent is set aside."""
    try:
        finish_intent(files, folder)
    except NOT_UNDERSTOOD as error:
        path = f"{folder}/{INTENT_FILE}"
        kept = move_aside(files, folder, INTENT_FILE)
        return [Damage(path, 0, 0, 0, 0, f"a deletion was in progress and its intent cannot be decoded: {error}", kept)]
    return []


def create_log(files: Files, folder: str, start_offset: int) -> None:
    files.close(files.open_for_writing(log_file(folder, start_offset)))


# ----------------------------------------------------------------------------------------------------- the last segment


def _recover_last(
    files: Files, folder: str, segment: Segment, partition_id: int, check_all: bool, has_index: bool
) -> tuple[list[Damage], bool, int]:
    """Returns the damage, whether the bytes after the last batch could be cut off, and up to where offsets were given
    out according to an index of a longer log. Only the segment's next offset may be appended to it."""
    path = log_file(folder, segment.start_offset)
    segment.index, segment.whole = Index(), True
    described = given_out = 0
    trusted = 0
    if has_index:
        known = load_index(files, folder, segment.start_offset)
        if known is not None:
            segment.index, described = known
            given_out = _end_of(segment.index)
            trusted = 0 if check_all else _trusted(segment.index, min(described, segment.log_bytes))
            segment.index.keep(trusted)
    handle = files.open_for_writing(path)
    try:
        window = scan.Window(files, handle, segment.log_bytes)
        found = _scan_after(window, segment, trusted, path, partition_id)
        damage = found.damage
        end = segment.log_bytes
        offset, length = found.next_offset, segment.log_bytes - found.end
        if found.end >= described:
            given_out = offset
        if found.reason is not None:
            kept = None
            try:
                kept = keep_aside(files, folder, segment, window, found.end)
                files.truncate(handle, found.end)
                files.sync(handle)
                end = found.end
            except OSError as error:
                # A full disk has no room for the copy: the bytes stay where they are, and a new segment is begun.
                if error.errno not in (errno.ENOSPC, errno.EDQUOT) or max(offset, given_out) == segment.start_offset:
                    raise
            damage.append(Damage(path, found.end, length, offset, max(offset, given_out), found.reason, kept))
        elif given_out > offset:
            damage.append(Damage(path, found.end, 0, offset, given_out, "the file ends before its index does"))
        if has_index and found.end < described and given_out <= offset:
            # The index was made for other bytes and must not describe what is appended from now on.
            files.remove(index_file(folder, segment.start_offset))
            files.sync_folder(folder)
    finally:
        files.close(handle)
    cut = end == found.end
    segment.log_bytes = end
    segment.next_offset = found.next_offset
    segment.batches = len(segment.index)
    segment.saved_bytes = segment.index.saved_bytes
    return damage, cut, given_out


def _end_of(index: Index) -> int:
    """The offset after the last message in an index; 0 if it is empty."""
    return index.next_offset(len(index) - 1) if len(index) else 0


def _trusted(index: Index, described: int) -> int:
    """How many entries of an index are trusted without checking the log."""
    inside = len(index)
    while inside and index.end_position(inside - 1) > described:
        inside -= 1
    return max(0, min(index.before(described - RECHECKED_BYTES), inside - RECHECKED_BATCHES))


def _scan_after(window: scan.Window, segment: Segment, trusted: int, path: str, partition_id: int) -> scan.Scan:
    """Checks the log from where the index is no longer trusted, or from its start if the two do not match."""
    index = segment.index
    assert index is not None
    if trusted:
        position, offset = index.end_position(trusted - 1), index.next_offset(trusted - 1)
        found = scan.scan(window, index, path, partition_id, position, offset)
        if len(index) > trusted and index.position(trusted) == position:
            segment.whole = False
            segment.checked = bytearray(trusted) + b"\1" * (len(index) - trusted)
            return found
        index.keep(0)
    return scan.scan(window, index, path, partition_id, 0, segment.start_offset)


def keep_aside(files: Files, folder: str, segment: Segment, window: scan.Window, position: int) -> str:
    """Copies the bytes from a position on into a file of their own, and returns its path once they are synced."""
    path = free_name_aside(files, folder, f"{segment.start_offset:020}.log@{position}")
    handle = files.open_for_writing(path)
    try:
        at = position
        while len(piece := window.view(at, scan.CHUNK_BYTES)):
            write_all(files, handle, [piece], at - position)
            at += len(piece)
        files.sync(handle)
    finally:
        files.close(handle)
    files.sync_folder(f"{folder}/{ASIDE_FOLDER}")
    files.sync_folder(folder)
    return path


def free_name_aside(files: Files, folder: str, name: str) -> str:
    """A path in the folder of damaged files that replaces nothing."""
    aside = f"{folder}/{ASIDE_FOLDER}"
    make_folders(files, aside)
    taken = {item.name for item in files.list(aside)}
    free, copy = name, 0
    while free in taken:
        copy += 1
        free = f"{name}.{copy}"
    return f"{aside}/{free}"


# ------------------------------------------------------------------------------------------------------ closed segments


def load_index(files: Files, folder: str, start_offset: int) -> tuple[Index, int] | None:
    """The index in a segment's file and the log bytes it describes; None if there is no valid one."""
    try:
        content = read_all(files, index_file(folder, start_offset))
    except OSError:
        # An index is a hint that may be missing. A failing disk shows when the log itself is read.
        return None
    return decode(content, start_offset)


def check_closed(files: Files, folder: str, segment: Segment, partition_id: int) -> list[Damage]:
    """Reads a closed segment completely, rebuilds its index, and returns the damage. Changes no file."""
    path = log_file(folder, segment.start_offset)
    index = Index()
    handle = files.open_for_reading(path)
    try:
        size = files.size(handle)
        window = scan.Window(files, handle, size)
        start, ceiling = segment.start_offset, segment.next_offset
        found = scan.scan(window, index, path, partition_id, 0, start, ceiling)
    finally:
        files.close(handle)
    segment.index, segment.log_bytes, segment.batches = index, size, len(index)
    segment.saved_bytes = index.saved_bytes
    segment.whole, segment.checked, segment.end_checked = True, None, True
    segment.last_timestamp = _last_time_in(index)
    damage = found.damage
    if not size and files.exists(left_out_file(folder, start)):
        return damage
    if found.reason is not None or found.next_offset < ceiling:
        reason = found.reason or "the file ends before the next segment begins"
        damage.append(Damage(path, found.end, segment.log_bytes - found.end, found.next_offset, ceiling, reason))
    return damage


def mark_left_out(segment: Segment) -> None:
    """Makes an empty segment of offsets that were left out ready for readers."""
    segment.index, segment.left_out, segment.index_in_file = Index(), True, False
    segment.last_timestamp, segment.whole, segment.end_checked = 0, True, True


def rebuild_closed(files: Files, folder: str, segment: Segment, partition_id: int) -> list[Damage]:
    """Like `check_closed`, and writes the new index to its file, or keeps it in memory if that fails."""
    return check_closed(files, folder, segment, partition_id) + write_index_if_possible(files, folder, segment)


def write_index_if_possible(files: Files, folder: str, segment: Segment) -> list[Damage]:
    try:
        write_index(files, folder, segment)
    except OSError as error:
        # An old index may still exist, and must not be trusted about damaged batches.
        segment.index_in_file = False
        path, start = index_file(folder, segment.start_offset), segment.start_offset
        return [Damage(path, 0, 0, start, start, f"the index could not be written: {error}")]
    return []


def write_index(files: Files, folder: str, segment: Segment) -> None:
    """Does not sync: after a power failure the index is either complete or not trusted."""
    assert segment.index is not None
    content = encode(segment.index, segment.start_offset, segment.log_bytes)
    replace(files, index_file(folder, segment.start_offset), content, sync=False)
    segment.index_in_file = True


# ------------------------------------------------------------------------------------ the next offset and the last time


def _continue_after(files: Files, folder: str, segments: list[Segment], orphans: list[int], given_out: int) -> None:
    """Begins a new last segment after all offsets that were given out, as far as the indexes of lost logs tell."""
    after = max(segments[-1].next_offset if segments else 0, given_out)
    for start in orphans:
        known = load_index(files, folder, start)
        # An index that cannot be decoded still shows that its segment was not empty.
        after = max(after, start + 1 if known is None else max(start, _end_of(known[0])))
    create_log(files, folder, after)
    files.sync_folder(folder)
    if segments:
        segments[-1].next_offset = after
        # Its index was made for a longer log. The new file's name now tells what only that index knew.
        write_index_if_possible(files, folder, segments[-1])
    segments.append(Segment.empty(after))


def _last_timestamp(files: Files, folder: str, segments: list[Segment], partition_id: int) -> tuple[int, list[Damage]]:
    """The time of the newest message, before which no later one may be, and the damage met while looking for it."""
    last = segments[-1]
    assert last.index is not None
    last.last_timestamp = _last_time_in(last.index)
    damage: list[Damage] = []
    for segment in reversed(segments):
        if segment.last_timestamp is None:
            known = load_index(files, folder, segment.start_offset)
            if known is not None and known[1] == segment.log_bytes:
                segment.last_timestamp = _last_time_in(known[0])
            else:
                damage += _rebuild_if_readable(files, folder, segment, partition_id)
        if segment.last_timestamp:
            return segment.last_timestamp, damage
    return 0, damage


def _last_time_in(index: Index) -> int:
    return index.timestamp(len(index) - 1) if len(index) else 0
