"""The open files and cached indexes of one shard over all its partitions, each within a limit.

Only the shard's own thread uses these, so there is no lock, except in `Loan`.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict

from whippet.storage.files import Buffer, Files
from whippet.storage.index import Index
from whippet.storage.segment import Segment

_log = logging.getLogger(__name__)


def close(files: Files, path: str, handle: int) -> None:
    """Closes a handle. The system releases it even if it reports an error; a sync would report lost writes."""
    try:
        files.close(handle)
    except OSError as error:
        _log.warning("%s: closed with an error: %s", path, error)


class Loan:
    """A file that the event loop may read until its handle is closed, which is whenever the shard needs room."""

    __slots__ = ("_handle", "_lock")

    def __init__(self, handle: int) -> None:
        self._handle: int | None = handle
        self._lock = threading.Lock()

    def read_cached(self, files: Files, length: int, position: int) -> Buffer | None:
        """Reads what the operating system has in memory. None if it does not have all of it, or the loan is over."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            return None if self._handle is None else files.read_cached(self._handle, length, position)
        finally:
            self._lock.release()

    def end(self) -> None:
        with self._lock:
            self._handle = None


class Handles:
    """Open log files; the least recently used one is closed first. Nothing is lost: a sync reopens what it needs."""

    def __init__(self, files: Files, open_max: int) -> None:
        self.files = self._files = files
        self._open_max = max(open_max, 2)
        self._apart = 0
        """Files that long reads have opened for themselves."""
        self._handles: OrderedDict[str, tuple[int, bool]] = OrderedDict()
        self._lent: dict[str, int] = {}
        """Handles that are not closed to make room for others, because the event loop may be using them."""
        self._loans: dict[str, Loan] = {}
        self._refusals: set[int | None] = set()

    def reading(self, path: str) -> int:
        return self._get(path, writing=False)

    def writing(self, path: str) -> int:
        return self._get(path, writing=True)

    def _get(self, path: str, *, writing: bool) -> int:
        lent = self._lent.get(path)
        if lent is not None:
            return lent
        known = self._handles.get(path)
        if known is not None:
            if known[1] or not writing:
                self._handles.move_to_end(path)
                return known[0]
            self.drop(path)
        handle = self._files.open_for_writing(path) if writing else self._files.open_for_reading(path)
        self._handles[path] = handle, writing
        self._make_room()
        return handle

    def _make_room(self) -> None:
        while len(self) > self._open_max and len(self._handles) > 1:
            self._close_first()

    def open_apart(self, path: str) -> int | None:
        """Opens a file for a reader that keeps it, even if it is deleted. None if such readers have too many."""
        if self._apart >= self._open_max // 2:
            return None
        handle = self._files.open_for_reading(path)
        self._apart += 1
        self._make_room()
        return handle

    def close_apart(self, path: str, handle: int) -> None:
        self._apart -= 1
        close(self._files, path, handle)

    def reserve(self, path: str, size: int, reserved: int) -> None:
        """Reserves blocks for a file of `size` bytes that will grow to `reserved`. If the disk cannot do that, it is
        logged once, and nothing else changes."""
        handle = self.writing(path)
        try:
            self._files.reserve(handle, reserved)
        except OSError as error:
            self._refuse(f"{path}: {reserved} bytes cannot be reserved", error)
            # Some blocks may have been reserved, on a disk that is nearly full.
            self.free_reserved(path, size)

    def free_reserved(self, path: str, size: int) -> None:
        """Frees the reserved blocks after the end of a file of `size` bytes."""
        try:
            self._files.truncate(self.writing(path), size)
        except OSError as error:
            self._refuse(f"{path}: reserved blocks that are not needed cannot be freed", error)

    def _refuse(self, what: str, error: OSError) -> None:
        if error.errno not in self._refusals:
            self._refusals.add(error.errno)
            _log.warning("%s (logged once): %s", what, error)

    def lend(self, path: str) -> int | None:
        """Keeps a handle that is open for writing until it is taken back or dropped, and returns it. None if too many
        are lent already."""
        known = self._handles.get(path)
        if known is None or not known[1] or len(self._lent) >= self._open_max // 2:
            return None
        self._lent[path], _ = self._handles.pop(path)
        return self._lent[path]

    def take_back(self, path: str) -> None:
        handle = self._lent.pop(path, None)
        if handle is not None:
            self._handles[path] = handle, True

    def lend_for_reading(self, path: str) -> Loan | None:
        """Lets the event loop read a file while it is open here. None if it is not open."""
        loan = self._loans.get(path)
        if loan is None and path in self._handles:
            loan = self._loans[path] = Loan(self._handles[path][0])
        return loan

    def drop(self, path: str) -> None:
        self.take_back(path)
        known = self._handles.pop(path, None)
        if known is not None:
            self._close(path, known[0])

    def _close_first(self) -> None:
        path, (handle, _) = self._handles.popitem(last=False)
        self._close(path, handle)

    def _close(self, path: str, handle: int) -> None:
        loan = self._loans.pop(path, None)
        if loan is not None:
            loan.end()
        close(self._files, path, handle)

    def close(self) -> None:
        for path in list(self._lent):
            self.take_back(path)
        while self._handles:
            self._close_first()

    def __len__(self) -> int:
        return len(self._handles) + len(self._lent) + self._apart


class IndexCache:
    """Indexes of closed segments within a budget of bytes; the least recently used one is dropped first."""

    def __init__(self, budget_bytes: float) -> None:
        self._budget = budget_bytes
        self._used = 0
        self._segments: OrderedDict[int, tuple[Segment, int]] = OrderedDict()

    def put(self, segment: Segment, index: Index) -> None:
        """Keeps an index with its segment. One that exceeds the budget alone is not kept, unless it is in no file."""
        self.drop(segment)
        size = index.memory_bytes()
        if not segment.index_in_file:
            segment.index = index
            return
        if size > self._budget:
            segment.index = None
            return
        segment.index = index
        self._segments[id(segment)] = segment, size
        self._used += size
        while self._used > self._budget:
            self._forget(next(iter(self._segments)))

    def touch(self, segment: Segment) -> None:
        if id(segment) in self._segments:
            self._segments.move_to_end(id(segment))

    def drop(self, segment: Segment) -> None:
        if id(segment) in self._segments:
            self._forget(id(segment))

    def _forget(self, key: int) -> None:
        segment, size = self._segments.pop(key)
        segment.index = None
        segment.checked = None
        self._used -= size
