"""The segments of one partition on the disk: writing, syncing, reading and deleting.

A `Log` belongs to the thread of one shard, which calls all of it; nothing here is shared or locked. Opening one is
recovery's work. What it finds wrong with bytes that were good when they were written it reports and serves around.
"""

from __future__ import annotations

import contextlib
import errno
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from whippet.storage import batch as batches
from whippet.storage import recovery, scan
from whippet.storage.errors import InvalidBatch, ReadFailed
from whippet.storage.files import Files, read_fully, write_all, write_some
from whippet.storage.handles import Handles, IndexCache
from whippet.storage.index import Index
from whippet.storage.layout import log_file
from whippet.storage.producer_file import ProducerFile
from whippet.storage.producers import Bounds, Record
from whippet.storage.segment import Damage, Segment

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class Entry(NamedTuple):
    """A stamped batch on its way to the disk."""

    batch: batches.Writable
    base_offset: int
    next_offset: int
    timestamp: int
    frames: batches.Frames


class Fetched(NamedTuple):
    """What a read found: whole batches, and at either end perhaps a slice of one, as they travel."""

    buffers: list[batches.Readable]
    messages: int
    next_offset: int
    """Where a reader that wants more goes on: after the last message, and after anything damaged that was skipped."""


class LogState(msgspec.Struct, frozen=True):
    """What the event loop may know of a log's files, as of the shard's last answer."""

    first_offset: int
    segments: int
    size_bytes: int
    batches: int


