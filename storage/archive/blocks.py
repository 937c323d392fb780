"""Blocks of archived logs: a bounded cache on the local disk, and what is read ahead for readers that go on.

An object's content never changes under its name, so nothing is ever invalid. Threads share the cache; the lock is held
only while memory changes, never while anybody waits for the archive or a disk.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Executor, Future

from whippet.storage.archive.objects import Objects
from whippet.storage.errors import ArchiveError
from whippet.storage.files import Files, make_folders, read_all, write_all

_log = logging.getLogger(__name__)

BLOCK_BYTES = 2 << 20
"""The size of one ranged read."""
AHEAD = 4
"""How many blocks are read ahead once a reader has continued from one block to the next."""

COMING_MAX = 64
"""How many blocks may be in memory for readers that have not come yet."""
OBJECTS_MAX = 1000
"""For how many objects it is known where a reader is."""

Key = tuple[str, int]
"""The name of an object and the number of a block in it."""


class Blocks:
    """The cache. It begins empty at each start: what was left by the last process is removed."""

    def __init__(
        self,
        objects: Objects,
        files: Files,
        folder: str,
        bytes_max: int,
        threads: Executor,
        may_keep: Callable[[], bool] = lambda: True,
    ) -> None:
        """While `may_keep` returns false, no more blocks are kept."""
        self._objects = objects
        self._files = files
        self._folder = folder
        self._bytes_max = bytes_max
        self._threads = threads
        self._may_keep = may_keep
        self._lock = threading.Lock()
        self._kept: OrderedDict[Key, tuple[str, int]] = OrderedDict()
        """The file and the size of each block on the disk; the least recently used one comes first."""
        self._size = self._number = 0
        self._last: OrderedDict[str, int] = OrderedDict()
        """The block of each object that was read last."""
        self._coming: OrderedDict[Key, Future[bytes]] = OrderedDict()
        """Blocks that are being read ahead, or were and nobody has needed them yet."""
        if files.exists(folder):
            files.remove_tree(folder)
        make_folders(files, folder)

    def read(self, name: str, size: int, position: int, length: int) -> bytes:
        """Reads a range of an object that has `size` bytes."""
        parts = []
        for number in range(position // BLOCK_BYTES, -(-(position + length) // BLOCK_BYTES)):
            start = number * BLOCK_BYTES
            block = self._block(name, size, number)
            parts.append(block[max(position - start, 0) : position + length - start])
            self._read_ahead(name, size, number)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _block(self, name: str, size: int, number: int) -> bytes:
        key = name, number
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None:
                self._kept.move_to_end(key)
            coming = self._coming.pop(key, None)
        if coming is not None:
            try:
                return coming.result()
            except ArchiveError:
                # It may have failed a while ago, so this is worth another attempt.
                _log.debug("%s: a block could not be read ahead", name, exc_info=True)
        if kept is not None:
            try:
                return read_all(self._files, kept[0])
            except OSError:
                # It has just been removed to make room, or the disk fails: the archive still has it.
                _log.debug("%s: a block is not in the cache any more", name, exc_info=True)
        content = self._fetch(name, size, number)
        self._keep(key, content)
        return content

    def _fetch(self, name: str, size: int, number: int) -> bytes:
        start = number * BLOCK_BYTES
        return self._objects.read(name, start, min(BLOCK_BYTES, size - start))

    def _keep(self, key: Key, content: bytes) -> None:
        """Writes a block to the disk. Room is made before, so the limit holds at any time."""
        if len(content) > self._bytes_max or not self._may_keep():
            return
        removed = []
        with self._lock:
            if key in self._kept:
                return
            self._number += 1
            path = f"{self._folder}/{self._number}"
            self._size += len(content)
            while self._size > self._bytes_max and self._kept:
                _, (oldest, size) = self._kept.popitem(last=False)
                removed.append(oldest)
                self._size -= size
        try:
            for each in removed:
                self._files.remove(each)
            handle = self._files.open_for_writing(path)
            try:
                write_all(self._files, handle, [content], 0)
            finally:
                self._files.close(handle)
        except OSError as error:
            _log.warning("%s: a block of the archive cannot be kept: %s", path, error)
            with self._lock:
                self._size -= len(content)
            return
        with self._lock:
            self._kept[key] = path, len(content)

    def clear(self) -> int:
        """Removes all blocks from the disk, and returns how many bytes they had."""
        with self._lock:
            kept, self._kept = self._kept, OrderedDict()
            freed = sum(size for _, size in kept.values())
            self._size -= freed
        for path, _ in kept.values():
            try:
                self._files.remove(path)
            except OSError as error:
                _log.warning("%s: a block of the archive cannot be removed: %s", path, error)
        return freed

    def _read_ahead(self, name: str, size: int, number: int) -> None:
        """Begins to read what a reader that goes on will want next."""
        wanted: list[tuple[Key, Future[bytes]]] = []
        with self._lock:
            continues = number > 0 and self._last.get(name) in {number - 1, number}
            self._last[name] = number
            self._last.move_to_end(name)
            while len(self._last) > OBJECTS_MAX:
                self._last.popitem(last=False)
            if continues:
                for following in range(number + 1, min(number + 1 + AHEAD, -(-size // BLOCK_BYTES))):
                    key = name, following
                    if key not in self._kept and key not in self._coming:
                        coming: Future[bytes] = Future()
                        self._coming[key] = coming
                        wanted.append((key, coming))
            while len(self._coming) > COMING_MAX:
                self._coming.popitem(last=False)
        for key, coming in wanted:
            self._threads.submit(self._fetch_ahead, key, size, coming)

    def _fetch_ahead(self, key: Key, size: int, coming: Future[bytes]) -> None:
        try:
            content = self._fetch(key[0], size, key[1])
        except BaseException as error:  # noqa: BLE001 -- whoever needs the block gets it
            coming.set_exception(error)
            return
        coming.set_result(content)
        self._keep(key, content)
