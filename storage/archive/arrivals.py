"""Brings the partitions of an archive that was taken over into the data folder, one by one (storage/takeover.py).

A partition comes when it is needed, or in the background, a second after the start. Its manifest is claimed first: from
then on, the server that was there before cannot replace it any more. Its folder is made in `staging`, synced, and
renamed: a crash at any point leaves it either there or not, and if not, it comes again. Nothing was appended to it
before, so it does not matter that the manifest may say more than the list: the log begins after both.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from whippet.storage import collector, takeover
from whippet.storage.archive.blobs import content_of
from whippet.storage.archive.documents import Manifest, partition_folder, plain
from whippet.storage.archive.histories import HistoryDocument, PartitionHistory
from whippet.storage.document_checksums import with_checksum
from whippet.storage.errors import ArchiveConflict, PartitionClosed, PartitionFailed, StorageError
from whippet.storage.files import Files, make_folders, write_all
from whippet.storage.layout import (
    HISTORY_FILE,
    OFFSETS_FOLDER,
    STAGING_FOLDER,
    Layout,
    PartitionId,
    left_out_file,
    log_file,
    producers_file,
)
from whippet.storage.partition_opener import Unavailable

if TYPE_CHECKING:
    from whippet.storage.archive.histories import Histories
    from whippet.storage.archive.objects import Objects
    from whippet.storage.archive.partition_archive import PartitionArchive
    from whippet.storage.partition import Partition
    from whippet.storage.store import Store
    from whippet.storage.takeover import Coming, Ends

_log = logging.getLogger(__name__)

THREADS = 8
TOGETHER = 4
"""How many come in the background at the same time. The other threads are for those that somebody needs."""
REST_S = 1.0
"""The background begins after this time, so that the first clients have the machine for themselves; and after a
failure, again and again."""
REST_MAX_S = 60.0

ArchiveOf = Callable[[PartitionId], Awaitable[tuple["Objects", "PartitionArchive"]]]


class Arrivals:
    """On the event loop. `archive_of` claims the archive if necessary."""

    def __init__(
        self,
        store: Store,
        files: Files,
        histories: Histories,
        archive_of: ArchiveOf,
        on_conflict: Callable[[ArchiveConflict], None],
    ) -> None:
        self._store = store
        self._files = files
        self._histories = histories
        self._archive_of = archive_of
        self._on_conflict = on_conflict
        self._tasks: dict[PartitionId, asyncio.Task[bool]] = {}
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="arrivals")
        self._background: asyncio.Task[None] | None = None
        self.stopped = False
        """Nothing comes any more."""

    def attach(self) -> None:
        """Before anybody is served: from now on partitions come when they are needed."""
        with collector.paused():
            for place, ends in self._store.awaited.items():
                coming = self._store.partitions[place].coming
                assert coming is not None
                history = PartitionHistory(place, self._histories, ends.first) if ends.first < ends.end else None
                coming.by(_Arrival(self, self._store.partitions[place]), history)

    def start(self) -> None:
        if self._store.awaited:
            self._background = asyncio.create_task(self._bring_all(), name="arrivals")

    async def stop(self) -> None:
        """Returns when nothing is on its way any more."""
        self.stopped = True
        if self._background is not None:
            self._background.cancel()
            await asyncio.gather(self._background, return_exceptions=True)
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()))
        await asyncio.get_running_loop().run_in_executor(None, self._threads.shutdown)

    def begin(self, partition: Partition) -> asyncio.Task[bool]:
        """The task returns whether the partition has come."""
        place = partition.place
        task = self._tasks.get(place)
        if task is None:
            task = self._tasks[place] = asyncio.create_task(self._bring(partition), name=f"arrival of {place}")
            task.add_done_callback(lambda _: self._tasks.pop(place, None))
        return task

    async def give_up(self, place: PartitionId) -> None:
        task = self._tasks.get(place)
        if task is not None:
            await asyncio.wait([task])

    async def _bring_all(self) -> None:
        rest = REST_S
        while True:
            await asyncio.sleep(rest)
            rest = min(rest * 2, REST_MAX_S)
            try:
                if await self.bring_all():
                    return
            except OSError as error:
                _log.warning("the list of partitions that are only in the archive cannot be removed: %s", error)

    async def bring_all(self) -> bool:
        """Returns whether all have come."""
        waiting = iter(list(self._store.awaited))
        failed = False

        async def work() -> None:
            nonlocal failed
            for place in waiting:
                if failed:
                    return
                partition = self._store.partitions.get(place)
                if partition is not None and partition.coming is not None and not await self.begin(partition):
                    failed = True

        await asyncio.gather(*(work() for _ in range(TOGETHER)))
        if failed:
            return False
        await asyncio.get_running_loop().run_in_executor(
            self._threads, takeover.finish, self._files, self._store.layout
        )
        _log.info("archive: all %d partitions of the archive are in the data folder", len(self._store.awaited))
        self._store.awaited.clear()
        return True

    async def _bring(self, partition: Partition) -> bool:
        place, coming = partition.place, partition.coming
        if coming is None:
            return True
        try:
            await self._fetch(partition, coming)
        except Exception as error:  # noqa: BLE001 -- whoever waits gets it; it is logged here if it is a defect
            failure = error if isinstance(error, StorageError) else PartitionFailed(f"{place}: {error}")
            if not isinstance(error, StorageError | OSError):
                _log.exception("%s: a defect keeps it from coming from the archive", place)
            elif not self.stopped:
                _log.warning("archive: %s cannot be brought into the data folder: %s", place, error)
            coming.refuse(failure)
            if isinstance(error, ArchiveConflict):
                self._on_conflict(error)
            return False
        return True

    async def _fetch(self, partition: Partition, coming: Coming) -> None:
        place = partition.place
        if self._store.partitions.get(place) is not partition:
            raise PartitionClosed(f"{place}: it was removed")
        if self.stopped:
            raise PartitionFailed(f"{place}: the server is stopping")
        objects, archive = await self._archive_of(place)
        making = _Making(self._files, self._store.layout, objects, archive, self._store.awaited[place])
        last_timestamp = await asyncio.get_running_loop().run_in_executor(self._threads, making.run)
        shard = self._store.shard(place)
        opened = await shard.call(lambda: self._store.opener.try_to_open(place, shard))
        if isinstance(opened, Unavailable):
            raise PartitionFailed(f"{place}: {opened.reason}")
        first = await self._histories.on_thread(lambda: self._histories.load(place))
        has_history = first is not None and first < opened.log.segments[0].start_offset
        history = PartitionHistory(place, self._histories, first or 0) if has_history else None
        coming.arrive(opened, history, last_timestamp)
        # The topic may have been changed meanwhile.
        partition.compress(self._store.opener.compression_of(place))


class _Arrival(NamedTuple):
    """The way of one partition (takeover.Arrival)."""

    arrivals: Arrivals
    partition: Partition

    def begin(self) -> None:
        self.arrivals.begin(self.partition)

    async def give_up(self) -> None:
        await self.arrivals.give_up(self.partition.place)


class _Making:
    """Makes the folder of one partition. Everything here blocks."""

    def __init__(self, files: Files, layout: Layout, objects: Objects, archive: PartitionArchive, ends: Ends) -> None:
        self._files = files
        self._layout = layout
        self._objects = objects
        self._archive = archive
        self._ends = ends
        self._place = ends.place

    def run(self) -> int:
        """Returns the time of the last message in the archive."""
        files, target = self._files, self._layout.partition(self._place)
        manifest = self._archive.take()
        if not files.exists(target):
            ends = self._ends
            staged = f"{self._layout.below(STAGING_FOLDER)}/{ends.stream}.{ends.topic}.{ends.partition}"
            if files.exists(staged):
                files.remove_tree(staged)
            make_folders(files, staged)
            self._fill(staged, manifest)
            files.sync_folder(staged)
            files.rename(staged, target)
        # Also if an earlier attempt has failed just here.
        files.sync_folder(target.rpartition("/")[0])
        return manifest.pieces[-1].last_timestamp if manifest.pieces else 0

    def _fill(self, folder: str, manifest: Manifest) -> None:
        end = 0
        if manifest.pieces:
            end = manifest.pieces[-1].next
            first = HistoryDocument(manifest.pieces[0].first)
            self._write(f"{folder}/{HISTORY_FILE}", with_checksum(msgspec.json.encode(first)))
        newest = max(self._ends.next, manifest.next_offset, end)
        if manifest.pieces and newest > end:
            self._write(log_file(folder, end), b"")
            self._write(left_out_file(folder, end), b"")
        self._write(log_file(folder, newest), b"")
        for name, content in manifest.offsets.items():
            kind, _, identity = name.partition("/")
            below = f"{folder}/{OFFSETS_FOLDER}/{plain(kind)}"
            for above in make_folders(self._files, below):
                self._files.sync_folder(above)
            self._write(f"{below}/{plain(identity)}", content)
        for kind in {name.partition("/")[0] for name in manifest.offsets}:
            self._files.sync_folder(f"{folder}/{OFFSETS_FOLDER}/{kind}")
        if manifest.producers is not None:
            name = f"{partition_folder(self._place)}/{manifest.producers.name}"
            self._write(producers_file(folder), b"".join(content_of(self._objects, name, manifest.producers)))

    def _write(self, path: str, content: bytes) -> None:
        handle = self._files.open_for_writing(path)
        try:
            if content:
                write_all(self._files, handle, [content], 0)
                self._files.sync(handle)
        finally:
            self._files.close(handle)
