"""deduplicate: passes one of the records that are equal in some fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pyspark.sql import DataFrame

from whippet.pipelines.keys import BOOLEAN, DURATION, STRING, STRINGS, key
from whippet.pipelines.record_columns import require_field
from whippet.pipelines.transforms.computed import BatchContext
from whippet.pipelines.transforms.watermark import with_watermark


@dataclass(frozen=True, kw_only=True)
class Deduplicate:
    """Passes one of several equal records if they are no further apart than the watermark: the one in the earliest
    batch, or any one if they are in the same batch."""

    TYPE: ClassVar[str] = "deduplicate"
    enabled: bool = key(BOOLEAN, "false: skip this transform", True)
    fields: tuple[str, ...] = key(STRINGS, "the fields that are compared")
    time_field: str = key(STRING, "timestamp field with the time of the event")
    watermark: int = key(DURATION, "how far apart equal records may be, and how late a record may arrive")

    def apply(self, frame: DataFrame, context: BatchContext, place: str) -> DataFrame:
        for name in self.fields:
            require_field(frame.schema, name, place)
        return with_watermark(frame, self.time_field, self.watermark, place).dropDuplicatesWithinWatermark(
            list(self.fields)
        )
