"""runtime/returning_clients.json: clients that were recognised by their first requests.

The login of a client may not reveal its version (transports/wire/classic/dialect.py). Its behaviour right after its
first connection then does; later connections do not show that again. So its address and its name are remembered while
it is connected, for a while after that, and across a restart of the server, after which most clients reconnect. They
are in memory, for the event loop. The file is written when a new client is recognised, and read only at the start; an
error in it is logged and otherwise ignored.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

import msgspec

from whippet.storage import files
from whippet.storage.documents import NOT_UNDERSTOOD

logger = logging.getLogger(__name__)

NAME = "returning_clients.json"
ASIDE = f"{NAME}.damaged"
RETURN_US = 600 * 1_000_000
"""A client that was away for longer is unknown again: somebody else may have the address."""
AWAY_MAX = 10_000
"""Clients that are remembered while they are away; beyond that, the one that left first is forgotten."""


class ReturningClients:
    def __init__(self, folder: str, clock: Callable[[], int]) -> None:
        self._folder = folder
        self._clock = clock
        self._connections: dict[str, int] = {}
        """The number of connections of each connected client."""
        self._away = dict.fromkeys(self._read(), clock())
        """When the last connection of each client ended, in that order. For clients from the file, when this server
        started."""

    def expects(self, who: str) -> bool:
        """Returns True if the client is connected, or left recently."""
        return who in self._connections or self._clock() - self._away.get(who, -RETURN_US) < RETURN_US

    def arrived(self, who: str) -> None:
        """A connection was recognised. `left` must be called for each."""
        known = who in self._connections or who in self._away
        self._away.pop(who, None)
        self._connections[who] = self._connections.get(who, 0) + 1
        if not known:
            self._write()

    def left(self, who: str) -> None:
        self._connections[who] -= 1
        if not self._connections[who]:
            del self._connections[who]
            self._away[who] = self._clock()
            if len(self._away) > AWAY_MAX:
                del self._away[next(iter(self._away))]

    def _read(self) -> list[str]:
        path = os.path.join(self._folder, NAME)
        try:
            with open(path, "rb") as file:
                return msgspec.json.decode(file.read(), type=list[str])
        except FileNotFoundError:
            return []
        except OSError as error:
            logger.warning("%s cannot be read and is ignored: %s", path, error)
        except NOT_UNDERSTOOD as error:
            logger.warning("%s cannot be understood and is set aside as %s: %s", path, ASIDE, error)
            try:
                os.replace(path, os.path.join(self._folder, ASIDE))
            except OSError as refused:
                logger.warning("%s cannot be set aside: %s", path, refused.strerror or refused)
        return []

    def _write(self) -> None:
        self._away = {who: left_at for who, left_at in self._away.items() if self._clock() - left_at < RETURN_US}
        disk = files.Files()
        try:
            files.make_folders(disk, self._folder)
            # Not synced: after a power failure its clients are new ones.
            content = msgspec.json.encode([*self._away, *self._connections])
            files.replace(disk, os.path.join(self._folder, NAME), content, sync=False)
        except OSError as error:
            logger.warning("%s was not written: %s", os.path.join(self._folder, NAME), error.strerror or error)
