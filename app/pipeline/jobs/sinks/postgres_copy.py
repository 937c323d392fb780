"""What a task does for the sink `postgres`: it copies its rows to the table of the batch, and says which attempt that
was. Attempts have numbers by chance, one for each try: the answer to a try that succeeded can be lost."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.csv

from app.pipeline.jobs import database
from app.pipeline.jobs.database import Retries
from app.pipeline.settings import Secret

COPIES = "attempt bigint, rows bigint"
"""What tasks say: which try it was, and how many rows it has copied."""
Copy = Callable[[Iterable[Any]], Iterator[Any]]


def task(url: Secret, retries: Retries, staging: str, attempt_column: str) -> Copy:
    def copy(batches: Iterable[Any]) -> Iterator[Any]:
        found = [batch for batch in batches if batch.num_rows]
        if found:
            attempt = retries.run(f"table {staging}", lambda: _copy(url, staging, attempt_column, found))
            rows = sum(batch.num_rows for batch in found)
            yield pa.RecordBatch.from_pydict({"attempt": [attempt], "rows": [rows]})

    return copy


def _copy(url: Secret, staging: str, attempt_column: str, batches: list[Any]) -> int:
    sql, attempt = database.driver().sql, random.getrandbits(63)
    names = sql.SQL(", ").join(map(sql.Identifier, [*batches[0].schema.names, attempt_column]))
    query = sql.SQL("copy {} ({}) from stdin (format csv)").format(sql.Identifier(staging), names)
    with database.connect(url) as connection, connection.cursor() as cursor, cursor.copy(query) as copied:
        for batch in batches:
            copied.write(_lines(batch, attempt))
    return attempt


def _lines(batch: Any, attempt: int) -> bytes:
    """CSV: null is nothing at all, an empty text is two quotes."""
    number = pa.repeat(pa.scalar(attempt, pa.int64()), batch.num_rows)
    octets = io.BytesIO()
    options = pyarrow.csv.WriteOptions(include_header=False, quoting_style="needed")
    pyarrow.csv.write_csv(batch.append_column("_attempt", number), octets, options)
    return octets.getvalue()
