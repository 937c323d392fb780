"""Bad records: those that cannot be parsed, on which a transform fails, or which a sink refuses because of their
content.

They stop the pipeline, go to the dead-letter topic, or are skipped, as the file says; in each case they are counted and
reported. A dead letter is the original payload; its headers say why it was refused and where it came from.
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
"""The columns of bad records in a DataFrame."""
HEADER_BYTES_MAX = 255
BEGINNING_BYTES = 60
STOP, SKIP = "stop", "skip"
WAYS_OUT = 'add a [dead_letter] topic, or set on_error = "skip"'


@dataclass(frozen=True, kw_only=True)
class DeadLetter:
    """Where bad records go, each with its original payload. The headers are `reason`, `pipeline` and `step`, and
    `stream`, `topic`, `partition` and `offset` of the message, or `file` for another source."""

    stream: str = key(STRING, "the stream")
    topic: str = key(STRING, "its topic")
    create_topic: int = key(
        integer(0, 1000),
        "create a missing topic and its stream, with this number of partitions; 0: do not",
        1,
    )

    @property
    def name(self) -> str:
        return f"{self.stream}/{self.topic}"


# ------------------------------------------------------------------------------------------------------- bad records


def unparsable(frame: DataFrame, reason: str) -> DataFrame:
    """Returns the records that a source could not parse."""
    broken = frame.where(F.col(CORRUPT).isNotNull())
    return broken.select(F.col(CORRUPT).alias("payload"), F.lit(reason).alias("reason"), F.col(ORIGIN).alias("origin"))


def origin(frame: DataFrame) -> Column:
    """Returns where a row comes from, or null if the transforms have dropped that."""
    if not {"iggy_stream", "iggy_topic", "iggy_partition_id", "iggy_offset"} <= set(frame.columns):
        return F.lit(None).cast(ORIGIN_TYPE)
    names = (("iggy_stream", "stream"), ("iggy_topic", "topic"), ("iggy_partition_id", "partition"))
    columns = [F.col(name).alias(short) for name, short in (*names, ("iggy_offset", "offset"))]
    return F.struct(*columns, F.lit(None).cast("string").alias("file")).cast(ORIGIN_TYPE)


class BadRecords:
    """The bad records of one batch."""

    def __init__(self, on_error: str, dead_letter: DeadLetter | None, pipeline: str) -> None:
        self._on_error = on_error
        self._dead_letter = dead_letter
        self._pipeline = pipeline
        self._found: list[DataFrame] = []
        self.count = 0
        self.last_reason: str | None = None

    @property
    def stops(self) -> bool:
        """Whether the first bad record stops the pipeline."""
        return self._dead_letter is None and self._on_error == STOP

    def add(self, records: DataFrame, count: int, step: str) -> None:
        """Adds records that `step` has refused. Raises BadRecordError if they stop the pipeline."""
        if not count:
            return
        first = records.first()
        assert first is not None
        self.last_reason = f"{step}: {first['reason']}"
        if self.stops:
            raise self.stop_error(first.asDict(), step, count)
        self.count += count
        self._found.append(records.withColumn("step", F.lit(step)))

    def stop_error(self, first: Mapping[str, Any], step: str, count: int = 1) -> BadRecordError:
        more = f" (and {count - 1:,} more in this batch)" if count > 1 else ""
        return BadRecordError(f"{_place(first)}{step}: {first['reason']}{more}; {WAYS_OUT}")

    def send_dead_letters(self, gateway: GatewaySettings, query: str, batch: int) -> None:
        """Sends the dead letters, once per batch."""
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
        values = {
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
            for name, value in values.items()
        ]
        return F.filter(F.array(*entries), lambda entry: F.length(entry["value"]) > 0)


def make_topic(gateway: GatewaySettings, dead_letter: DeadLetter) -> None:
    if dead_letter.create_topic:
        topics.create(gateway.session, dead_letter.name, dead_letter.create_topic, keeps_ids=True)


def _short(text: Column) -> Column:
    """Shortens a text to what fits into a header. A long text loses its non-ASCII characters, so that none is cut in
    two."""
    plain = F.decode(F.encode(text, "US-ASCII"), "US-ASCII")
    return F.when(F.octet_length(text) <= HEADER_BYTES_MAX, text).otherwise(F.substring(plain, 1, HEADER_BYTES_MAX))


def _place(record: Mapping[str, Any]) -> str:
    """Returns where the record of an error is; for a file, the file and how the record begins."""
    origin = record["origin"]
    if origin is None or (origin["topic"] is None and origin["file"] is None):
        return ""
    if origin["topic"] is not None:
        return f"{origin['stream']}/{origin['topic']} partition {origin['partition']} offset {origin['offset']}: "
    begins = bytes(record["payload"])[:BEGINNING_BYTES].decode(errors="replace")
    return f"{origin['file']}: {begins!r}: "
