"""Where records go: a module for each type. A sink is a table of the file, and is handed one batch after the other.

Each of them keeps its promise about batches that come again by itself: a crash between a sink and Spark's note that a
batch is done has the whole batch written again.
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
    """What a replay does, for the plan."""

    def inspect(self, gateway: GatewaySettings) -> Iterator[str]:
        """What is there, for the plan; an error where it cannot be. Changes nothing."""

    def check_schema(self, schema: StructType, gateway: GatewaySettings, place: str) -> None:
        """FileError if records with these columns cannot be written, as the file is or as what is there is. Changes
        nothing."""

    def prepare(self, schema: StructType, gateway: GatewaySettings, place: str) -> None:
        """Before the first batch, and after `fit`: makes what is missing."""

    def write(self, batch: Batch, gateway: GatewaySettings, place: str) -> DataFrame | None:
        """All of a batch; what was refused comes back as bad records (bad_records.py)."""


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
