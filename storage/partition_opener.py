"""Opens the files of partitions on the threads of their shards, with recovery where they were not closed cleanly."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from whippet.storage import recovery, takeover
from whippet.storage.encryption import Seal
from whippet.storage.errors import StorageError
from whippet.storage.files import Files
from whippet.storage.layout import Layout, PartitionId
from whippet.storage.log import Log
from whippet.storage.offsets import Key, OffsetFiles
from whippet.storage.options import TopicSettings
from whippet.storage.packing import Compression
from whippet.storage.producers import Bounds, Record
from whippet.storage.segment import Damage, Segment
from whippet.storage.shard import Shard
from whippet.storage.takeover import Ends


class Opened(NamedTuple):
    """The files of a partition, ready for use: what a shard hands to the event loop."""

    place: PartitionId
    log: Log
    offset_files: OffsetFiles
    offsets: dict[Key, int]
    last_timestamp: int
    records: list[Record]
    """The remembered results of numbered sends."""


class Unavailable(NamedTuple):
    """A partition that could not be opened."""

    place: PartitionId
    reason: str


class PartitionOpener(NamedTuple):
    """What it takes to open any partition of a store. `report` and `note` are called on any thread."""

    files: Files
    layout: Layout
    bounds: Bounds
    check_all: bool
    """Check every batch of every segment, not only the end of the last segment."""
    settings_of: Callable[[PartitionId], TopicSettings]
    compression_of: Callable[[PartitionId], Compression]
    seal: Callable[[str], Seal | None]
    """The seal of a part of the folder; None if no key is known."""
    report: Callable[[Damage], None]
    note: Callable[[str], None]

    def try_to_open(self, place: PartitionId, shard: Shard) -> Opened | Unavailable:
        try:
            opened = self.recover(place, shard)
            for line in opened.offset_files.lower(opened.offsets, opened.log.next_offset):
                self.note(line)
        except (OSError, StorageError) as error:
            return Unavailable(place, str(error))
        return opened

    def recover(self, place: PartitionId, shard: Shard) -> Opened:
        folder = self.layout.partition(place)
        recovered = recovery.recover(self.files, folder, place.partition, check_all=self.check_all)
        for damage in recovered.damage:
            self.report(damage)
        offset_files = self._offset_files(place)
        offsets, unreadable = offset_files.load()
        for path in unreadable:
            self.note(f"{path}: no stored offset can be read from it; it is ignored")
        log = self._log(place, shard, recovered.segments)
        return Opened(place, log, offset_files, offsets, recovered.last_timestamp, log.load_records())

    def open_new(self, place: PartitionId, shard: Shard) -> Opened:
        """Opens a partition whose folder was just created. It needs no recovery, and no file is read."""
        log = self._log(place, shard, [Segment.empty(0)])
        return Opened(place, log, self._offset_files(place), {}, 0, [])

    def open_awaited(self, ends: Ends, shard: Shard) -> Opened:
        """Opens a partition that has no folder yet (takeover.py). No file is touched."""
        place = ends.place
        return Opened(place, self._log(place, shard, takeover.segments(ends)), self._offset_files(place), {}, 0, [])

    def _log(self, place: PartitionId, shard: Shard, segments: list[Segment]) -> Log:
        settings = self.settings_of(place)
        return Log(
            self.files,
            shard.handles,
            shard.indexes,
            self.layout.partition(place),
            place.partition,
            settings.segment_bytes,
            segments,
            self.report,
            preallocates=settings.preallocates,
            bounds=self.bounds,
            compression=self.compression_of(place),
            seal=self.seal_of_batches(place),
        )

    def seal_of_batches(self, place: PartitionId) -> Seal | None:
        return self.seal(f"batches {place.stream}/{place.topic}")

    def _offset_files(self, place: PartitionId) -> OffsetFiles:
        seal = self.seal(f"offsets {place.stream}/{place.topic}/{place.partition}")
        return OffsetFiles(self.files, self.layout.partition(place), seal)
