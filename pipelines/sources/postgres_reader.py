"""Reads a table of PostgreSQL as a stream.

1. A batch is a range of values of the tracking column, excluding the start and including the end. The range is in the
   checkpoint, so a replay reads the same rows.
2. Numbers are assigned before their rows become visible: a row with a smaller number may be committed after one with a
   larger number. So the end of a range is chosen first, and then the reader waits for all transactions that were
   writing to the table at that moment: any number below the end belongs to one of them. Later transactions get numbers
   above it.
3. Rows are read with COPY as CSV, which Arrow parses without an object per value.
"""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.csv
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from pyspark_whippet.settings import Secret
from whippet.pipelines import postgres_client
from whippet.pipelines.errors import SourceError
from whippet.pipelines.postgres_client import ReadType, Retries

if TYPE_CHECKING:
    import psycopg

FORMAT = "whippet_postgres"
WAIT_S, LOOK_AGAIN_S = 5.0, 0.02
# A view has no writers of its own, so the tables behind it are checked, with their partitions.
WRITERS = """
    with recursive leads_to(relation, further) as (
        select inhparent, inhrelid from pg_inherits
        union all
        select rule.ev_class, part.refobjid from pg_rewrite rule
        join pg_depend part on part.classid = 'pg_rewrite'::regclass and part.objid = rule.oid
        where part.refclassid = 'pg_class'::regclass
    ), all_of_it(relation) as (
        select %(table)s::regclass::oid
        union
        select further from all_of_it join leads_to using (relation)
    )
    select distinct virtualtransaction from pg_locks join all_of_it using (relation)
    where locktype = 'relation' and granted and pid is distinct from pg_backend_pid()
      and database = (select oid from pg_database where datname = current_database())
      and mode in ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
"""
COLUMNS = """
    select attname, format_type(atttypid, atttypmod) from pg_attribute
    where attrelid = to_regclass(%s) and attnum > 0 and not attisdropped order by attnum
"""


class Column(NamedTuple):
    name: str
    kind: ReadType
    declared: str
    """The type as PostgreSQL writes it."""


def columns_of(connection: psycopg.Connection[Any], table: str) -> list[Column]:
    """Returns an empty list if there is no such table."""
    rows = connection.execute(COLUMNS, [_quoted(connection, table)]).fetchall()
    return [Column(name, postgres_client.read_type(declared), declared) for name, declared in rows]


def _quoted(connection: psycopg.Connection[Any], table: str) -> str:
    return str(postgres_client.sql().Identifier(*postgres_client.qualified(table)).as_string(connection))


