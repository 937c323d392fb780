"""Refuses messages for which there is no room: in a topic, on the disk, or because the archive is behind.

Partitions ask in the same turn of the event loop as they append, so no other append can take the room in between.
"""

from __future__ import annotations

from collections.abc import Callable

from whippet.storage.errors import ArchiveBehind, DiskFull
from whippet.storage.layout import PartitionId

Check = Callable[[PartitionId, int], None]


class Allowance:
    """The number of bytes that the disk still takes, as of the last look at it."""

    __slots__ = ("accepted", "bytes", "on_spent")

    def __init__(self, size: int, on_spent: Callable[[int], str]) -> None:
        self.bytes = size
        self.accepted = 0
        self.on_spent = on_spent
        """Called with the number of bytes accepted since when more is refused. Returns why it is."""


class Room:
    """All partitions of a store share one. Used on the event loop; other threads may read `disk_full`."""

    __slots__ = ("_allowance", "_archive_behind", "_disk_full", "_of_topic", "check")

    def __init__(self, of_topic: Check | None = None) -> None:
        """`of_topic` raises an error for bytes that do not fit into a topic; None: topics always have room."""
        self._of_topic = of_topic
        self._archive_behind: str | None = None
        self._disk_full: str | None = None
        self._allowance: Allowance | None = None
        self.check = of_topic
        """Refuses bytes for a partition. None while there is room for everything, so that an append costs no call."""

    @property
    def disk_full(self) -> str | None:
        """Returns why the disk has no room; None if it has."""
        return self._disk_full

    @disk_full.setter
    def disk_full(self, reason: str | None) -> None:
        self._disk_full = reason
        self._choose()

    @property
    def archive_behind(self) -> str | None:
        """Returns why messages are refused for the sake of the archive; None if they are not."""
        return self._archive_behind

    @archive_behind.setter
    def archive_behind(self, reason: str | None) -> None:
        self._archive_behind = reason
        self._choose()

    def allow(self, allowance: Allowance | None) -> None:
        """From now on, this much may be accepted before the disk's space is looked at again. None: any amount."""
        self._allowance = allowance
        self._choose()

    def take_beside(self, size: int) -> bool:
        """Counts what is to be written to the disk besides messages, as well as a thread can that appends do not wait
        for; any thread may call this. False if there is no room for it."""
        allowance = self._allowance
        if self._disk_full is not None or (allowance and allowance.accepted + size > allowance.bytes):
            return False
        if allowance is not None:
            allowance.accepted += size
        return True

    def require_disk(self) -> None:
        """Raises DiskFull while the disk has no room."""
        if self._disk_full is not None:
            raise DiskFull(self._disk_full)

    def _choose(self) -> None:
        if self._disk_full is not None or self._archive_behind is not None:
            self.check = self._refuse
        else:
            self.check = self._of_topic if self._allowance is None else self._count

    def _refuse(self, place: PartitionId, more_bytes: int) -> None:
        # A new error each time: one that is raised again and again keeps every frame that it has passed.
        self.require_disk()
        raise ArchiveBehind(self._archive_behind)

    def _count(self, place: PartitionId, more_bytes: int) -> None:
        allowance = self._allowance
        assert allowance is not None
        if self._of_topic is not None:
            self._of_topic(place, more_bytes)
        if allowance.accepted + more_bytes > allowance.bytes:
            raise DiskFull(allowance.on_spent(allowance.accepted))
        allowance.accepted += more_bytes
