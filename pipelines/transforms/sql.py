"""sql: runs a SELECT over the records, as the table `input`."""

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
    """`SELECT ... FROM input`, in Spark SQL. A statement that works row by row needs nothing else. One that combines
    rows, such as GROUP BY, needs `time_field` and `watermark`, and must group by a time window."""

    TYPE: ClassVar[str] = "sql"
    enabled: bool = key(BOOLEAN, "false: skip this transform", True)
    query: str = key(STRING, "the statement")
    time_field: str | None = key(STRING, "timestamp field with the time of the event", None)
    watermark: int | None = key(DURATION, "how late a record may arrive and still count", None)

    def __post_init__(self) -> None:
        taken = _OURS.search(self.query)
        if taken is not None:
            # Ids are derived from them: a row would be taken for another one.
            raise ValueError(f"key 'query': '{taken[1]}' is a metadata field; choose another name")
        if (self.time_field is None) != (self.watermark is None):
            raise ValueError("keys 'time_field' and 'watermark': set both or neither")

    def apply(self, frame: DataFrame, context: BatchContext, place: str) -> DataFrame:
        if self.time_field is not None and self.watermark is not None:
            frame = with_watermark(frame, self.time_field, self.watermark, place)
        frame.createOrReplaceTempView(INPUT)
        return frame.sparkSession.sql(self.query)
