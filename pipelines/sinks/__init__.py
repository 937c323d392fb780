"""The sinks, one module per type. A sink is a table of the file, and is handed one batch after the other.

Each sink keeps its delivery guarantee for replays by itself: after a crash between its write and Spark's record that
the batch is done, the whole batch is written again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Protocol

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from whippet.pipelines.gateway_settings import GatewaySettings
from whippet.pipelines.record_columns import Batch
from whippet.pipelines.sinks.delta import DeltaSink
from whippet.pipelines.sinks.elasticsearch import ElasticsearchSink
from whippet.pipelines.sinks.iceberg import IcebergSink
from whippet.pipelines.sinks.parquet import ParquetSink
from whippet.pipelines.sinks.postgres import PostgresSink
from whippet.pipelines.sinks.quickwit import QuickwitSink
from whippet.pipelines.sinks.stdout import StdoutSink
from whippet.pipelines.sinks.topic import TopicSink


class Sink(Protocol):
    TYPE: ClassVar[str]
    DELIVERY: ClassVar[str]
    """What a replay does, for `whippet pipeline check`."""

    def inspect(self, gateway: GatewaySettings) -> Iterator[str]:
        """Yields what exists, for `whippet pipeline check`; raises an error if that cannot be written to. Changes
        nothing."""

    def check_schema(self, schema: StructType, gateway: GatewaySettings, place: str) -> None:
        """Raises FileError if records with these columns cannot be written, because of the file or of what exists.
        Changes nothing."""

    def prepare(self, schema: StructType, gateway: GatewaySettings, place: str) -> None:
        """Creates what is missing: before the first batch, and after `check_schema`."""

    def write(self, batch: Batch, gateway: GatewaySettings, place: str) -> DataFrame | None:
        """Writes a batch and returns the rows that were refused, as bad records (bad_records.py)."""


_ALL: tuple[Any, ...] = (
    TopicSink,
    ParquetSink,
    DeltaSink,
    IcebergSink,
    PostgresSink,
    ElasticsearchSink,
    QuickwitSink,
    StdoutSink,
)
SINKS: Mapping[str, type[Any]] = {each.TYPE: each for each in _ALL}
