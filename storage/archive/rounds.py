"""`round.json`: the last complete round, and where every partition began and ended then.

Whoever takes the archive over needs no more than that to serve (FORMAT.md, section 10, "Taking over"). It is replaced
only if it is what this server has read or written last, so a server that has lost the archive cannot replace the list
of its successor.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from whippet.storage.archive.documents import ROUND, Listed, Owner, Round, decode, encode
from whippet.storage.archive.objects import Objects, Version
from whippet.storage.errors import ArchiveConflict, ArchiveUnavailable


class RoundRecord:
    """Runs on the archiver's threads. A round that is cancelled does not end what its thread is doing, so the next one
    waits for that here."""

    def __init__(self, objects: Objects, owner: Owner) -> None:
        self._objects = objects
        self._owner = owner
        self._version: Version | None = None
        self._is_known = False
        self._lock = threading.Lock()

    def write(self, began_at: int, partitions: Iterable[Listed]) -> None:
        with self._lock:
            self._write(began_at, partitions)

    def _write(self, began_at: int, partitions: Iterable[Listed]) -> None:
        if not self._is_known:
            self._load()
        new = Round(
            store=self._owner.store,
            generation=self._owner.generation,
            began_at=began_at,
            bounded_at=began_at,
            partitions=tuple(partitions),
        )
        # Whether a write that fails has arrived is unknown, so the next one begins with what the archive says.
        self._is_known = False
        try:
            self._version = self._objects.replace(ROUND, encode(new), self._version)
        except ArchiveConflict as error:
            self._load()
            raise ArchiveUnavailable(f"{self._objects.location}/{ROUND} was written late; it is read again") from error
        self._is_known = True

    def _load(self) -> None:
        """Raises ArchiveConflict if a server has written it that has claimed the archive later."""
        found = self._objects.get(ROUND)
        if found is not None:
            where = f"{self._objects.location}/{ROUND}"
            known = decode(found.content, Round, where)
            if known.store != self._owner.store or known.generation > self._owner.generation:
                raise ArchiveConflict(f"{where} was written by a server that has claimed the archive later")
        self._version = None if found is None else found.version
        self._is_known = True
