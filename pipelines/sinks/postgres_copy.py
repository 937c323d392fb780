"""Rows on their way to the table of a batch, by COPY, each with a number.

1. What a task of the sink `postgres` does: it copies its rows, and says which attempt that was. Attempts have numbers
   by chance, one for each try: the answer to a try that succeeded can be lost.
2. CSV of Arrow's columns, for whoever else copies.
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
"""What tasks say: which try it was, and how many rows it has copied; neither, where one of them was refused."""
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
            # The driver looks which.
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
    """`batches` have the columns of `staging`, in their order."""
    sql = postgres_client.sql()
    query = sql.SQL("copy {} from stdin (format csv)").format(sql.Identifier(staging))
    with connection.cursor() as cursor, cursor.copy(query) as copied:
        for batch in batches:
            copied.write(_csv(batch))


def _csv(batch: Any) -> bytes:
    """Null is nothing at all, an empty text is two quotes."""
    octets = io.BytesIO()
    options = pyarrow.csv.WriteOptions(include_header=False, quoting_style="needed")
    pyarrow.csv.write_csv(batch, octets, options)
    return octets.getvalue()
