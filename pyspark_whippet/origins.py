"""Where rows come from, as the option `from` says: the gateway, files, or files and then the gateway."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark_whippet import columns
from pyspark_whippet.batches import Messages
from pyspark_whippet.errors import OptionError
from pyspark_whippet.extents import Extent, Origin
from pyspark_whippet.folder import Folder
from pyspark_whippet.offsets import Range
from pyspark_whippet.reading import Slice, pages
from pyspark_whippet.scanning import FileSlice, scanned
from pyspark_whippet.session import session_of
from pyspark_whippet.settings import Settings
from pyspark_whippet.topics import Gateway


def origin_of(settings: Settings) -> Origin:
    if settings.origin == "files":
        return Folder(settings)
    return Both(settings) if settings.origin == "all" else Gateway(settings.access)


class Both:
    """An Origin: what is in closed segments comes from them, the rest from the gateway.

    The gateway says where partitions end, so nothing is read that it has not promised. A folder may have what the
    gateway has deleted since: an archive.
    """

    def __init__(self, settings: Settings) -> None:
        self._gateway = Gateway(settings.access)
        self._folder = Folder(settings)

    def names(self) -> Iterator[str]:
        return self._gateway.names()

    def extents_of(self, topic: str) -> dict[int, Extent] | None:
        found = self._gateway.extents_of(topic)
        if found is None:
            return None
        # How many there are matters to nobody but who asks whether there are any.
        return {number: Extent(each.next_offset, each.next_offset, each.first_offset) for number, each in found.items()}

    def first_offset(self, topic: str, partition: int, extent: Extent) -> int:
        first = self._gateway.first_offset(topic, partition, extent)
        return min([first, *(segment.start for segment in self._folder.segments(topic, partition)[:1])])

    def offset_at(self, topic: str, partition: int, timestamp_us: int) -> int | None:
        in_files = self._folder.offset_at(topic, partition, timestamp_us)
        there = self._gateway.offset_at(topic, partition, timestamp_us)
        return min((offset for offset in (in_files, there) if offset is not None), default=None)

    def reaches(self, topic: str, partition: int, offset: int) -> bool:
        return self._gateway.reaches(topic, partition, offset)

    def shares(self, ranges: list[Range], settings: Settings) -> Sequence[Slice]:
        for topic in {each.topic for each in ranges}:
            self._check_same(topic)
        return self._folder.pieces(ranges, settings, asks=True)

    def _check_same(self, topic: str) -> None:
        """OptionError if the files are those of a topic that was made anew, or of another server."""
        noted, said = self._folder.document(topic), self._gateway.document(topic)
        if noted is None or said is None or "created_at" not in noted or "created_at" not in said:
            return
        if noted["created_at"] != said["created_at"]:
            raise OptionError(f"option 'path': the files of {topic} are not those of the topic that the gateway has")


def read(settings: Settings, schema: Any, share: Any) -> Iterator[Any]:
    """Record batches, in a task; none where Spark has made a partition of its own out of an empty list of them."""
    if not isinstance(share, Slice):
        return
    wanted = columns.arrow_schema(schema)
    for messages in _pages(settings, share):
        yield columns.build(messages, share.topic, share.partition, wanted, settings)


def _pages(settings: Settings, share: Slice) -> Iterator[Messages]:
    if isinstance(share, FileSlice):
        return scanned(settings, share)
    return pages(session_of(settings.access), settings, share)
