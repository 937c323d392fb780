"""The sink `topic`: records as messages, through the data source `whippet`.

Once each, by two means: messages have ids that come out the same when a batch is replayed, and the gateway drops what
it has seen (if the topic de-duplicates); and a marker says which batch is there as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import BinaryType, StringType, StructType

from pyspark_whippet import deduplication, markers, topics
from whippet.pipelines import refusals
from whippet.pipelines.counted import counted
from whippet.pipelines.errors import FileError
from whippet.pipelines.frames import PAYLOAD, Batch, document, identity, need_column, quoted
from whippet.pipelines.gateway import Gateway
from whippet.pipelines.keys import TEXT, TEXTS, TRUTH, key, one_of, whole

EMPTY = "the payload is null or empty"


@dataclass(frozen=True, kw_only=True)
class TopicSink:
    """A topic. Records are JSON objects, or with `raw` and `text` what is in the field `payload`."""

    TYPE: ClassVar[str] = "topic"
    PROMISE: ClassVar[str] = "exactly once: by the ids of messages, and a marker on the gateway"
    NOT_HERE: ClassVar[dict[str, str]] = {
        "topics": "records go to one topic, named in 'topic'; write another table for another",
        "linger_time": "a batch is sent when it is there",
    }
    stream: str = key(TEXT, "the stream")
    topic: str = key(TEXT, "its topic")
    schema: str = key(one_of("json", "text", "raw"), "what payloads are", "json")
    create_topic: int = key(
        whole(0, 1000),
        "make the stream and the topic, with so many partitions and with de-duplication",
        0,
        shown="do not",
    )
    key_field: str | None = key(TEXT, "records that are equal in it go to one partition, in order", None)
    id_columns: tuple[str, ...] = key(
        TEXTS, "fields that tell records apart: of equal ones the topic keeps the first", (), shown="worked out"
    )
    include_metadata: bool = key(TRUTH, "with json: also what records were made of, such as `iggy_offset`", False)
    batch_length: int = key(whole(1, 1_000_000), "how many messages a request has at most", 5000)

    @property
    def name(self) -> str:
        return f"{self.stream}/{self.topic}"

    def look(self, gateway: Gateway) -> Iterator[str]:
        found = topics.details(gateway.session, self.name)
        if found is None and not self.create_topic:
            raise FileError(f"topic {self.name!r} is not there; make it, or say create_topic = 1")
        if found is None:
            yield f"{self.name}: will be made, with {counted(self.create_topic, 'partition')}"
        else:
            yield f"{self.name}: {counted(len(found['partitions']), 'partition')}, {_deduplication(found)}"

    def fit(self, schema: StructType, gateway: Gateway, place: str) -> None:
        if self.schema != "json" and (
            PAYLOAD not in schema.names or not isinstance(schema[PAYLOAD].dataType, BinaryType | StringType)
        ):
            raise FileError(f"{place}: schema = \"{self.schema}\" needs a field '{PAYLOAD}', a text or binary")
        for name in (*self.id_columns, *((self.key_field,) if self.key_field else ())):
            need_column(schema, name, place)

    def prepare(self, schema: StructType, gateway: Gateway, place: str) -> None:
        if self.create_topic:
            topics.create(gateway.session, self.name, self.create_topic, keeps_ids=True)

    def write(self, batch: Batch, gateway: Gateway, place: str) -> DataFrame | None:
        frame, refused = batch.frame, None
        if self.schema != "json":
            is_empty = F.coalesce(F.octet_length(PAYLOAD), F.lit(0)) == 0
            frame, refused = frame.where(~is_empty), refusals.where(frame, is_empty, EMPTY)
            batch.refusals.check(refused)
        last = markers.last(gateway.session, batch.writer)
        if last is not None and batch.number <= last:
            return refused
        columns = [self._value(batch).alias("value")]
        if self.key_field is not None:
            columns.append(quoted(self.key_field).cast("string").alias("key"))
        own = identity(batch, self.id_columns)
        if own is not None:
            columns.append(own.alias("id"))
        options = gateway.options | {"topic": self.name, "batchSize": str(self.batch_length)}
        options |= {"idNamespace": batch.writer, "idBatch": str(batch.number)}
        frame.select(*columns).write.format("whippet").mode("append").options(**options).save()
        markers.store(gateway.session, batch.writer, batch.number)
        return refused

    def _value(self, batch: Batch) -> Column:
        return document(batch.frame, self.include_metadata) if self.schema == "json" else F.col(PAYLOAD)


def _deduplication(details: dict[str, Any]) -> str:
    window = deduplication.window_of(details)
    if window is None:
        return "it is not said whether it keeps ids"
    if window == deduplication.OFF:
        return "it keeps no ids, so a crash in the middle of a batch writes some of it twice"
    return f"it keeps {window.entries:,} ids {window.words}"
