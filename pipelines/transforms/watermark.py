"""The watermark: how long windows and deduplication wait for late records."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql.types import TimestampType

from whippet.pipelines.errors import FileError
from whippet.pipelines.record_columns import require_field

MARK = "spark.watermarkDelayMs"
"""Spark's mark in a field whose stream already has a watermark."""


def with_watermark(frame: DataFrame, time_field: str, late_ms: int, place: str) -> DataFrame:
    require_field(frame.schema, time_field, place)
    kind = frame.schema[time_field].dataType
    if not isinstance(kind, TimestampType):
        raise FileError(f"{place}: field '{time_field}' is {kind.simpleString()}; a timestamp is needed")
    if MARK in frame.schema[time_field].metadata:
        # A stream has one watermark; `transform_chain` checks that.
        return frame
    return frame.withWatermark(time_field, f"{late_ms} milliseconds")
