"""The sink `stdout`: prints a line per batch, or the records themselves."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType
from pyspark.sql.utils import is_remote

from whippet.pipelines.errors import FileError
from whippet.pipelines.gateway_settings import GatewaySettings
from whippet.pipelines.keys import BOOLEAN, key
from whippet.pipelines.record_columns import Batch, json_document
from whippet.pipelines.user_text import pluralize


@dataclass(frozen=True, kw_only=True)
class StdoutSink:
    """Standard output: the number of records per batch, or with `print_payload` each record as a line of JSON."""

    TYPE: ClassVar[str] = "stdout"
    DELIVERY: ClassVar[str] = "at least once: a replayed batch is printed again"
    print_payload: bool = key(BOOLEAN, "print the records", False)
    include_metadata: bool = key(BOOLEAN, "also print metadata", False)

    def inspect(self, gateway: GatewaySettings) -> Iterator[str]:
        yield "standard output"

    def check_schema(self, schema: StructType, gateway: GatewaySettings, place: str) -> None:
        if is_remote():
            raise FileError(
                f"{place}: over Connect this would be the output of a process next to the server; use another sink"
            )

    def prepare(self, schema: StructType, gateway: GatewaySettings, place: str) -> None:
        """There is nothing to prepare."""

    def write(self, batch: Batch, gateway: GatewaySettings, place: str) -> DataFrame | None:
        if self.print_payload:
            for row in batch.frame.select(json_document(batch.frame, self.include_metadata)).toLocalIterator():
                sys.stdout.write(f"{row[0]}\n")
        else:
            sys.stdout.write(f"{batch.pipeline}: batch {batch.number}, {pluralize(batch.frame.count(), 'record')}\n")
        sys.stdout.flush()
        return None
