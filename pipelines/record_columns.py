"""The columns that DataFrames between source, transforms and sinks have besides the data, and operations on them.

1. Metadata columns say where a row comes from, under the names that the connectors' sinks use. Transforms may use and
   drop them.
2. Hidden columns begin with an underscore and are removed before the first transform: `_corrupt` is a payload that
   cannot be parsed, `_origin` says where it came from, and `_now` is the time of the batch, which stays the same on a
   replay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 -- as everybody calls it
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StructField, StructType

from whippet.pipelines.errors import FileError

if TYPE_CHECKING:
    from whippet.pipelines.refused_rows import RefusedRows

METADATA = (
    "iggy_id",
    "iggy_stream",
    "iggy_topic",
    "iggy_partition_id",
    "iggy_offset",
    "iggy_timestamp",
    "iggy_origin_timestamp",
    "iggy_headers",
)
COORDINATES = ("iggy_stream", "iggy_topic", "iggy_partition_id", "iggy_offset", "iggy_timestamp")
"""They identify a message even if the topic is created again: a new message at the same offset has another time."""
CORRUPT, ORIGIN, NOW, ROW = "_corrupt", "_origin", "_now", "_row"
HIDDEN = (CORRUPT, ORIGIN, NOW, ROW)
ORIGIN_TYPE = "struct<stream: string, topic: string, partition: int, offset: bigint, file: string>"
PAYLOAD = "payload"
"""The column of sources whose records have no fields."""
TIMES = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}
"""Writes times to JSON with all their digits; by default Spark drops those after the milliseconds."""


@dataclass(frozen=True)
class Batch:
    """What a sink gets: the rows of one batch, and what identifies the batch on a replay."""

    frame: DataFrame
    pipeline: str
    writer: str
    """The query and the sink. A new checkpoint means a new query, which numbers its batches from 0 again."""
    number: int
    is_one_to_one: bool
    """Each row was made from one message, and each message yields at most one row."""
    refused_rows: RefusedRows


# ------------------------------------------------------------------------------------------------------------ columns


def data_columns(frame: DataFrame) -> list[str]:
    return [name for name in frame.columns if name not in METADATA and name not in HIDDEN]


def metadata_columns(frame: DataFrame) -> list[str]:
    return [name for name in METADATA if name in frame.columns]


def select_columns(frame: DataFrame, include_metadata: bool, also: Sequence[str] = ()) -> DataFrame:
    """Selects the data, then the metadata if they are wanted, then the columns in `also`."""
    names = data_columns(frame) + (metadata_columns(frame) if include_metadata else [])
    return frame.select(*map(quoted, [*names, *also]))


def selected_schema(schema: StructType, include_metadata: bool) -> StructType:
    """Returns the schema after `select_columns`, with every field nullable: what is a constant today may be missing
    tomorrow, and a table created from this schema has to take that."""
    names = [name for name in schema.names if name not in METADATA]
    names += [name for name in METADATA if include_metadata and name in schema.names]
    return StructType([StructField(name, _may_be_null(schema[name].dataType)) for name in names])


def _may_be_null(kind: DataType) -> DataType:
    """Includes nested fields."""
    if isinstance(kind, StructType):
        return StructType([StructField(each.name, _may_be_null(each.dataType)) for each in kind])
    if isinstance(kind, ArrayType):
        return ArrayType(_may_be_null(kind.elementType))
    return MapType(kind.keyType, _may_be_null(kind.valueType)) if isinstance(kind, MapType) else kind


def with_hidden_columns(raw: DataFrame) -> DataFrame:
    """Adds the hidden columns, for a source whose records always parse and have no origin."""
    return raw.select(
        "*",
        F.lit(None).cast("binary").alias(CORRUPT),
        F.lit(None).cast(ORIGIN_TYPE).alias(ORIGIN),
        F.current_timestamp().alias(NOW),
    )


def quoted(name: str) -> Column:
    """Returns a column by its whole name, dots included."""
    return F.col("`" + name.replace("`", "``") + "`")


def require_field(schema: StructType, name: str, place: str) -> None:
    if name not in schema.names:
        raise FileError(f"{place}: there is no field '{name}'{_nearest(name, schema.names)}")


def _nearest(name: str, there: list[str]) -> str:
    import difflib  # noqa: PLC0415 -- only for an error

    near = difflib.get_close_matches(name, there, n=1, cutoff=0.6)
    return f"; did you mean '{near[0]}'?" if near else f"; the fields are: {', '.join(there)}"


def json_document(frame: DataFrame, include_metadata: bool = False) -> Column:
    """Formats a row as JSON, without fields that are null."""
    names = data_columns(frame) + (metadata_columns(frame) if include_metadata else [])
    return F.to_json(F.struct(*map(quoted, names)), TIMES)


def row_id(batch: Batch, columns: tuple[str, ...] = ()) -> Column | None:
    """Returns 16 bytes that identify a row and stay the same on a replay. They come from the named columns, or else
    from the message that the row was made from. Returns None if neither is possible."""
    names = columns or (COORDINATES if batch.is_one_to_one else ())
    if not names or not set(names) <= set(batch.frame.columns):
        return None
    row = F.to_json(F.struct(F.lit(batch.pipeline).alias("_"), *map(quoted, names)), TIMES)
    return F.unhex(F.md5(row))


def empty_like(frame: DataFrame) -> DataFrame:
    """Returns an empty table with the columns of a stream, to analyse what transforms would make of it."""
    return frame.sparkSession.createDataFrame([], frame.schema)


def is_nested(kind: Any) -> bool:
    return isinstance(kind, StructType | ArrayType | MapType)


def is_binary(kind: Any) -> bool:
    return isinstance(kind, BinaryType)