class PostgresFormat(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamReader(self, schema: StructType) -> PostgresReader:  # noqa: N802
        return PostgresReader(dict(self.options), schema)


class Rows(InputPartition):
    def __init__(self, after: str | None, through: str) -> None:
        super().__init__((after, through))
        self.after, self.through = after, through


class PostgresReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self._url = Secret(options["password"])
        self._table, self._tracking = options["table"], options["tracking"]
        self._initial, self._most = options["initial"] or None, int(options["most"])
        self._retries = Retries(int(options["retries"]), int(options["delay"]), SourceError)
        self._schema = schema
        self._last: str | None = None
        """Where to stop, if only existing rows are to be read."""
        self._is_over = False

    # -------------------------------------------------------------------------------------------------------- offsets

    def initialOffset(self) -> dict[str, str | None]:  # noqa: N802
        return {"through": self._initial}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._last = self._run(lambda connection: self._end(connection, self._initial, None))
        self._is_over = self._last is None

    def latestOffset(self, start: dict[str, str | None], limit: ReadLimit) -> dict[str, str | None]:  # noqa: N802
        def look(connection: psycopg.Connection[Any]) -> str | None:
            end = self._end(connection, start["through"], self._most)
            return end if end is not None and self._writers_have_ended(connection) else None

        found = None if self._is_over else self._run(look)
        return start if found is None else {"through": found}

    def _end(self, connection: psycopg.Connection[Any], after: str | None, most: int | None) -> str | None:
        """Returns the largest value of the next `most` rows, as a string."""
        sql = postgres_client.sql()
        query = sql.SQL(
            "select max({column})::text from (select {column} from {table} where {range} {limit}) t"
        ).format(
            column=sql.Identifier(self._tracking),
            table=sql.Identifier(*postgres_client.qualified(self._table)),
            range=self._range(connection, after, self._last),
            limit=sql.SQL("order by {} limit {}").format(sql.Identifier(self._tracking), sql.Literal(most))
            if most
            else sql.SQL(""),
        )
        row = connection.execute(query).fetchone()
        return None if row is None or row[0] is None else str(row[0])

    def _range(self, connection: psycopg.Connection[Any], after: str | None, through: str | None) -> Any:
        sql = postgres_client.sql()
        column = sql.Identifier(self._tracking)
        kind = next(each.declared for each in columns_of(connection, self._table) if each.name == self._tracking)
        conditions = [sql.SQL("{} is not null").format(column)]
        for sign, bound in ((">", after), ("<=", through)):
            if bound is not None:
                value = sql.SQL("{}::" + kind).format(sql.Literal(bound))
                conditions.append(sql.SQL("{} " + sign + " {}").format(column, value))
        return sql.SQL(" and ").join(conditions)

    def _writers_have_ended(self, connection: psycopg.Connection[Any]) -> bool:
        """Whether all transactions that are writing to the table now have ended within a few seconds."""
        named = {"table": _quoted(connection, self._table)}
        waiting, deadline = set(connection.execute(WRITERS, named).fetchall()), time.monotonic() + WAIT_S
        while waiting:
            if time.monotonic() > deadline:
                return False
            time.sleep(LOOK_AGAIN_S)
            waiting &= set(connection.execute(WRITERS, named).fetchall())
        return True

    # ----------------------------------------------------------------------------------------------------------- rows

    def partitions(self, start: dict[str, str | None], end: dict[str, str | None]) -> list[Rows]:
        through = end["through"]
        return [] if start == end or through is None else [Rows(start["through"], through)]

    def read(self, partition: Any) -> Iterator[Any]:
        schema = to_arrow_schema(self._schema, timezone="UTC")
        octets = self._run(lambda connection: self._copied(connection, partition))
        size = octets.getbuffer().nbytes
        if not size:
            return
        texts = pa.schema([pa.field(each.name, _parsed_as(each.type)) for each in schema])
        options = pyarrow.csv.ConvertOptions(
            column_types=texts,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            true_values=["t"],
            false_values=["f"],
        )
        found = pyarrow.csv.read_csv(
            octets,
            read_options=pyarrow.csv.ReadOptions(column_names=schema.names, use_threads=False, block_size=size + 1),
            parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
            convert_options=options,
        )
        columns = [
            _from_hex(column) if pa.types.is_binary(field.type) else column
            for field, column in zip(schema, found.columns, strict=True)
        ]
        yield from pa.Table.from_arrays(columns, schema=schema).to_batches()

    def _copied(self, connection: psycopg.Connection[Any], rows: Rows) -> io.BytesIO:
        sql = postgres_client.sql()
        kinds = {each.name: each.kind for each in columns_of(connection, self._table)}
        gone = [name for name in self._schema.names if name not in kinds]
        if gone:
            raise SourceError(f"table {self._table}: column '{gone[0]}' no longer exists")
        columns = [sql.SQL(kinds[name].select).format(sql.Identifier(name)) for name in self._schema.names]
        query = sql.SQL("copy (select {} from {} where {} order by {}) to stdout (format csv)").format(
            sql.SQL(", ").join(columns),
            sql.Identifier(*postgres_client.qualified(self._table)),
            self._range(connection, rows.after, rows.through),
            sql.Identifier(self._tracking),
        )
        octets = io.BytesIO()
        with connection.cursor() as cursor, cursor.copy(query) as copied:
            for piece in copied:
                octets.write(piece)
        octets.seek(0)
        return octets

    def _run(self, act: Any) -> Any:
        def once() -> Any:
            with postgres_client.connect(self._url) as connection:
                return act(connection)

        return self._retries.run(f"PostgreSQL, table {self._table}", once)


def _parsed_as(kind: Any) -> Any:
    return pa.string() if pa.types.is_binary(kind) else kind


def _from_hex(digits: Any) -> Any:
    """Decodes hexadecimal digits."""
    return pa.array([None if each is None else bytes.fromhex(each) for each in digits.to_pylist()], pa.binary())
