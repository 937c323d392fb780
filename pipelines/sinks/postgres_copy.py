"""Copies rows to the staging table of a batch, each with a number.

1. A task of the sink `postgres` copies its rows and returns the number of the attempt. Each attempt gets a random
   number, because the response to a successful attempt can be lost.
2. The driver uses the same CSV format for bad rows.
"""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv

from pyspark_whippet.settings import Secret
from whippet.pipelines import postgres_client
from whippet.pipelines.postgres_client import Retries, RowsRefused

if TYPE_CHECKING:
    import psycopg

COPIES = "attempt bigint, rows bigint"
"""What tasks return: the attempt, and the number of rows it has copied; both are null if a row was refused."""
Copy = Callable[[Iterable[Any]], Iterator[Any]]


def task(url: Secret, retries: Retries, staging: str, number_column: str) -> Copy:
    def copy(batches: Iterable[Any]) -> Iterator[Any]:
        found = [batch for batch in batches if batch.num_rows]
        if not found:
            return
        attempt = rows = None
        try:
            attempt = retries.run(f"table {staging}", lambda: _attempt(url, staging, number_column, found))
            rows = sum(batch.num_rows for batch in found)
        except RowsRefused:
            # The driver finds out which rows.
            pass
        yield pa.record_batch({"attempt": pa.array([attempt], pa.int64()), "rows": pa.array([rows], pa.int64())})

    return copy


def _attempt(url: Secret, staging: str, number_column: str, batches: list[Any]) -> int:
    attempt = random.getrandbits(63)
    numbers = (pa.repeat(pa.scalar(attempt, pa.int64()), batch.num_rows) for batch in batches)
    numbered = (batch.append_column(number_column, each) for batch, each in zip(batches, numbers, strict=True))
    with postgres_client.raising_refusals(), postgres_client.connect(url) as connection:
        copy(connection, staging, numbered)
    return attempt


def copy(connection: psycopg.Connection[Any], staging: str, batches: Iterable[Any]) -> None:
    """The columns of `batches` are those of `staging`, in order."""
    sql = postgres_client.sql()
    query = sql.SQL("copy {} from stdin (format csv)").format(sql.Identifier(staging))
    with connection.cursor() as cursor, cursor.copy(query) as copied:
        for batch in batches:
            copied.write(_csv(batch))


def _csv(batch: Any) -> bytes:
    """In this CSV a null is empty, and an empty text is two quotes."""
    octets = io.BytesIO()
    options = pyarrow.csv.WriteOptions(include_header=False, quoting_style="needed")
    pyarrow.csv.write_csv(batch, octets, options)
    return octets.getvalue()
