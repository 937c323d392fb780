"""Messages of a topic as columns, in Parquet and Arrow. It needs pyarrow, an extra, and only these formats do.

Columns are those of topic_records.py. `payload` has bytes, times are timestamps in UTC with microseconds, `headers` is
a list of structures, and `headers_raw` has the block of a message whose headers cannot be such a list.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, BinaryIO

from whippet.app.cli.remote.failures import Failure, UsageFailure
from whippet.app.cli.remote.topic_records import BadRow, Header, Record, block_of, checked, headers_of

ROWS = 16_384
"""In a batch of Arrow and a row group of Parquet, unless they are large."""
BYTES = 32 << 20
I64_MAX = 2**63 - 1
ARROW_MAGIC = b"ARROW1"
MISSING = "Parquet and Arrow need pyarrow: pip install 'whippet-gateway[arrow]'"


def arrow() -> Any:
    try:
        import pyarrow  # noqa: PLC0415 -- an extra, and slow to import
    except ModuleNotFoundError:
        raise Failure(MISSING) from None
    return pyarrow


def schema() -> Any:
    pa = arrow()
    time = pa.timestamp("us", "UTC")
    header = pa.struct([("key", pa.string()), ("kind", pa.string()), ("value", pa.string())])
    return pa.schema(
        [
            ("partition_id", pa.uint32()),
            ("offset", pa.uint64()),
            ("timestamp", time),
            ("origin_timestamp", time),
            ("id", pa.string()),
            ("headers", pa.list_(header)),
            ("headers_raw", pa.binary()),
            ("payload", pa.binary()),
        ]
    )


class Table:
    """A file that is being written. It is complete when the block ends without an error."""

    def __init__(self, file: BinaryIO, form: str, *, as_stream: bool) -> None:
        self._output = _Output(file)
        self._form = form
        self._as_stream = as_stream
        self._schema = schema()
        self._rows: list[dict[str, Any]] = []
        self._size = 0

    def __enter__(self) -> Table:
        pa = arrow()
        sink = pa.PythonFile(self._output, mode="w")
        if self._form == "parquet":
            import pyarrow.parquet as parquet  # noqa: PLC0415, PLR0402

            self._writer = parquet.ParquetWriter(sink, self._schema, compression="zstd")
        else:
            self._writer = (pa.ipc.new_stream if self._as_stream else pa.ipc.new_file)(sink, self._schema)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if kind is None:
            self._write()
        else:
            self._output.is_abandoned = True
        self._writer.close()

    def add(self, records: Iterable[Record]) -> None:
        for record in records:
            self._rows.append(_row(record))
            self._size += len(record.payload)
            if len(self._rows) >= ROWS or self._size >= BYTES:
                self._write()

    def _write(self) -> None:
        if self._rows:
            self._writer.write_batch(arrow().RecordBatch.from_pylist(self._rows, schema=self._schema))
            self._rows, self._size = [], 0


class _Output:
    """The file that Arrow writes to. Once it is abandoned, nothing more is written: an end
    would make it look complete."""

    closed = False

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.is_abandoned = False

    def write(self, octets: bytes) -> int:
        return len(octets) if self.is_abandoned else self._file.write(octets)

    def flush(self) -> None:
        if not self.is_abandoned:
            self._file.flush()

    def close(self) -> None:
        """Leaves closing the file to whoever has opened it."""


def _row(record: Record) -> dict[str, Any]:
    headers = headers_of(record.headers)
    for name in ("timestamp", "origin_timestamp"):
        value = getattr(record, name)
        if value > I64_MAX:
            raise Failure(
                f"partition {record.partition_id}, offset {record.offset}: no {name} of Arrow is {value}; "
                "ndjson can express it"
            )
    return {
        "partition_id": record.partition_id,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "origin_timestamp": record.origin_timestamp,
        "id": str(record.id),
        "headers": [{"key": each.key, "kind": each.kind, "value": each.value} for each in headers or ()],
        "headers_raw": record.headers if headers is None else None,
        "payload": record.payload,
    }


def read(file: BinaryIO, name: str, form: str) -> Iterator[Record]:
    """Yields the messages of a file. Raises UsageFailure, which names the row."""
    pa = arrow()
    number = 0
    try:
        for batch in _batches(file, form):
            for row in _rows(batch):
                number += 1
                try:
                    yield _record(row)
                except BadRow as error:
                    raise UsageFailure(f"{name}, row {number}: {error}") from None
    except (pa.ArrowException, OSError) as error:
        raise UsageFailure(f"{name}: {error}") from None


def _batches(file: BinaryIO, form: str) -> Iterator[Any]:
    pa = arrow()
    # Both formats are read from the end.
    source = file if file.seekable() else io.BytesIO(file.read())
    if form == "parquet":
        import pyarrow.parquet as parquet  # noqa: PLC0415, PLR0402

        with parquet.ParquetFile(source) as opened:
            yield from opened.iter_batches(batch_size=ROWS)
        return
    magic = source.read(len(ARROW_MAGIC))
    source.seek(0)
    with contextlib.ExitStack() as opened:
        if magic == ARROW_MAGIC:
            reader = opened.enter_context(pa.ipc.open_file(source))
            yield from (reader.get_batch(i) for i in range(reader.num_record_batches))
        else:
            yield from opened.enter_context(pa.ipc.open_stream(source))


def _rows(batch: Any) -> Iterator[dict[str, Any]]:
    pa = arrow()
    known = schema()
    names = batch.schema.names
    for name in names:
        if name not in known.names:
            raise UsageFailure(f"there is no column {name!r} of messages: they have {', '.join(known.names)}")
    if "payload" not in names:
        raise UsageFailure("there is no column payload")
    columns = []
    for name in names:
        wanted, column = known.field(name).type, batch.column(name)
        try:
            cast = column.cast(wanted)
            columns.append(cast.cast(pa.int64()) if pa.types.is_timestamp(wanted) else cast)
        except pa.ArrowException as error:
            raise UsageFailure(f"the column {name} has type {column.type}, and {wanted} is needed: {error}") from None
    yield from pa.RecordBatch.from_arrays(columns, names=names).to_pylist()


def _record(row: dict[str, Any]) -> Record:
    raw, listed = row.get("headers_raw"), row.get("headers") or ()
    if raw and listed:
        raise BadRow("headers and headers_raw exclude each other")
    if row["payload"] is None:
        raise BadRow("there is no payload")
    identity = row.get("id")
    if identity is not None and not (identity.isascii() and identity.isdecimal()):
        raise BadRow(f"the id is not a number: {identity!r}")
    block = raw or block_of(_header(each) for each in listed)
    return checked(
        Record(
            row.get("partition_id"),
            _or(row.get("offset"), -1),
            _or(row.get("timestamp"), -1),
            row.get("origin_timestamp"),
            int(identity or 0),
            block,
            row["payload"],
        )
    )


def _header(found: dict[str, str | None] | None) -> Header:
    key, kind, value = (found or {}).get("key"), (found or {}).get("kind"), (found or {}).get("value")
    if key is None or kind is None or value is None:
        raise BadRow("a header has a key, a kind and a value")
    return Header(key, kind, value)


def _or(value: int | None, otherwise: int) -> int:
    return otherwise if value is None else value
