"""The source `random`: generated records, for trying things out. A number always yields the same record."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, ClassVar, NamedTuple
from uuid import UUID

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from pyspark_whippet import registration
from whippet.pipelines.gateway_settings import GatewaySettings
from whippet.pipelines.keys import DURATION, InvalidValue, Kind, integer, key
from whippet.pipelines.record_columns import with_hidden_columns

FORMAT = "whippet_random"
SCHEMA = "id string, title string, name string, text string"
ROWS_IN_ARROW = 10_000


class Bounds(NamedTuple):
    least: int
    below: int


def _bounds(value: Any) -> Bounds:
    if not isinstance(value, list) or len(value) != 2 or not all(isinstance(each, int) for each in value):
        raise InvalidValue
    found = Bounds(*value)
    if not 0 <= found.least < found.below <= 1_000_000:
        raise InvalidValue
    return found


@dataclass(frozen=True, kw_only=True)
class RandomSource:
    """Generated records with the fields `id` (a UUID), `title`, `name` and `text`."""

    TYPE: ClassVar[str] = "random"
    interval: int = key(DURATION, "how often records are generated", 1000, shown='"1 s"')
    max_count: int | None = key(integer(0), "total number of records", None, shown="no end")
    messages_range: Bounds = key(
        Kind("two numbers, such as [10, 50], without the second one,", _bounds),
        "number of records at a time",
        Bounds(10, 50),
    )
    payload_size: int = key(integer(1, 1_000_000), "characters in `text`", 100)

    @property
    def trigger_ms(self) -> int:
        return self.interval

    def frame(self, spark: SparkSession, gateway: GatewaySettings) -> DataFrame:
        registration.register(spark, RandomFormat)
        most = -1 if self.max_count is None else self.max_count
        options = {
            "interval": self.interval,
            "most": most,
            "least": self.messages_range.least,
            "below": self.messages_range.below,
            "size": self.payload_size,
        }
        return with_hidden_columns(spark.readStream.format(FORMAT).options(**options).load())

    def inspect(self, gateway: GatewaySettings) -> Iterator[str]:
        yield "generated here"


class RandomFormat(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: StructType) -> RandomReader:  # noqa: N802
        return RandomReader({name: int(text) for name, text in dict(self.options).items()})


class Records(InputPartition):
    def __init__(self, start: int, end: int) -> None:
        super().__init__((start, end))
        self.start, self.end = start, end


class RandomReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: dict[str, int]) -> None:
        self._options = options
        self._next_at = 0.0
        self._end: int | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"records": 0}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Reads all records there will ever be, or one interval's if there is no end."""
        self._end = self._options["most"]

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        made, now = start["records"], time.monotonic()
        if self._end is not None and self._end >= 0:
            return {"records": self._end}
        if now < self._next_at:
            return start
        self._next_at = now + self._options["interval"] / 1000 if self._end is None else float("inf")
        spread = self._options["below"] - self._options["least"]
        more = self._options["least"] + int.from_bytes(_hash(made)[:8], "big") % spread
        return {"records": made + more if self._options["most"] < 0 else min(made + more, self._options["most"])}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[Records]:
        return [Records(start["records"], end["records"])] if start != end else []

    def read(self, partition: Any) -> Iterator[Any]:
        for first in range(partition.start, partition.end, ROWS_IN_ARROW):
            numbers = range(first, min(first + ROWS_IN_ARROW, partition.end))
            columns = {
                "id": [str(UUID(bytes=_hash(number)[:16], version=4)) for number in numbers],
                "title": ["Hello"] * len(numbers),
                "name": ["World"] * len(numbers),
                "text": [_text(number, self._options["size"]) for number in numbers],
            }
            yield pa.RecordBatch.from_pydict(columns)


def _hash(number: int) -> bytes:
    return blake2b(b"%d" % number).digest()


def _text(number: int, size: int) -> str:
    digits = _hash(number).hex()
    return (digits * (size // len(digits) + 1))[:size]
