"""The sink `postgres`: writes rows to a table. A batch becomes visible as a whole, in the transaction that also records
it.

1. Tasks copy their rows to a staging table, each row with the number of the attempt that copied it. A replay creates
   the staging table again.
2. The driver knows which attempts have succeeded. In one transaction it raises the pipeline's marker to this batch,
   moves the rows of those attempts to the target, and drops the staging table. If the marker is already that high,
   there is nothing to do. So a task that is retried or runs twice at once writes no row twice, and rows need not go to
   the same tasks on a replay. Rows are counted: a crash of the server empties the staging table, and then the batch is
   written again.
3. If PostgreSQL refuses a row, nothing has been written yet. The driver then writes the batch and finds the refused
   rows (postgres_bad_rows.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from pyspark_whippet.settings import Secret
from whippet.pipelines import postgres_client, refused_rows
from whippet.pipelines.errors import FileError, SinkError
from whippet.pipelines.gateway_settings import GatewaySettings
from whippet.pipelines.keys import BOOLEAN, DURATION, SECRET, STRING, integer, key, one_of
from whippet.pipelines.postgres_client import Retries, RowsRefused
from whippet.pipelines.record_columns import (
    METADATA,
    TIMES,
    Batch,
    is_nested,
    json_document,
    metadata_columns,
    quoted,
    select_columns,
)
from whippet.pipelines.sinks import postgres_bad_rows, postgres_copy
from whippet.pipelines.sources.postgres_reader import columns_of

if TYPE_CHECKING:
    import psycopg

_log = logging.getLogger(__name__)
MARKERS = "whippet_markers"
ATTEMPT = "whippet_attempt"
PAYLOAD = "payload"
"""The only data column if a record is not split into columns."""
LOST = "the server crashed and lost rows of a batch that was not committed yet"
PAYLOADS = {"json": "jsonb", "text": "text", "bytea": "bytea"}


class StagingLost(Exception):
    """Staging tables are unlogged, for speed; PostgreSQL empties such tables when it recovers from a crash."""


@dataclass(frozen=True, kw_only=True)
class PostgresSink:
    """A table of PostgreSQL, whose columns are matched by name. A batch with refused rows passes through the driver."""

    TYPE: ClassVar[str] = "postgres"
    DELIVERY: ClassVar[str] = "exactly once: rows and the number of their batch are in one transaction"
    UNSUPPORTED: ClassVar[dict[str, str]] = {
        "batch_size": "a batch is one COPY per task, and one transaction",
        "max_connections": "each task has one connection",
        "include_checksum": "messages are checked when they are read",
        "include_origin_timestamp": "the metadata include it",
    }
    connection_string: Secret = key(SECRET, "such as 'postgresql://user:${PGPASSWORD}@host/database'")
    target_table: str = key(STRING, "the table, such as 'orders' or 'public.orders'")
    auto_create_table: bool = key(BOOLEAN, "create the table if it does not exist", False)
    payload_format: str = key(
        one_of("columns", *PAYLOADS),
        "`columns`: a column per field; `json`, `text` and `bytea`: the record as JSON, in the column `payload`",
        "columns",
    )
    include_metadata: bool = key(BOOLEAN, "also write metadata, such as `iggy_offset`", True)
    max_retries: int = key(integer(0), "how often a failure that is not caused by a row is retried", 3)
    retry_delay: int = key(DURATION, "pause before the first retry; it doubles with each retry", 1000, shown='"1 s"')

    def inspect(self, gateway: GatewaySettings) -> Iterator[str]:
        def there(connection: psycopg.Connection[Any]) -> bool:
            return bool(columns_of(connection, self.target_table))

        is_there = self._run("PostgreSQL", there)
        if not is_there and not self.auto_create_table:
            raise FileError(f"table '{self.target_table}' does not exist; create it, or set auto_create_table = true")
        yield f"table {self.target_table}: {'exists' if is_there else 'will be created'}"

    def check_schema(self, schema: StructType, gateway: GatewaySettings, place: str) -> None:
        def look(connection: psycopg.Connection[Any]) -> list[str]:
            return [each.name for each in columns_of(connection, self.target_table)]

        there = self._run(place, look)
        if not there and not self.auto_create_table:
            raise FileError(
                f"{place}: table '{self.target_table}' does not exist; create it, or set auto_create_table = true"
            )
        for name in self._types(schema) if there else ():
            if name not in there:
                hint = (
                    "set include_metadata = false, or add it"
                    if name.startswith("iggy_")
                    else "add it, or drop the field"
                )
                raise FileError(f"{place}: table {self.target_table} has no column '{name}': {hint}")

    def prepare(self, schema: StructType, gateway: GatewaySettings, place: str) -> None:
        types = self._types(schema)

        def make(connection: psycopg.Connection[Any]) -> None:
            sql = postgres_client.sql()
            connection.execute(f"create table if not exists {MARKERS} (writer text primary key, batch bigint not null)")
            if self.auto_create_table:
                columns = [sql.SQL("{} " + kind).format(sql.Identifier(name)) for name, kind in types.items()]
                make = sql.SQL("create table if not exists {} ({})")
                connection.execute(make.format(self._target(), sql.SQL(", ").join(columns)))

        self._run(place, make)

    def write(self, batch: Batch, gateway: GatewaySettings, place: str) -> DataFrame | None:
        for _ in range(self.max_retries + 1):
            try:
                return self._write(batch, place)
            except StagingLost as error:
                _log.warning("%s: table %s: %s; writing the batch again", place, self.target_table, error)
        raise SinkError(f"{place}: table {self.target_table}: {LOST}")

    def _write(self, batch: Batch, place: str) -> DataFrame | None:
        frame = self._frame(batch.frame)
        staging = f"whippet_{batch.writer.replace('-', '')[:48]}"
        if not self._run(place, lambda connection: self._stage(connection, batch, staging, frame.columns)):
            return batch.refused_rows.recorded()
        copy = postgres_copy.task(self.connection_string, self._retries, staging, ATTEMPT)
        copies = frame.mapInArrow(copy, postgres_copy.COPIES).collect()
        if all(each["attempt"] is not None for each in copies):
            try:
                self._run(
                    place,
                    lambda connection: self._move(connection, batch, staging, frame.columns, copies),
                    postgres_client.raising_refusals,
                )
            except RowsRefused:
                pass
            else:
                return None
        rows = self._frame(refused_rows.with_originals(batch.frame), refused_rows.ORIGINALS).toArrow()
        refused: DataFrame | None = self._run(
            place, lambda connection: self._write_acceptable_rows(connection, batch, staging, rows)
        )
        return refused

    # ------------------------------------------------------------------------------------------------- the columns

    def _types(self, schema: StructType) -> dict[str, str]:
        """Returns the column types of the target by name."""
        types = {field.name: postgres_client.write_type(field.dataType) for field in schema}
        found = {name: kind for name, kind in types.items() if name not in METADATA}
        if self.payload_format != "columns":
            found = {PAYLOAD: PAYLOADS[self.payload_format]}
        if self.include_metadata:
            found |= {name: kind for name, kind in types.items() if name in METADATA}
        return found

    def _frame(self, rows: DataFrame, also: tuple[str, ...] = ()) -> DataFrame:
        frame = select_columns(rows, self.include_metadata, also)
        if self.payload_format != "columns":
            payload = json_document(rows)
            if self.payload_format == "bytea":
                payload = payload.cast("binary")
            metadata = metadata_columns(frame) if self.include_metadata else []
            frame = rows.select(payload.alias(PAYLOAD), *map(quoted, [*metadata, *also]))
        return frame.select(*(quoted(name) if name in also else _csv_value(frame, name) for name in frame.columns))

    # ------------------------------------------------------------------------------------------------ the statements

    def _stage(self, connection: psycopg.Connection[Any], batch: Batch, staging: str, columns: list[str]) -> bool:
        """Creates the staging table. Returns False if the batch was already written."""
        sql = postgres_client.sql()
        row = connection.execute(f"select batch from {MARKERS} where writer = %s", [batch.writer]).fetchone()
        name = sql.Identifier(staging)
        connection.execute(sql.SQL("drop table if exists {}").format(name))
        if row is not None and row[0] >= batch.number:
            return False
        wanted = sql.SQL(", ").join(map(sql.Identifier, columns))
        like = sql.SQL("create unlogged table {} as select {}, 0::bigint as {} from {} where false")
        connection.execute(like.format(name, wanted, sql.Identifier(ATTEMPT), self._target()))
        return True

    def _mark(self, connection: psycopg.Connection[Any], batch: Batch) -> bool:
        """Returns False if the batch was already written: the response to an earlier attempt was lost."""
        marked = connection.execute(
            f"insert into {MARKERS} as known values (%s, %s) on conflict (writer) do update set batch = excluded.batch "
            "where known.batch < excluded.batch returning known.batch",
            [batch.writer, batch.number],
        )
        return marked.fetchone() is not None

    def _move(
        self, connection: psycopg.Connection[Any], batch: Batch, staging: str, columns: list[str], copies: list[Row]
    ) -> None:
        if not self._mark(connection, batch):
            return
        sql = postgres_client.sql()
        name, attempt = sql.Identifier(staging), sql.Identifier(ATTEMPT)
        attempts = [each["attempt"] for each in copies]
        count = sql.SQL("select count(*) from {} where {} = any(%s)").format(name, attempt)
        if connection.execute(count, [attempts]).fetchone() != (sum(each["rows"] for each in copies),):
            # This rolls back the marker, too.
            raise StagingLost(LOST)
        target, wanted = self._target_name(), postgres_bad_rows.column_list(columns)
        move = sql.SQL("insert into {} ({}) select {} from {} where {} = any(%s)")
        connection.execute(move.format(target, wanted, wanted, name, attempt), [attempts])
        connection.execute(sql.SQL("drop table {}").format(name))
        batch.refused_rows.record_none()

    def _write_acceptable_rows(
        self, connection: psycopg.Connection[Any], batch: Batch, staging: str, rows: pa.Table
    ) -> DataFrame | None:
        if not self._mark(connection, batch):
            return batch.refused_rows.recorded()
        table = postgres_bad_rows.Table(self._target_name(), staging, ATTEMPT)
        refused = postgres_bad_rows.insert(
            connection, table, rows.drop_columns(refused_rows.ORIGINALS), batch.refused_rows.stops
        )
        sql = postgres_client.sql()
        connection.execute(sql.SQL("drop table {}").format(sql.Identifier(staging)))
        return batch.refused_rows.record(rows, refused)

    def _target_name(self) -> Any:
        """The target table, for statements that have parameters."""
        return postgres_client.identifier(*postgres_client.qualified(self.target_table))

    def _target(self) -> Any:
        return postgres_client.sql().Identifier(*postgres_client.qualified(self.target_table))

    @property
    def _retries(self) -> Retries:
        return Retries(self.max_retries, self.retry_delay, SinkError)

    def _run(self, place: str, act: Any, around: Callable[[], AbstractContextManager[None]] = nullcontext) -> Any:
        def once() -> Any:
            with around(), postgres_client.connect(self.connection_string) as connection:
                return act(connection)

        return self._retries.run(f"{place}: table {self.target_table}", once)


def _csv_value(frame: DataFrame, name: str) -> Column:
    """Formats a value for CSV: nested values as JSON, bytes as the hexadecimal digits of bytea."""
    kind = frame.schema[name].dataType
    if is_nested(kind):
        return F.to_json(quoted(name), TIMES).alias(name)
    if kind.typeName() == "binary":
        return F.when(quoted(name).isNotNull(), F.concat(F.lit("\\x"), F.hex(quoted(name)))).alias(name)
    return quoted(name)
