"""Checks whether a topic remembers enough ids for a replay to add nothing, and warns if it does not.

A window smaller than the replay catches nothing at all: the oldest ids have left it when they arrive again, and each
message that is then stored again pushes out the id of the next one.
"""

from __future__ import annotations

import json
import logging
import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

_log = logging.getLogger(__name__)
SWITCH = "message_deduplication"
ENTRIES = "message_deduplication_max_entries"
EXPIRY = "message_deduplication_expiry"
NEW_TOPIC_OPTIONS = {SWITCH: "true", ENTRIES: "1000000", EXPIRY: "1 day"}
"""The options of topics that the data source creates."""
UNLIMITED = 2**64 - 1
_warned: set[str] = set()


@dataclass(frozen=True)
class Window:
    """The ids that a partition remembers."""

    entries: int
    """0 if deduplication is off."""
    expiry_s: float

    @property
    def duration_text(self) -> str:
        return "forever" if math.isinf(self.expiry_s) else f"for {self.expiry_s:g} s"


OFF = Window(0, 0.0)


def window_of(details: Mapping[str, Any]) -> Window | None:
    """Returns the window from the details of a topic, or None if they do not report it, as with other servers."""
    options = details.get("options")
    if not isinstance(options, dict):
        return None
    values = {name: str(option.get("value")) for name, option in options.items()}
    if values.get(SWITCH) != "true":
        return OFF
    expiry_us = int(values.get(EXPIRY, UNLIMITED))
    expiry_s = math.inf if expiry_us == UNLIMITED else expiry_us / 1_000_000
    return Window(int(values.get(ENTRIES, UNLIMITED)), expiry_s)


def warning(topic: str, window: Window | None, most: int) -> str | None:
    """Returns a warning if replaying `most` messages of one partition would write some twice."""
    if window is None:
        return (
            f"the server does not report whether {topic} drops messages whose id it has seen: "
            "if it does not, a replay after a failure writes messages twice"
        )
    if window == OFF:
        stream, _, name = topic.partition("/")
        body = shlex.quote(json.dumps({"name": name, "options": {SWITCH: "true"}}))
        return (
            f"{topic} remembers no ids, so a replay after a failure writes messages twice; this turns it on: "
            f"curl -X PUT -H 'authorization: Bearer <token>' -H 'content-type: application/json' -d {body} "
            f"<url>/streams/{quote(stream, safe='')}/topics/{quote(name, safe='')}"
        )
    if most <= window.entries:
        return None
    return (
        f"a batch put {most} messages into one partition of {topic}, which remembers {window.entries} ids "
        f"{window.duration_text}: a replay would write messages twice; raise {ENTRIES}, or write smaller batches"
    )


def warn_once(sentence: str | None) -> None:
    """Logs a warning, but only once in each process."""
    if sentence is not None and sentence not in _warned:
        _warned.add(sentence)
        _log.warning("%s", sentence)
