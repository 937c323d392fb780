"""The segments of one partition on the disk: what LogReader reads, plus writing, syncing and deleting.

A `Log` belongs to the thread of one shard, and nothing here is locked. The exceptions are the methods `..._on_loop`,
which the event loop calls while the shard has nothing to do for the partition. Opening a log is recovery's work
(recovery.py).
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from whippet.storage import packing, recovery, scan
from whippet.storage.encryption import Seal
from whippet.storage.entry import Entry
from whippet.storage.fetched import Fetched
from whippet.storage.files import BUFFERS_PER_WRITE, Buffer, Files, write_all, write_some
from whippet.storage.handles import Handles, IndexCache, Loan
from whippet.storage.layout import log_file
from whippet.storage.log_reader import LogReader, cut_to_request, last_to_read
from whippet.storage.producer_file import ProducerFile
from whippet.storage.producers import Bounds, Record
from whippet.storage.segment import Damage, Segment

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)

AHEAD_BYTES = 64 << 10
"""Passing a smaller batch to another thread takes about as long as compressing it."""
LOOP_READ_BYTES_MAX = 256 << 10
"""Copying more than this takes long enough to keep other requests waiting."""


class Packed(NamedTuple):
    """What is stored for a batch."""

    buffers: tuple[Buffer, ...]
    length: int

    @classmethod
    def of(cls, buffers: tuple[Buffer, ...]) -> Packed:
        return cls(buffers, sum(map(len, buffers)))


class LogState(msgspec.Struct, frozen=True):
    """What the event loop knows of a log's files, as of the last report of the shard."""

    first_offset: int
    segments: int
    size_bytes: int
    batches: int
    left_out: int = 0
    """Offsets between the first and the next one that no message ever had."""
    saved_bytes: int = 0
    """How much longer the files would be if no batch was packed."""


