"""Reads the segments of one partition from the disk: messages by offset, offsets by time.

A `LogReader` belongs to the thread of one shard; nothing here is shared or locked. Damage to bytes that were good when
they were written is reported, and the readable messages are still served. `Log` adds writing and deleting.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

from whippet.storage import batch as batches
from whippet.storage import packed_reads, packing, recovery
from whippet.storage.encryption import Seal
from whippet.storage.errors import InvalidBatch, ReadFailed
from whippet.storage.fetched import Fetched
from whippet.storage.files import Buffer, Files, read_fully
from whippet.storage.handles import Handles, IndexCache
from whippet.storage.index import Index
from whippet.storage.layout import log_file
from whippet.storage.long_reads import Extent, Located
from whippet.storage.packed_reads import NotUnpacked, add_extent, unpacked
from whippet.storage.segment import Damage, Segment
from whippet.storage.unpacking import Readers, unpacked_batches


class LogReader:
    """See the module. `report` is called for all damage that is found; it must not raise."""

    reads_ahead = True
    """Whether the next packed batches are read together with those that are wanted, and unpacked ahead."""

    def __init__(
        self,
        files: Files,
        handles: Handles,
        indexes: IndexCache,
        folder: str,
        partition_id: int,
        segments: list[Segment],
        report: Callable[[Damage], None],
        seal: Seal | None = None,
    ) -> None:
        self.seal = seal
        """Encrypts and decrypts the batches of this partition; None: no key is known."""
        self.folder = folder
        self.segments = segments
        """Never empty. Only the last one grows."""
        self.size_bytes = sum(segment.log_bytes for segment in segments)
        self.saved_bytes = sum(segment.saved_bytes for segment in segments)
        """How much longer the files would be if no batch was packed."""
        self.batches = sum(segment.batches for segment in segments)
        self.left_out = sum(segment.messages for segment in segments if segment.left_out)
        """Offsets that no message ever had."""
        self.files = self._files = files
        self._handles = handles
        self._indexes = indexes
        self._partition_id = partition_id
        self._report = report
        self._readers = Readers()
        self._unsynced: dict[int, None] = {}
        """The start offsets of segments whose files a sync will need, so they stay open."""
        for segment in segments[:-1]:
            if segment.index is not None:
                indexes.put(segment, segment.index)

    # --------------------------------------------------------------------------------------------------------- messages

    def read(self, offset: int, count: int, room: int, end: int) -> Fetched:
        """Reads at most `count` messages in `room` bytes, but at least one, from an offset on and none from `end`
        on."""
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
            self._drop_if_read(segment)
        return Fetched(buffers, messages, offset)

    def _drop_if_read(self, segment: Segment) -> None:
        """Closes the file of a segment whose end was read: its reader continues in the next one."""
        if segment is not self.segments[-1] and segment.start_offset not in self._unsynced:
            self._handles.drop(log_file(self.folder, segment.start_offset))

    def _segment_at(self, offset: int) -> int:
        i = bisect_right(self.segments, offset, key=lambda segment: segment.start_offset)
        return max(i - 1, 0)

    def _read_segment(
        self, segment: Segment, offset: int, count: int, room: int, end: int, at_least_one: bool
    ) -> tuple[Fetched, int]:
        index = self._index(segment)
        first = index.holding(offset)
        last = last_to_read(index, first, offset, count, room, end)
        if first == last:
            # Nothing more in this segment. After its last batch there may be a gap before the next segment.
            return Fetched([], 0, segment.next_offset if first == len(index) else offset), 0
        if index.stored is not None:
            found = self._read_packed(segment, index, first, last, offset, count, room, end, at_least_one)
        else:
            content = self._read_good(segment, index, first, last)
            found = None
            if content is not None:
                found = cut_to_request(index, content, first, last, offset, count, room, at_least_one)
        # Once damage is known, the index is another one.
        return found or self._read_segment(segment, offset, count, room, end, at_least_one)

    def _read_good(self, segment: Segment, index: Index, first: int, last: int) -> memoryview | None:
        """The stored bytes of the batches first .. last-1; None if there is damage in them, which is reported."""
        position = index.position(first)
        length = index.end_position(last - 1) - position
        content = memoryview(self._read_file(segment, length, position))
        if len(content) < length or not self._good(segment, index, content, first, last):
            self._rescan(segment)
            return None
        return content

    def _read_packed(
        self, segment: Segment, index: Index, first: int, last: int, offset: int, count: int, room: int, end: int,
        at_least_one: bool,
    ) -> tuple[Fetched, int] | None:  # fmt: skip
        """None if there is damage, which is reported."""
        readers, keep, until = self._readers, self._readers.are_several, last
        if self.reads_ahead and readers.goes_on(offset) and unpacked_batches.may_go_ahead():
            until = packed_reads.last_ahead(index, first, last, end)
        held = packed_reads.known(segment, index, first, last, until, keep=keep)
        if None in held:
            missing = first + held.index(None)
            content = self._read_good(segment, index, missing, until)
            if content is None:
                return None
            packed_reads.fill(held, segment, index, content, first, last, missing, self.seal, keep=keep)
        try:
            found = packed_reads.unpack_to_request(
                index, held, first, last, offset, count, room, at_least_one, self.seal
            )
        except NotUnpacked as failure:
            self._leave_out(segment, index, failure)
            return None
        readers.ended(found[0].next_offset)
        return found

    def _leave_out(self, segment: Segment, index: Index, failure: NotUnpacked) -> None:
        """Reports a batch that is as it was written, and yet cannot be unpacked. Readers skip it from now on."""
        i = failure.i
        path, start, stored = log_file(self.folder, segment.start_offset), index.position(i), index.stored_length(i)
        self._report(Damage(path, start, stored, index.base_offset(i), index.next_offset(i), failure.reason))
        index.drop(i)
        if segment.checked is not None:
            del segment.checked[i]

    def locate(self, offset: int, count: int, room: int, end: int) -> Located:
        """Like `read`, but reads only the batches that have to be cut or have not been checked yet, one at a time."""
        extents: list[Extent] = []
        messages = 0
        for segment in self.segments[self._segment_at(offset) :]:
            if messages == count or room <= 0 or offset >= end:
                break
            found = self._locate_in_segment(segment, offset, count - messages, room, end, not messages)
            extents += found.extents
            messages += found.messages
            room -= sum(extent.sent for extent in found.extents)
            offset = max(offset, found.next_offset)
            if offset < segment.next_offset:
                break
        return Located(extents, messages, offset)

    def _locate_in_segment(
        self, segment: Segment, offset: int, count: int, room: int, end: int, at_least_one: bool
    ) -> Located:
        index = self._index(segment)
        first = index.holding(offset)
        last = last_to_read(index, first, offset, count, room, end)
        if first == last:
            return Located([], 0, segment.next_offset if first == len(index) else offset)
        path = log_file(self.folder, segment.start_offset)
        extents: list[Extent] = []
        messages = used = 0
        run_start = run_end = 0
        for i in range(first, last):
            start, length, base, total = index.position(i), index.length(i), index.base_offset(i), index.count(i)
            stored, is_packed = index.stored_length(i), index.is_packed(i)
            skip = max(offset - base, 0)
            taken = min(total - skip, count - messages)
            is_whole = taken == total and used + length <= room
            if not (is_whole and self._is_known_good(segment, i)):
                view = memoryview(self._read_file(segment, stored, start))
                if len(view) < stored or not self._good(segment, index, view, i, i + 1):
                    self._rescan(segment)
                    return self._locate_in_segment(segment, offset, count, room, end, at_least_one)
            if run_end != start or not is_whole or is_packed:
                if run_end > run_start:
                    extents.append(Extent(b"", path, run_start, run_end - run_start))
                run_start = start
            run_end = start + stored
            used += length
            if is_whole and is_packed:
                run_start = run_end
                add_extent(extents, Extent(b"", path, start, stored, length))
            elif not is_whole:
                run_start = run_end
                try:
                    whole = b"".join(unpacked(index, i, view, self.seal)) if is_packed else view
                except NotUnpacked as failure:
                    self._leave_out(segment, index, failure)
                    return self._locate_in_segment(segment, offset, count, room, end, at_least_one)
                frames = batches.frame_positions(whole)
                left, must = room - used + length, at_least_one and not messages
                taken, pieces = batches.cut_to_fit(whole, frames, skip, taken, left, must)
                if pieces:
                    head, content = pieces
                    begin = batches.start_of(frames, skip)
                    if is_packed:
                        extents.append(Extent(head, path, start, stored, len(content), begin))
                    else:
                        extents.append(Extent(head, path, start + begin, len(content)))
                    used += len(head) + len(content) - length
            messages += taken
            next_offset = base + skip + taken
            if taken < total - skip:
                break
        if run_end > run_start:
            extents.append(Extent(b"", path, run_start, run_end - run_start))
        return Located(extents, messages, next_offset)

    def _is_known_good(self, segment: Segment, i: int) -> bool:
        return segment.whole or (segment.checked is not None and bool(segment.checked[i]))

    def _read_file(self, segment: Segment, length: int, position: int) -> Buffer:
        path = log_file(self.folder, segment.start_offset)
        try:
            return read_fully(self._files, self._handles.reading(path), length, position)
        except OSError as error:
            raise ReadFailed(path, error) from error

    def _good(self, segment: Segment, index: Index, content: memoryview, first: int, last: int) -> bool:
        """Whether the batches are what the index says. Each batch is checked once after the store was opened."""
        if segment.whole:
            return True
        if segment.checked is None:
            segment.checked = bytearray(len(index))
        return self._as_indexed(index, content, first, last, segment.checked)

    def _as_indexed(self, index: Index, content: memoryview, first: int, last: int, checked: bytearray) -> bool:
        origin = index.position(first)
        for i in range(first, last):
            if checked[i]:
                continue
            start = index.position(i) - origin
            view = content[start : start + index.stored_length(i)]
            try:
                if index.is_packed(i):
                    packing.check(view)
                else:
                    batches.check(view)
            except InvalidBatch:
                return False
            named = batches.header(view)
            if (named.base_offset, named.message_count, named.length) != (
                index.base_offset(i),
                index.count(i),
                index.length(i),
            ):
                return False
            if named.partition_id != self._partition_id or named.base_timestamp != index.timestamp(i):
                return False
            checked[i] = 1
        return True

    def _checksum_at(self, offset: int, count: int) -> int | None:
        """The checksum of the batch of `count` messages that begins at an offset; None if there is none."""
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

    # ------------------------------------------------------------------------------------------------------------ times

    def offset_at(self, timestamp: int) -> int:
        """The offset after the last older message. Since times rarely fall (timestamps.py), that is nearly always the
        first message of this time or a later one."""
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
        """Whether a segment ends, or one after it begins, before a time. Only segments written while the clock was
        ahead are later than the newest message. How old they are shows in the next segment that is not."""
        if self._last_timestamp_up_to(number) <= newest:
            return self._last_timestamp_up_to(number) < timestamp
        following = (segment for segment in self.segments[number + 1 :] if 0 < self.last_timestamp(segment) <= newest)
        return self.first_timestamp(next(following)) < timestamp

    def _last_timestamp_up_to(self, number: int) -> int:
        """The last time in a segment or, if all its messages are lost, in those before it, so that times never fall."""
        while number and not self.last_timestamp(self.segments[number]):
            number -= 1
        return self.last_timestamp(self.segments[number])

    def closed_segments(self) -> tuple[list[Segment], int]:
        """Copies of the closed segments with their last times, and the time of the first message after them, 0 if there
        is none."""
        copies = []
        for segment in self.segments[:-1]:
            copy = Segment(segment.start_offset, segment.log_bytes, segment.next_offset)
            copy.last_timestamp = self.last_timestamp(segment)
            copies.append(copy)
        return copies, self.first_timestamp(self.segments[-1])

    def last_timestamp(self, segment: Segment) -> int:
        if segment.last_timestamp is None:
            index = self._index(segment)
            segment.last_timestamp = index.timestamp(len(index) - 1) if len(index) else 0
        return segment.last_timestamp

    def first_timestamp(self, segment: Segment) -> int:
        """The first time in a segment; 0 if it has no messages."""
        index = self._index(segment)
        return index.timestamp(0) if len(index) else 0

    # ---------------------------------------------------------------------------------------------------------- indexes

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
        """Reports a segment that ends before the next one begins: files in between were lost, or somebody renamed
        one."""
        if segment.end_checked:
            return
        segment.end_checked = True
        end = index.next_offset(len(index) - 1) if len(index) else segment.start_offset
        if end < segment.next_offset:
            path, reason = log_file(self.folder, segment.start_offset), "the file ends before the next segment begins"
            self._report(Damage(path, segment.log_bytes, 0, end, segment.next_offset, reason))

    def _rescan(self, segment: Segment) -> Index:
        """Rebuilds the index of a segment from its log, and reports damage in it."""
        is_last = segment is self.segments[-1]
        look = recovery.check_closed if is_last else recovery.rebuild_closed
        log_bytes, saved_bytes, batches_count = segment.log_bytes, segment.saved_bytes, segment.batches
        try:
            for damage in look(self._files, self.folder, segment, self._partition_id):
                self._report(damage)
        except OSError as error:
            raise ReadFailed(log_file(self.folder, segment.start_offset), error) from error
        assert segment.index is not None
        index = segment.index
        self.batches += segment.batches - batches_count
        self.saved_bytes += segment.saved_bytes - saved_bytes
        if is_last:
            segment.log_bytes = log_bytes
        else:
            self.size_bytes += segment.log_bytes - log_bytes
            self._indexes.put(segment, index)
        return index


def last_to_read(index: Index, first: int, offset: int, count: int, room: int, end: int) -> int:
    """The batch after the last one that a read needs, if it begins with the batch `first`."""
    last, messages, size = first, 0, 0
    batch_count = len(index)
    while last < batch_count and messages < count and size < room and index.base_offset(last) < end:
        messages += index.next_offset(last) - max(offset, index.base_offset(last))
        size += index.length(last)
        last += 1
    return last


def cut_to_request(
    index: Index, content: memoryview, first: int, last: int, offset: int, count: int, room: int, at_least_one: bool
) -> tuple[Fetched, int]:
    """Trims the bytes of the batches first .. last-1 to the request. Whole batches in a row stay one buffer."""
    buffers: list[batches.Readable] = []
    messages = used = 0
    origin = index.position(first)
    run_start = run_end = 0
    next_offset = offset
    for i in range(first, last):
        start = index.position(i) - origin
        length, base, total = index.length(i), index.base_offset(i), index.count(i)
        skip = max(offset - base, 0)
        taken = min(total - skip, count - messages)
        if taken == total and used + length <= room:
            if run_end != start:
                if run_end > run_start:
                    buffers.append(content[run_start:run_end])
                run_start = start
            run_end = start + length
            used += length
        else:
            if run_end > run_start:
                buffers.append(content[run_start:run_end])
            run_start = run_end = start + length
            view = content[start : start + length]
            taken, pieces = batches.cut_to_fit(
                view, batches.frame_positions(view), skip, taken, room - used, at_least_one and not messages
            )
            buffers += pieces
            used += sum(map(len, pieces))
        messages += taken
        next_offset = base + skip + taken
        if taken < total - skip:
            # Either the count or the room is used up.
            break
    if run_end > run_start:
        buffers.append(content[run_start:run_end])
    return Fetched(buffers, messages, next_offset), used
