"""Whether a topic remembers enough ids for a replay to add nothing, and the warning when it does not.

A window that is smaller than what is replayed catches nothing at all: the oldest ids have left it when they come again,
and each that is stored anew pushes out the next one that will come.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_log = logging.getLogger(__name__)
SWITCH = "message_deduplication"
ENTRIES = "message_deduplication_max_entries"
EXPIRY = "message_deduplication_expiry"
NEW_TOPIC_OPTIONS = {SWITCH: "true", ENTRIES: "1000000", EXPIRY: "1 day"}
"""What a topic that is made here is made with."""
UNLIMITED = 2**64 - 1
_warned: set[str] = set()


@dataclass(frozen=True)
class Window:
    """What a partition remembers."""

    entries: int
    """0: nothing."""
    expiry_s: float

    @property
    def duration_text(self) -> str:
        return "for ever" if math.isinf(self.expiry_s) else f"for {self.expiry_s:g} s"


OFF = Window(0, 0.0)


def window_of(details: Mapping[str, Any]) -> Window | None:
    """What the details of a topic tell; None where nothing is told of it, as by other servers."""
    options = details.get("options")
    if not isinstance(options, dict):
        return None
    said = {name: str(option.get("value")) for name, option in options.items()}
    if said.get(SWITCH) != "true":
        return OFF
    expiry_us = int(said.get(EXPIRY, UNLIMITED))
    expiry_s = math.inf if expiry_us == UNLIMITED else expiry_us / 1_000_000
    return Window(int(said.get(ENTRIES, UNLIMITED)), expiry_s)


def warning(topic: str, window: Window | None, most: int) -> str | None:
    """If one partition got so many messages at once."""
    if window is None:
        return (
            f"the server does not say that {topic} drops messages whose id it has seen: "
            "if it does not, what is replayed after a failure is written twice"
        )
    if window == OFF:
        return (
            f"{topic} keeps no ids: what is replayed after a failure is written twice; "
            f"set {SWITCH}=true among the options of the topic"
        )
    if most <= window.entries:
        return None
    return (
        f"a batch put {most} messages into one partition of {topic}, which remembers {window.entries} ids "
        f"{window.duration_text}: a replay would write messages twice; raise {ENTRIES}, or write smaller batches"
    )


def warn_once(sentence: str | None) -> None:
    """Loud, and once in each process."""
    if sentence is not None and sentence not in _warned:
        _warned.add(sentence)
        _log.warning("%s", sentence)
