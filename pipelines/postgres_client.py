"""PostgreSQL, as its source and its sink speak with it: connections, names, and types on both sides."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pyspark_whippet.errors import PipelineError
from pyspark_whippet.settings import Secret
from whippet.pipelines.errors import MissingError

if TYPE_CHECKING:
    import psycopg

_log = logging.getLogger(__name__)
T = TypeVar("T")
PAUSE_S_MAX = 30.0
# What the texts of times look like must not depend on the server's settings.
SETTINGS = "-c TimeZone=UTC -c DateStyle=ISO -c IntervalStyle=iso_8601 -c extra_float_digits=3"
# No answer, too many connections, shutting down, starting up, a deadlock, a serialization that failed.
TRANSIENT_STATES = ("08", "53", "57P", "40")
# A value that does not fit its type, a constraint, a view's check, a trigger that raises something itself, a value that
# is too large for an index.
ROW_STATES = ("22", "23", "44", "P0001", "54000")
FOREIGN_KEY = "23503"


def driver() -> Any:
    try:
        import psycopg  # noqa: PLC0415 -- an extra
    except ImportError:
        raise MissingError("PostgreSQL needs psycopg: install whippet-gateway[postgres] (docs/install.md)") from None
    return psycopg


def sql() -> Any:
    return driver().sql


def connect(url: Secret) -> psycopg.Connection[Any]:
    found: psycopg.Connection[Any] = driver().connect(
        url.text, options=SETTINGS, connect_timeout=10, application_name="whippet pipeline"
    )
    return found


class RowsRefused(Exception):
    """A statement has failed for what is in its rows; trying again would not help, and other rows may be taken."""

    def __init__(self, reason: str, state: str = "") -> None:
        super().__init__(reason)
        self.misses_another = state == FOREIGN_KEY
        """A row that it refers to, which may be there later."""


@contextmanager
def raising_refusals() -> Iterator[None]:
    """RowsRefused with PostgreSQL's sentence. Around the whole of a transaction, or of a savepoint: a constraint may be
    deferred to its end."""
    try:
        yield
    except driver().Error as error:
        if not (error.sqlstate or "").startswith(ROW_STATES):
            raise
        raise RowsRefused(error_text(error), error.sqlstate) from None


class Retries(NamedTuple):
    most: int
    delay_ms: int
    error: type[PipelineError]

    def run(self, what: str, act: Callable[[], T]) -> T:
        """Again where that can help, with pauses that double; `error` with PostgreSQL's sentence in the end."""
        psycopg, attempt = driver(), 0
        while True:
            try:
                return act()
            except psycopg.Error as error:
                if attempt >= self.most or not is_transient(error):
                    raise self.error(f"{what}: {error_text(error)}") from None
                _log.warning("%s: %s; trying again", what, error_text(error))
            time.sleep(min(self.delay_ms / 1000 * 2**attempt, PAUSE_S_MAX))
            attempt += 1


def is_transient(error: Any) -> bool:
    state = error.sqlstate
    # What libpq says by itself, such as that nobody listens, has none.
    return isinstance(error, driver().OperationalError) and (state is None or state.startswith(TRANSIENT_STATES))


_OF_COPY = re.compile(r"^COPY whippet_\w+, line \d+(?:, )?")
"""Of a table of ours, and the line of a text that nobody else sees."""


def error_text(error: Any) -> str:
    """The first line, and the detail if there is one, or the column."""
    diagnosis = getattr(error, "diag", None)
    said = (diagnosis.message_primary if diagnosis else None) or str(error).strip().splitlines()[0]
    more = _OF_COPY.sub("", diagnosis.message_detail or diagnosis.context or "") if diagnosis else None
    return f"{said} ({more})" if more else said


def identifier(*names: str) -> Any:
    """An identifier, for a statement that has parameters: there a '%' begins one of them."""
    return sql().Identifier(*(name.replace("%", "%%") for name in names))


def qualified(name: str) -> tuple[str, ...]:
    """`schema.table`, or `table`."""
    return tuple(name.split(".", 1))


# -------------------------------------------------------------------------------------------------------------- types


class ReadType(NamedTuple):
    """How a column is read."""

    spark: str
    select: str
    """What is asked for instead of the column, which is in the place of {}."""


_READ = {
    "smallint": "smallint",
    "integer": "int",
    "bigint": "bigint",
    "real": "float",
    "double precision": "double",
    "boolean": "boolean",
    "date": "date",
    "timestamp without time zone": "timestamp_ntz",
    "timestamp with time zone": "timestamp",
}


def read_type(name: str) -> ReadType:
    """By the name that `format_type` gives. What Spark has no like of is a text, exactly as PostgreSQL writes it."""
    numeric = re.fullmatch(r"numeric\((\d+),(\d+)\)", name)
    if numeric is not None and int(numeric[1]) <= 38:
        return ReadType(f"decimal({numeric[1]},{numeric[2]})", "{}")
    bare = re.sub(r"\(\d+\)", "", name)
    if bare == "bytea":
        return ReadType("binary", "encode({}, 'hex')")
    if bare in _READ:
        return ReadType(_READ[bare], "{}")
    return ReadType("string", "{}::text")


_WRITE: tuple[tuple[type[DataType], str], ...] = (
    (BooleanType, "boolean"),
    (ByteType, "smallint"),
    (ShortType, "smallint"),
    (IntegerType, "integer"),
    (LongType, "bigint"),
    (FloatType, "real"),
    (DoubleType, "double precision"),
    (BinaryType, "bytea"),
    (DateType, "date"),
    (TimestampType, "timestamptz"),
    (TimestampNTZType, "timestamp"),
    (StructType, "jsonb"),
    (ArrayType, "jsonb"),
    (MapType, "jsonb"),
)


def write_type(kind: DataType) -> str:
    """For a table that we make."""
    if isinstance(kind, DecimalType):
        return f"numeric({kind.precision},{kind.scale})"
    return next((name for each, name in _WRITE if isinstance(kind, each)), "text")
