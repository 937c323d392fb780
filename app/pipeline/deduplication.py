"""Whether the gateway remembers enough ids for a replay to add nothing, and the warning when it does not.

A window that is smaller than what is replayed catches nothing at all: the oldest ids have left it when they come again,
and each that is stored anew pushes out the next one that will come.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from app.pipeline.session import Session

_log = logging.getLogger(__name__)
ENTRIES = "system.message_deduplication.max_entries"
EXPIRY = "system.message_deduplication.expiry"
UNKNOWN = (
    "the gateway does not say that it drops messages whose id it has seen: if system.message_deduplication is off, "
    "what is replayed after a failure is written twice"
)
_said: set[str] = set()


@dataclass(frozen=True)
class Window:
    """What a partition remembers; 0 is without a bound, as in the settings."""

    entries: int
    expiry_s: float


def window(session: Session) -> Window | None:
    """What `GET /limits` tells; None if it tells nothing of it."""
    reply = session.find("/limits")
    if reply is None:
        return None
    return of_limits(reply.json)


def of_limits(limits: Iterable[Mapping[str, Any]]) -> Window | None:
    found = {each.get("key"): each.get("value") for each in limits}
    entries = found.get(ENTRIES)
    return None if entries is None else Window(int(entries), float(found.get(EXPIRY) or 0))


def too_small(window: Window, by_partition: Mapping[tuple[str, int], int]) -> str | None:
    """The warning, if one partition got more messages than it remembers."""
    if not by_partition or not window.entries:
        return None
    (topic, partition), most = max(by_partition.items(), key=lambda item: item[1])
    if most <= window.entries:
        return None
    return (
        f"{most} messages went to {topic} partition {partition} at once, and the gateway keeps {window.entries} ids "
        f"for {window.expiry_s:g} s: a replay would be written twice; raise {ENTRIES}, or write less at a time"
    )


def warn(sentence: str | None) -> None:
    """Loud, and once in each process."""
    if sentence is not None and sentence not in _said:
        _said.add(sentence)
        _log.warning("%s", sentence)
