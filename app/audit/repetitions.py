"""Keeps one client from filling the audit log, and so from pushing out what others did: refusals and logins that
repeat each other within a minute become two entries, the first and one with the number of those that followed.

Changes that were made are never taken together.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from whippet.app.audit.entry import Entry

WINDOW_US = 60_000_000
KINDS_MAX = 200
"""Different refusals and logins within a window that have entries of their own; more are taken together by command and
outcome, without names and addresses."""

Key = tuple[str, str, str | None, str, str]


class Repetitions:
    def __init__(self, record: Callable[[Entry], None]) -> None:
        self._record = record
        self._seen: dict[Key, Entry | None] = {}
        """None: only the first has been there."""
        self._until_us = 0

    @property
    def is_settled(self) -> bool:
        return not self._seen

    def admit(self, entry: Entry, now_us: int) -> bool:
        """Returns whether to record it now. The caller calls `settle` at times, also if nothing happens."""
        self.settle(now_us)
        if not self._seen:
            self._until_us = now_us + WINDOW_US
        key = entry.address.rpartition(":")[0], entry.transport, entry.user, entry.command, entry.outcome
        if key not in self._seen and len(self._seen) >= KINDS_MAX:
            key = "", "", None, entry.command, entry.outcome
            entry = msgspec.structs.replace(
                entry, address="", transport="", user=None, user_id=None, request={}, changes=[]
            )
        if key not in self._seen:
            self._seen[key] = None
            return True
        last = self._seen[key]
        self._seen[key] = msgspec.structs.replace(entry, repeated=1 if last is None else last.repeated + 1)
        return False

    def settle(self, now_us: int) -> None:
        """Records what was taken together, once its minute is over."""
        if self._seen and not self._until_us - WINDOW_US <= now_us < self._until_us:
            self.flush()

    def flush(self) -> None:
        seen, self._seen = self._seen, {}
        for entry in seen.values():
            if entry is not None:
                self._record(entry)
