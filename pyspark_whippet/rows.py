"""Rows to be written: the columns that they may have, and the conversion of record batches to what the gateway
takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.types import ArrayType, BinaryType, IntegerType, StringType, StructType

from pyspark_whippet import user_headers
from pyspark_whippet.batches import Array
from pyspark_whippet.errors import OptionError, RowError
from pyspark_whippet.settings import Settings

TYPES: dict[str, tuple[type, ...]] = {
    "value": (BinaryType, StringType),
    "id": (BinaryType, StringType),
    "key": (BinaryType, StringType),
    "partition": (IntegerType,),
    "stream": (StringType,),
    "topic": (StringType,),
    "headers": (ArrayType,),
}
LEFT_OUT = ("offset", "timestamp", "timestampType", "originTimestamp", "_corrupt")
"""Columns that the source adds and nobody can choose. They are left out, so that a DataFrame read from one topic can be
written to another."""
KEY_BYTES_MAX = 255


@dataclass(frozen=True)
class Rows:
    """Messages for one partition."""

    values: Any
    """pa.BinaryArray; none of them is empty."""
    ids: Array
    headers: tuple[bytes, ...] | None

    def __len__(self) -> int:
        return len(self.values)

    @property
    def bounds(self) -> Array:
        """Where the values start and end in `octets`."""
        _, bounds, _ = self.values.buffers()
        whole = np.frombuffer(bounds, dtype=np.int32)
        return whole[self.values.offset : self.values.offset + len(self.values) + 1]

    @property
    def octets(self) -> memoryview:
        return memoryview(self.values.buffers()[2])

    def part(self, start: int, stop: int) -> Rows:
        headers = None if self.headers is None else self.headers[start:stop]
        return Rows(self.values.slice(start, stop - start), self.ids[start:stop], headers)

    def take(self, places: Array) -> Rows:
        headers = None if self.headers is None else tuple(self.headers[place] for place in places.tolist())
        numbers = pa.Array.from_buffers(pa.int64(), len(places), [None, pa.py_buffer(places)])
        return Rows(self.values.take(numbers), self.ids[places], headers)

    def concat(self, later: Rows) -> Rows:
        headers = None
        if self.headers is not None or later.headers is not None:
            headers = (self.headers or (b"",) * len(self)) + (later.headers or (b"",) * len(later))
        values = pa.concat_arrays([self.values, later.values])
        return Rows(values, np.concatenate([self.ids, later.ids]), headers)


# ------------------------------------------------------------------------------------------------------------- schemas


def check_schema(schema: StructType, settings: Settings) -> None:
    """Raises OptionError for columns that cannot be written."""
    kinds = {column.name: column.dataType for column in schema}
    for name, kind in kinds.items():
        if name not in TYPES and (name in settings.id_columns or name in LEFT_OUT):
            continue
        if name not in TYPES:
            raise OptionError(
                f"column {name!r} cannot be written; the columns are {', '.join(TYPES)}: "
                "select to_json(struct(*)) AS value, or drop it"
            )
        if not isinstance(kind, TYPES[name]) or (name == "headers" and not _are_headers(kind)):
            needed = " or ".join(each.typeName() for each in TYPES[name])  # type: ignore[attr-defined]
            if name == "headers":
                needed = "array<struct<key: string, value: binary, kind: string>>, where kind may be left out,"
            raise OptionError(f"column {name!r} is {kind.simpleString()}; {needed} is needed")
    if "value" not in kinds:
        raise OptionError("column 'value' is required: select to_json(struct(*)) AS value, for example")
    for name in settings.id_columns:
        if name not in kinds:
            raise OptionError(f"option 'idColumns': there is no column {name!r}; the columns are {', '.join(kinds)}")
    for name in ("key", "partition"):
        if settings.partitioning == name and name not in kinds:
            raise OptionError(f"option 'partitioning': there is no column {name!r}")
    if settings.topic is None and "topic" not in kinds:
        raise OptionError("option 'topic' is required: .option('topic', 'stream/topic'), or a column 'topic'")


def _are_headers(kind: Any) -> bool:
    entry = kind.elementType
    if not isinstance(entry, StructType) or entry.names not in (["key", "value"], ["key", "value", "kind"]):
        return False
    return isinstance(entry[0].dataType, StringType) and isinstance(entry[1].dataType, BinaryType)


# ------------------------------------------------------------------------------------------------------ record batches


def is_copied(batch: Any) -> bool:
    """Whether the rows are those of another topic, whose partitions need not exist here."""
    return "offset" in batch.schema.names


def column(batch: Any, name: str) -> Any:
    """Returns None if there is no such column."""
    return batch.column(name) if name in batch.schema.names else None


def values(batch: Any) -> tuple[Any, Array | None]:
    """Returns the payloads, and where they are tombstones: the value is null."""
    found = batch.column("value").cast(pa.binary())
    tombstones = np.asarray(found.is_null()) if found.null_count else None
    if tombstones is not None:
        found = found.fill_null(user_headers.TOMBSTONE_PAYLOAD)
    bounds = np.frombuffer(found.buffers()[1], dtype=np.int32)[found.offset : found.offset + len(found) + 1]
    if (np.diff(bounds) == 0).any():
        raise RowError("column 'value' is empty; the server refuses empty payloads, and null is a tombstone")
    return found, tombstones


def headers(batch: Any) -> tuple[bytes, ...] | None:
    found = column(batch, "headers")
    if found is None or found.null_count == len(found):
        return None
    blocks = tuple(map(_block, found.to_pylist()))
    return blocks if any(blocks) else None


def _block(entries: Sequence[dict[str, Any]] | None) -> bytes:
    if not entries:
        return b""
    if any(entry is None or entry["key"] is None or entry["value"] is None for entry in entries):
        raise RowError("column 'headers': the key or the value of a header is null")
    return user_headers.encode((entry["key"], entry["value"], entry.get("kind") or "raw") for entry in entries)


def keys(batch: Any) -> list[bytes | None] | None:
    found = column(batch, "key")
    if found is None or found.null_count == len(found):
        return None
    octets: list[bytes | None] = found.cast(pa.binary()).to_pylist()
    for key in octets:
        if key is not None and not 0 < len(key) <= KEY_BYTES_MAX:
            raise RowError(f"column 'key': a key must have 1 to {KEY_BYTES_MAX} bytes; this one has {len(key)}")
    return octets
