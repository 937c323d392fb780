"""The sink `stdout`: a line for each batch, or the records themselves."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType
from pyspark.sql.utils import is_remote

from whippet.pipelines.counted import counted
from whippet.pipelines.errors import FileError
from whippet.pipelines.frames import Batch, document
from whippet.pipelines.gateway import Gateway
from whippet.pipelines.keys import TRUTH, key


@dataclass(frozen=True, kw_only=True)
class StdoutSink:
    """Standard output: how many records a batch has, or with `print_payload` each of them as a line of JSON."""

    TYPE: ClassVar[str] = "stdout"
    PROMISE: ClassVar[str] = "at least once: a batch that is replayed is printed again"
    print_payload: bool = key(TRUTH, "print the records", False)
    include_metadata: bool = key(TRUTH, "and what they were made of", False)

    def look(self, gateway: Gateway) -> Iterator[str]:
        yield "standard output"

    def fit(self, schema: StructType, gateway: Gateway, place: str) -> None:
        if is_remote():
            raise FileError(f"{place}: over Connect it is that of a process beside the server, which nobody sees")

    def prepare(self, schema: StructType, gateway: Gateway, place: str) -> None:
        """Nothing is needed."""

    def write(self, batch: Batch, gateway: Gateway, place: str) -> DataFrame | None:
        if self.print_payload:
            for row in batch.frame.select(document(batch.frame, self.include_metadata)).toLocalIterator():
                sys.stdout.write(f"{row[0]}\n")
        else:
            sys.stdout.write(f"{batch.pipeline}: batch {batch.number}, {counted(batch.frame.count(), 'record')}\n")
        sys.stdout.flush()
        return None
