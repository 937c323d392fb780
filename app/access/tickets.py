"""Tickets: for clients that cannot send a header, as the EventSource and the WebSocket of a browser cannot.

A ticket stands for the `Authorization` header of whoever has asked for it, once, and for a short while, so that it may
stand in a URL, which ends up in logs. That header is looked at when the ticket is used, like any other. For the event
loop; nothing is kept on disk.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

PER_USER_MAX = 64
"""Unused ones; one more, and the oldest is worth nothing any more."""
TICKET_BYTES = 24


class Ticket(NamedTuple):
    authorization: bytes
    ends_at: int


class Tickets:
    def __init__(self, life_s: float, clock: Callable[[], int]) -> None:
        """`clock` in us."""
        self._life_us = int(life_s * 1_000_000)
        self._clock = clock
        self._tickets: dict[str, Ticket] = {}
        self._of_user: dict[str, deque[str]] = {}

    def __len__(self) -> int:
        return len(self._tickets)

    def issue(self, authorization: bytes, mark: str) -> tuple[str, int]:
        """The ticket, and when it ends; `mark` is that of the user."""
        self._forget()
        text = secrets.token_urlsafe(TICKET_BYTES)
        ends_at = self._clock() + self._life_us
        self._tickets[text] = Ticket(authorization, ends_at)
        of_user = self._of_user.setdefault(mark, deque())
        of_user.append(text)
        if len(of_user) > PER_USER_MAX:
            self._tickets.pop(of_user.popleft(), None)
        return text, ends_at

    def redeem(self, text: str) -> bytes | None:
        """What it stands for; None if it was used, has ended, or never was."""
        ticket = self._tickets.pop(text, None)
        return None if ticket is None or ticket.ends_at < self._clock() else ticket.authorization

    def _forget(self) -> None:
        """Those that have ended: they are the oldest."""
        now = self._clock()
        for text, ticket in list(self._tickets.items()):
            if ticket.ends_at >= now:
                break
            del self._tickets[text]
        for mark, of_user in list(self._of_user.items()):
            while of_user and of_user[0] not in self._tickets:
                of_user.popleft()
            if not of_user:
                del self._of_user[mark]
