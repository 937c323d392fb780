"""The sink `topic`: writes records as messages, through the data source `whippet`.

Each message is written exactly once, by two means: ids are the same on a replay, and the gateway drops messages whose
id it has seen (if the topic deduplicates); and a marker says which batch was written completely.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import BinaryType, StringType, StructType

from pyspark_whippet import batch_markers, deduplication, topics
from whippet.pipelines import refused_rows
from whippet.pipelines.errors import FileError
from whippet.pipelines.gateway_settings import GatewaySettings
from whippet.pipelines.keys import BOOLEAN, STRING, STRINGS, integer, key, one_of
from whippet.pipelines.record_columns import PAYLOAD, Batch, json_document, quoted, require_field, row_id
from whippet.pipelines.user_text import pluralize

EMPTY = "the payload is null or empty"


@dataclass(frozen=True, kw_only=True)
class TopicSink:
    """A topic. Records are written as JSON objects or, with `raw` and `text`, as the content of the field `payload`."""

    TYPE: ClassVar[str] = "topic"
    DELIVERY: ClassVar[str] = "exactly once: by ids of messages, and by a marker on the gateway"
    UNSUPPORTED: ClassVar[dict[str, str]] = {
        "topics": "name one topic in 'topic', and add a sink for each further topic",
        "linger_time": "a batch is sent as soon as it is complete",
    }
    stream: str = key(STRING, "the stream")
    topic: str = key(STRING, "its topic")
    schema: str = key(one_of("json", "text", "raw"), "format of the payloads", "json")
    create_topic: int = key(
        integer(0, 1000),
        "create a missing topic and its stream, with this number of partitions and with deduplication",
        0,
        shown="do not",
    )
    key_field: str | None = key(
        STRING, "field that decides the partition: records with equal values keep their order", None
    )
    id_columns: tuple[str, ...] = key(
        STRINGS,
        "fields that identify a record: of equal ones the topic keeps the first",
        (),
        shown="derived from the message",
    )
    include_metadata: bool = key(BOOLEAN, "with json: also write metadata, such as `iggy_offset`", False)
    batch_length: int = key(integer(1, 1_000_000), "largest number of messages in a request", 5000)

    @property
    def name(self) -> str:
        return f"{self.stream}/{self.topic}"

    def inspect(self, gateway: GatewaySettings) -> Iterator[str]:
        found = topics.details(gateway.session, self.name)
        if found is None and not self.create_topic:
            raise FileError(f"topic {self.name!r} does not exist; create it, or set create_topic = 1")
        if found is None:
            yield f"{self.name}: will be created, with {pluralize(self.create_topic, 'partition')}"
        else:
            yield f"{self.name}: {pluralize(len(found['partitions']), 'partition')}, {_deduplication(found)}"

    def check_schema(self, schema: StructType, gateway: GatewaySettings, place: str) -> None:
        if self.schema != "json" and (
            PAYLOAD not in schema.names or not isinstance(schema[PAYLOAD].dataType, BinaryType | StringType)
        ):
            raise FileError(f"{place}: schema = \"{self.schema}\" needs a field '{PAYLOAD}' of type string or binary")
        for name in (*self.id_columns, *((self.key_field,) if self.key_field else ())):
            require_field(schema, name, place)

    def prepare(self, schema: StructType, gateway: GatewaySettings, place: str) -> None:
        if self.create_topic:
            topics.create(gateway.session, self.name, self.create_topic, keeps_ids=True)

    def write(self, batch: Batch, gateway: GatewaySettings, place: str) -> DataFrame | None:
        frame, refused = batch.frame, None
        if self.schema != "json":
            is_empty = F.coalesce(F.octet_length(PAYLOAD), F.lit(0)) == 0
            frame, refused = frame.where(~is_empty), refused_rows.rows_where(frame, is_empty, EMPTY)
            batch.refused_rows.stop_if_any(refused)
        last = batch_markers.last_batch(gateway.session, batch.writer)
        if last is not None and batch.number <= last:
            return refused
        columns = [self._value(batch).alias("value")]
        if self.key_field is not None:
            columns.append(quoted(self.key_field).cast("string").alias("key"))
        own = row_id(batch, self.id_columns)
        if own is not None:
            columns.append(own.alias("id"))
        options = gateway.options | {"topic": self.name, "batchSize": str(self.batch_length)}
        options |= {"idNamespace": batch.writer, "idBatch": str(batch.number)}
        frame.select(*columns).write.format("whippet").mode("append").options(**options).save()
        batch_markers.store(gateway.session, batch.writer, batch.number)
        return refused

    def _value(self, batch: Batch) -> Column:
        return json_document(batch.frame, self.include_metadata) if self.schema == "json" else F.col(PAYLOAD)


def _deduplication(details: dict[str, Any]) -> str:
    window = deduplication.window_of(details)
    if window is None:
        return "the server does not report whether it remembers ids"
    if window == deduplication.OFF:
        return "it remembers no ids, so a crash in the middle of a batch writes messages twice"
    return f"it remembers {window.entries:,} ids {window.duration_text}"