class Log(LogReader):
    """See the module. `report` is called for all damage that is found; it must not raise."""

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
        bounds: Bounds = Bounds(),  # noqa: B008 -- it is immutable
        compression: packing.Compression = packing.Compression.NONE,
        seal: Seal | None = None,
    ) -> None:
        super().__init__(files, handles, indexes, folder, partition_id, segments, report, seal)
        self.producers = ProducerFile(files, handles, folder, bounds)
        self._encrypts = seal is not None and seal.seals
        self.compress(compression)
        self._ahead = packing.Ahead()
        self.generation = 0
        """Incremented when a write fails. Batches handed over before the event loop knows of it are not written."""
        self.purges = 0
        self._segment_bytes = segment_bytes
        self._preallocates = preallocates
        self._reserved: int | None = None
        """The start offset of the segment whose blocks are reserved."""
        self._lent: int | None = None
        """The handle of the last segment while it is lent to the event loop, until the next sync at the latest."""
        self._loan: tuple[Segment, Loan] | None = None
        """The segment that was read last, which the event loop may read, too."""
        self._read_to_end = False
        """The event loop has read the end of that segment."""
        self._loop_error: BaseException | None = None
        self._names_unsynced = False
        self.unsynced_bytes = 0
        """How much was written since the last sync."""
        # What is found at a start was synced when the store was closed, or is synced when the folder is entered.
        self._synced_offset = segments[-1].next_offset
        self._roll_refused = False
        self._deletion_decided = False
        """A deletion was decided, but not all of its files could be removed yet."""

    def compress(self, compression: packing.Compression) -> None:
        """Compresses batches in this way from now on. The event loop may call this at any time."""
        self.compression = compression
        self._packs = self._encrypts or compression is not packing.Compression.NONE

    @property
    def next_offset(self) -> int:
        return self.segments[-1].next_offset

    @property
    def state(self) -> LogState:
        return LogState(
            self.segments[0].start_offset,
            len(self.segments),
            self.size_bytes,
            self.batches,
            self.left_out,
            self.saved_bytes,
        )

    # ---------------------------------------------------------------------------------------------------------- writing

    def write(self, entries: list[Entry], records: Sequence[Record], sync: bool) -> OSError | None:
        """Writes entries in order, and begins a new segment when one is full. On an error, all whole entries before it
        stay.

        The records of numbered sends are written before them, and synced before them if a sync is to follow.
        """
        if records or self.producers.in_doubt:
            try:
                self.producers.write(records, self._synced_offset, sync=sync)
            except OSError as error:
                self.generation += 1
                self._loop_error = None
                return error
        failure = self._write(entries)
        if failure is not None:
            self._ahead.clear()
            if records:
                self.producers.take_back(self.next_offset)
        return failure

    def _write(self, entries: list[Entry]) -> OSError | None:
        packed = self._packed(entries)
        done = 0
        while done < len(entries):
            if self._begins_earlier(entries[done]):
                # Within a segment times never fall, so that it can be searched by time.
                self._roll()
            end = self._end_of_run(entries, packed, done)
            error = self._write_run(entries[done:end], packed and packed[done:end])
            if error is not None:
                return error
            done = end
            if self.segments[-1].log_bytes >= self._segment_bytes:
                self._roll()
        return None

    def _packed(self, entries: Sequence[Entry]) -> list[Packed] | None:
        """What is stored for each batch; None if that is the batch itself."""
        compression = self.compression
        if compression is packing.Compression.NONE:
            self._ahead.clear()
            if not self._encrypts:
                return None
        return [
            Packed.of(
                self._ahead.take(entry.base_offset, entry.batch) or packing.pack(entry.batch, compression, self.seal)
            )
            for entry in entries
        ]

    def pack_ahead(self, entries: Sequence[Entry]) -> None:
        """Called on the event loop for what it hands to the shard: compressing large batches takes longer than writing
        them, so several threads do it at once."""
        compression = self.compression
        if compression is not packing.Compression.NONE:
            for entry in entries:
                if len(entry.batch) >= AHEAD_BYTES:
                    self._ahead.begin(entry.base_offset, entry.batch, compression, self.seal)

    def _begins_earlier(self, entry: Entry) -> bool:
        """Whether a batch is older than the one before it, because the clock was ahead then (timestamps.py)."""
        segment = self.segments[-1]
        return bool(segment.batches) and entry.timestamp < self.last_timestamp(segment)

    def _end_of_run(self, entries: list[Entry], packed: list[Packed] | None, start: int) -> int:
        size = self.segments[-1].log_bytes
        for i in range(start, len(entries)):
            if i > start and entries[i].timestamp < entries[i - 1].timestamp:
                return i
            size += len(entries[i].batch) if packed is None else packed[i].length
            if size >= self._segment_bytes:
                return i + 1
        return len(entries)

    def _write_run(self, entries: list[Entry], packed: list[Packed] | None) -> OSError | None:
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
        buffers: Sequence[Buffer] = [entry.batch for entry in entries]
        if packed is not None:
            buffers = [buffer for each in packed for buffer in each.buffers]
        written, error = self._write_buffers(handle, buffers, segment.log_bytes)
        self._account(segment, entries, written, packed, whole=error is None)
        if error is not None:
            self.generation += 1
            self._end_loan()
            self._cut_back(path, segment.log_bytes)
        elif self._lent is None:
            self._lent = self._handles.lend(path)
        return error

    def _write_buffers(self, handle: int, buffers: Sequence[Buffer], position: int) -> tuple[int, OSError | None]:
        """Like `write_some`, but raises or returns an error that a write on the event loop met, without trying
        again."""
        error, self._loop_error = self._loop_error, None
        if error is None:
            return write_some(self._files, handle, buffers, position)
        if isinstance(error, OSError):
            return 0, error
        raise error

    def write_on_loop(self, entries: Sequence[Entry], size: int) -> bool:
        """Writes small batches of `size` bytes on the event loop, while the shard has nothing to do for the partition.
        Returns False if the shard has to write them: because that takes more than one short call, or because the call
        has failed, which the shard reports."""
        segment, handle = self.segments[-1], self._lent
        position, last = segment.log_bytes, segment.last_timestamp
        if (
            handle is None
            or position + size >= self._segment_bytes
            or last is None
            or self.producers.in_doubt
            or self._loop_error is not None
            or self._packs
            or len(entries) > BUFFERS_PER_WRITE
        ):
            return False
        for entry in entries:
            if entry.timestamp < last:
                return False
            last = entry.timestamp
        try:
            if self._files.write(handle, [entry.batch for entry in entries], position) != size:
                return False
        except BaseException as error:  # noqa: BLE001 -- the shard reports it
            self._loop_error = error
            return False
        self._account(segment, entries, size, None, whole=True)
        self._unsynced[segment.start_offset] = None
        return True

    def read(self, offset: int, count: int, room: int, end: int) -> Fetched:
        found = super().read(offset, count, room, end)
        if found.messages:
            segment = self.segments[self._segment_at(found.next_offset - 1)]
            if self._read_to_end and self._loan is not None and self._loan[0] is not segment:
                self._drop_if_read(self._loan[0])
            loan = self._handles.lend_for_reading(log_file(self.folder, segment.start_offset))
            self._loan = None if loan is None else (segment, loan)
            self._read_to_end = False
        return found

    def read_on_loop(self, offset: int, count: int, room: int, end: int) -> Fetched | None:
        """Reads on the event loop what the operating system has in memory of the last segment, or of the one that was
        read last, while the shard has nothing to do for the partition. None if the shard has to read it."""
        segment, handle, loan = self.segments[-1], self._lent, None
        if handle is None or offset < segment.start_offset:
            if self._loan is None:
                return None
            segment, loan = self._loan
            if not segment.start_offset <= offset < segment.next_offset:
                return None
        # Work for other partitions may drop the index of a closed segment at any time, and what is known of it.
        index, checked = segment.index, segment.checked
        if index is None or index.stored is not None or not (segment.whole or checked is not None):
            # Unpacking a batch takes long enough to keep other requests waiting.
            return None
        first = index.holding(offset)
        # If every batch had one message: a request that may need more is worth the hop to the shard.
        most = min(first + count, len(index))
        if first == most or index.end_position(most - 1) - index.position(first) > LOOP_READ_BYTES_MAX:
            return None
        last = last_to_read(index, first, offset, count, room, end)
        if first == last:
            return None
        position = index.position(first)
        length = index.end_position(last - 1) - position
        content: Buffer | None = None
        if loan is not None:
            content = loan.read_cached(self._files, length, position)
        elif handle is not None:
            content = self._files.read_cached(handle, length, position)
        if content is None:
            return None
        view = memoryview(content)
        if checked is not None and not segment.whole and not self._as_indexed(index, view, first, last, checked):
            return None
        found = cut_to_request(index, view, first, last, offset, count, room, at_least_one=True)[0]
        if loan is not None and found.next_offset >= segment.next_offset:
            self._read_to_end = True
        return found

    def offset_on_loop(self, timestamp: int) -> int | None:
        """Does the same as `offset_at` on the event loop, while the shard has nothing to do for the partition, if the
        answer is in the last segment, whose index is in memory. None if it may be in an earlier one."""
        segment = self.segments[-1]
        index = segment.index
        assert index is not None
        if not len(index) or (len(self.segments) > 1 and index.timestamp(0) >= timestamp):
            return None
        i = index.at_time(timestamp)
        return index.base_offset(i) if i < len(index) else segment.next_offset

    def _end_loan(self) -> None:
        if self._lent is not None:
            self._lent = None
            self._handles.take_back(log_file(self.folder, self.segments[-1].start_offset))

    def _account(
        self, segment: Segment, entries: Sequence[Entry], written: int, packed: list[Packed] | None, *, whole: bool
    ) -> None:
        """Counts what was written; `whole`: all of it was."""
        assert segment.index is not None
        if whole and packed is None and segment.index.stored is None:
            segment.add_as_they_are(entries)
            self.batches += len(entries)
            self.size_bytes += written
            self.unsynced_bytes += written
            return
        position = start = segment.log_bytes
        for i, entry in enumerate(entries):
            base_offset, next_offset, timestamp = entry.base_offset, entry.next_offset, entry.timestamp
            length = len(entry.batch)
            stored = None if packed is None else packed[i].length
            end = position + (length if stored is None else stored)
            if end - start > written:
                break
            segment.index.add(base_offset, position, timestamp, length, next_offset - base_offset, stored)
            if stored is not None:
                segment.saved_bytes += length - stored
                self.saved_bytes += length - stored
            position = end
            segment.batches += 1
            self.batches += 1
            segment.next_offset = next_offset
            segment.last_timestamp = timestamp
            if segment.checked is not None:
                segment.checked.append(1)
        segment.log_bytes = position
        self.size_bytes += position - start
        self.unsynced_bytes += position - start

    def _cut_back(self, path: str, size: int) -> None:
        """Cuts a part of a batch off the end. If that fails too, the next write overwrites it, or recovery cuts it
        off."""
        self._reserved = None
        try:
            self._files.truncate(self._handles.writing(path), size)
        except OSError as error:
            offset = self.next_offset
            self._report(Damage(path, size, 0, offset, offset, f"part of a batch could not be cut off: {error}"))

    def _roll(self) -> None:
        """Closes the last segment and begins the next. If that fails, the old one keeps growing until it works."""
        self._end_loan()
        closed = self.segments[-1]
        assert closed.index is not None
        start = closed.next_offset
        try:
            # Creating the new file closes the old segment, so it comes last: nothing may be written to the old segment
            # once there is a file for the offsets after it.
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
            self._handles.free_reserved(log_file(self.folder, closed.start_offset), closed.log_bytes)
        self._names_unsynced = True
        self._unsynced[start] = None
        self.segments.append(Segment.empty(start))
        if closed.whole:
            closed.checked = None
        self._indexes.put(closed, closed.index)

    def sync(self) -> None:
        """Returns when everything written is on the disk, file names included, each record before its batch."""
        self._end_loan()
        self.producers.sync()
        for start in list(self._unsynced):
            path = log_file(self.folder, start)
            self._files.sync(self._handles.writing(path))
            if start != self.segments[-1].start_offset:
                # Nothing more is written to a closed segment, and open files stay open until there are too many.
                self._handles.drop(path)
        if self._names_unsynced:
            self._files.sync_folder(self.folder)
            self._names_unsynced = False
        self._unsynced.clear()
        self.unsynced_bytes = 0
        self._synced_offset = self.next_offset

    def unsynced_files(self) -> list[str]:
        return [log_file(self.folder, start) for start in self._unsynced]

    def rewrite_unsynced(self, synced_offset: int) -> None:
        """After a failed sync, writes everything from an offset on again before syncing it: the system may consider
        pages clean that never reached the disk."""
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
        """Begins a new last segment after a gap: offsets that were given out are never given again."""
        self._end_loan()
        recovery.create_log(self._files, self.folder, start_offset)
        self.segments.append(Segment.empty(start_offset))
        self._unsynced[start_offset] = None
        self._names_unsynced = True

    def close(self) -> None:
        """Syncs, and writes an index beside the last segment so that the next start need not read all of it."""
        self.sync()
        last = self.segments[-1]
        if last.log_bytes and last.index is not None:
            known = recovery.load_index(self._files, self.folder, last.start_offset)
            if known is None or known[1] != last.log_bytes:
                self._try_to_write_index(last)
        self.forget()

    def _try_to_write_index(self, segment: Segment) -> None:
        """An index is a hint: if there is no room for it, it is rebuilt when it is needed."""
        for damage in recovery.write_index_if_possible(self._files, self.folder, segment):
            self._report(damage)

    def forget(self) -> None:
        """Closes all files and drops all cached indexes. Nothing is written."""
        self.producers.close()
        self._end_loan()
        for segment in self.segments:
            self._close_files_of(segment)

    def _close_files_of(self, segment: Segment) -> None:
        if self._loan is not None and self._loan[0] is segment:
            self._loan = None
        self._handles.drop(log_file(self.folder, segment.start_offset))
        self._indexes.drop(segment)

    # -------------------------------------------------------------------------------------------------------- producers

    def load_records(self) -> list[Record]:
        """Loads the results of numbered sends. Called once, before anything is written."""
        records, found = self.producers.load(self._counts)
        for damage in found:
            self._report(damage)
        return records

    def _counts(self, record: Record, synced_offset: int) -> bool:
        """Whether the log has the batch of a record, or had it before it was deleted."""
        base = record.base_offset
        if base < self.segments[0].start_offset:
            return True
        if record.next_offset > self.next_offset:
            return False
        return base < synced_offset or self._checksum_at(base, record.messages) == record.batch_checksum

    # --------------------------------------------------------------------------------------------------------- deleting

    def trim(self, before: int) -> int:
        """Deletes the closed segments that end at or before an offset, and returns how many: all of them or none. After
        a crash they are all there or all gone when the store is opened. After an error, the next deletion finishes this
        one.
        """
        if self._deletion_decided:
            self._finish_deletion()
        doomed = [segment for segment in self.segments[:-1] if segment.next_offset <= before]
        if doomed:
            # Every record of a deleted batch counts. Only these batches can prove that a record does not count.
            self.producers.settle_for_good()
        if doomed and self._names_unsynced:
            # Only the name of the last segment tells where the partition continues, so it must outlive them.
            self._files.sync_folder(self.folder)
            self._names_unsynced = False
        if len(doomed) > 1:
            try:
                self._write_intent(recovery.Intent(delete_before=before))
            except OSError as error:
                if error.errno not in DISK_FULL:
                    raise
                # Deleting is what helps on a full disk, so the segments go one by one, each in a step of its own.
            else:
                # The deletion is decided, whatever happens to the files.
                for segment in doomed:
                    self._drop(segment)
                self._deletion_decided = True
                self._finish_deletion()
                return len(doomed)
        for segment in doomed:
            recovery.remove_segment(self._files, self.folder, segment.start_offset)
            self._drop(segment)
            # If the sync fails, the next deletion starts with it: a file that comes back must not leave a hole.
            self._names_unsynced = True
            self._files.sync_folder(self.folder)
            self._names_unsynced = False
        return len(doomed)

    def _drop(self, segment: Segment) -> None:
        self.segments.remove(segment)
        self._unsynced.pop(segment.start_offset, None)
        self.size_bytes -= segment.log_bytes
        self.saved_bytes -= segment.saved_bytes
        self.batches -= segment.batches
        if segment.left_out:
            self.left_out -= segment.messages
        self._close_files_of(segment)

    def _finish_deletion(self) -> None:
        recovery.finish_intent(self._files, self.folder)
        self._deletion_decided = False

    def _write_intent(self, intent: recovery.Intent) -> None:
        """Records that a deletion is decided. If that fails it is not decided, and no later start may find the
        intent."""
        try:
            recovery.write_intent(self._files, self.folder, intent)
        except OSError:
            with contextlib.suppress(OSError):
                recovery.withdraw_intent(self._files, self.folder)
            raise

    def purge(self) -> None:
        """Deletes everything and starts over at offset 0. A crash leaves everything or nothing."""
        if self._deletion_decided:
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
        self.unsynced_bytes = 0
        self._synced_offset = 0
        self._reserved = None
        self.size_bytes = self.saved_bytes = self.batches = self.left_out = 0
        self.generation += 1
        self.purges += 1

    def _make_room(self) -> None:
        """On a full disk, a purge deletes the messages first: there is no room to record that it is decided."""
        self.trim(self.segments[-1].start_offset)
        last = self.segments[-1]
        self._reserved = None
        recovery.remove_index(self._files, self.folder, last.start_offset)
        self._files.truncate(self._handles.writing(log_file(self.folder, last.start_offset)), 0)
        self._indexes.drop(last)
        self.size_bytes -= last.log_bytes
        self.saved_bytes -= last.saved_bytes
        self.batches -= last.batches
        self.segments[-1] = Segment.empty(last.start_offset)
