"""Opens the folder of a partition as a crash, a full disk or a careless hand may have left it.

What it does, in this order: finishes a deletion that was under way; lists the segments; checks the end of the last one
(all of every one if asked) and cuts it after the last whole batch, keeping the cut bytes aside; says what is damaged.
It never removes a byte that it has not kept, and after it the partition's next offset is one that was never given out.
"""

from __future__ import annotations

import errno
from itertools import pairwise
from typing import Annotated, NamedTuple

import msgspec

from whippet.storage import scan
from whippet.storage.documents import NOT_UNDERSTOOD
from whippet.storage.files import Files, make_folders, read_all, replace, write_all
from whippet.storage.index import Index, decode, encode, entries_in
from whippet.storage.layout import (
    ASIDE_FOLDER,
    INTENT_FILE,
    OFFSETS_FOLDER,
    index_file,
    log_file,
    producers_file,
    segment_of,
)
from whippet.storage.segment import Damage, Segment

RECHECKED_BYTES = 1 << 20
"""How much of a log is checked again although its index, written when the log was closed and synced, describes it."""
RECHECKED_BATCHES = 2


class Intent(msgspec.Struct, frozen=True):
    """A deletion of several files, noted before the first of them goes, so that a crash half-way is finished later."""

    delete_before: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """Segments that end at or before this offset go."""
    purge: bool = False
    """Everything goes, consumer offsets and what producers were answered too; the next offset is 0 again."""


class Recovered(NamedTuple):
    """A partition ready to be written to; the last segment is the one that grows."""

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
        batches = entries_in(indexes.get(segment.start_offset, 0))
        segment.batches = batches or 0
        if batches is None or check_all:
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
    """The sizes of the logs and of the indexes, by start offset, and what has names like theirs and is neither."""
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


def _rebuild_if_readable(files: Files, folder: str, segment: Segment, partition_id: int) -> list[Damage]:
    """One segment that cannot be read keeps nobody from the others; whoever reads it is told why it cannot be."""
    try:
        return rebuild_closed(files, folder, segment, partition_id)
    except OSError as error:
        path = log_file(folder, segment.start_offset)
        reason = f"cannot be read: {error.strerror}"
        return [Damage(path, 0, segment.log_bytes, segment.start_offset, segment.next_offset, reason)]


def _missing(folder: str, orphans: list[int], segments: list[Segment]) -> list[Damage]:
    """The logs whose indexes alone are there: each up to the next log, or to the next one that is missing too."""
    starts = sorted({*orphans, *(segment.start_offset for segment in segments)})
    reason = "the file is missing although its index is there"
    return [
        Damage(log_file(folder, start), 0, 0, start, starts[starts.index(start) + 1], reason)
        for start in orphans
        if start != starts[-1]
    ]


# ------------------------------------------------------------------------------------------------- deletions under way


def write_intent(files: Files, folder: str, intent: Intent) -> None:
    replace(files, f"{folder}/{INTENT_FILE}", msgspec.json.encode(intent))


def withdraw_intent(files: Files, folder: str) -> None:
    path = f"{folder}/{INTENT_FILE}"
    if files.exists(path):
        files.remove(path)
        files.sync_folder(folder)


def finish_intent(files: Files, folder: str) -> None:
    """Carries out what an intent says; may be repeated after a crash at any point of it."""
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
    """The index first: a log without one is whole, an index without a log looks like a loss."""
    remove_index(files, folder, start_offset)
    if files.exists(path := log_file(folder, start_offset)):
        files.remove(path)


def remove_index(files: Files, folder: str, start_offset: int) -> None:
    if files.exists(path := index_file(folder, start_offset)):
        files.remove(path)


def move_aside(files: Files, folder: str, name: str) -> str:
    """Keeps a file that is in the way, and says where."""
    kept = _free_name_aside(files, folder, name)
    files.rename(f"{folder}/{name}", kept)
    return kept


def _finish_noted(files: Files, folder: str) -> list[Damage]:
    """Finishes a deletion; one whose note cannot be read is not guessed at, and the note is kept aside."""
    try:
        finish_intent(files, folder)
    except NOT_UNDERSTOOD as error:
        path = f"{folder}/{INTENT_FILE}"
        kept = move_aside(files, folder, INTENT_FILE)
        return [Damage(path, 0, 0, 0, 0, f"a deletion was under way and its note cannot be read: {error}", kept)]
    return []


def create_log(files: Files, folder: str, start_offset: int) -> None:
    files.close(files.open_for_writing(log_file(folder, start_offset)))


# ---------------------------------------------------------------------------------------------------- the last segment


