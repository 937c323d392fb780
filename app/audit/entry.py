"""One entry of the audit log, as a line of JSON."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec

from whippet.app.audit.notes import Changed

ENTRY_BYTES_MAX = 64 << 10
"""A longer entry loses its details."""
DONE = "done"
ABORTED = "aborted"
"""The server stopped meanwhile: it may have been done or not."""


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    time: str
    """RFC 3339, in UTC."""
    number: int
    """Consecutive from 1 since the start of the server: a gap shows that entries were lost, or removed. 0: the entry
    says how many were lost."""
    command: str
    outcome: str
    """`done`, `aborted`, or the name of the error."""
    user: str | None
    """The name; None if nobody had logged in, or for a failed login in the name of nobody."""
    user_id: int | None = None
    address: str = ""
    transport: str = ""
    request_id: str | None = None
    """The id that an HTTP client gave its request in `X-Request-Id`."""
    tool: str | None = None
    """The tool of an assistant."""
    repeated: int = 0
    """So many like this followed within a minute; `time` is that of the last."""
    request: dict[str, Any] = {}
    changes: list[Changed] = []
    is_shortened: bool = False
    """The entry was too long, or had what JSON cannot express: the details are missing."""

    def numbered(self, number: int) -> Entry:
        return msgspec.structs.replace(self, number=number)


def shown_time(now_us: int) -> str:
    moment = datetime.datetime.fromtimestamp(now_us // 1_000_000, datetime.UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{now_us % 1_000_000:06}Z"


def encode(entry: Entry) -> bytes:
    """Returns a line without its end."""
    try:
        line = msgspec.json.encode(entry)
        if len(line) <= ENTRY_BYTES_MAX:
            return line
    except (ValueError, OverflowError, TypeError):
        # JSON cannot express what a client sent, such as half a character.
        pass
    without = [Changed(each.kind, each.name[:255], None, None) for each in entry.changes[:10]]
    return msgspec.json.encode(msgspec.structs.replace(entry, request={}, changes=without, is_shortened=True))
