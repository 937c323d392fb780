"""sql: a SELECT over the records, as the table `input`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from pyspark.sql import DataFrame

from whippet.pipelines.keys import BOOLEAN, DURATION, STRING, key
from whippet.pipelines.record_columns import METADATA
from whippet.pipelines.transforms.computed import BatchContext
from whippet.pipelines.transforms.watermark import with_watermark

INPUT = "input"
_OURS = re.compile(rf"\bas\s+`?({'|'.join(METADATA)})\b", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Sql:
    """`SELECT ... FROM input`, in the words of Spark SQL. Row by row it needs nothing else; what puts rows together,
    such as GROUP BY, needs `time_field` and `watermark`, and groups by a window of time."""

    TYPE: ClassVar[str] = "sql"
    enabled: bool = key(BOOLEAN, "false leaves the transform out", True)
    query: str = key(STRING, "the statement")
    time_field: str | None = key(STRING, "the field that says when something happened, a timestamp", None)
    watermark: int | None = key(DURATION, "how late a record may come and still count", None)

    def __post_init__(self) -> None:
        taken = _OURS.search(self.query)
        if taken is not None:
            # Ids are made of them: a row would pass for another one.
            raise ValueError(f"key 'query': '{taken[1]}' says where a record comes from; choose another name")
        if (self.time_field is None) != (self.watermark is None):
            raise ValueError("keys 'time_field' and 'watermark' belong together")

    def apply(self, frame: DataFrame, context: BatchContext, place: str) -> DataFrame:
        if self.time_field is not None and self.watermark is not None:
            frame = with_watermark(frame, self.time_field, self.watermark, place)
        frame.createOrReplaceTempView(INPUT)
        return frame.sparkSession.sql(self.query)
