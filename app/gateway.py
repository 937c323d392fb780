"""The gateway: everything that commands work on, in one place. Made by app.server, handed to every command.

It holds no behaviour of commands; what it does itself is to come up from the store and to run the housekeeping that no
client asks for: retention, heartbeats, expired tokens, overdue hand-overs in consumer groups.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from app.access.tokens import Tokens
from app.access.users import Users
from app.config import Config
from app.model.catalogue import Shelf, Stream
from app.model.sessions import Sessions
from storage.store import Store


class Addresses:
    """Where the listeners really are: port numbers, 0 for a transport that is off."""

    __slots__ = ("host", "http", "quic", "tcp", "websocket")

    def __init__(self) -> None:
        self.host = "127.0.0.1"
        self.tcp = self.http = self.quic = self.websocket = 0


class Gateway:
    def __init__(
        self, config: Config, store: Store, streams: Shelf[Stream], users: Users, tokens: Tokens, clock: Callable[[], int]
    ) -> None:
        self.config = config
        self.store = store
        self.streams = streams
        self.users = users
        self.tokens = tokens
        self.clock = clock
        self.sessions = Sessions()
        self.addresses = Addresses()
        self.started_at = clock()
        self.changing = asyncio.Lock()
        """Held by whatever changes the catalogue: names are looked up and taken in one step."""
