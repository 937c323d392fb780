"""What is exported, as values: spans and lines of the log. Times are nanoseconds since 1970."""

from __future__ import annotations

from typing import NamedTuple

Attributes = dict[str, str | int | float | bool]


class Span(NamedTuple):
    name: str
    trace_id: bytes
    span_id: bytes
    parent_id: bytes
    """Empty if the trace begins here."""
    start_ns: int
    end_ns: int
    attributes: Attributes
    error: str | None


class LogLine(NamedTuple):
    time_ns: int
    level: int
    """Of Python's logging."""
    logger: str
    text: str
    attributes: Attributes
