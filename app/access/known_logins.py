"""access/known_logins.json: the pairs of address and user that have logged in before.

The throttle does not slow these down. Without the file, one bad client would lock out the good ones at the same
address after every restart. It is a convenience, not a promise: errors are logged, and the server continues. Used on
the event loop only; a thread writes the file, at most once a second.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable

import msgspec

from whippet.app.access.throttle import Pair
from whippet.storage import files

_log = logging.getLogger(__name__)

NAME = "known_logins.json"
BYTES_MAX = 4 << 20
"""Far more than the throttle remembers; a longer file is not from this server."""
REST_S = 1.0


class KnownLogins:
    """Created on a running loop, ended by `close`."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._path = os.path.join(folder, NAME)
        self._current: Callable[[], list[Pair]] | None = None
        self._writing: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    def read(self) -> list[Pair]:
        """Returns the pairs, the longest unused one first. Blocks."""
        disk = files.Files()
        try:
            handle = disk.open_for_reading(self._path)
            try:
                content = disk.read(handle, BYTES_MAX + 1, 0)
            finally:
                disk.close(handle)
            if len(content) > BYTES_MAX:
                raise ValueError(f"it is longer than {BYTES_MAX} bytes")  # noqa: TRY301
            return msgspec.json.decode(content, type=list[Pair])
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            _log.warning("%s cannot be read and is ignored: %s", self._path, error)
            return []

    def keep(self, current: Callable[[], list[Pair]]) -> None:
        """Writes what `current` returns, soon and in the background."""
        self._current = current
        if self._writing is None and not self._closing.is_set():
            self._writing = asyncio.create_task(self._write_on(), name="known logins")

    async def close(self) -> None:
        """Returns when everything is on the disk."""
        self._closing.set()
        if self._writing is not None:
            await self._writing

    async def _write_on(self) -> None:
        while (current := self._current) is not None:
            self._current = None
            await asyncio.to_thread(self._write, msgspec.json.encode(current()))
            try:
                await asyncio.wait_for(self._closing.wait(), REST_S)
            except TimeoutError:
                continue
        self._writing = None

    def _write(self, content: bytes) -> None:
        disk = files.Files()
        try:
            files.make_folders(disk, self._folder)
            files.replace(disk, self._path, content)
        except OSError as error:
            _log.warning("%s was not written: %s", self._path, error.strerror or error)
