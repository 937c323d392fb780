"""The sources, one module per type. A source is a table of the file that provides a stream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Protocol

from pyspark.sql import DataFrame, SparkSession

from whippet.pipelines.gateway_settings import GatewaySettings
from whippet.pipelines.sources.files import FilesSource
from whippet.pipelines.sources.postgres import PostgresSource
from whippet.pipelines.sources.random import RandomSource
from whippet.pipelines.sources.topic import TopicSource


class Source(Protocol):
    TYPE: ClassVar[str]

    @property
    def trigger_ms(self) -> int:
        """How often the source is checked while it is idle."""

    def frame(self, spark: SparkSession, gateway: GatewaySettings) -> DataFrame:
        """Returns the records with the hidden columns. Nothing is read before a query runs."""

    def inspect(self, gateway: GatewaySettings) -> Iterator[str]:
        """Yields what exists, for `whippet pipeline check`; raises an error if the source does not exist."""


_ALL: tuple[Any, ...] = (TopicSource, FilesSource, PostgresSource, RandomSource)
SOURCES: Mapping[str, type[Any]] = {each.TYPE: each for each in _ALL}
