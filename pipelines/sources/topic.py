"""The source `topic`: reads topics of the gateway through the data source `whippet`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from pyspark_whippet import topics
from whippet.pipelines.errors import FileError
from whippet.pipelines.gateway_settings import GatewaySettings
from whippet.pipelines.keys import BOOLEAN, DURATION, STRING, STRINGS, integer, key, one_of
from whippet.pipelines.record_columns import CORRUPT, HIDDEN, METADATA, NOW, ORIGIN, PAYLOAD
from whippet.pipelines.user_text import pluralize

FORMATS = {"json": "json", "avro": "avro", "text": "string", "raw": "binary"}
"""Maps the names in the connectors' reference to those of the data source."""
BATCH_LENGTH = 100_000


@dataclass(frozen=True, kw_only=True)
class TopicSource:
    """Messages of one or more topics. Metadata fields say where they come from: `iggy_id`, `iggy_stream`,
    `iggy_topic`, `iggy_partition_id`, `iggy_offset`, `iggy_timestamp`, `iggy_origin_timestamp`, `iggy_headers`."""

    TYPE: ClassVar[str] = "topic"
    UNSUPPORTED: ClassVar[dict[str, str]] = {
        "topic": "name one or more in 'topics'",
        "consumer_group": "a pipeline keeps its offsets in [state]; 'consumer_name' reports them to the gateway",
    }
    stream: str = key(STRING, "the stream")
    topics: tuple[str, ...] = key(STRINGS, "its topics")
    schema: str = key(
        one_of(*FORMATS),
        "format of the payloads: `json` and `avro` have fields, `text` and `raw` have one field, `payload`",
        "json",
    )
    fields: str | None = key(
        STRING,
        "with json: names and types, such as 'id bigint, at timestamp, tags array<string>'; with avro: its schema,"
        " or the path of a file with the schema",
        None,
    )
    starting_offsets: str = key(one_of("earliest", "latest"), "where a pipeline without state starts", "earliest")
    batch_length: int = key(integer(1), "largest number of messages in a batch", BATCH_LENGTH)
    poll_interval: int = key(DURATION, "how often to look for new messages", 1000, shown='"1 s"')
    include_headers: bool = key(BOOLEAN, "read user headers as the metadata field `iggy_headers`", False)
    fail_on_data_loss: bool = key(
        BOOLEAN,
        "stop if messages were deleted before they were read; false: skip them, with a warning in the log",
        True,
    )
    consumer_name: str | None = key(
        STRING, "name of the consumer for which the gateway stores the offsets, so that it can report the lag", None
    )

    def __post_init__(self) -> None:
        has_fields = self.schema in ("json", "avro")
        if has_fields and self.fields is None:
            raise ValueError(
                f"key 'fields' is required with schema = \"{self.schema}\": names and types, such as 'id bigint'"
            )
        if not has_fields and self.fields is not None:
            raise ValueError(
                f"key 'fields' is for json and avro; with {self.schema} there is only the field '{PAYLOAD}'"
            )

    @property
    def why_unparsable(self) -> str:
        kind = {
            "json": "not a JSON object with these fields",
            "avro": "not Avro of this schema",
            "text": "not UTF-8",
        }
        return f"it is {kind.get(self.schema, 'not readable')}"

    @property
    def trigger_ms(self) -> int:
        return self.poll_interval

    @property
    def names(self) -> list[str]:
        return [f"{self.stream}/{topic}" for topic in self.topics]

    def frame(self, spark: SparkSession, gateway: GatewaySettings) -> DataFrame:
        options = gateway.options | {
            "subscribe": ",".join(self.names),
            "startingOffsets": self.starting_offsets,
            "maxOffsetsPerTrigger": str(self.batch_length),
            "includeHeaders": str(self.include_headers).lower(),
            "failOnDataLoss": str(self.fail_on_data_loss).lower(),
            "valueFormat": FORMATS[self.schema],
        }
        if self.fields is not None:
            options["valueSchema"] = self.fields
        if self.consumer_name is not None:
            options["consumerName"] = self.consumer_name
        raw = spark.readStream.format("whippet").options(**options).load()
        return raw.select(*self._data(raw), *self._metadata(), *self._hidden())

    def _data(self, raw: DataFrame) -> list[Column]:
        if self.fields is None:
            return [F.col("value").alias(PAYLOAD)]
        kind = raw.schema["value"].dataType
        assert isinstance(kind, StructType)
        for name in kind.names:
            if name in METADATA or name in HIDDEN:
                raise FileError(f"[source]: key 'fields': '{name}' is a reserved name; leave it out, or rename it")
        return [F.col("value").getField(name).alias(name) for name in kind.names]

    def _metadata(self) -> list[Column]:
        made = {
            "iggy_id": F.lower(F.hex("id")),
            "iggy_stream": F.col("stream"),
            "iggy_topic": F.col("topic"),
            "iggy_partition_id": F.col("partition"),
            "iggy_offset": F.col("offset"),
            "iggy_timestamp": F.col("timestamp"),
            "iggy_origin_timestamp": F.col("originTimestamp"),
        }
        if self.include_headers:
            made["iggy_headers"] = F.col("headers")
        return [made[name].alias(name) for name in METADATA if name in made]

    def _hidden(self) -> list[Column]:
        # A tombstone is no record: pipelines delete nothing.
        corrupt = F.when(F.col("value").isNull(), F.lit("null").cast("binary"))
        if self.schema != "raw":
            corrupt = F.coalesce(F.col("_corrupt"), corrupt)
        place = F.struct("stream", "topic", "partition", "offset", F.lit(None).cast("string").alias("file"))
        return [corrupt.alias(CORRUPT), place.alias(ORIGIN), F.current_timestamp().alias(NOW)]

    def inspect(self, gateway: GatewaySettings) -> Iterator[str]:
        for name in self.names:
            found = topics.details(gateway.session, name)
            if found is None:
                raise FileError(f"[source]: topic {name!r} does not exist")
            partitions, messages = len(found["partitions"]), found["messages_count"]
            yield f"{name}: {pluralize(partitions, 'partition')}, {pluralize(messages, 'message')}"
