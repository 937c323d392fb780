"""Where records go: a module for each type. A sink is a table of the file, and is handed one batch after the other.

Each of them keeps its promise about batches that come again by itself: a crash between a sink and Spark's note that a
batch is done has the whole batch written again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Protocol

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from app.pipeline.jobs.frames import Batch
from app.pipeline.jobs.gateway import Gateway
from app.pipeline.jobs.sinks.delta import DeltaSink
from app.pipeline.jobs.sinks.elasticsearch import ElasticsearchSink
from app.pipeline.jobs.sinks.iceberg import IcebergSink
from app.pipeline.jobs.sinks.parquet import ParquetSink
from app.pipeline.jobs.sinks.postgres import PostgresSink
from app.pipeline.jobs.sinks.quickwit import QuickwitSink
from app.pipeline.jobs.sinks.stdout import StdoutSink
from app.pipeline.jobs.sinks.topic import TopicSink


class Sink(Protocol):
    TYPE: ClassVar[str]
    PROMISE: ClassVar[str]
    """What a replay does, for the plan."""

    def look(self, gateway: Gateway) -> Iterator[str]:
        """What is there, for the plan; an error where it cannot be. Changes nothing."""

    def fit(self, schema: StructType, gateway: Gateway, place: str) -> None:
        """FileError if records with these columns cannot be written, as the file is or as what is there is. Changes
        nothing."""

    def prepare(self, schema: StructType, gateway: Gateway, place: str) -> None:
        """Before the first batch, and after `fit`: makes what is missing."""

    def write(self, batch: Batch, gateway: Gateway, place: str) -> DataFrame | None:
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
