"""window: computes aggregates over time windows, and emits each when no more records can belong to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from whippet.pipelines.keys import BOOLEAN, DURATION, STRING, STRINGS, InvalidValue, Kind, key
from whippet.pipelines.record_columns import quoted, require_field
from whippet.pipelines.transforms.computed import BatchContext
from whippet.pipelines.transforms.watermark import with_watermark


def _aggregates(raw: Any) -> Mapping[str, str]:
    if not isinstance(raw, dict) or not raw or not all(isinstance(each, str) and each for each in raw.values()):
        raise InvalidValue
    return raw


@dataclass(frozen=True, kw_only=True)
class Window:
    """Aggregates the records of each time window. The result has the fields `window_start` and `window_end`, those
    of `group_by`, and the aggregates."""

    TYPE: ClassVar[str] = "window"
    enabled: bool = key(BOOLEAN, "false: skip this transform", True)
    time_field: str = key(STRING, "timestamp field with the time of the event")
    size: int = key(DURATION, "length of a window")
    slide: int | None = key(
        DURATION, "time between the starts of two windows; without it, windows do not overlap", None
    )
    watermark: int = key(DURATION, "how late a record may arrive and still count; later ones are dropped")
    group_by: tuple[str, ...] = key(STRINGS, "fields to group the records of a window by", (), shown="none")
    aggregates: Mapping[str, str] = key(
        Kind("a table of names and expressions", _aggregates),
        'such as {orders = "count(*)", total = "sum(amount)"}, in Spark SQL',
    )

    def __post_init__(self) -> None:
        if not self.size:
            raise ValueError("key 'size': it must not be 0")
        if self.slide is not None and not 0 < self.slide <= self.size:
            raise ValueError("key 'slide': it must be more than 0 and at most 'size'")

    def apply(self, frame: DataFrame, context: BatchContext, place: str) -> DataFrame:
        for name in self.group_by:
            require_field(frame.schema, name, place)
        frame = with_watermark(frame, self.time_field, self.watermark, place)
        slide = None if self.slide is None else f"{self.slide} milliseconds"
        window = F.window(quoted(self.time_field), f"{self.size} milliseconds", slide)
        aggregates = [F.expr(text).alias(name) for name, text in self.aggregates.items()]
        grouped = frame.groupBy(window, *map(quoted, self.group_by)).agg(*aggregates)
        ends = [F.col("window.start").alias("window_start"), F.col("window.end").alias("window_end")]
        return grouped.select(*ends, *map(quoted, self.group_by), *map(quoted, self.aggregates))