class Log:
    """See the module. `report` is told every damage that is found; it must not raise."""

    def __init__(
        self,
        files: Files,
        handles: Handles,
        indexes: IndexCache,
        folder: str,
        partition_id: int,
        segment_bytes: int,
        segments: list[Segment],
        report: Callable[[Damage], None],
        *,
        preallocates: bool = False,
        bounds: Bounds = Bounds(),  # noqa: B008 -- it cannot be changed
    ) -> None:
        self.folder = folder
        self.segments = segments
        self.producers = ProducerFile(files, handles, folder, bounds)
        self.generation = 0
        """Raised when a write fails: what was handed over before the loop has heard of it is not written."""
        self.purges = 0
        self._files = files
        self._handles = handles
        self._indexes = indexes
        self._partition_id = partition_id
        self._segment_bytes = segment_bytes
        self._report = report
        self._preallocates = preallocates
        self._reserved: int | None = None
        """The start offset of the segment whose blocks are reserved."""
        self._unsynced: dict[int, None] = {}
        self._names_unsynced = False
        # What is found at a start was synced at the end before it, or is when the folder is entered.
        self._synced_offset = segments[-1].next_offset
        self._roll_refused = False
        self._deletion_noted = False
        """A deletion was decided, its files could not all be removed yet."""
        self.size_bytes = sum(segment.log_bytes for segment in segments)
        self.batches = sum(segment.batches for segment in segments)
        for segment in segments[:-1]:
            if segment.index is not None:
                indexes.put(segment, segment.index)

    @property
    def next_offset(self) -> int:
        return self.segments[-1].next_offset

    @property
    def state(self) -> LogState:
        return LogState(self.segments[0].start_offset, len(self.segments), self.size_bytes, self.batches)

    # ------------------------------------------------------------------------------------------------------- writing

    def write(self, entries: list[Entry], records: Sequence[Record] = (), sync: bool = False) -> OSError | None:
        """Writes entries in order, rolling where a segment is full. On an error, all whole entries before it stay.

        The records of those that have one are written first, and synced first where a sync is to follow.
        """
        if records or self.producers.in_doubt:
            try:
                self.producers.note(records, self._synced_offset, sync=sync)
            except OSError as error:
                self.generation += 1
                return error
        failure = self._write(entries)
        if failure is not None and records:
            self.producers.take_back(self.next_offset)
        return failure

    def _write(self, entries: list[Entry]) -> OSError | None:
        done = 0
        while done < len(entries):
            if self._begins_earlier(entries[done]):
                # Within a segment times never fall, so that it can be searched by time.
                self._roll()
            end = self._end_of_run(entries, done)
            error = self._write_run(entries[done:end])
            if error is not None:
                return error
            done = end
            if self.segments[-1].log_bytes >= self._segment_bytes:
                self._roll()
        return None

    def _begins_earlier(self, entry: Entry) -> bool:
        """Whether a batch is older than the one before it, after a clock that was ahead (Partition.append)."""
        segment = self.segments[-1]
        return bool(segment.batches) and entry.timestamp < self.last_timestamp(segment)

    def _end_of_run(self, entries: list[Entry], start: int) -> int:
        size = self.segments[-1].log_bytes
        for i in range(start, len(entries)):
            if i > start and entries[i].timestamp < entries[i - 1].timestamp:
                return i
            size += len(entries[i].batch)
            if size >= self._segment_bytes:
                return i + 1
        return len(entries)

    def _write_run(self, entries: list[Entry]) -> OSError | None:
        segment = self.segments[-1]
        path = log_file(self.folder, segment.start_offset)
        try:
            handle = self._handles.writing(path)
        except OSError as refused:
            self.generation += 1
            return refused
        if self._preallocates and self._reserved != segment.start_offset:
            self._reserved = segment.start_offset
            self._handles.reserve(path, segment.log_bytes, self._segment_bytes)
        self._unsynced[segment.start_offset] = None
        written, error = write_some(self._files, handle, [entry.batch for entry in entries], segment.log_bytes)
        self._account(segment, entries, written)
        if error is not None:
            self.generation += 1
            self._cut_back(path, segment.log_bytes)
        return error

    def _account(self, segment: Segment, entries: list[Entry], written: int) -> None:
        assert segment.index is not None
        position = start = segment.log_bytes
        for batch, base_offset, next_offset, timestamp, _ in entries:
            length = len(batch)
            if position + length - start > written:
                break
            segment.index.add(base_offset, position, timestamp, length, next_offset - base_offset)
            position += length
            segment.batches += 1
            self.batches += 1
            segment.next_offset = next_offset
            segment.last_timestamp = timestamp
            if segment.checked is not None:
                segment.checked.append(1)
        segment.log_bytes = position
        self.size_bytes += position - start

    def _cut_back(self, path: str, size: int) -> None:
        """Takes a part of a batch off the end. If even that fails, the next write goes over it, or recovery cuts it."""
        self._reserved = None
        try:
            self._files.truncate(self._handles.writing(path), size)
        except OSError as error:
            offset = self.next_offset
            self._report(Damage(path, size, 0, offset, offset, f"part of a batch could not be cut off: {error}"))

    def _roll(self) -> None:
        """Closes the last segment and begins the next. When that fails the old one goes on growing until it works."""
        closed = self.segments[-1]
        assert closed.index is not None
        start = closed.next_offset
        try:
            # The new name is what closes the old segment, so it comes last: nothing may be written to the old one
            # once a file says that the offsets after it live elsewhere.
            self._handles.writing(log_file(self.folder, start))
        except OSError as error:
            if not self._roll_refused:
                self._roll_refused = True
                path, reason = log_file(self.folder, closed.start_offset), f"the segment cannot be closed yet: {error}"
                self._report(Damage(path, closed.log_bytes, 0, start, start, reason))
            return
        self._roll_refused = False
        self._try_to_write_index(closed)
        if self._preallocates:
            self._handles.give_back(log_file(self.folder, closed.start_offset), closed.log_bytes)
        self._names_unsynced = True
        self._unsynced[start] = None
        self.segments.append(Segment.empty(start))
        if closed.whole:
            closed.checked = None
        self._indexes.put(closed, closed.index)

    def sync(self) -> None:
        """Returns when all that was written is on the disk, names too; no batch before the record of its producer."""
        self.producers.sync()
        for start in list(self._unsynced):
            path = log_file(self.folder, start)
            self._files.sync(self._handles.writing(path))
            if start != self.segments[-1].start_offset:
                # Nothing more is written to a closed segment, and what is open stays so until there are too many.
                self._handles.drop(path)
        if self._names_unsynced:
            self._files.sync_folder(self.folder)
            self._names_unsynced = False
        self._unsynced.clear()
        self._synced_offset = self.next_offset

    def rewrite_unsynced(self, synced_offset: int) -> None:
        """After a failed sync: the system may believe that pages are clean which never reached the disk, so everything
        from an offset on is written once more before it is synced."""
        for segment in self.segments:
            if segment.next_offset <= synced_offset or not segment.log_bytes:
                continue
            index = self._index(segment)
            i = index.holding(synced_offset)
            position = index.position(i) if i < len(index) else segment.log_bytes
            handle = self._handles.writing(log_file(self.folder, segment.start_offset))
            while piece := self._files.read(handle, scan.CHUNK_BYTES, position):
                write_all(self._files, handle, [piece], position)
                position += len(piece)
            self._unsynced[segment.start_offset] = None
        self.producers.rewrite()
        self._names_unsynced = True
        self.sync()

    def begin_segment(self, start_offset: int) -> None:
        """A new last segment after a gap: offsets that were given out are never given again."""
        recovery.create_log(self._files, self.folder, start_offset)
        self.segments.append(Segment.empty(start_offset))
        self._unsynced[start_offset] = None
        self._names_unsynced = True

    def close(self) -> None:
        """Syncs, and leaves an index beside the last segment so that the next start need not read it."""
        self.sync()
        last = self.segments[-1]
        if last.log_bytes and last.index is not None:
            known = recovery.load_index(self._files, self.folder, last.start_offset)
            if known is None or known[1] != last.log_bytes:
                self._try_to_write_index(last)
        self.forget()

    def _try_to_write_index(self, segment: Segment) -> None:
        """It is a hint: where there is no room for it, it is made anew when it is needed."""
        for damage in recovery.write_index_if_possible(self._files, self.folder, segment):
            self._report(damage)

    def forget(self) -> None:
        """Lets go of all handles and cached indexes without touching the disk."""
        self.producers.let_go()
        for segment in self.segments:
            self._let_go(segment)

    def _let_go(self, segment: Segment) -> None:
        self._handles.drop(log_file(self.folder, segment.start_offset))
        self._indexes.drop(segment)

    # ------------------------------------------------------------------------------------------------------- reading

    def read(self, offset: int, count: int, room: int, end: int) -> Fetched:
        """At most `count` messages in `room` bytes (one at least) from an offset on, none at or after `end`."""
        buffers: list[batches.Readable] = []
        messages = 0
        for number in range(self._segment_at(offset), len(self.segments)):
            if messages == count or room <= 0 or offset >= end:
                break
            found, used = self._read_segment(self.segments[number], offset, count - messages, room, end, not messages)
            buffers += found.buffers
            messages += found.messages
            room -= used
            offset = max(offset, found.next_offset)
            segment = self.segments[number]
            if offset < segment.next_offset:
                break
            if segment is not self.segments[-1] and segment.start_offset not in self._unsynced:
                # Who has come to its end goes on in the next one.
                self._handles.drop(log_file(self.folder, segment.start_offset))
        return Fetched(buffers, messages, offset)

    def _segment_at(self, offset: int) -> int:
        i = bisect_right(self.segments, offset, key=lambda segment: segment.start_offset)
        return max(i - 1, 0)

    def _read_segment(
        self, segment: Segment, offset: int, count: int, room: int, end: int, at_least_one: bool
    ) -> tuple[Fetched, int]:
        index = self._index(segment)
        first = index.holding(offset)
        last, messages, size = first, 0, 0
        batch_count = len(index)
        while last < batch_count and messages < count and size < room and index.base_offset(last) < end:
            messages += index.next_offset(last) - max(offset, index.base_offset(last))
            size += index.length(last)
            last += 1
        if first == last:
            # Nothing more in this segment; past its last batch there may still be a gap before the next one.
            return Fetched([], 0, segment.next_offset if first == batch_count else offset), 0
        position = index.position(first)
        length = index.end_position(last - 1) - position
        content = memoryview(self._read_file(segment, length, position))
        if len(content) < length or not self._good(segment, index, content, first, last):
            self._rescan(segment)
            return self._read_segment(segment, offset, count, room, end, at_least_one)
        return _slice(index, content, first, last, offset, count, room, at_least_one)

    def _read_file(self, segment: Segment, length: int, position: int) -> bytes:
        path = log_file(self.folder, segment.start_offset)
        try:
            return read_fully(self._files, self._handles.reading(path), length, position)
        except OSError as error:
            raise ReadFailed(path, error) from error

    def _good(self, segment: Segment, index: Index, content: memoryview, first: int, last: int) -> bool:
        """Whether the batches are what the index says; each is looked at once after the store was opened."""
        if segment.whole:
            return True
        if segment.checked is None:
            segment.checked = bytearray(len(index))
        checked = segment.checked
        origin = index.position(first)
        for i in range(first, last):
            if checked[i]:
                continue
            start = index.position(i) - origin
            view = content[start : start + index.length(i)]
            try:
                batches.check(view)
            except InvalidBatch:
                return False
            named = batches.header(view)
            if (named.base_offset, named.message_count) != (index.base_offset(i), index.count(i)):
                return False
            if named.partition_id != self._partition_id or named.base_timestamp != index.timestamp(i):
                return False
            checked[i] = 1
        return True

    def _index(self, segment: Segment) -> Index:
        if segment.index is not None:
            self._indexes.touch(segment)
            return segment.index
        known = recovery.load_index(self._files, self.folder, segment.start_offset)
        if known is None or known[1] != segment.log_bytes:
            return self._rescan(segment)
        self._indexes.put(segment, known[0])
        self._check_end(segment, known[0])
        return known[0]

    def _check_end(self, segment: Segment, index: Index) -> None:
        """Whether a segment ends before the next begins: then files between the two are gone, or a hand made a name."""
        if segment.end_checked:
            return
        segment.end_checked = True
        end = index.next_offset(len(index) - 1) if len(index) else segment.start_offset
        if end < segment.next_offset:
            path, reason = log_file(self.folder, segment.start_offset), "the file ends before the next segment begins"
            self._report(Damage(path, segment.log_bytes, 0, end, segment.next_offset, reason))

    def _rescan(self, segment: Segment) -> Index:
        """Makes the index of a segment anew from its log, and reports what in there is damaged."""
        is_last = segment is self.segments[-1]
        look = recovery.check_closed if is_last else recovery.rebuild_closed
        log_bytes, batches_count = segment.log_bytes, segment.batches
        try:
            for damage in look(self._files, self.folder, segment, self._partition_id):
                self._report(damage)
        except OSError as error:
            raise ReadFailed(log_file(self.folder, segment.start_offset), error) from error
        assert segment.index is not None
        index = segment.index
        self.batches += segment.batches - batches_count
        if is_last:
            segment.log_bytes = log_bytes
        else:
            self.size_bytes += segment.log_bytes - log_bytes
            self._indexes.put(segment, index)
        return index

    def offset_at(self, timestamp: int) -> int:
        """The offset after the last message that is older; times only fall after a clock that was ahead, so mostly that
        is the first message of this time or a later one."""
        low, high = 0, len(self.segments) - 1
        newest = self._last_timestamp_up_to(high)
        while low < high:
            middle = (low + high) // 2
            if self._is_older(middle, timestamp, newest):
                low = middle + 1
            else:
                high = middle
        segment = self.segments[low]
        index = self._index(segment)
        i = index.at_time(timestamp)
        return index.base_offset(i) if i < len(index) else segment.next_offset

    def _is_older(self, number: int, timestamp: int, newest: int) -> bool:
        """Whether a segment ends, or one after it begins, before a time. Only segments that were written while the
        clock was ahead are later than the newest message: the next one that is not tells how old they are."""
        if self._last_timestamp_up_to(number) <= newest:
            return self._last_timestamp_up_to(number) < timestamp
        following = (segment for segment in self.segments[number + 1 :] if 0 < self.last_timestamp(segment) <= newest)
        return self.first_timestamp(next(following)) < timestamp

    def _last_timestamp_up_to(self, number: int) -> int:
        """Of a segment or, when its messages are all lost, of those before it: so that times never fall."""
        while number and not self.last_timestamp(self.segments[number]):
            number -= 1
        return self.last_timestamp(self.segments[number])

    def last_timestamp(self, segment: Segment) -> int:
        if segment.last_timestamp is None:
            index = self._index(segment)
            segment.last_timestamp = index.timestamp(len(index) - 1) if len(index) else 0
        return segment.last_timestamp

    def first_timestamp(self, segment: Segment) -> int:
        """0 when the segment has no messages."""
        index = self._index(segment)
        return index.timestamp(0) if len(index) else 0

    # ----------------------------------------------------------------------------------------------------- producers

    def load_records(self) -> list[Record]:
        """What producers were answered: once, before anything is written."""
        records, found = self.producers.load(self._counts)
        for damage in found:
            self._report(damage)
        return records

    def _counts(self, record: Record, synced_offset: int) -> bool:
        """Whether the log has the batch that a record speaks of, or had it before it was deleted."""
        base = record.base_offset
        if base < self.segments[0].start_offset:
            return True
        if record.next_offset > self.next_offset:
            return False
        return base < synced_offset or self._checksum_at(base, record.messages) == record.batch_checksum

    def _checksum_at(self, offset: int, count: int) -> int | None:
        """The checksum of the batch of so many messages that begins at an offset; None when there is none."""
        segment = self.segments[self._segment_at(offset)]
        try:
            index = self._index(segment)
            i = index.holding(offset)
            if i == len(index) or (index.base_offset(i), index.count(i)) != (offset, count):
                return None
            head = self._read_file(segment, batches.HEADER_BYTES, index.position(i))
        except ReadFailed:
            return None
        return batches.header(head).checksum if len(head) == batches.HEADER_BYTES else None

    # ------------------------------------------------------------------------------------------------------ deleting

    def trim(self, before: int) -> int:
        """Deletes the closed segments that end at or before an offset and says how many: all of them, or none, or, if
        a crash comes first, none or all when the store is opened again. What an error left behind the next one takes.
        """
        if self._deletion_noted:
            self._finish_deletion()
        doomed = [segment for segment in self.segments[:-1] if segment.next_offset <= before]
        if doomed:
            # Of what is deleted every record counts: one that does not is proved wrong by these batches alone.
            self.producers.settle_for_good()
        if doomed and self._names_unsynced:
            # The name of the last segment alone says where the partition goes on, so it must outlive them.
            self._files.sync_folder(self.folder)
            self._names_unsynced = False
        if len(doomed) > 1:
            try:
                self._write_intent(recovery.Intent(delete_before=before))
            except OSError as error:
                if error.errno not in DISK_FULL:
                    raise
                # On a full disk deleting is what helps: then one after the other, each a whole step.
            else:
                # It is decided, whatever becomes of the files.
                for segment in doomed:
                    self._drop(segment)
                self._deletion_noted = True
                self._finish_deletion()
                return len(doomed)
        for segment in doomed:
            recovery.remove_segment(self._files, self.folder, segment.start_offset)
            self._drop(segment)
            # Should the sync fail, the next deletion begins with it: a name that comes back must not leave a hole.
            self._names_unsynced = True
            self._files.sync_folder(self.folder)
            self._names_unsynced = False
        return len(doomed)

    def _drop(self, segment: Segment) -> None:
        self.segments.remove(segment)
        self._unsynced.pop(segment.start_offset, None)
        self.size_bytes -= segment.log_bytes
        self.batches -= segment.batches
        self._let_go(segment)

    def _finish_deletion(self) -> None:
        recovery.finish_intent(self._files, self.folder)
        self._deletion_noted = False

    def _write_intent(self, intent: recovery.Intent) -> None:
        """Decides on a deletion. When that fails it is not decided, and no later start may find the note."""
        try:
            recovery.write_intent(self._files, self.folder, intent)
        except OSError:
            with contextlib.suppress(OSError):
                recovery.withdraw_intent(self._files, self.folder)
            raise

    def purge(self) -> None:
        """Deletes everything and starts again at offset 0; a crash leaves all of it or nothing."""
        if self._deletion_noted:
            self._finish_deletion()
        try:
            self._write_intent(recovery.Intent(purge=True))
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise
            self._make_room()
            self._write_intent(recovery.Intent(purge=True))
        self.forget()
        recovery.finish_intent(self._files, self.folder)
        self.producers.forget()
        self.segments[:] = [Segment.empty(0)]
        self._unsynced = {}
        self._synced_offset = 0
        self._reserved = None
        self.size_bytes = self.batches = 0
        self.generation += 1
        self.purges += 1

    def _make_room(self) -> None:
        """A purge on a full disk: the messages go first, because there is no room to note that they shall go."""
        self.trim(self.segments[-1].start_offset)
        last = self.segments[-1]
        self._reserved = None
        recovery.remove_index(self._files, self.folder, last.start_offset)
        self._files.truncate(self._handles.writing(log_file(self.folder, last.start_offset)), 0)
        self._indexes.drop(last)
        self.size_bytes -= last.log_bytes
        self.batches -= last.batches
        self.segments[-1] = Segment.empty(last.start_offset)


