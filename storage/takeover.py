"""Partitions that a data folder has taken over from an archive, and whose folders are not on its disk yet.

A server that takes an archive over serves at once, with a list of where every partition begins and ends
(`takeover.json`). The folder of a partition is created when the partition is needed for the first time, or in the
background (storage/archive/arrivals.py). Until then the event loop has a partition without files, whose offsets come
from the list, and whoever wants to read, write or look up something there waits for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

import msgspec

from whippet.storage.document_checksums import State, with_checksum, without_checksum
from whippet.storage.documents import NOT_UNDERSTOOD
from whippet.storage.errors import ArchiveUnavailable, PartitionClosed, StorageError, UnsupportedFormat
from whippet.storage.files import Files, read_all, replace
from whippet.storage.index import Index
from whippet.storage.layout import TAKEOVER_FILE, Layout, PartitionId
from whippet.storage.segment import Segment

if TYPE_CHECKING:
    from whippet.storage.consumer_offsets import ConsumerOffsets
    from whippet.storage.history import History
    from whippet.storage.partition import Partition
    from whippet.storage.partition_opener import Opened
    from whippet.storage.producers import Producers
    from whippet.storage.timestamps import Timestamps
    from whippet.storage.waiting import Exclusion, Readers
    from whippet.storage.write_pipeline import WritePipeline


class Ends(msgspec.Struct, frozen=True, array_like=True):
    """The beginning and the end of a partition, as the list has them."""

    stream: int
    topic: int
    partition: int
    first: int
    """The oldest message in the archive."""
    end: int
    """After the newest message in the archive. The same as `first` if there is none."""
    next: int
    """No offset before this one is given out any more."""

    @property
    def place(self) -> PartitionId:
        return PartitionId(self.stream, self.topic, self.partition)


class TakeoverDocument(msgspec.Struct, frozen=True, kw_only=True):
    """`takeover.json`."""

    location: str
    """The archive, for messages to the operator."""
    partitions: tuple[Ends, ...] = ()


class Takeover(msgspec.Struct, frozen=True):
    """The partitions without a folder, and what is to be expected of them."""

    location: str = ""
    awaited: dict[PartitionId, Ends] = {}


class Arrival(Protocol):
    """The way of one partition into the data folder, as the partition sees it."""

    def begin(self) -> None:
        """Somebody needs the partition."""
        ...

    async def give_up(self) -> None:
        """Returns when the partition is on its way neither now nor later."""
        ...


class NoArrival:
    """The arrival of a partition while the server has no archiver."""

    def __init__(self, coming: Coming, location: str) -> None:
        self._coming = coming
        self._location = location

    def begin(self) -> None:
        self._coming.refuse(
            ArchiveUnavailable(
                f"{self._coming.place} is only in the archive {self._location}, from which this folder was begun; "
                "it is served once data_maintenance.archiver.enabled is on and the archive can be reached"
            )
        )

    async def give_up(self) -> None: ...


class Coming:
    """A partition that is still to come, and the parts of it that change when it does. On the event loop.

    It holds the partition exclusively. So all that waits for an exclusive operation waits for the arrival, and lets it
    begin."""

    def __init__(
        self,
        partition: Partition,
        exclusive: Exclusion,
        pipeline: WritePipeline,
        timestamps: Timestamps,
        offsets: ConsumerOffsets,
        producers: Producers,
        readers: Readers,
    ) -> None:
        self.place = partition.place
        self._partition = partition
        self._exclusive = exclusive
        self._pipeline = pipeline
        self._timestamps = timestamps
        self._offsets = offsets
        self._producers = producers
        self._readers = readers
        exclusive.enter()

    def by(self, arrival: Arrival, history: History | None) -> None:
        """Sets how the partition comes, and what can be read of it already."""
        self._exclusive.arrival, self._partition.history = arrival, history

    def refuse(self, failure: StorageError) -> None:
        """Whoever waits for the arrival gets the failure. It may begin again."""
        self._exclusive.refuse(failure)

    def arrive(self, opened: Opened, history: History | None, last_timestamp: int) -> None:
        """Its files are in their place."""
        pipeline, log = self._pipeline, opened.log
        pipeline.use(log, log.state, log.generation)
        self._timestamps.newest = max(last_timestamp, opened.last_timestamp)
        self._offsets.arrive(opened.offset_files, opened.offsets)
        self._producers.restore(opened.records, None)
        self._partition.history = history
        pipeline.resume(log.next_offset, [])
        pipeline.accept_again()
        self._leave()

    async def closed(self, reason: str) -> bool:
        """Closes the partition as it is; False if it has arrived meanwhile, so that it has to be closed like others."""
        if self._exclusive.arrival is not None:
            await self._exclusive.arrival.give_up()
        if self._partition.coming is None:
            return False
        self._pipeline.failed = failure = PartitionClosed(f"{self.place}: {reason}")
        self._readers.refuse(failure)
        self._leave()
        return True

    def _leave(self) -> None:
        self._partition.coming = self._exclusive.arrival = None
        self._exclusive.leave()


def read(files: Files, layout: Layout) -> Takeover:
    path = layout.below(TAKEOVER_FILE)
    try:
        content, state = without_checksum(read_all(files, path))
        if state is State.CHANGED:
            raise UnsupportedFormat(
                f"{path} is not what was written, so it is unknown which partitions are only in the archive"
            )
        document = msgspec.json.decode(content, type=TakeoverDocument)
    except FileNotFoundError:
        return Takeover()
    except NOT_UNDERSTOOD as error:
        raise UnsupportedFormat(
            f"{path} cannot be decoded, so it is unknown which partitions are only in the archive: {error}"
        ) from error
    return Takeover(document.location, {ends.place: ends for ends in document.partitions})


def missing(files: Files, layout: Layout) -> list[PartitionId]:
    """The partitions whose folders are still to be created."""
    return [place for place in read(files, layout).awaited if not files.exists(layout.partition(place))]


def write(files: Files, layout: Layout, location: str, partitions: Iterable[Ends]) -> None:
    """Returns when it is on the disk."""
    document = TakeoverDocument(location=location, partitions=tuple(partitions))
    replace(files, layout.below(TAKEOVER_FILE), with_checksum(msgspec.json.encode(document) + b"\n"))


def finish(files: Files, layout: Layout) -> None:
    """Every partition has its folder."""
    path = layout.below(TAKEOVER_FILE)
    if files.exists(path):
        files.remove(path)
        files.sync_folder(layout.root)


def segments(ends: Ends) -> list[Segment]:
    """Returns what the local log will be like: nothing, after all that may have been given out."""
    found = []
    if ends.first < ends.end < ends.next:
        left_out = Segment(ends.end, 0, ends.next)
        left_out.index = Index()
        left_out.whole = left_out.end_checked = left_out.left_out = True
        left_out.last_timestamp = 0
        found.append(left_out)
    return [*found, Segment.empty(ends.next)]
