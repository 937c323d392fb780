"""How far consumers and groups have read in one partition: in memory, and on its way to the files of offsets.py.

The partition decides which offsets may be stored and when they are handed over: after the messages of the same turn, so
that no stored offset gets ahead of what is durable. All changes of one round are written together, each key once.
"""

from __future__ import annotations

import asyncio
import logging

from whippet.storage.errors import WriteFailed
from whippet.storage.offsets import Key, Kind, OffsetFiles
from whippet.storage.shard import Shard

_log = logging.getLogger(__name__)


class ConsumerOffsets:
    __slots__ = ("_changed", "_round", "_shard", "_stored", "files", "unsynced")

    def __init__(self, shard: Shard, files: OffsetFiles, stored: dict[Key, int]) -> None:
        self.files = files
        self._shard = shard
        self._stored = stored
        self._changed: dict[Key, int | None] = {}
        # One future for all who wait for the changes that are not handed over yet.
        self._round: asyncio.Future[None] | None = None
        self.unsynced = False
        """Whether something was handed over that no sync has been asked for since."""

    def get(self, key: Key) -> int | None:
        return self._stored.get(key)

    def identities(self, kind: Kind) -> list[int]:
        """Of all that have one."""
        return [identity for each, identity in self._stored if each is kind]

    @property
    def lowest(self) -> int | None:
        return min(self._stored.values(), default=None)

    @property
    def due(self) -> bool:
        """Whether there is something to hand over."""
        return bool(self._changed)

    @property
    def awaited(self) -> bool:
        return self.due or self._round is not None

    def change(self, key: Key, offset: int | None) -> None:
        """None deletes."""
        if offset is None:
            self._stored.pop(key, None)
        else:
            self._stored[key] = offset
        self._changed[key] = offset

    def written(self) -> asyncio.Future[None]:
        """Done when every change so far is written."""
        if self._round is None:
            self._round = asyncio.get_running_loop().create_future()
        return asyncio.shield(self._round)

    def hand_over(self, *, sync: bool) -> None:
        """Posts all changes to the shard. Those that cannot be written stay due, for the next time."""
        changes, self._changed = self._changed, {}
        done, self._round = self._round, None
        files = self.files
        self.unsynced = not sync

        def report(answer: asyncio.Future[None]) -> None:
            error = None if answer.cancelled() else answer.exception()
            if error is not None:
                # What holds now is due, not what failed: a later round may have been written and acknowledged since.
                self._changed = {key: self._stored.get(key) for key in changes} | self._changed
                failure = WriteFailed(files.folder, error) if isinstance(error, OSError) else error
                _log.error("consumer offsets: %s", failure)
                if done is not None and not done.done():
                    done.set_exception(failure)
                    done.exception()
            elif done is not None and not done.done():
                done.set_result(None)

        self._shard.call(lambda: files.write(changes, sync=sync)).add_done_callback(report)

    def forget(self) -> None:
        """After a purge."""
        self._stored, self._changed = {}, {}
        self.unsynced = False
