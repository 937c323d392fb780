"""Code that the PostgreSQL source and sink share: connections, identifiers, retries, and the mapping of types."""

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
# The text format of times must not depend on the server's settings.
SETTINGS = "-c TimeZone=UTC -c DateStyle=ISO -c IntervalStyle=iso_8601 -c extra_float_digits=3"
# No response, too many connections, shutting down, starting up, a deadlock, a serialization failure.
TRANSIENT_STATES = ("08", "53", "57P", "40")
# A value that does not fit its type, a constraint, a view's check, an error raised by a trigger, a value that is too
# large for an index.
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
    """A statement failed because of its rows: a retry would not help, but other rows may be accepted."""

    def __init__(self, reason: str, state: str = "") -> None:
        super().__init__(reason)
        self.misses_another = state == FOREIGN_KEY
        """It refers to a row that is missing but may come later."""


@contextmanager
def raising_refusals() -> Iterator[None]:
    """Raises RowsRefused with PostgreSQL's reason. It must surround a whole transaction or savepoint, because a
    constraint may be deferred to the end."""
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
        """Retries after transient errors, with pauses that double. In the end it raises `error` with PostgreSQL's
        reason."""
        psycopg, attempt = driver(), 0
        while True:
            try:
                return act()
            except psycopg.Error as error:
                if attempt >= self.most or not is_transient(error):
                    raise self.error(f"{what}: {error_text(error)}") from None
                _log.warning("%s: %s; retrying", what, error_text(error))
            time.sleep(min(self.delay_ms / 1000 * 2**attempt, PAUSE_S_MAX))
            attempt += 1


def is_transient(error: Any) -> bool:
    state = error.sqlstate
    # Errors of libpq itself, such as a refused connection, have no SQLSTATE.
    return isinstance(error, driver().OperationalError) and (state is None or state.startswith(TRANSIENT_STATES))


_OF_COPY = re.compile(r"^COPY whippet_\w+, line \d+(?:, )?")
"""Names an internal table, and a line of data that the user never sees."""


def error_text(error: Any) -> str:
    """Returns the first line of an error, and its detail or the column."""
    diagnosis = getattr(error, "diag", None)
    message = (diagnosis.message_primary if diagnosis else None) or str(error).strip().splitlines()[0]
    more = _OF_COPY.sub("", diagnosis.message_detail or diagnosis.context or "") if diagnosis else None
    return f"{message} ({more})" if more else message


def identifier(*names: str) -> Any:
    """Returns an identifier for a statement that has parameters, in which a '%' has to be doubled."""
    return sql().Identifier(*(name.replace("%", "%%") for name in names))


def qualified(name: str) -> tuple[str, ...]:
    """Splits `schema.table`; the schema may be missing."""
    return tuple(name.split(".", 1))


# -------------------------------------------------------------------------------------------------------------- types


class ReadType(NamedTuple):
    """How a column is read."""

    spark: str
    select: str
    """The expression to select; {} stands for the column."""


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
    """Maps a name that `format_type` returns. Types without an equivalent in Spark are read as PostgreSQL's text."""
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
    """The column type in tables that the sink creates."""
    if isinstance(kind, DecimalType):
        return f"numeric({kind.precision},{kind.scale})"
    return next((name for each, name in _WRITE if isinstance(kind, each)), "text")
