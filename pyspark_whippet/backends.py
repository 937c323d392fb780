"""The backends behind the option `from`: the gateway, files, files first and then the gateway, or an archive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark_whippet import columns
from pyspark_whippet.archive import ArchiveBackend
from pyspark_whippet.archive_reader import PieceSplit, read_piece
from pyspark_whippet.batches import Messages
from pyspark_whippet.errors import OptionError
from pyspark_whippet.folder import FolderBackend
from pyspark_whippet.gateway_reader import Split, read_pages
from pyspark_whippet.offsets import Range
from pyspark_whippet.partition_bounds import Backend, PartitionBounds
from pyspark_whippet.segment_reader import FileSplit, read_segment
from pyspark_whippet.session import session_of
from pyspark_whippet.settings import Settings
from pyspark_whippet.topics import GatewayBackend


def backend_for(settings: Settings) -> Backend:
    if settings.backend == "archive":
        return ArchiveBackend(settings)
    if settings.backend == "files":
        return FolderBackend(settings)
    return CombinedBackend(settings) if settings.backend == "all" else GatewayBackend(settings.access)


class CombinedBackend:
    """Reads closed segments from files, and everything else from the gateway.

    The gateway reports where partitions end, so nothing is read that it has not promised. The folder may still hold
    what the gateway has deleted: an archive.
    """

    def __init__(self, settings: Settings) -> None:
        self._gateway = GatewayBackend(settings.access)
        self._folder = FolderBackend(settings)

    def topic_names(self) -> Iterator[str]:
        return self._gateway.topic_names()

    def bounds_of(self, topic: str) -> dict[int, PartitionBounds] | None:
        found = self._gateway.bounds_of(topic)
        if found is None:
            return None
        # The number of messages is only used to see whether there are any.
        return {
            number: PartitionBounds(each.next_offset, each.next_offset, each.first_offset, each.epoch)
            for number, each in found.items()
        }

    def first_offset(self, topic: str, partition: int, bounds: PartitionBounds) -> int:
        first = self._gateway.first_offset(topic, partition, bounds)
        return min([first, *(segment.start for segment in self._folder.segments(topic, partition)[:1])])

    def offset_at(self, topic: str, partition: int, timestamp_us: int) -> int | None:
        in_files = self._folder.offset_at(topic, partition, timestamp_us)
        there = self._gateway.offset_at(topic, partition, timestamp_us)
        return min((offset for offset in (in_files, there) if offset is not None), default=None)

    def still_has(self, topic: str, partition: int, offset: int) -> bool:
        return self._gateway.still_has(topic, partition, offset)

    def plan_splits(self, ranges: list[Range], settings: Settings) -> Sequence[Split]:
        for topic in {each.topic for each in ranges}:
            self._check_same(topic)
        for each in ranges:
            on_disk = self._folder.epoch(each.topic, each.partition)
            if None not in (on_disk, each.epoch) and on_disk != each.epoch:
                raise OptionError(
                    f"option 'path': the files of {each.topic} partition {each.partition} are from before it was "
                    "purged; use the data folder of this gateway"
                )
        return self._folder.all_splits(ranges, settings, has_fallback=True)

    def _check_same(self, topic: str) -> None:
        """Raises OptionError if the files belong to an earlier topic of that name, or to another server."""
        on_disk, on_gateway = self._folder.document(topic), self._gateway.document(topic)
        if on_disk is None or on_gateway is None or "created_at" not in on_disk or "created_at" not in on_gateway:
            return
        if on_disk["created_at"] != on_gateway["created_at"]:
            raise OptionError(
                f"option 'path': the files of {topic} belong to another topic than the gateway's; "
                "use the data folder of this gateway"
            )


def read(settings: Settings, schema: Any, split: Any) -> Iterator[Any]:
    """Yields record batches, in a task. Spark turns an empty list of splits into a partition of its own; it yields
    none."""
    if not isinstance(split, Split):
        return
    wanted = columns.arrow_schema(schema)
    for messages in _pages(settings, split):
        yield columns.to_record_batch(messages, split.topic, split.partition, wanted, settings)


def _pages(settings: Settings, split: Split) -> Iterator[Messages]:
    if isinstance(split, PieceSplit):
        return read_piece(settings, split)
    if isinstance(split, FileSplit):
        return read_segment(settings, split)
    return read_pages(session_of(settings.access), settings, split)
