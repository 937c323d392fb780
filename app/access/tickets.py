"""Tickets: for clients that cannot send a header, such as the EventSource and the WebSocket of a browser.

A ticket replaces the `Authorization` header of the client that requested it, once and for a short while, so that it may
be part of a URL, which ends up in logs. The header is checked when the ticket is redeemed, like any other. For the
event loop; nothing is stored on disk.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

PER_USER_MAX = 64
"""Unused ones; one more invalidates the oldest."""
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
        """Returns the ticket and when it expires; `mark` is that of the user."""
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
        """Returns the header; None if the ticket was used, has expired, or never existed."""
        ticket = self._tickets.pop(text, None)
        return None if ticket is None or ticket.ends_at < self._clock() else ticket.authorization

    def _forget(self) -> None:
        """Removes expired tickets, which are the oldest."""
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
