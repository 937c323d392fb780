"""Code of all lake table sinks: checks whether records fit an existing table, selects the rows of a batch that the
table accepts, and turns errors of the table library into SinkErrors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from pyspark_whippet.errors import PipelineError
from whippet.pipelines import bad_row_search
from whippet.pipelines.errors import FileError, SinkError
from whippet.pipelines.record_columns import Batch, select_columns
from whippet.pipelines.refused_rows import ORIGINALS, with_originals
from whippet.pipelines.user_text import first_line

RefusalCheck = Callable[[pa.Table], str | None]
"""Returns why a table would refuse these rows, or None."""


class Column(NamedTuple):
    kind: Any
    is_required: bool


def compare(
    ours: Mapping[str, Any], existing: Mapping[str, Column], takes: Callable[[Any, Any], bool], table: str, place: str
) -> None:
    """`ours` maps fields to their types; `takes` says whether a column type accepts a field type. Columns that only
    the table has become null."""
    for name, kind in ours.items():
        if name not in existing:
            raise FileError(f"{place}: table {table} has no column '{name}'; its columns are {', '.join(existing)}")
        if not takes(existing[name].kind, kind):
            raise FileError(
                f"{place}: column '{name}' of table {table} is {existing[name].kind}, but the field is {kind}; cast it"
            )
    for name, column in existing.items():
        if column.is_required and name not in ours:
            raise FileError(f"{place}: column '{name}' of table {table} must not be null, but there is no such field")


def require_columns(columns: pa.Schema, names: Iterable[str], table: str, place: str) -> None:
    """The table may have been changed since its schema was checked."""
    for name in names:
        if name not in columns.names:
            raise SinkError(f"{place}: table {table} no longer has a column '{name}'")


class AcceptableRows(NamedTuple):
    rows: pa.Table
    refused: DataFrame | None


def acceptable_rows(batch: Batch, include_metadata: bool, why_not: RefusalCheck) -> AcceptableRows:
    """Called before the commit of the rows it returns."""
    rows = select_columns(batch.frame, include_metadata).toArrow()
    if why_not(rows) is None:
        batch.refused_rows.record_none()
        return AcceptableRows(rows, None)
    with_more = select_columns(with_originals(batch.frame), include_metadata, ORIGINALS).toArrow()
    rows = with_more.drop_columns(ORIGINALS)
    found = bad_row_search.find_failures(rows.num_rows, lambda start, end: why_not(rows.slice(start, end - start)))
    refused = dict(islice(found, 1) if batch.refused_rows.stops else found)
    others = np.ones(rows.num_rows, dtype=bool)
    others[list(refused)] = False
    return AcceptableRows(rows.filter(pa.array(others)), batch.refused_rows.record(with_more, refused))


def null_in(rows: pa.Table, columns: pa.Schema) -> str | None:
    """Returns the column, or the part of its values, that is null although it must not be."""
    for name in rows.schema.names:
        for chunk in rows.column(name).chunks:
            where = _null(chunk, columns.field(name), name)
            if where is not None:
                return f"'{where}' must not be null"
    return None


def _null(values: pa.Array, field: pa.Field, name: str) -> str | None:
    if values.null_count and not field.nullable:
        return name
    values, kind = values.drop_null(), field.type
    inside: list[tuple[pa.Array, pa.Field, str]] = []
    if pa.types.is_struct(kind):
        inside = [(values.field(each.name), each, f"{name}.{each.name}") for each in kind]
    elif pa.types.is_map(kind) and len(values):
        start, end = values.offsets[0].as_py(), values.offsets[-1].as_py()
        inside = [(values.items.slice(start, end - start), kind.item_field, f"{name}.value")]
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inside = [(values.flatten(), kind.value_field, f"{name}.element")]
    return next((found for found in (_null(*each) for each in inside) if found is not None), None)


def cast(rows: pa.Table, columns: pa.Schema) -> pa.Table:
    """Casts rows to the types of a table, for rows in which `null_in` finds nothing. Arrow's own cast and Parquet
    writers reject a null in a required nested field even where the value around it is null."""
    fields = [columns.field(name) for name in rows.schema.names]
    found = [
        pa.chunked_array([_cast(chunk, field) for chunk in rows.column(field.name).chunks], field.type)
        for field in fields
    ]
    return pa.Table.from_arrays(found, schema=pa.schema(fields))


def _cast(values: pa.Array, field: pa.Field) -> pa.Array:
    if pa.types.is_struct(field.type):
        parts = [_cast(values.field(each.name), each) for each in field.type]
        mask = values.is_null() if field.nullable else None
        return pa.StructArray.from_arrays(parts, fields=list(field.type), mask=mask)
    found = values.cast(field.type)
    return found if field.nullable or not found.null_count else _with_anything_for_null(found)


def _with_anything_for_null(values: pa.Array) -> pa.Array:
    """Fills nulls with anything, usually zeros."""
    buffers, inside = values.buffers(), []
    if isinstance(values, pa.ListArray | pa.LargeListArray):
        buffers, inside = buffers[:2], [values.values]
    return pa.Array.from_buffers(values.type, len(values), [None, *buffers[1:]], 0, values.offset, inside)


@contextmanager
def as_sink_errors(place: str) -> Iterator[None]:
    """Surrounds calls of a library: such libraries raise all kinds of exceptions, some with traces in their text."""
    try:
        yield
    except PipelineError:
        raise
    except Exception as error:
        raise SinkError(f"{place}: {first_line(error)}") from error
