"""Where records come from: a module for each type. A source is a table of the file that can be asked for a stream."""

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
        """How often it is looked at when nothing comes."""

    def frame(self, spark: SparkSession, gateway: GatewaySettings) -> DataFrame:
        """Its records, with the hidden columns; nothing is read before a query runs."""

    def inspect(self, gateway: GatewaySettings) -> Iterator[str]:
        """What is there, for the plan; an error where it is not."""


_ALL: tuple[Any, ...] = (TopicSource, FilesSource, PostgresSource, RandomSource)
SOURCES: Mapping[str, type[Any]] = {each.TYPE: each for each in _ALL}
