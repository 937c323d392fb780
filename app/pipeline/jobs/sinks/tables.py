"""What the sinks of tables in a lake have in common: whether records fit a table that is there, and what is said where
its library goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from app.pipeline.jobs.errors import FileError, SinkError
from app.pipeline.jobs.sentences import first_line


class Column(NamedTuple):
    kind: Any
    is_required: bool


def compare(
    ours: Mapping[str, Any], there: Mapping[str, Column], takes: Callable[[Any, Any], bool], table: str, place: str
) -> None:
    """`ours` are fields and their types; `takes` says whether a column of a type takes a field of another one. What the
    table has besides becomes null."""
    for name, kind in ours.items():
        if name not in there:
            raise FileError(f"{place}: table {table} has no column '{name}'; it has {', '.join(there)}")
        if not takes(there[name].kind, kind):
            raise FileError(
                f"{place}: column '{name}' of table {table} is {there[name].kind}, and the field is {kind}; cast it"
            )
    for name, column in there.items():
        if column.is_required and name not in ours:
            raise FileError(f"{place}: column '{name}' of table {table} must not be null, and there is no such field")


@contextmanager
def failures(place: str) -> Iterator[None]:
    """Around calls of a library alone: such libraries raise whatever they like, some of it with traces in the text."""
    try:
        yield
    except Exception as error:
        raise SinkError(f"{place}: {first_line(error)}") from error
