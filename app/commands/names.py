"""Rules about names and numbers that several commands share."""

from __future__ import annotations

from whippet.app.errors import Code, CommandError

NAME_BYTES_MAX = 255
UNLIMITED = 2**64 - 1


def check_name(name: str, what: str) -> None:
    """Streams, topics and groups: any text of 1 to 255 bytes."""
    if not 1 <= len(name.encode()) <= NAME_BYTES_MAX:
        raise CommandError(Code.INVALID_FORMAT, f"the name of a {what} has 1 to {NAME_BYTES_MAX} bytes")
