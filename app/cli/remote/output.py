"""Prints what a command returns: rows as a table, as JSON, or only their names.

A command returns a `Row`, a list of them, or None; the types of their fields decide how a table shows them, and what
the JSON schema of the output is. rich is imported only if the output is a terminal.
"""

from __future__ import annotations

import datetime
import enum
import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar, TextIO, get_args, get_origin, get_type_hints

import msgspec

from whippet.app.cli.remote import json_text

NEVER = 2**64 - 1
"""On the wire, an expiry that never comes and a size without a limit."""


class Format(enum.StrEnum):
    TABLE = "table"
    JSON = "json"
    NDJSON = "ndjson"
    QUIET = "quiet"


class Kind(enum.Enum):
    """The way in which a table shows a number."""

    COUNT = "count"
    SIZE = "size"
    TIME = "time"
    EXPIRY = "expiry"
    LIMIT = "limit"
    DURATION = "duration"


def _number(kind: Kind, description: str) -> Any:
    return msgspec.Meta(ge=0, description=description, extra={"kind": kind})


Count = Annotated[int, _number(Kind.COUNT, "a number of things")]
Size = Annotated[int, _number(Kind.SIZE, "bytes")]
Time = Annotated[int, _number(Kind.TIME, "microseconds since 1970; 0 is never")]
Expiry = Annotated[int, _number(Kind.EXPIRY, "microseconds; 0 is the server's default, 2^64 - 1 is never")]
Limit = Annotated[int, _number(Kind.LIMIT, "bytes; 0 is the server's default, 2^64 - 1 is unlimited")]
Duration = Annotated[int, _number(Kind.DURATION, "microseconds")]


class Row(msgspec.Struct, frozen=True):
    """A thing that is printed. Its fields are the columns, and the properties in JSON."""

    identity: ClassVar[str] = "name"
    """The field that `--output quiet` prints; empty: none."""


class Done(Row, frozen=True):
    """The result of a command that has no other one."""

    identity: ClassVar[str] = ""
    done: str


Result = Row | Sequence[Row] | None


def show(result: Result, form: Format, *, of: type[Row] | None = None, file: TextIO | None = None) -> None:
    """Prints a result. `of` is the type of the rows, so that an empty table has a heading."""
    out = file or sys.stdout
    if result is None:
        return
    if form is Format.JSON:
        print_json(msgspec.json.format(msgspec.json.encode(result), indent=2), out, keeps_lines=True)
    elif form is Format.NDJSON:
        for row in _rows(result):
            print_json(msgspec.json.encode(row), out)
    elif form is Format.QUIET:
        for row in _rows(result):
            if row.identity:
                name = str(getattr(row, row.identity))
                print(printable(name) if out.isatty() else name, file=out)
    elif isinstance(result, Done):
        print(printable(result.done), file=out)
    elif isinstance(result, Row):
        _show_one(result, out)
    else:
        _show_table(list(result), of, out)


def print_json(octets: bytes, out: TextIO, *, keeps_lines: bool = False) -> None:
    """Prints JSON; on a terminal in colours, and with nothing that would command it."""
    text = octets.decode()
    print(json_text.shown(text, colours=is_colourful(out), keeps_lines=keeps_lines) if out.isatty() else text, file=out)


def _rows(result: Row | Sequence[Row]) -> Sequence[Row]:
    return [result] if isinstance(result, Row) else result


# --------------------------------------------------------------------------------------------------------- tables


def _show_one(row: Row, out: TextIO) -> None:
    """Prints a thing as a line per field, and the lists in it as tables below."""
    below: list[tuple[str, list[Row]]] = []
    lines = []
    for field in row.__struct_fields__:
        value = getattr(row, field)
        if isinstance(value, list) and (not value or isinstance(value[0], Row)):
            below.append((field, value))
        else:
            lines.append((_title(field), text(type(row), field, value)))
    width = max(len(title) for title, _ in lines)
    for title, shown in lines:
        print(f"{title.ljust(width)}  {shown}".rstrip(), file=out)
    for field, rows in below:
        print(f"\n{_title(field)}", file=out)
        _show_table(rows, None, out)


