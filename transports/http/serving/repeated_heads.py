"""Remembers the heads of requests: a client that repeats itself, byte by byte, need not be parsed again.

Most clients send the same head again and again, with another body. Everything that follows from the head alone is kept
with it: the parsed headers, and in `notes` what the layers behind the connection have made of them. Whether the caller
may still do what it asks for does not follow from the head.
"""

from __future__ import annotations

from typing import Any

from starlette.types import Scope

HEADS_MAX = 512
HEAD_BYTES_MAX = 2048
"""Longer heads are not remembered."""
BODY_BYTES_MAX = 64 << 10
"""A longer body seldom arrives together with its head."""

NOTES = "whippet.notes"
"""The key in the scope of a request of what is known about its head; absent for the first request of its kind. Each
layer has an entry under itself."""

AT_ONCE = "whippet.at_once"
"""The key in the notes of what answers requests with this head in fewer steps than the application, if anything does.
"""

_END = b"\r\n\r\n"
_SPECIAL = frozenset({b"transfer-encoding", b"expect", b"upgrade"})
"""Headers that change how the connection goes on."""
_FROM_THE_HEAD = ("method", "http_version", "headers", "path", "raw_path", "query_string")


class Head:
    """A head as it was parsed."""

    __slots__ = ("body_bytes", "notes", "scope")

    def __init__(self, scope: Scope, body_bytes: int) -> None:
        self.body_bytes = body_bytes
        self.notes: dict[object, Any] = {}
        self.scope: dict[str, Any] = {name: scope[name] for name in _FROM_THE_HEAD}
        self.scope[NOTES] = self.notes


class RepeatedHeads:
    """The heads that were received by one listener."""

    def __init__(self) -> None:
        self._heads: dict[bytes, Head] = {}

    def find(self, data: bytes) -> tuple[Head, bytes] | None:
        """Returns the head and the body if the data is exactly one request with a known head."""
        end = data.find(_END) + len(_END)
        head = self._heads.get(data[:end])
        if head is None or len(data) - end != head.body_bytes:
            return None
        return head, data[end:]

    def add(self, data: bytes, scope: Scope) -> None:
        """Remembers the head at the start of the data, which was parsed as `scope`."""
        end = data.find(_END) + len(_END)
        raw = data[:end]
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        # The parser also accepts other ends of lines, with which its head may not end here.
        lines = len(headers) + 2
        if end > HEAD_BYTES_MAX or raw.count(b"\n") != lines or raw.count(b"\r\n") != lines:
            return
        length = b"0"
        for name, value in headers:
            if name == b"content-length":
                length = value
            elif name in _SPECIAL or (name == b"connection" and value.lower() != b"keep-alive"):
                return
        if not length.isdigit() or int(length) > BODY_BYTES_MAX:
            return
        if len(self._heads) >= HEADS_MAX:
            self._heads.clear()
        self._heads[raw] = Head(scope, int(length))
