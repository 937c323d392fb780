"""Bad records: those that cannot be parsed, that a transform fails on, or that a sink refuses for what they are.

They stop the pipeline, or go to the dead-letter topic, or are skipped, as the file says; in each case they are counted
and said. A dead letter is the payload as it was, with the reason and where it comes from in its headers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from pyspark_whippet import batch_markers, topics
from whippet.pipelines.errors import BadRecordError
from whippet.pipelines.gateway_settings import GatewaySettings
from whippet.pipelines.keys import STRING, integer, key
from whippet.pipelines.record_columns import CORRUPT, ORIGIN, ORIGIN_TYPE

COLUMNS = f"payload binary, reason string, origin {ORIGIN_TYPE}"
"""Bad records as a DataFrame."""
HEADER_BYTES_MAX = 255
BEGINNING_BYTES = 60
STOP, SKIP = "stop", "skip"
WAYS_OUT = 'give it a [dead_letter] topic, or say on_error = "skip"'


@dataclass(frozen=True, kw_only=True)
class DeadLetter:
    """Where bad records go, each as it was, with the headers `reason`, `pipeline`, `step`, and of the message `stream`,
    `topic`, `partition` and `offset`, or of another source `file`."""

    stream: str = key(STRING, "the stream")
    topic: str = key(STRING, "its topic")
    create_topic: int = key(
        integer(0, 1000), "make the stream and the topic if they are not there, with so many partitions; 0: do not", 1
    )

    @property
    def name(self) -> str:
        return f"{self.stream}/{self.topic}"


# ------------------------------------------------------------------------------------------------------- bad records


def unparsable(frame: DataFrame, reason: str) -> DataFrame:
    """Those of a source."""
    broken = frame.where(F.col(CORRUPT).isNotNull())
    return broken.select(F.col(CORRUPT).alias("payload"), F.lit(reason).alias("reason"), F.col(ORIGIN).alias("origin"))


def origin(frame: DataFrame) -> Column:
    """Of rows that transforms have made; null if they have not left it in."""
    if not {"iggy_stream", "iggy_topic", "iggy_partition_id", "iggy_offset"} <= set(frame.columns):
        return F.lit(None).cast(ORIGIN_TYPE)
    names = (("iggy_stream", "stream"), ("iggy_topic", "topic"), ("iggy_partition_id", "partition"))
    columns = [F.col(name).alias(short) for name, short in (*names, ("iggy_offset", "offset"))]
    return F.struct(*columns, F.lit(None).cast("string").alias("file")).cast(ORIGIN_TYPE)


class BadRecords:
    """Those of one batch."""

    def __init__(self, on_error: str, dead_letter: DeadLetter | None, pipeline: str) -> None:
        self._on_error = on_error
        self._dead_letter = dead_letter
        self._pipeline = pipeline
        self._found: list[DataFrame] = []
        self.count = 0
        self.last_reason: str | None = None

    @property
    def stops(self) -> bool:
        """The first one stops the pipeline."""
        return self._dead_letter is None and self._on_error == STOP

    def take(self, records: DataFrame, count: int, step: str) -> None:
        """`step`: what has refused them. BadRecordError if they stop the pipeline."""
        if not count:
            return
        first = records.first()
        assert first is not None
        self.last_reason = f"{step}: {first['reason']}"
        if self.stops:
            raise self.stopping(first.asDict(), step, count)
        self.count += count
        self._found.append(records.withColumn("step", F.lit(step)))

    def stopping(self, first: Mapping[str, Any], step: str, count: int = 1) -> BadRecordError:
        more = f" (and {count - 1:,} more in this batch)" if count > 1 else ""
        return BadRecordError(f"{_place(first)}{step}: {first['reason']}{more}; {WAYS_OUT}")

    def settle(self, gateway: GatewaySettings, query: str, batch: int) -> None:
        """Sends them where they belong, once."""
        if self._dead_letter is None or not self._found:
            return
        writer = f"{query}-dead-letters"
        last = batch_markers.last_batch(gateway.session, writer)
        if last is not None and batch <= last:
            return
        everything = reduce(DataFrame.unionByName, self._found)
        options = gateway.options | {"topic": self._dead_letter.name, "idNamespace": writer, "idBatch": str(batch)}
        payload = F.when(F.length("payload") > 0, F.col("payload")).otherwise(F.lit(b" "))
        letters = everything.select(payload.alias("value"), self._headers().alias("headers"))
        letters.write.format("whippet").mode("append").options(**options).save()
        batch_markers.store(gateway.session, writer, batch)

    def _headers(self) -> Column:
        said = {
            "reason": F.col("reason"),
            "pipeline": F.lit(self._pipeline),
            "step": F.col("step"),
            **{
                name: F.col(f"origin.{name}").cast("string")
                for name in ("stream", "topic", "partition", "offset", "file")
            },
        }
        entries = [
            F.struct(
                F.lit(name).alias("key"), _short(value).cast("binary").alias("value"), F.lit("string").alias("kind")
            )
            for name, value in said.items()
        ]
        return F.filter(F.array(*entries), lambda entry: F.length(entry["value"]) > 0)


def make_topic(gateway: GatewaySettings, dead_letter: DeadLetter) -> None:
    if dead_letter.create_topic:
        topics.create(gateway.session, dead_letter.name, dead_letter.create_topic, keeps_ids=True)


def _short(text: Column) -> Column:
    """What fits into a header; a long text loses what is not ASCII, so that no character is cut in two."""
    plain = F.decode(F.encode(text, "US-ASCII"), "US-ASCII")
    return F.when(F.octet_length(text) <= HEADER_BYTES_MAX, text).otherwise(F.substring(plain, 1, HEADER_BYTES_MAX))


def _place(record: Mapping[str, Any]) -> str:
    """Where to look for the record that an error is about. In a file that is its beginning."""
    origin = record["origin"]
    if origin is None or (origin["topic"] is None and origin["file"] is None):
        return ""
    if origin["topic"] is not None:
        return f"{origin['stream']}/{origin['topic']} partition {origin['partition']} offset {origin['offset']}: "
    begins = bytes(record["payload"])[:BEGINNING_BYTES].decode(errors="replace")
    return f"{origin['file']}: {begins!r}: "
