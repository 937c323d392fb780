"""The server under test, and the interface of fuzzing clients."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import NamedTuple

Address = tuple[str, int]


class Place(NamedTuple):
    tcp: Address
    http: Address
    """WebSocket, too."""
    quic: Address
    """HTTP/3, too."""
    token: str
    """A token of a user who may do everything but change users."""


Client = Callable[[Place, random.Random, float], Awaitable[None]]
"""Connects, sends anything and leaves, until the time is over or nobody listens. It checks what it receives."""
