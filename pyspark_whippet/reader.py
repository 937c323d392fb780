"""Reading a topic as a table.

`partitions` runs on the driver, once for each `load()`: what is read is what was there then, however often the
DataFrame is used. `read` runs in the tasks, on a copy of this object.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.types import StructType

from pyspark_whippet import offsets, positions
from pyspark_whippet.extents import extents
from pyspark_whippet.origins import origin_of, read
from pyspark_whippet.settings import Settings


class TableReader(DataSourceReader):
    def __init__(self, settings: Settings, schema: StructType) -> None:
        self._settings = settings
        self._schema = schema

    def partitions(self) -> list[Any]:
        settings, origin = self._settings, origin_of(self._settings)
        found = extents(origin, settings)
        start = positions.starting(origin, settings, found, "earliest")
        end = positions.ending(origin, settings, found)
        ranges = [each for each in offsets.ranges(start, end) if each.start < each.end]
        return list(origin.shares(ranges, settings))

    def read(self, partition: Any) -> Iterator[Any]:
        return read(self._settings, self._schema, partition)