def _show_table(rows: list[Row], of: type[Row] | None, out: TextIO) -> None:
    kind = type(rows[0]) if rows else of
    if kind is None:
        print("none", file=out)
        return
    fields = kind.__struct_fields__
    cells = [[text(kind, field, getattr(row, field)) for field in fields] for row in rows]
    titles = [_title(field) for field in fields]
    right = [_kind_of(kind, field) not in (None, Kind.TIME) for field in fields]
    if is_colourful(out):
        _show_rich(titles, cells, right, out)
        return
    widths = [max(map(len, column)) for column in zip(titles, *cells, strict=True)]
    for line in (titles, *cells):
        padded = (
            cell.rjust(width) if to_the_right else cell.ljust(width)
            for cell, width, to_the_right in zip(line, widths, right, strict=True)
        )
        print("  ".join(padded).rstrip(), file=out)


def _show_rich(titles: list[str], cells: list[list[str]], right: list[bool], out: TextIO) -> None:
    from rich import box  # noqa: PLC0415 -- only for a terminal
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title, to_the_right in zip(titles, right, strict=True):
        table.add_column(title, justify="right" if to_the_right else "left", overflow="fold")
    for line in cells:
        # What users have chosen is no markup.
        table.add_row(*(_coloured(cell) if json_text.is_json(cell) else Text(cell) for cell in line))
    Console(file=out).print(table)


def _coloured(cell: str) -> Any:
    from rich.text import Text  # noqa: PLC0415

    return Text.assemble(*((part, json_text.STYLES.get(kind, "")) for kind, part in json_text.tokens(cell)))


def is_colourful(out: TextIO) -> bool:
    """Colours are for terminals whose user has not set NO_COLOR (https://no-color.org)."""
    return out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _title(field: str) -> str:
    return field.removesuffix("_bytes").removesuffix("_count").replace("_", " ")


# --------------------------------------------------------------------------------------------------------- values


def _kind_of(row: type[Row], field: str) -> Kind | None:
    hint = get_type_hints(row, include_extras=True)[field]
    for part in (hint, *get_args(hint)):
        if get_origin(part) is Annotated:
            for meta in get_args(part)[1:]:
                if isinstance(meta, msgspec.Meta) and meta.extra:
                    kind: Kind = meta.extra["kind"]
                    return kind
    return None


def text(row: type[Row], field: str, value: Any) -> str:
    """Returns a value as people read it. Control characters from servers and users do not reach the terminal."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        kind = _kind_of(row, field)
        return _NUMBERS[kind](value) if kind else str(value)
    if isinstance(value, float):
        return f"{value:.1f}"
    if isinstance(value, dict):
        return printable(", ".join(f"{key}={each}" for key, each in value.items()))
    if isinstance(value, list):
        return printable(", ".join(map(str, value)))
    return printable(str(value))


def printable(shown: str) -> str:
    return shown if shown.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in shown)


def size_text(size: int) -> str:
    if size < 1024:
        return f"{size} B"
    power = min((size.bit_length() - 1) // 10, 5)
    return f"{size / 1024**power:.1f} {'KMGTP'[power - 1]}iB"


def time_text(microseconds: int) -> str:
    if not microseconds:
        return "never"
    try:
        at = datetime.datetime.fromtimestamp(microseconds / 1e6, datetime.UTC)
    except (OverflowError, ValueError, OSError):
        return str(microseconds)
    return f"{at:%Y-%m-%d %H:%M:%S}Z"


def duration_text(microseconds: int) -> str:
    seconds = microseconds / 1e6
    if seconds < 1:
        return f"{seconds * 1000:.2f} ms"
    whole = int(seconds)
    parts = (("d", whole // 86_400), ("h", whole // 3600 % 24), ("m", whole // 60 % 60), ("s", whole % 60))
    return " ".join(f"{number}{unit}" for unit, number in parts if number)


def _expiry_text(microseconds: int) -> str:
    return {0: "the server's default", NEVER: "never"}.get(microseconds) or duration_text(microseconds)


def _limit_text(size: int) -> str:
    return {0: "the server's default", NEVER: "unlimited"}.get(size) or size_text(size)


_NUMBERS: dict[Kind, Callable[[int], str]] = {
    Kind.COUNT: lambda number: f"{number:,}",
    Kind.SIZE: size_text,
    Kind.TIME: time_text,
    Kind.EXPIRY: _expiry_text,
    Kind.LIMIT: _limit_text,
    Kind.DURATION: duration_text,
}
