"""The source `postgres`: reads the rows of a table in the order of a column that only grows.

postgres_reader.py does the reading.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql import DataFrame, SparkSession

from pyspark_whippet import registration
from pyspark_whippet.settings import Secret
from whippet.pipelines import postgres_client
from whippet.pipelines.errors import FileError, SourceError
from whippet.pipelines.gateway_settings import GatewaySettings
from whippet.pipelines.keys import DURATION, SECRET, STRING, STRINGS, InvalidValue, Kind, integer, key, one_of
from whippet.pipelines.record_columns import HIDDEN, METADATA, with_hidden_columns
from whippet.pipelines.sources.postgres_reader import FORMAT, Column, PostgresFormat, columns_of

if TYPE_CHECKING:
    import psycopg


def _bound(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise InvalidValue
    return str(value)


BOUND = Kind("a number or a string", _bound)
NO_CDC = "changes to rows are not followed; added rows are, by 'tracking_column'"


@dataclass(frozen=True, kw_only=True)
class PostgresSource:
    """The rows of a PostgreSQL table, including those added later, in the order of `tracking_column`. It must grow
    with each new row, as a serial number or an identity column does. Rows in which it is null are never read."""

    TYPE: ClassVar[str] = "postgres"
    UNSUPPORTED: ClassVar[dict[str, str]] = {
        "table": "name the table in 'tables', such as [\"public.orders\"]",
        "enable_wal_cdc": NO_CDC,
        "replication_slot": NO_CDC,
        "publication_name": NO_CDC,
        "capture_operations": NO_CDC,
        "cdc_backend": NO_CDC,
        "delete_after_read": "a pipeline changes nothing in its source",
        "processed_column": "a pipeline changes nothing in its source",
        "custom_query": "create a view and name it in 'tables', or use a transform of type sql",
        "max_connections": "there is one connection at a time",
        "payload_column": "each column is a field; use a transform of type sql to choose",
        "payload_format": "each column is a field; use a transform of type sql to choose",
        "include_metadata": "records consist of the row only",
        "snake_case_columns": "fields are named after the columns; use a transform of type sql to rename them",
    }
    connection_string: Secret = key(SECRET, "such as 'postgresql://user:${PGPASSWORD}@host/database'")
    tables: tuple[str, ...] = key(STRINGS, 'one table or view, such as ["public.orders"]')
    mode: str = key(one_of("polling"), "rows are polled", "polling")
    tracking_column: str = key(STRING, "the column that grows", "id")
    initial_offset: str | None = key(BOUND, "read rows with a value above this", None, shown="from the first row")
    batch_size: int = key(
        integer(1), "largest number of rows in a batch; rows with equal values stay together", 100_000
    )
    poll_interval: int = key(DURATION, "how often to look for new rows", 10_000, shown='"10 s"')
    max_retries: int = key(integer(0), "how often a failure that is not caused by a row is retried", 3)
    retry_delay: int = key(DURATION, "pause before the first retry; it doubles with each retry", 1000, shown='"1 s"')

    def __post_init__(self) -> None:
        if len(self.tables) != 1:
            raise ValueError("key 'tables': a pipeline reads one table; write a pipeline file for each")

    @property
    def trigger_ms(self) -> int:
        return self.poll_interval

    def frame(self, spark: SparkSession, gateway: GatewaySettings) -> DataFrame:
        registration.register(spark, PostgresFormat)
        columns = self._columns()
        options = {
            # Spark hides the values of options with this name in its plans.
            "password": self.connection_string.text,
            "table": self.tables[0],
            "tracking": self.tracking_column,
            "initial": self.initial_offset or "",
            "most": str(self.batch_size),
            "retries": str(self.max_retries),
            "delay": str(self.retry_delay),
        }
        ddl = ", ".join(f"`{each.name}` {each.kind.spark}" for each in columns)
        return with_hidden_columns(spark.readStream.format(FORMAT).schema(ddl).options(**options).load())

    def inspect(self, gateway: GatewaySettings) -> Iterator[str]:
        columns = self._columns()
        names = ", ".join(f"{each.name} {each.kind.spark}" for each in columns)
        yield f"table {self.tables[0]}: {names}"

    def _columns(self) -> list[Column]:
        def look() -> list[Column]:
            with postgres_client.connect(self.connection_string) as connection:
                return self._checked(connection)

        return postgres_client.Retries(self.max_retries, self.retry_delay, SourceError).run(
            "[source]: PostgreSQL", look
        )

    def _checked(self, connection: psycopg.Connection[Any]) -> list[Column]:
        found = columns_of(connection, self.tables[0])
        if not found:
            raise FileError(f"[source]: table {self.tables[0]!r} does not exist")
        names = [each.name for each in found]
        if self.tracking_column not in names:
            there = ", ".join(names)
            raise FileError(
                f"[source]: key 'tracking_column': there is no column '{self.tracking_column}'; "
                f"the columns are: {there}"
            )
        for name in names:
            if name in METADATA or name in HIDDEN:
                raise FileError(f"[source]: column '{name}' has a reserved name; create a view that renames it")
        return found
