"""Reads a topic as a table.

`partitions` runs on the driver, once for each `load()`: it fixes what is read, however often the DataFrame is used.
`read` runs in the tasks, on a copy of this object.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.types import StructType

from pyspark_whippet import offset_resolution, offsets
from pyspark_whippet.backends import backend_for, read
from pyspark_whippet.partition_bounds import subscribed_bounds
from pyspark_whippet.settings import Settings


class TableReader(DataSourceReader):
    def __init__(self, settings: Settings, schema: StructType) -> None:
        self._settings = settings
        self._schema = schema

    def partitions(self) -> list[Any]:
        settings, backend = self._settings, backend_for(self._settings)
        found = subscribed_bounds(backend, settings)
        start = offset_resolution.starting_offsets(backend, settings, found, "earliest")
        end = offset_resolution.ending_offsets(backend, settings, found)
        ranges = [
            each._replace(epoch=found[each.topic][each.partition].epoch)
            for each in offsets.ranges(start, end)
            if each.start < each.end
        ]
        return list(backend.plan_splits(ranges, settings))

    def read(self, partition: Any) -> Iterator[Any]:
        return read(self._settings, self._schema, partition)
