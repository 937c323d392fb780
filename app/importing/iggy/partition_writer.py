"""Writes the log of one partition of the target with the store's own functions, batch by batch."""

from __future__ import annotations

from whippet.app.importing.iggy.batching import Batch
from whippet.app.importing.iggy.report import Refused
from whippet.storage import recovery
from whippet.storage.encryption import Seal
from whippet.storage.entry import Entry
from whippet.storage.files import Files
from whippet.storage.handles import Handles, IndexCache
from whippet.storage.layout import left_out_file, log_file
from whippet.storage.log import Log
from whippet.storage.packing import Compression
from whippet.storage.segment import Damage, Segment

WRITTEN_TOGETHER_BYTES = 4 << 20
OPEN_FILES_MAX = 16
INDEX_CACHE_BYTES = 16 << 20
GAPS_MARKED_MAX = 1000
"""Each of them takes two files. The offsets of further gaps are missing inside a segment."""


class PartitionWriter:
    """Used for a partition that was just created; ended by `finish`, or by `abandon` after an error."""

    def __init__(
        self,
        files: Files,
        folder: str,
        partition_id: int,
        segment_bytes: int,
        first_offset: int,
        compression: Compression,
        seal: Seal | None,
    ) -> None:
        self._files = files
        self._folder = folder
        self._waiting: list[Entry] = []
        self._waiting_bytes = 0
        self._next_offset = first_offset
        self._gaps = 0
        if first_offset:
            # The partition begins later: no file may claim the offsets before.
            recovery.create_log(files, folder, first_offset)
            files.remove(log_file(folder, 0))
        self._handles = Handles(files, OPEN_FILES_MAX)
        self._log = Log(
            files,
            self._handles,
            IndexCache(INDEX_CACHE_BYTES),
            folder,
            partition_id,
            segment_bytes,
            [Segment.empty(first_offset)],
            _raise,
            compression=compression,
            seal=seal,
        )

    def append(self, batch: Batch) -> None:
        """Offsets may have gaps: the source's numbers stay."""
        after = batch.base_offset + batch.messages
        if batch.base_offset > self._next_offset and self._gaps < GAPS_MARKED_MAX:
            self._write()
            self._leave_out(batch.base_offset)
        self._next_offset = after
        self._waiting.append(Entry(batch.content, batch.base_offset, after, batch.timestamp, 0))
        self._waiting_bytes += len(batch.content)
        if self._waiting_bytes >= WRITTEN_TOGETHER_BYTES:
            self._write()

    def _write(self) -> None:
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        error = self._log.write(waiting, (), sync=False)
        if error is not None:
            if error.filename is None:
                error.filename = self._folder
            raise error

    def finish(self, next_offset: int) -> int:
        """Returns when everything is on the disk. Appending will continue at `next_offset`, or after the last message
        if that is later. Returns which it is."""
        self._write()
        log = self._log
        if next_offset > log.next_offset:
            self._leave_out(next_offset)
        log.close()
        self._handles.close()
        return log.next_offset

    def _leave_out(self, until: int) -> None:
        """Records that there are no messages up to an offset: here, that is no damage."""
        log = self._log
        start = log.next_offset
        if log.segments[-1].log_bytes:
            for damage in recovery.write_index_if_possible(self._files, self._folder, log.segments[-1]):
                _raise(damage)
            log.begin_segment(start)
        empty = log.segments[-1]
        self._files.close(self._files.open_for_writing(left_out_file(self._folder, start)))
        recovery.mark_left_out(empty)
        empty.next_offset = until
        log.begin_segment(until)
        self._gaps += 1

    def abandon(self) -> None:
        self._log.forget()
        self._handles.close()


def _raise(damage: Damage) -> None:
    """What the store would report and work around ends an import."""
    raise Refused(f"{damage}; nothing was imported")
