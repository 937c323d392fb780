"""The DataFrames between source, transforms and sinks: which columns they have besides the data, and what is made of
them.

1. Metadata: where a row comes from, under the names of the connectors' sinks. Transforms may use and drop them.
2. Hidden columns, which begin with an underscore and are taken off before the first transform: `_corrupt` is a payload
   that cannot be parsed, `_origin` says where it was, `_now` is the time of the batch, which a replay has again.
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
"""A message, whatever happens to the topic: another one at the same offset has another time."""
CORRUPT, ORIGIN, NOW, ROW = "_corrupt", "_origin", "_now", "_row"
HIDDEN = (CORRUPT, ORIGIN, NOW, ROW)
ORIGIN_TYPE = "struct<stream: string, topic: string, partition: int, offset: bigint, file: string>"
PAYLOAD = "payload"
"""The column of sources whose records have no fields."""
TIMES = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}
"""As Spark writes them to JSON, with all their digits; left alone it drops those behind the milliseconds."""


@dataclass(frozen=True)
class Batch:
    """What a sink is handed: the rows of one batch, and who it is, such that a replay is recognised."""

    frame: DataFrame
    pipeline: str
    writer: str
    """The query and the sink: a checkpoint that is begun anew is another query, and counts its batches anew."""
    number: int
    is_one_to_one: bool
    """Each row was made of one message, and of each message at most one row."""
    refused_rows: RefusedRows


# ------------------------------------------------------------------------------------------------------------ columns


def data_columns(frame: DataFrame) -> list[str]:
    return [name for name in frame.columns if name not in METADATA and name not in HIDDEN]


def metadata_columns(frame: DataFrame) -> list[str]:
    return [name for name in METADATA if name in frame.columns]


def select_columns(frame: DataFrame, include_metadata: bool, also: Sequence[str] = ()) -> DataFrame:
    """The data, behind them the metadata if they are wanted, and what else is."""
    names = data_columns(frame) + (metadata_columns(frame) if include_metadata else [])
    return frame.select(*map(quoted, [*names, *also]))


def selected_schema(schema: StructType, include_metadata: bool) -> StructType:
    """Returns the schema after `select_columns`, with every field nullable: what is a constant today may be missing
    tomorrow, and a table created from this schema has to take that."""
    names = [name for name in schema.names if name not in METADATA]
    names += [name for name in METADATA if include_metadata and name in schema.names]
    return StructType([StructField(name, _may_be_null(schema[name].dataType)) for name in names])


def _may_be_null(kind: DataType) -> DataType:
    """What is inside, too."""
    if isinstance(kind, StructType):
        return StructType([StructField(each.name, _may_be_null(each.dataType)) for each in kind])
    if isinstance(kind, ArrayType):
        return ArrayType(_may_be_null(kind.elementType))
    return MapType(kind.keyType, _may_be_null(kind.valueType)) if isinstance(kind, MapType) else kind


def quoted(name: str) -> Column:
    """A column by its whole name, dots included."""
    return F.col("`" + name.replace("`", "``") + "`")


def need(frame: DataFrame, name: str, place: str) -> None:
    require_field(frame.schema, name, place)


def require_field(schema: StructType, name: str, place: str) -> None:
    if name not in schema.names:
        raise FileError(f"{place}: there is no field '{name}'{_nearest(name, schema.names)}")


def _nearest(name: str, there: list[str]) -> str:
    import difflib  # noqa: PLC0415 -- only for an error

    near = difflib.get_close_matches(name, there, n=1, cutoff=0.6)
    return f"; did you mean '{near[0]}'?" if near else f"; there are: {', '.join(there)}"


def json_document(frame: DataFrame, include_metadata: bool = False) -> Column:
    """A row as JSON, without the fields that are null."""
    names = data_columns(frame) + (metadata_columns(frame) if include_metadata else [])
    return F.to_json(F.struct(*map(quoted, names)), TIMES)


def row_id(batch: Batch, columns: tuple[str, ...] = ()) -> Column | None:
    """16 bytes that stand for a row, equal whenever it is made again: of the columns that are named, else of the
    message that it was made of. None where neither can be."""
    names = columns or (COORDINATES if batch.is_one_to_one else ())
    if not names or not set(names) <= set(batch.frame.columns):
        return None
    row = F.to_json(F.struct(F.lit(batch.pipeline).alias("_"), *map(quoted, names)), TIMES)
    return F.unhex(F.md5(row))


def empty_like(frame: DataFrame) -> DataFrame:
    """A table with the columns of a stream, and nothing in it: for looking at what would be made of it."""
    return frame.sparkSession.createDataFrame([], frame.schema)


def is_nested(kind: Any) -> bool:
    return isinstance(kind, StructType | ArrayType | MapType)


def is_binary(kind: Any) -> bool:
    return isinstance(kind, BinaryType)
