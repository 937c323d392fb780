"""Blocks of archived logs: a bounded cache on the local disk, and what is read ahead for readers that go on.

An object's content never changes under its name, so nothing is ever invalid. Threads share the cache; the lock is held
only while memory changes, never while anybody waits for the archive or a disk.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from typing import NamedTuple

from whippet.storage.archive.objects import Objects
from whippet.storage.errors import ArchiveError
from whippet.storage.files import Buffer, Files, make_folders, read_all, write_all

_log = logging.getLogger(__name__)

BLOCK_BYTES = 4 << 20
"""The size of one ranged read."""
AHEAD = 4
"""How many blocks are read ahead once a reader has continued from one block to the next."""

MEMORY_MAX = 24
"""How many blocks may be in memory: those that readers are at, and those that are read ahead."""
OBJECTS_MAX = 1000
"""For how many objects it is known where a reader is."""
PASSED_MAX = 100_000
SHARE = 4
"""A smaller part of a block than this is copied, so that it does not keep the whole block in memory."""

Key = tuple[str, int]
"""The name of an object and the number of a block in it."""


class Object(NamedTuple):
    name: str
    size: int


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
        self._memory: OrderedDict[Key, Future[Buffer]] = OrderedDict()
        """Blocks that are in memory, or on their way there; the least recently used one comes first."""
        self._passed: OrderedDict[Key, None] = OrderedDict()
        """Blocks that were read ahead and not kept: a reader that passes through years once would replace everything
        else on the disk, and writing is slower than reading. Whoever comes there again does so for a reason."""
        self._is_local = objects.folder is not None
        """Then a copy on the disk would only be another one."""
        if files.exists(folder):
            files.remove_tree(folder)
        make_folders(files, folder)

    def read(self, name: str, size: int, position: int, length: int, following: Object | None = None) -> Buffer:
        """Reads a range of an object that has `size` bytes. A reader that goes on continues in the object
        `following`."""
        parts: list[Buffer] = []
        for number in range(position // BLOCK_BYTES, -(-(position + length) // BLOCK_BYTES)):
            start = number * BLOCK_BYTES
            # First, so that the others are on their way while this one is waited for.
            self._read_ahead(name, size, number, following)
            block = memoryview(self._block(name, size, number))
            parts.append(block[max(position - start, 0) : position + length - start])
        if len(parts) > 1:
            return b"".join(parts)
        return parts[0] if length * SHARE >= BLOCK_BYTES else bytes(parts[0])

    def _block(self, name: str, size: int, number: int) -> Buffer:
        key = name, number
        with self._lock:
            known = self._memory.get(key)
            if known is None:
                mine: Future[Buffer] = Future()
                self._remember(key, mine)
            else:
                self._memory.move_to_end(key)
        if known is not None:
            try:
                return known.result()
            except ArchiveError:
                # It may have failed a while ago, so this is worth another attempt.
                _log.debug("%s: a block could not be read ahead", name, exc_info=True)
                mine = Future()
                with self._lock:
                    self._remember(key, mine)
        self._bring(key, size, mine)
        return mine.result()

    def _remember(self, key: Key, coming: Future[Buffer]) -> None:
        """Called with the lock. Whoever waits for a block that has to go still gets it."""
        self._memory[key] = coming
        self._memory.move_to_end(key)
        while len(self._memory) > MEMORY_MAX:
            self._memory.popitem(last=False)

    def _bring(self, key: Key, size: int, coming: Future[Buffer], *, is_ahead: bool = False) -> None:
        """Reads a block from the disk, or else from the archive."""
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None:
                self._kept.move_to_end(key)
        if kept is not None:
            try:
                coming.set_result(read_all(self._files, kept[0]))
            except OSError:
                # It has just been removed to make room, or the disk fails: the archive still has it.
                _log.debug("%s: a block is not in the cache any more", key[0], exc_info=True)
            else:
                return
        start = key[1] * BLOCK_BYTES
        try:
            content = self._objects.read(key[0], start, min(BLOCK_BYTES, size - start))
        except BaseException as error:  # noqa: BLE001 -- whoever needs the block gets it
            coming.set_exception(error)
            return
        coming.set_result(content)
        if not (is_ahead and self._is_new(key)):
            self._keep(key, content)

    def _is_new(self, key: Key) -> bool:
        with self._lock:
            is_new = key not in self._passed
            self._passed[key] = None
            self._passed.move_to_end(key)
            while len(self._passed) > PASSED_MAX:
                self._passed.popitem(last=False)
        return is_new

    def _keep(self, key: Key, content: Buffer) -> None:
        """Writes a block to the disk. Room is made before, so the limit holds at any time."""
        if self._is_local or len(content) > self._bytes_max or not self._may_keep():
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

    def _read_ahead(self, name: str, size: int, number: int, following: Object | None) -> None:
        """Begins to read what a reader that goes on will want next."""
        wanted: list[tuple[Key, int, Future[Buffer]]] = []
        with self._lock:
            continues = self._last.get(name) in {number - 1, number} and (number > 0 or self._last[name] < 0)
            self._at(name, number)
            if continues:
                for key, whole in self._next(name, size, number, following):
                    if key not in self._memory:
                        coming: Future[Buffer] = Future()
                        self._remember(key, coming)
                        wanted.append((key, whole, coming))
        for key, whole, coming in wanted:
            self._threads.submit(self._bring, key, whole, coming, is_ahead=True)

    def _at(self, name: str, number: int) -> None:
        self._last[name] = number
        self._last.move_to_end(name)
        while len(self._last) > OBJECTS_MAX:
            self._last.popitem(last=False)

    def _next(self, name: str, size: int, number: int, following: Object | None) -> Iterator[tuple[Key, int]]:
        """The next blocks, each with the size of its object."""
        count = -(-size // BLOCK_BYTES)
        for ahead in range(number + 1, number + 1 + AHEAD):
            if ahead < count:
                yield (name, ahead), size
            elif following is not None and (ahead - count) * BLOCK_BYTES < following.size:
                if ahead == count and self._last.get(following.name) is None:
                    # Whoever begins there continues from here.
                    self._at(following.name, -1)
                yield (following.name, ahead - count), following.size
