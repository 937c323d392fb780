"""Reading a topic as a table.

`partitions` runs on the driver, once for each `load()`: what is read is what was there then, however often the
DataFrame is used. `read` runs in the tasks, on a copy of this object.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.types import StructType

from app.pipeline import offsets, positions, reading, topics
from app.pipeline.offsets import Range
from app.pipeline.options import Settings
from app.pipeline.reading import Slice
from app.pipeline.session import session_of


class TableReader(DataSourceReader):
    def __init__(self, settings: Settings, schema: StructType) -> None:
        self._settings = settings
        self._schema = schema

    def partitions(self) -> list[Slice]:
        settings, session = self._settings, session_of(self._settings.access)
        extents = topics.extents(session, settings)
        start = positions.starting(session, settings, extents, "earliest")
        end = positions.ending(session, settings, extents)
        found: list[Range] = [each for each in offsets.ranges(start, end) if each.start < each.end]
        return reading.slices(offsets.split(found, settings.min_partitions, settings.max_records_per_partition))

    def read(self, partition: Any) -> Iterator[Any]:
        return reading.read(self._settings, self._schema, partition)