def _slice(
    index: Index, content: memoryview, first: int, last: int, offset: int, count: int, room: int, at_least_one: bool
) -> tuple[Fetched, int]:
    """Cuts what was read to what was asked for: runs of whole batches stay as they are."""
    buffers: list[batches.Readable] = []
    messages = used = 0
    origin = index.position(first)
    run_start = run_end = 0
    next_offset = offset
    for i in range(first, last):
        start = index.position(i) - origin
        length, base, total = index.length(i), index.base_offset(i), index.count(i)
        skip = max(offset - base, 0)
        wanted = min(total - skip, count - messages)
        if skip == 0 and wanted == total and used + length <= room:
            if run_end != start:
                if run_end > run_start:
                    buffers.append(content[run_start:run_end])
                run_start = start
            run_end = start + length
            used += length
        else:
            view = content[start : start + length]
            frames = batches.frame_positions(view)
            space = room - used - batches.HEADER_BYTES
            fits = batches.fitting(frames, skip, skip + wanted, space) if space > 0 else 0
            if not fits and at_least_one and not messages:
                fits = 1
            if fits:
                if run_end > run_start:
                    buffers.append(content[run_start:run_end])
                    run_start = run_end
                pieces = batches.cut(view, frames, skip, skip + fits)
                buffers += pieces
                used += sum(map(len, pieces))
            messages += fits
            next_offset = base + skip + fits
            if fits < total - skip:
                # Either the count or the room is used up.
                break
            run_start = run_end = start + length
            continue
        messages += wanted
        next_offset = base + total
    if run_end > run_start:
        buffers.append(content[run_start:run_end])
    return Fetched(buffers, messages, next_offset), used
