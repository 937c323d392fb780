"""Decodes Avro payloads to typed columns, for `valueFormat=avro`.

The types are those of Spark's own Avro module, which its pip package lacks: a union with null is a nullable column,
`timestamp-millis` and `timestamp-micros` are timestamps, the `local-` ones have no time zone, `date` and `decimal` map
to their counterparts, times of day stay numbers, and a UUID stays a string.
"""

from __future__ import annotations

import json
import struct
from functools import lru_cache
from io import BytesIO
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pyspark_whippet.batches import Array
from pyspark_whippet.errors import OptionError

try:
    import fastavro
except ImportError:
    fastavro = None  # type: ignore[assignment]

PRIMITIVE_TYPES: dict[str, DataType] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "bytes": BinaryType(),
    "fixed": BinaryType(),
    "string": StringType(),
    "enum": StringType(),
}
LOGICAL_TYPES: dict[tuple[str, str], DataType] = {
    ("int", "date"): DateType(),
    ("long", "timestamp-millis"): TimestampType(),
    ("long", "timestamp-micros"): TimestampType(),
    ("long", "local-timestamp-millis"): TimestampNTZType(),
    ("long", "local-timestamp-micros"): TimestampNTZType(),
}
PROMOTIONS: dict[frozenset[str], DataType] = {
    frozenset({"int", "long"}): LongType(),
    frozenset({"float", "double"}): DoubleType(),
}
DECIMAL_DIGITS_MAX = 38
DECODE_ERRORS = (EOFError, ValueError, LookupError, ArithmeticError, struct.error)
"""Raised by a decoder for bytes that do not match the schema."""


@lru_cache(maxsize=32)
def column_type(schema: str) -> DataType:
    """Returns the type of the column, or raises OptionError if the schema has none."""
    return _type_of(_expand(schema), "value")


def parse(values: Any, schema: str, kind: Any) -> tuple[Any, Array]:
    """Returns the payloads as an array of this Arrow type, null where a payload does not match the schema, and a
    mask of those."""
    read, decoder = fastavro.schemaless_reader, _decoder(schema)
    rows: list[Any] = []
    broken = np.zeros(len(values), dtype=bool)
    for place, payload in enumerate(values.to_pylist()):
        stream = BytesIO(payload)
        row = None
        try:
            row = read(stream, decoder, None)
            broken[place] = stream.tell() != len(payload)
        except DECODE_ERRORS:
            broken[place] = True
        rows.append(None if broken[place] else row)
    parts = _to_arrow(rows, kind, broken)
    return pa.concat_arrays(parts) if parts else pa.nulls(0, kind), broken


def _to_arrow(rows: list[Any], kind: Any, broken: Array) -> list[Any]:
    """Values that match the schema can still be out of range for their type: these are marked as broken, too."""
    if not rows:
        return []
    try:
        return [pa.array(rows, kind)]
    except (pa.ArrowException, OverflowError):
        if len(rows) == 1:
            broken[0] = True
            return [pa.nulls(1, kind)]
    half = len(rows) // 2
    return _to_arrow(rows[:half], kind, broken[:half]) + _to_arrow(rows[half:], kind, broken[half:])


# -------------------------------------------------------------------------------------------------------------- schemas


@lru_cache(maxsize=32)
def _decoder(schema: str) -> Any:
    return fastavro.parse_schema(_drop_unknown_logical_types(json.loads(schema)))


def _expand(schema: str) -> Any:
    """Returns the schema with each named type replaced by its definition."""
    if fastavro is None:
        raise OptionError(
            "valueFormat=avro needs the package fastavro, in tasks as well: install whippet-gateway[spark] (see docs)"
        )
    try:
        return fastavro.schema.expand_schema(json.loads(schema))
    except (ValueError, TypeError, KeyError, fastavro.schema.SchemaParseException) as error:
        raise OptionError(f"option 'valueSchema' is not a valid Avro schema: {type(error).__name__}: {error}") from None


def _drop_unknown_logical_types(schema: Any) -> Any:
    """Drops the logical types that have no column type."""
    if isinstance(schema, list):
        return [_drop_unknown_logical_types(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    left = {
        name: _drop_unknown_logical_types(value) if name in ("type", "items", "values") else value
        for name, value in schema.items()
    }
    if "fields" in schema:
        left["fields"] = [{**field, "type": _drop_unknown_logical_types(field["type"])} for field in schema["fields"]]
    logical = left.get("logicalType")
    if logical != "decimal" and (left.get("type"), logical) not in LOGICAL_TYPES:
        left.pop("logicalType", None)
    return left


def _type_of(schema: Any, place: str) -> DataType:
    if isinstance(schema, list):
        return _union_type(schema, place)
    if isinstance(schema, str):
        schema = {"type": schema}
    name = schema["type"]
    if not isinstance(name, str):
        return _type_of(name, place)
    if name in ("record", "error"):
        fields = [
            StructField(field["name"], _type_of(field["type"], f"{place}.{field['name']}"))
            for field in schema["fields"]
        ]
        if not fields:
            raise OptionError(f"option 'valueSchema': {place} is a record without fields, which cannot be a column")
        return StructType(fields)
    if name == "array":
        return ArrayType(_type_of(schema["items"], f"{place}[]"))
    if name == "map":
        return MapType(StringType(), _type_of(schema["values"], f"{place}[]"))
    if name in ("bytes", "fixed") and schema.get("logicalType") == "decimal":
        return _decimal_type(schema, place)
    found = LOGICAL_TYPES.get((name, schema.get("logicalType", ""))) or PRIMITIVE_TYPES.get(name)
    if found is None:
        why = "is always null" if name == "null" else f"is {name}, which contains itself; a column cannot be recursive"
        raise OptionError(f"option 'valueSchema': {place} {why}")
    return found


def _union_type(schemas: list[Any], place: str) -> DataType:
    some = [each for each in schemas if each not in ("null", {"type": "null"})]
    if len(some) == 1:
        return _type_of(some[0], place)
    names = [each if isinstance(each, str) else each.get("type") for each in some]
    if all(isinstance(name, str) for name in names) and (wider := PROMOTIONS.get(frozenset(names))) is not None:
        return wider
    raise OptionError(
        f"option 'valueSchema': {place} is a union of {len(some)} types; only one type and null can be a column"
    )


def _decimal_type(schema: dict[str, Any], place: str) -> DataType:
    digits, scale = schema.get("precision"), schema.get("scale", 0)
    if not isinstance(digits, int) or not 0 < digits <= DECIMAL_DIGITS_MAX or not 0 <= scale <= digits:
        raise OptionError(
            f"option 'valueSchema': {place} is a decimal with {digits} digits, {scale} of them after the point; "
            f"Spark supports at most {DECIMAL_DIGITS_MAX}"
        )
    return DecimalType(digits, scale)
