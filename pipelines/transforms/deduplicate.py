"""deduplicate: of records that are equal in some fields, one."""

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
    """Lets one of several equal records through, as long as they are no further apart than the watermark: that of the
    earliest batch, and any one of those that are in a batch together."""

    TYPE: ClassVar[str] = "deduplicate"
    enabled: bool = key(BOOLEAN, "false leaves the transform out", True)
    fields: tuple[str, ...] = key(STRINGS, "the fields in which they are equal")
    time_field: str = key(STRING, "the field that says when something happened, a timestamp")
    watermark: int = key(DURATION, "how far apart equal records may be, and how late one may come")

    def apply(self, frame: DataFrame, context: BatchContext, place: str) -> DataFrame:
        for name in self.fields:
            require_field(frame.schema, name, place)
        return with_watermark(frame, self.time_field, self.watermark, place).dropDuplicatesWithinWatermark(
            list(self.fields)
        )
