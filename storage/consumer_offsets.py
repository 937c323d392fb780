"""The stored offsets of one partition: in memory, and on their way to the files of offsets.py.

The partition decides which offsets may be stored, and hands them over after the messages of the same turn, so that no
stored offset is ahead of the durable messages. All changes of one round are written together, each key once.

A consumer or group that stores its offset by name is identified by a hash of that name. The name itself is kept in
memory as long as the offset is, because the metrics show it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Container

from whippet.storage.errors import WriteFailed
from whippet.storage.offsets import Key, Kind, OffsetFiles
from whippet.storage.retention import Slowest
from whippet.storage.shard import Shard

_log = logging.getLogger(__name__)

CHANGES_MAX = 1024
"""Once there are this many changes, the partition hands them over even if nobody waits for them. Otherwise consumers
that store and delete offsets could make the list of changes grow without limit."""


class ConsumerOffsets:
    __slots__ = ("_changed", "_counts", "_names", "_per_kind_max", "_round", "_shard", "_stored", "files", "unsynced")

    def __init__(self, shard: Shard, files: OffsetFiles, stored: dict[Key, int], per_kind_max: int) -> None:
        self.files = files
        self._shard = shard
        self._per_kind_max = per_kind_max
        self._stored = stored
        self._counts = Counter(kind for kind, _ in stored)
        self._names: dict[Key, str] = {}
        self._changed: dict[Key, int | None] = {}
        # One future for everyone who waits for the changes that are not handed over yet.
        self._round: asyncio.Future[None] | None = None
        self.unsynced = False
        """Whether something was handed over that no later sync covers."""

    def get(self, key: Key) -> int | None:
        return self._stored.get(key)

    def identities(self, kind: Kind) -> list[int]:
        """The ids of everyone of this kind who has a stored offset."""
        return [identity for each, identity in self._stored if each is kind]

    def has_room_for(self, key: Key) -> bool:
        """A stored offset can always be changed. A new one needs a free place among those of its kind."""
        return key in self._stored or self._counts[key[0]] < self._per_kind_max

    def name(self, key: Key) -> str | None:
        """The name under which the offset was stored, if that happened by name since the start."""
        return self._names.get(key)

    @property
    def is_long(self) -> bool:
        """Whether there are too many changes to wait for a later round."""
        return len(self._changed) >= CHANGES_MAX

    def slowest(self, kinds: Container[Kind]) -> Slowest | None:
        """The reader of these kinds with the lowest offset."""
        found = [Slowest(*key, offset) for key, offset in self._stored.items() if key[0] in kinds]
        return min(found, key=lambda each: each.offset, default=None)

    @property
    def due(self) -> bool:
        """Whether there is something to hand over."""
        return bool(self._changed)

    def change(self, key: Key, offset: int | None, name: str | None = None) -> None:
        """Stores an offset; None deletes it."""
        if offset is None:
            if self._stored.pop(key, None) is not None:
                self._counts[key[0]] -= 1
            self._names.pop(key, None)
        else:
            self._counts[key[0]] += key not in self._stored
            self._stored[key] = offset
            if name is not None:
                self._names[key] = name
        self._changed[key] = offset

    def written(self) -> asyncio.Future[None]:
        """A future that is done when every change so far is written."""
        if self._round is None:
            self._round = asyncio.get_running_loop().create_future()
        return asyncio.shield(self._round)

    def hand_over(self, *, sync: bool) -> None:
        """Posts all changes to the shard. Changes that cannot be written stay due for the next round."""
        changes, self._changed = self._changed, {}
        done, self._round = self._round, None
        files = self.files
        self.unsynced = not sync

        def report(written: asyncio.Future[None]) -> None:
            error = None if written.cancelled() else written.exception()
            if error is not None:
                # The current values are due, not those that failed: a later round may have been acknowledged since.
                self._changed = {key: self._stored.get(key) for key in changes} | self._changed
                failure = WriteFailed(files.folder, error) if isinstance(error, OSError) else error
                _log.error("consumer offsets: %s", failure)
                if done is not None and not done.done():
                    done.set_exception(failure)
                    done.exception()
            elif done is not None and not done.done():
                done.set_result(None)

        self._shard.call(lambda: files.write(changes, sync=sync)).add_done_callback(report)

    def arrive(self, files: OffsetFiles, stored: dict[Key, int]) -> None:
        """The partition has come from the archive, with its stored offsets."""
        self.files, self._stored = files, stored
        self._counts = Counter(kind for kind, _ in stored)

    def forget(self) -> None:
        """After a purge."""
        self._stored, self._changed, self._names = {}, {}, {}
        self._counts.clear()
        self.unsynced = False
