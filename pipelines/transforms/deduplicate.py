"""deduplicate: of records that are equal in some fields, one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pyspark.sql import DataFrame

from whippet.pipelines.frames import need
from whippet.pipelines.keys import DURATION, TEXT, TEXTS, TRUTH, key
from whippet.pipelines.transforms.moment import Moment
from whippet.pipelines.transforms.watermark import with_watermark


@dataclass(frozen=True, kw_only=True)
class Deduplicate:
    """Lets one of several equal records through, as long as they are no further apart than the watermark: that of the
    earliest batch, and any one of those that are in a batch together."""

    TYPE: ClassVar[str] = "deduplicate"
    enabled: bool = key(TRUTH, "false leaves the transform out", True)
    fields: tuple[str, ...] = key(TEXTS, "the fields in which they are equal")
    time_field: str = key(TEXT, "the field that says when something happened, a timestamp")
    watermark: int = key(DURATION, "how far apart equal records may be, and how late one may come")

    def apply(self, frame: DataFrame, moment: Moment, place: str) -> DataFrame:
        for name in self.fields:
            need(frame, name, place)
        return with_watermark(frame, self.time_field, self.watermark, place).dropDuplicatesWithinWatermark(
            list(self.fields)
        )
