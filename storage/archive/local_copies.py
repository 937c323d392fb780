"""Deletes from this machine what is in the archive, where it stays readable: what topics do not want to keep here any
more, and, while the disk is full, the oldest segments of all topics.

Only closed segments go that the manifest of their partition records completely.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from whippet.storage import retention
from whippet.storage.archive.histories import Histories, PartitionHistory
from whippet.storage.errors import PartitionClosed, StorageError
from whippet.storage.layout import PartitionId
from whippet.storage.partition import Partition

if TYPE_CHECKING:
    from whippet.storage.store import Store

_log = logging.getLogger(__name__)

LOOKED_AT_TOGETHER = 500
"""After this many partitions, the event loop gets to run something else."""


class LocalCopies:
    """Used on the event loop. It is the relief of a full disk (disk_space.py)."""

    def __init__(
        self,
        store: Store,
        histories: Histories,
        covered: Callable[[PartitionId], int],
        is_ours: Callable[[], Awaitable[bool]],
        on_shortage: Callable[[], None],
    ) -> None:
        """`covered` returns the offset before which the archive has all closed segments of a partition, and `is_ours`
        whether the archive still belongs to this server. `on_shortage` is called when there is not enough to delete."""
        self.progress = 0
        """Incremented whenever the archive has closed segments that it did not have before."""
        self._store = store
        self._histories = histories
        self._covered = covered
        self._is_ours = is_ours
        self._on_shortage = on_shortage

    async def retain(self, stream_id: int, topic_id: int, *, time_us: int | None, max_bytes: int | None) -> int:
        """Deletes closed segments of a topic that are older than a time, or beyond a size that its partitions share.
        Returns how many."""
        partitions = [each for each in self._store.partitions_of(stream_id, topic_id) if each.coming is None]
        share = None if max_bytes is None else max_bytes // max(len(partitions), 1)
        deleted = 0
        for partition in partitions:
            purges, size, before = partition.purges, partition.disk_bytes, 0
            latest = None if time_us is None else self._store.clock() - time_us
            for segment in await partition.closed_segments():
                is_old = latest is not None and (segment.last_timestamp or 0) <= latest
                is_beyond = share is not None and size > share
                if not (is_old or is_beyond) or segment.next_offset > self._covered(partition.place):
                    break
                before = segment.next_offset
                size -= segment.log_bytes
            deleted += await self._delete(partition, before, purges)
        return deleted

    async def free(self, size: int) -> int:
        """Deletes at least `size` bytes if there are so many: what was read from the archive first, then the oldest
        segments of all topics. Returns how many bytes it has deleted."""
        # Not on the threads of the histories, which may wait for the archive.
        freed = await asyncio.to_thread(self._histories.empty_cache)
        if freed >= size:
            return freed
        # What it recorded a while ago may have been replaced by another server since.
        if await self._is_ours():
            freed += await self._free_segments(size - freed)
        if freed < size:
            self._on_shortage()
        return freed

    async def _free_segments(self, size: int) -> int:
        partitions, archived = await self._archived()
        freed = segments = 0
        for partition, closed, before in zip(
            partitions, archived, retention.oldest_of_all(archived, size), strict=True
        ):
            try:
                count = await self._delete(partition, before, closed.purges)
            except PartitionClosed:
                continue
            except (StorageError, OSError) as error:
                _log.warning("disk: archived segments cannot be deleted: %s", error)
                continue
            segments += count
            if count:
                freed += sum(each.log_bytes for each in closed.segments if each.next_offset <= before)
        if segments:
            _log.info("disk: deleted %d archived segments (%d bytes) here, because it is full", segments, freed)
        return freed

    async def _archived(self) -> tuple[list[Partition], list[retention.Closed]]:
        """The partitions with closed segments that may be deleted, and these segments."""
        partitions, found = [], []
        for number, partition in enumerate(list(self._store.partitions.values()), 1):
            if number % LOOKED_AT_TOGETHER == 0:
                await asyncio.sleep(0)
            if self._covered(partition.place) <= partition.local_first_offset:
                continue
            purges = partition.purges
            try:
                closed = await partition.closed_segments()
            except PartitionClosed:
                continue
            covered = self._covered(partition.place)
            partitions.append(partition)
            found.append(retention.Closed([each for each in closed if each.next_offset <= covered], None, purges))
        return partitions, found

    async def _delete(self, partition: Partition, before: int, purges: int) -> int:
        if before <= partition.local_first_offset:
            return 0
        await self._begin_history(partition)
        return await partition.trim(before, purges)

    async def _begin_history(self, partition: Partition) -> None:
        """Records from where on the partition is to be read, before anything of that is deleted here."""
        emptied, local = partition.emptied, partition.local_first_offset
        if partition.history is None:
            history = PartitionHistory(partition.place, self._histories, local)
            await history.keep_from(local)
            if partition.emptied == emptied:
                partition.history = history
