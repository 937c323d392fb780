"""The columns that readers give: which there are, and how they are made of messages, without an object for a row.

Any subset of them in any order may be the user's schema; only those are built.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from app.pipeline import user_headers
from app.pipeline.batches import Messages
from app.pipeline.errors import OptionError
from app.pipeline.options import Settings

HEADERS = ArrayType(
    StructType(
        [
            StructField("key", StringType()),
            StructField("value", BinaryType()),
            StructField("kind", StringType()),
        ]
    )
)
TYPES: Mapping[str, DataType] = {
    "value": BinaryType(),
    "stream": StringType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "originTimestamp": TimestampType(),
    "id": BinaryType(),
    "headers": HEADERS,
}
"""In the order in which they are shown."""
TIME = pa.timestamp("us", "UTC")


def schema(settings: Settings) -> StructType:
    """What is read where the user has no schema of his own."""
    return StructType(
        [StructField(name, kind) for name, kind in TYPES.items() if name != "headers" or settings.include_headers]
    )


def check(wanted: StructType) -> None:
    """OptionError for a schema that nobody can read."""
    for column in wanted:
        if column.name not in TYPES:
            raise OptionError(f"column {column.name!r} of the schema is not there; there are {', '.join(TYPES)}")
        if column.dataType != TYPES[column.name]:
            has = TYPES[column.name].simpleString()
            raise OptionError(f"column {column.name!r} is {has}, not {column.dataType.simpleString()}; use cast")


def arrow_schema(wanted: StructType) -> Any:
    return to_arrow_schema(wanted, timezone="UTC")


def build(messages: Messages, topic: str, partition: int, schema: Any) -> Any:
    """A record batch of this Arrow schema, exactly."""
    stream, _, name = topic.partition("/")
    count = len(messages)
    made: Mapping[str, Callable[[], Any]] = {
        "value": lambda: values(messages),
        "stream": lambda: pa.repeat(stream, count),
        "topic": lambda: pa.repeat(name, count),
        "partition": lambda: pa.repeat(pa.scalar(partition, pa.int32()), count),
        "offset": lambda: _longs(messages.offsets, pa.int64()),
        "timestamp": lambda: _longs(messages.timestamps, TIME),
        "originTimestamp": lambda: _longs(messages.origin_timestamps, TIME),
        "id": lambda: _ids(messages),
        "headers": lambda: _headers(messages.user_headers, count),
    }
    return pa.RecordBatch.from_arrays([made[column.name]() for column in schema], schema=schema)


def values(messages: Messages) -> Any:
    buffers = [None, pa.py_buffer(np.ascontiguousarray(messages.bounds)), pa.py_buffer(messages.payloads)]
    return pa.BinaryArray.from_buffers(pa.binary(), len(messages), buffers)


def _longs(numbers: Any, kind: Any) -> Any:
    """The buffer as it is: `pa.array` looks for pandas each time where it is not installed."""
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(np.ascontiguousarray(numbers))])


def _ids(messages: Messages) -> Any:
    count = len(messages)
    bounds = np.arange(0, 16 * count + 1, 16, dtype=np.int32)
    octets = np.ascontiguousarray(messages.ids)
    return pa.BinaryArray.from_buffers(pa.binary(), count, [None, pa.py_buffer(bounds), pa.py_buffer(octets)])


def _headers(blocks: Sequence[bytes] | None, count: int) -> Any:
    """Null for a message that has none, as Kafka's source has it."""
    kind = to_arrow_schema(StructType([StructField("headers", HEADERS)]), timezone="UTC").field(0).type
    if blocks is None:
        return pa.nulls(count, kind)
    rows = [
        [{"key": key, "value": value, "kind": kind} for key, value, kind in user_headers.decode(block)] or None
        for block in blocks
    ]
    return pa.array(rows, kind)
