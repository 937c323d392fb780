"""The places where reading a topic may begin: `first`, `end`, `-10` for the last ten of each partition, an offset, a
time such as 2026-07-31T12:00:00Z, or `2h-ago`."""

from __future__ import annotations

import datetime
import time
from typing import TYPE_CHECKING

from whippet.app.cli.remote.failures import UsageFailure

if TYPE_CHECKING:
    from whippet.app.commands.requests import Strategy

END = "end"
AGO = "-ago"


def parse(text: str) -> tuple[Strategy, int] | None:
    """Returns the strategy of the first poll, and how many messages it may return; None is the end."""
    from whippet.app.client.commands import FIRST, LAST, from_offset, from_time  # noqa: PLC0415 -- not for --help

    if text == END:
        return None
    if text == "first":
        return FIRST, MANY
    if text.isascii() and text.isdecimal():
        return from_offset(int(text)), MANY
    if text.startswith("-") and text[1:].isascii() and text[1:].isdecimal() and int(text[1:]):
        return LAST, int(text[1:])
    return from_time(_time(text)), MANY


MANY = 1000
"""Messages in one poll."""


def _time(text: str) -> int:
    from whippet.app.config.formats import Invalid, parse_duration  # noqa: PLC0415

    try:
        if text.endswith(AGO):
            return int((time.time() - parse_duration(text.removesuffix(AGO))) * 1e6)
        at = datetime.datetime.fromisoformat(text)
    except (ValueError, Invalid):
        raise UsageFailure(
            f"{text!r} is no place to begin: write first, end, -10, an offset, 2h-ago or 2026-07-31T12:00:00Z"
        ) from None
    if at.tzinfo is None:
        at = at.replace(tzinfo=datetime.UTC)
    return int(at.timestamp() * 1e6)
