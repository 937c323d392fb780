"""Reads what is only in the archive, for all partitions: the event loop asks, a few threads read.

A partition has a history once something of it was deleted locally although it is still to be read
(`local_retention_time`, `local_retention_size`). The file `history.json` of the partition says from which offset on
that is so; it is written before anything is deleted.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import msgspec

from whippet.storage.archive.blocks import Blocks
from whippet.storage.archive.documents import Manifest, decode, manifest_name
from whippet.storage.archive.objects import Objects
from whippet.storage.archive.reader import ArchiveReader
from whippet.storage.document_checksums import with_checksum
from whippet.storage.documents import NOT_UNDERSTOOD
from whippet.storage.encryption import Seal
from whippet.storage.errors import ArchiveError, ArchiveUnavailable, ReadFailed
from whippet.storage.fetched import Fetched
from whippet.storage.files import Files, read_all, replace
from whippet.storage.layout import HISTORY_FILE, Layout, PartitionId
from whippet.storage.segment import Damage

_log = logging.getLogger(__name__)

CACHE_FOLDER = "archive_cache"
THREADS = 4
READERS_MAX = 256
"""Readers that are kept, each with its manifest and some indexes."""

Result = TypeVar("Result")


class HistoryDocument(msgspec.Struct, frozen=True):
    """`history.json` of a partition."""

    first_offset: int
    """The oldest offset that may be read, from the archive if the local log begins later."""


class Histories:
    """See the module. `objects` connects to the archive when something is read for the first time."""

    def __init__(
        self,
        objects: Callable[[], Objects],
        files: Files,
        layout: Layout,
        cache_bytes: int,
        seal_of: Callable[[PartitionId], Seal | None] = lambda _: None,
        may_keep: Callable[[], bool] = lambda: True,
    ) -> None:
        """`may_keep` returns whether the disk has space for what was read. It is called on any thread."""
        self._may_keep = may_keep
        self._seal_of = seal_of
        self._objects = objects
        self._files = files
        self._layout = layout
        self._cache_bytes = cache_bytes
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="history")
        self._ahead = ThreadPoolExecutor(THREADS, thread_name_prefix="read-ahead")
        self._lock = threading.Lock()
        self._blocks: Blocks | None = None
        self._readers: OrderedDict[PartitionId, tuple[threading.Lock, ArchiveReader]] = OrderedDict()

    async def on_thread(self, function: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)

    def stop(self) -> None:
        """Blocks until the threads have ended."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._ahead.shutdown(wait=True, cancel_futures=True)

    # --------------------------------------------------------------------------------------------------- on the threads

    def load(self, place: PartitionId) -> int | None:
        """The first offset that may be read; None if the partition has no history."""
        path = f"{self._layout.partition(place)}/{HISTORY_FILE}"
        try:
            return msgspec.json.decode(read_all(self._files, path), type=HistoryDocument).first_offset
        except FileNotFoundError:
            return None
        except NOT_UNDERSTOOD as error:
            _log.error("%s cannot be decoded, so nothing before the local log is read: %s", path, error)
            return None
        except OSError as error:
            raise ReadFailed(path, error) from error

    def keep(self, place: PartitionId, first_offset: int) -> None:
        """Returns when `history.json` is on the disk."""
        content = with_checksum(msgspec.json.encode(HistoryDocument(first_offset)))
        replace(self._files, f"{self._layout.partition(place)}/{HISTORY_FILE}", content)

    def read(self, place: PartitionId, offset: int, count: int, room: int, until: int) -> Fetched:
        def read(reader: ArchiveReader) -> Fetched:
            if reader.is_empty:
                return Fetched([], 0, until)
            found = reader.read(offset, count, room, until)
            # What the archive does not have is passed over, as damage in a local log is.
            return found if found.messages or found.next_offset > offset else found._replace(next_offset=until)

        return self._with_reader(place, until, read)

    def offset_at(self, place: PartitionId, timestamp: int, until: int) -> int:
        def find(reader: ArchiveReader) -> int:
            return until if reader.is_empty else min(reader.offset_at(timestamp), until)

        return self._with_reader(place, until, find)

    def first_at(self, place: PartitionId, timestamp: int, until: int) -> int:
        """Where the first archived segment begins that has a message of this time or a later one."""

        def find(reader: ArchiveReader) -> int:
            kept = [each.start_offset for each in reader.segments if reader.last_timestamp(each) >= timestamp]
            return min(kept, default=until)

        return self._with_reader(place, until, find)

    def empty_cache(self) -> int:
        """Returns how many bytes that frees."""
        with self._lock:
            blocks = self._blocks
        return 0 if blocks is None else blocks.clear()

    def _with_reader(self, place: PartitionId, until: int, function: Callable[[ArchiveReader], Result]) -> Result:
        with self._lock:
            known = self._readers.get(place)
            if known is not None:
                self._readers.move_to_end(place)
        if known is not None and known[1].until == until:
            try:
                with known[0]:
                    return function(known[1])
            except ArchiveError:
                # What the reader knows of the archive may be old. The manifest tells.
                _log.debug("%s: the manifest is read again", place, exc_info=True)
        fresh = threading.Lock(), self._open(place, until)
        with self._lock:
            self._readers[place] = fresh
            self._readers.move_to_end(place)
            while len(self._readers) > READERS_MAX:
                self._readers.popitem(last=False)
        with fresh[0]:
            return function(fresh[1])

    def _open(self, place: PartitionId, until: int) -> ArchiveReader:
        objects = self._objects()
        with self._lock:
            if self._blocks is None:
                folder = self._layout.below(CACHE_FOLDER)
                try:
                    self._blocks = Blocks(objects, self._files, folder, self._cache_bytes, self._ahead, self._may_keep)
                except OSError as error:
                    raise ReadFailed(folder, error) from error
        name = manifest_name(place)
        found = objects.get(name)
        if found is None:
            raise ArchiveUnavailable(f"{objects.location}/{name} is missing, and the messages before {until} with it")
        manifest = decode(found.content, Manifest, f"{objects.location}/{name}")
        return ArchiveReader(objects, self._blocks, self._files, place, manifest, until, _report, self._seal_of(place))


def _report(damage: Damage) -> None:
    _log.warning("archive: %s", damage)


class PartitionHistory:
    """The history of one partition (history.py), on the event loop."""

    def __init__(self, place: PartitionId, histories: Histories, first_offset: int) -> None:
        self.first_offset = first_offset
        self._place = place
        self._histories = histories

    async def read(self, offset: int, count: int, room: int, until: int) -> Fetched:
        return await self._histories.on_thread(lambda: self._histories.read(self._place, offset, count, room, until))

    async def offset_at(self, timestamp: int, until: int) -> int:
        found = await self._histories.on_thread(lambda: self._histories.offset_at(self._place, timestamp, until))
        return max(found, self.first_offset)

    async def keep_from(self, offset: int) -> None:
        """Nothing before an offset may be read from now on."""
        await self._histories.on_thread(lambda: self._histories.keep(self._place, offset))
        self.first_offset = offset

    async def expire(self, timestamp: int, until: int, unread: int) -> None:
        """Segments whose messages are all older than a time may not be read any more, except from `unread` on."""
        newer = await self._histories.on_thread(lambda: self._histories.first_at(self._place, timestamp, until))
        first = min(newer, unread)
        if first > self.first_offset:
            await self.keep_from(first)
