"""Finds the rows of a batch that PostgreSQL refuses: a NUL in a text, a number that is too large for its column, a
constraint, a trigger.

The rows are tried in halves, each in a savepoint: first on their way to the staging table, where values must fit their
columns, and then from there to the target. They are inserted in order, so if two rows exclude each other, the first one
is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from whippet.pipelines import bad_row_search, postgres_client
from whippet.pipelines.postgres_client import RowsRefused
from whippet.pipelines.sinks import postgres_copy

if TYPE_CHECKING:
    import psycopg


class Table(NamedTuple):
    target: Any
    """The name of the target table, as SQL."""
    staging: str
    """The name of the staging table."""
    number: str
    """The column of the staging table that numbers the rows."""


def column_list(columns: Iterable[str]) -> Any:
    return postgres_client.sql().SQL(", ").join(map(postgres_client.identifier, columns))


def insert(connection: psycopg.Connection[Any], table: Table, rows: pa.Table, only_first: bool) -> dict[int, str]:
    """Inserts rows in the open transaction. Returns the places of those that were refused, with the reasons; with
    `only_first`, at most one."""
    sql = postgres_client.sql()
    staging, number, columns = (
        sql.Identifier(table.staging),
        sql.Identifier(table.number),
        column_list(rows.schema.names),
    )
    numbered = rows.append_column(table.number, pa.array(range(rows.num_rows), pa.int64()))
    move = sql.SQL("insert into {} ({}) select {} from {} where {} >= %s and {} < %s order by {}").format(
        table.target, columns, columns, staging, number, number, number
    )

    def copy(start: int, end: int) -> None:
        postgres_copy.copy(connection, table.staging, numbered.slice(start, end - start).to_batches())

    def to_target(start: int, end: int) -> None:
        connection.execute(move, [start, end])

    # A deferred constraint would fail at the commit, without naming the row.
    connection.execute("set constraints all immediate")
    connection.execute(sql.SQL("truncate {}").format(staging))
    refused = _try_rows(connection, rows.num_rows, copy, only_first)
    if only_first and refused:
        return refused
    connection.execute(sql.SQL("create index on {} ({})").format(staging, number))
    return refused | _try_rows(connection, rows.num_rows, to_target, only_first)


def _try_rows(
    connection: psycopg.Connection[Any], count: int, act: Callable[[int, int], None], only_first: bool
) -> dict[int, str]:
    early = set[int]()
    """Places of rows that refer to later rows."""

    def why_not(start: int, end: int) -> str | None:
        try:
            with postgres_client.raising_refusals(), connection.transaction():
                act(start, end)
        except RowsRefused as error:
            if error.misses_another and end - start == 1:
                early.add(start)
            return str(error)
        return None

    found: dict[int, str] = {}
    for place, why in bad_row_search.find_failures(count, why_not):
        found[place] = why
        if only_first and place not in early:
            return {place: why}
    while late := [place for place in sorted(early & found.keys()) if why_not(place, place + 1) is None]:
        for place in late:
            del found[place]
    return found