def _recover_last(
    files: Files, folder: str, segment: Segment, partition_id: int, check_all: bool, has_index: bool
) -> tuple[list[Damage], bool, int]:
    """The damage; whether what is no batch could be cut off; and the offset up to which offsets were given out, as the
    index knows that was made for a longer log. Nothing may be appended to this segment that is not its next offset."""
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
                # A full disk has no room to keep them: then they stay where they are, and the log goes on elsewhere.
                if error.errno not in (errno.ENOSPC, errno.EDQUOT) or max(offset, given_out) == segment.start_offset:
                    raise
            damage.append(Damage(path, found.end, length, offset, max(offset, given_out), found.reason, kept))
        elif given_out > offset:
            damage.append(Damage(path, found.end, 0, offset, given_out, "the file ends before its index does"))
        if has_index and found.end < described and given_out <= offset:
            # What is appended now must never be described by an index that was made for other bytes.
            files.remove(index_file(folder, segment.start_offset))
            files.sync_folder(folder)
    finally:
        files.close(handle)
    cut = end == found.end
    segment.log_bytes = end
    segment.next_offset = found.next_offset
    segment.batches = len(segment.index)
    return damage, cut, given_out


def _end_of(index: Index) -> int:
    """The offset after the last message that an index knows; 0 when it knows none."""
    return index.next_offset(len(index) - 1) if len(index) else 0


def _trusted(index: Index, described: int) -> int:
    """How many entries of an index are believed without looking at the log."""
    inside = len(index)
    while inside and index.end_position(inside - 1) > described:
        inside -= 1
    return max(0, min(index.before(described - RECHECKED_BYTES), inside - RECHECKED_BATCHES))


def _scan_after(window: scan.Window, segment: Segment, trusted: int, path: str, partition_id: int) -> scan.Scan:
    """Checks the log from where the index is no longer believed; from its start if the two do not fit together."""
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
    """Copies the bytes from a position on to a file of their own and returns when they are safe there."""
    path = _free_name_aside(files, folder, f"{segment.start_offset:020}.log@{position}")
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


def _free_name_aside(files: Files, folder: str, name: str) -> str:
    """Where something can be kept without taking the place of what is kept already."""
    aside = f"{folder}/{ASIDE_FOLDER}"
    make_folders(files, aside)
    taken = {item.name for item in files.list(aside)}
    free, copy = name, 0
    while free in taken:
        copy += 1
        free = f"{name}.{copy}"
    return f"{aside}/{free}"


# ----------------------------------------------------------------------------------------------------- closed segments


def load_index(files: Files, folder: str, start_offset: int) -> tuple[Index, int] | None:
    """The index in a segment's file and the log bytes it describes; None when there is none to be believed."""
    try:
        content = read_all(files, index_file(folder, start_offset))
    except OSError:
        # A hint that cannot be read is none; what is wrong with the disk shows when the log itself is read.
        return None
    return decode(content, start_offset)


def check_closed(files: Files, folder: str, segment: Segment, partition_id: int) -> list[Damage]:
    """Reads a closed segment whole, makes its index anew and says what is damaged; changes no file."""
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
    segment.whole, segment.checked, segment.end_checked = True, None, True
    segment.last_timestamp = _last_time_in(index)
    damage = found.damage
    if found.reason is not None or found.next_offset < ceiling:
        reason = found.reason or "the file ends before the next segment begins"
        damage.append(Damage(path, found.end, segment.log_bytes - found.end, found.next_offset, ceiling, reason))
    return damage


def rebuild_closed(files: Files, folder: str, segment: Segment, partition_id: int) -> list[Damage]:
    """As `check_closed`, and leaves the new index in its file; if that cannot be, it stays in memory."""
    return check_closed(files, folder, segment, partition_id) + write_index_if_possible(files, folder, segment)


def write_index_if_possible(files: Files, folder: str, segment: Segment) -> list[Damage]:
    try:
        write_index(files, folder, segment)
    except OSError as error:
        # An old one may still be there, and what it says of damaged batches must not be taken for checked.
        segment.index_in_file = False
        path, start = index_file(folder, segment.start_offset), segment.start_offset
        return [Damage(path, 0, 0, start, start, f"the index could not be written: {error}")]
    return []


def write_index(files: Files, folder: str, segment: Segment) -> None:
    """Not synced: after a power cut it is whole or it is not believed."""
    assert segment.index is not None
    content = encode(segment.index, segment.start_offset, segment.log_bytes)
    replace(files, index_file(folder, segment.start_offset), content, sync=False)
    segment.index_in_file = True


# ------------------------------------------------------------------------------------------------------------ the rest


def _continue_after(files: Files, folder: str, segments: list[Segment], orphans: list[int], given_out: int) -> None:
    """A new last segment, after whatever the indexes of messages that are gone say was once given out."""
    after = max(segments[-1].next_offset if segments else 0, given_out)
    for start in orphans:
        known = load_index(files, folder, start)
        # One that cannot be understood says at least that its segment was not empty.
        after = max(after, start + 1 if known is None else max(start, _end_of(known[0])))
    create_log(files, folder, after)
    files.sync_folder(folder)
    if segments:
        segments[-1].next_offset = after
        # Its index was made for a longer log; now that the new file's name says what it knew, it need not be kept.
        write_index_if_possible(files, folder, segments[-1])
    segments.append(Segment.empty(after))


def _last_timestamp(files: Files, folder: str, segments: list[Segment], partition_id: int) -> tuple[int, list[Damage]]:
    """The time of the newest message, which no later one may precede; and the damage that was met in looking for it."""
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
