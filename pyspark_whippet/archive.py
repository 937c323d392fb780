"""Reads topics from an archive without the gateway, for `from=archive`.

The driver reads the catalogue and the manifests of the partitions; tasks read the objects that these name. A plan has
one state of the archive: what is archived later is not read.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from pyspark_whippet import archive_documents, log_index, planning
from pyspark_whippet.archive_documents import Manifest, Piece
from pyspark_whippet.archive_objects import open_objects
from pyspark_whippet.archive_reader import PieceSplit, index_entries
from pyspark_whippet.errors import DataLossError
from pyspark_whippet.gateway_reader import report_loss, split_of
from pyspark_whippet.offsets import Range
from pyspark_whippet.packed_batches import context_of
from pyspark_whippet.partition_bounds import PartitionBounds
from pyspark_whippet.settings import Settings
from pyspark_whippet.stored_log import LogChanged

MANIFESTS_TOGETHER = 16


class ArchiveBackend:
    """Created for each plan."""

    def __init__(self, settings: Settings) -> None:
        self._objects = open_objects(settings)
        self._location = str(settings.archive)
        self._catalogue = archive_documents.catalogue(self._objects, self._location)
        self._manifests: dict[tuple[str, int], Manifest] = {}

    def topic_names(self) -> Iterable[str]:
        return self._catalogue.topics

    def bounds_of(self, topic: str) -> dict[int, PartitionBounds] | None:
        found = self._catalogue.topics.get(topic)
        if found is None:
            return None
        numbers = range(len(found.incarnations))
        with ThreadPoolExecutor(MANIFESTS_TOGETHER) as threads:
            manifests = threads.map(
                lambda number: archive_documents.manifest(
                    self._objects, self._location, self._catalogue, found, number
                ),
                numbers,
            )
            self._manifests |= {(topic, number): each for number, each in zip(numbers, manifests, strict=True)}
        return {number: _bounds(self._pieces(topic, number)) for number in numbers}

    def first_offset(self, topic: str, partition: int, bounds: PartitionBounds) -> int:
        return bounds.next_offset if bounds.first_offset is None else bounds.first_offset

    def offset_at(self, topic: str, partition: int, timestamp_us: int) -> int | None:
        try:
            return log_index.offset_at(
                self._pieces(topic, partition),
                timestamp_us,
                lambda piece: piece.first_timestamp,
                lambda piece: index_entries(self._objects, self._location, piece),
            )
        except LogChanged as changed:
            raise DataLossError(str(changed)) from None

    def still_has(self, topic: str, partition: int, offset: int) -> bool:
        """Only streams ask, and they do not read archives."""
        return False

    def plan_splits(self, ranges: list[Range], settings: Settings) -> list[PieceSplit]:
        known = {(each.topic, each.partition): self._pieces(each.topic, each.partition) for each in ranges}
        found = []
        for each, piece in planning.divide(ranges, known, settings):
            if piece is None:
                why = f"{self._location} does not have it"
                report_loss(settings, split_of(each), each.start, each.end, why)
                continue
            topic = self._catalogue.topics[each.topic]
            context = context_of(self._catalogue.store, topic.stream_id, topic.id)
            found.append(PieceSplit(*each[:4], piece, self._manifests[each.topic, each.partition].epoch, context))
        return found

    def _pieces(self, topic: str, partition: int) -> tuple[Piece, ...]:
        return self._manifests[topic, partition].pieces


def _bounds(pieces: tuple[Piece, ...]) -> PartitionBounds:
    if not pieces:
        return PartitionBounds(0, 0, 0)
    return PartitionBounds(pieces[-1].end, sum(piece.end - piece.start for piece in pieces), pieces[0].start)
