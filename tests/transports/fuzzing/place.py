"""Where the server is that everybody says anything to, and what a client of the fuzz is."""

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
    """Of a user who may do all but change users."""


Client = Callable[[Place, random.Random, float], Awaitable[None]]
"""Connects, says anything and goes, until the time is over or nobody listens. What it hears it checks."""
