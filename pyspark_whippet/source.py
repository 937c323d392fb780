"""The data source `whippet`: the entry point for Spark. Invalid options and columns are refused here, in one sentence.

Spark creates it several times, in several processes, from the options alone, and pickles it from one to the other.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from pyspark_whippet import columns
from pyspark_whippet.errors import OptionError
from pyspark_whippet.options import check_sink, check_source, decode
from pyspark_whippet.settings import LATEST, Offsets
from pyspark_whippet.stream_reader import TopicStreamReader
from pyspark_whippet.table_reader import TableReader
from pyspark_whippet.writer import StreamWriter, TableWriter


class WhippetSource(DataSource):
    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._settings = decode(dict(options))

    @classmethod
    def name(cls) -> str:
        return "whippet"

    def schema(self) -> StructType | str:
        check_source(self._settings)
        return columns.schema(self._settings)

    def reader(self, schema: StructType) -> TableReader:
        self._check_reading(schema)
        starting = self._settings.starting
        if starting is not None and _is_latest(starting.offsets):
            raise OptionError("option 'startingOffsets': 'latest' reads nothing from a table; use an offset or a time")
        return TableReader(self._settings, schema)

    def writer(self, schema: StructType, overwrite: bool) -> TableWriter:
        if overwrite:
            raise OptionError("mode('overwrite') is not supported on a log; use mode('append')")
        check_sink(self._settings)
        return TableWriter(self._settings, schema)

    def streamReader(self, schema: StructType) -> TopicStreamReader:  # noqa: N802
        fault = None
        try:
            self._check_reading(schema)
            if self._settings.backend == "archive":
                raise OptionError(  # noqa: TRY301
                    "from=archive is for tables: read streams from the gateway, which reads its archive, too"
                )
            if self._settings.ending is not None:
                raise OptionError("ending options are for tables: a stream has no end")  # noqa: TRY301
        except OptionError as error:
            # Spark would hide an error that is raised here behind one of its own.
            fault = error
        return TopicStreamReader(self._settings, schema, fault)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        # `overwrite` is outputMode("complete"): as with Kafka's sink, each batch appends the whole result.
        check_sink(self._settings)
        return StreamWriter(self._settings, schema)

    def _check_reading(self, schema: StructType) -> None:
        check_source(self._settings)
        columns.check_schema(schema, self._settings)


def _is_latest(offsets: str | Offsets | None) -> bool:
    """Whether any partition starts at its end."""
    if isinstance(offsets, dict):
        return any(LATEST in partitions.values() for partitions in offsets.values())
    return offsets == "latest"
