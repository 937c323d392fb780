"""Blocks of archived logs: a bounded cache on the local disk, and what is read ahead for readers that go on.

An object's content never changes under its name, so nothing is ever invalid. Threads share the cache; the lock is held
only while memory changes, never while anybody waits for the archive or a disk.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from concurrent.futures import Executor

from whippet.storage.archive.objects import Objects
from whippet.storage.errors import ArchiveError
from whippet.storage.files import Files, make_folders, read_all, write_all

_log = logging.getLogger(__name__)

BLOCK_BYTES = 2 << 20
"""The size of one ranged read."""
AHEAD = 4
"""How many blocks are read ahead once a reader has continued from one block to the next."""

Key = tuple[str, int]
"""The name of an object and the number of a block in it."""


class Blocks:
    """The cache. It begins empty at each start: what was left by the last process is removed."""

    def __init__(self, objects: Objects, files: Files, folder: str, bytes_max: int, threads: Executor) -> None:
        self.fetched = 0
        """Blocks that were read from the archive."""
        self._objects = objects
        self._files = files
        self._folder = folder
        self._bytes_max = bytes_max
        self._threads = threads
        self._lock = threading.Lock()
        self._kept: OrderedDict[Key, tuple[str, int]] = OrderedDict()
        """The file and the size of each block on the disk; the least recently used one comes first."""
        self._size = self._number = 0
        self._last: OrderedDict[str, int] = OrderedDict()
        """The block of each object that was read last."""
        self._ahead: set[Key] = set()
        """Blocks that are being read ahead."""
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
        with self._lock:
            kept = self._kept.get((name, number))
            if kept is not None:
                self._kept.move_to_end((name, number))
        if kept is not None:
            try:
                return read_all(self._files, kept[0])
            except OSError:
                # It has just been removed to make room, or the disk fails: the archive still has it.
                pass
        return self._fetch(name, size, number)

    def _fetch(self, name: str, size: int, number: int) -> bytes:
        start = number * BLOCK_BYTES
        content = self._objects.read(name, start, min(BLOCK_BYTES, size - start))
        with self._lock:
            self.fetched += 1
            self._number += 1
            path = f"{self._folder}/{self._number}"
        if len(content) <= self._bytes_max:
            self._keep((name, number), path, content)
        return content

    def _keep(self, key: Key, path: str, content: bytes) -> None:
        try:
            handle = self._files.open_for_writing(path)
            try:
                write_all(self._files, handle, [content], 0)
            finally:
                self._files.close(handle)
        except OSError as error:
            _log.warning("%s: a block of the archive cannot be kept: %s", path, error)
            return
        removed = []
        with self._lock:
            old = self._kept.pop(key, None)
            if old is not None:
                removed.append(old[0])
                self._size -= old[1]
            self._kept[key] = path, len(content)
            self._size += len(content)
            while self._size > self._bytes_max:
                _, (oldest, size) = self._kept.popitem(last=False)
                removed.append(oldest)
                self._size -= size
        for each in removed:
            self._files.remove(each)

    def _read_ahead(self, name: str, size: int, number: int) -> None:
        """Begins to read what a reader that goes on will want next."""
        wanted = []
        with self._lock:
            continues = self._last.get(name) in {number - 1, number} if number else False
            self._last[name] = number
            self._last.move_to_end(name)
            while len(self._last) > 1000:
                self._last.popitem(last=False)
            if continues:
                for following in range(number + 1, min(number + 1 + AHEAD, -(-size // BLOCK_BYTES))):
                    key = name, following
                    if key not in self._kept and key not in self._ahead:
                        self._ahead.add(key)
                        wanted.append(following)
        for following in wanted:
            try:
                self._threads.submit(self._fetch_ahead, name, size, following)
            except RuntimeError:
                # The threads have ended, because the server stops.
                return

    def _fetch_ahead(self, name: str, size: int, number: int) -> None:
        try:
            self._fetch(name, size, number)
        except ArchiveError:
            # Whoever needs the block meets the error again.
            _log.debug("the archive could not be read ahead", exc_info=True)
        finally:
            with self._lock:
                self._ahead.discard((name, number))
