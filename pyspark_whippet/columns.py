"""The columns that readers return, and how they are built from messages without an object per row.

The user's schema may be any subset of them, in any order; only those are built.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DecimalType,
    FractionalType,
    IntegerType,
    IntegralType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_whippet import avro, user_headers
from pyspark_whippet import payloads as parsing
from pyspark_whippet.batches import Array, Messages
from pyspark_whippet.errors import OptionError
from pyspark_whippet.payloads import CORRUPT
from pyspark_whippet.settings import Settings

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
    "key": BinaryType(),
    "timestampType": IntegerType(),
    "headers": HEADERS,
}
"""The columns in their default order."""
FIELDS = (BooleanType, IntegralType, FractionalType, DecimalType, StringType, TimestampType)
"""The types that fields of a JSON value can have, besides structs and arrays of them."""
TIME = pa.timestamp("us", "UTC")
LOG_APPEND_TIME = 1
"""What Kafka calls the time at which a message was appended, which `timestamp` is."""


def column_types(settings: Settings) -> dict[str, DataType]:
    """Returns the available columns in the default order; for JSON, `value` without its fields."""
    found = dict(TYPES)
    if settings.value_format == "string":
        found["value"] = StringType()
    if settings.value_format == "avro":
        found["value"] = avro.column_type(_needed_schema(settings))
    if settings.value_format != "binary":
        found[CORRUPT] = BinaryType()
    return found


def schema(settings: Settings) -> StructType | str:
    """Returns the default schema. With valueFormat=json it is a DDL string, which Spark parses."""
    shown = column_types(settings)
    if not settings.include_headers:
        del shown["headers"]
    if settings.value_format != "json":
        return StructType([StructField(name, kind) for name, kind in shown.items()])
    fields = _needed_schema(settings)
    del shown["value"]
    ours = (f"`{name}` {kind.simpleString()}" for name, kind in shown.items())
    return ", ".join([f"`value` struct<{fields}>", *ours])


def _needed_schema(settings: Settings) -> str:
    if settings.value_schema is None:
        example = "'id bigint, name string'" if settings.value_format == "json" else "the JSON of a schema, or its file"
        raise OptionError(f"option 'valueSchema' is required with valueFormat={settings.value_format}: {example}")
    return settings.value_schema


def check_schema(wanted: StructType, settings: Settings) -> None:
    """Raises OptionError for a schema that cannot be read."""
    there = column_types(settings)
    for column in wanted:
        if column.name not in there:
            raise OptionError(
                f"column {column.name!r} of the schema does not exist; the columns are {', '.join(there)}"
            )
        if column.name == "value" and settings.value_format == "json":
            if not isinstance(column.dataType, StructType):
                raise OptionError(
                    f"with valueFormat=json, column 'value' is a struct, not {column.dataType.simpleString()}"
                )
            _check_field("value", column.dataType)
        elif not _is_part(column.dataType, there[column.name]):
            has = there[column.name].simpleString()
            raise OptionError(f"column {column.name!r} is {has}, not {column.dataType.simpleString()}; use cast")


def _is_part(wanted: DataType, there: DataType) -> bool:
    """A record may leave out some fields."""
    if isinstance(wanted, StructType) and isinstance(there, StructType):
        kinds = {field.name: field.dataType for field in there}
        return all(field.name in kinds and _is_part(field.dataType, kinds[field.name]) for field in wanted)
    return wanted == there


def _check_field(name: str, kind: DataType) -> None:
    if isinstance(kind, StructType):
        for field in kind:
            _check_field(f"{name}.{field.name}", field.dataType)
    elif isinstance(kind, ArrayType):
        _check_field(f"{name}[]", kind.elementType)
    elif not isinstance(kind, FIELDS):
        raise OptionError(
            f"field {name!r} is {kind.simpleString()}, which valueFormat=json does not support; use string and cast"
        )


def arrow_schema(wanted: StructType) -> Any:
    return to_arrow_schema(wanted, timezone="UTC")


def to_record_batch(messages: Messages, topic: str, partition: int, schema: Any, settings: Settings) -> Any:
    """Builds a record batch with exactly this Arrow schema."""
    stream, _, name = topic.partition("/")
    count = len(messages)
    keys, tombstones = (None, None) if messages.user_headers is None else user_headers.marks_in(messages.user_headers)
    made: dict[str, Callable[[], Any]] = {
        "value": lambda: _nulled(payload_array(messages), tombstones),
        "stream": lambda: pa.repeat(stream, count),
        "topic": lambda: pa.repeat(name, count),
        "partition": lambda: pa.repeat(pa.scalar(partition, pa.int32()), count),
        "offset": lambda: _int64_array(messages.offsets, pa.int64()),
        "timestamp": lambda: _int64_array(messages.timestamps, TIME),
        "originTimestamp": lambda: _int64_array(messages.origin_timestamps, TIME),
        "id": lambda: _id_array(messages),
        "key": lambda: pa.nulls(count, pa.binary()) if keys is None else pa.array(keys, pa.binary()),
        "timestampType": lambda: pa.repeat(pa.scalar(LOG_APPEND_TIME, pa.int32()), count),
        "headers": lambda: _header_array(messages.user_headers, count),
    }
    if settings.value_format != "binary":
        made |= _parsed_columns(payload_array(messages), schema, settings, tombstones)
    return pa.RecordBatch.from_arrays([made[column.name]() for column in schema], schema=schema)


def _nulled(values: Any, where: Array | None) -> Any:
    """Returns the values with nulls where the mask is set."""
    if where is None:
        return values
    return values.take(pa.array(np.arange(len(values)), pa.int64(), mask=where))


def _parsed_columns(
    payloads: Any, schema: Any, settings: Settings, tombstones: Array | None
) -> dict[str, Callable[[], Any]]:
    """`value` and `_corrupt`; both need the same parsing, which happens once."""
    names = schema.names
    if "value" not in names and CORRUPT not in names:
        return {}
    kind = schema.field("value").type if "value" in names else None
    if settings.value_format == "string":
        found, where = parsing.parse_strings(payloads)
    elif settings.value_format == "json":
        found, where = parsing.parse_json(payloads, kind or pa.struct([]))
    else:
        asked = _needed_schema(settings)
        found, where = avro.parse(payloads, asked, kind or to_arrow_type(avro.column_type(asked), timezone="UTC"))
    if tombstones is not None:
        where = where & ~tombstones
    return {
        "value": lambda: _nulled(found, tombstones),
        CORRUPT: lambda: parsing.corrupt_payloads(payloads, where),
    }


def payload_array(messages: Messages) -> Any:
    buffers = [None, pa.py_buffer(np.ascontiguousarray(messages.bounds)), pa.py_buffer(messages.payloads)]
    return pa.BinaryArray.from_buffers(pa.binary(), len(messages), buffers)


def _int64_array(numbers: Any, kind: Any) -> Any:
    """Wraps the buffer without a copy. `pa.array` would look for pandas each time where it is not installed."""
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(np.ascontiguousarray(numbers))])


def _id_array(messages: Messages) -> Any:
    count = len(messages)
    bounds = np.arange(0, 16 * count + 1, 16, dtype=np.int32)
    octets = np.ascontiguousarray(messages.ids)
    return pa.BinaryArray.from_buffers(pa.binary(), count, [None, pa.py_buffer(bounds), pa.py_buffer(octets)])


def _header_array(blocks: Sequence[bytes] | None, count: int) -> Any:
    """Null for a message without headers, as in Kafka's source."""
    kind = to_arrow_schema(StructType([StructField("headers", HEADERS)]), timezone="UTC").field(0).type
    if blocks is None:
        return pa.nulls(count, kind)
    rows = [
        [{"key": key, "value": value, "kind": kind} for key, value, kind in user_headers.shown(block)] or None
        for block in blocks
    ]
    return pa.array(rows, kind)
