"""Unpacks large batches on several threads, and before they are needed: a reader that goes on finds the next batch
unpacked. Where several readers follow each other, what one of them has unpacked is kept for the others.

Used by the threads that read segments. A segment belongs to one thread at a time, and so do its batches here.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache

from whippet.storage.batch import Readable
from whippet.storage.segment import Segment

LARGE_BYTES = 64 << 10
"""Passing a smaller batch to another thread takes about as long as unpacking it."""
AHEAD_BYTES_MAX = 2 << 20
"""No more than this is unpacked before it is needed, for one reader."""
KEPT_BYTES = 32 << 20
"""Unpacked batches that are kept, of all logs together."""
READS_REMEMBERED = 16
REST_READS = 256
"""For so many reads nothing is unpacked ahead after it was done in vain: there are too many readers."""

Parts = tuple[Readable, ...]


class Unpacked:
    """A batch that is or will be unpacked."""

    __slots__ = ("_future", "_parts", "_work")

    def __init__(self, work: Callable[[], Parts]) -> None:
        self._work: Callable[[], Parts] | None = work
        self._future: Future[Parts] | None = None
        self._parts: Parts = ()

    def begin(self) -> None:
        """Has it unpacked on another thread."""
        assert self._work is not None
        self._future = _threads().submit(self._work)

    def parts(self) -> Parts:
        """Unpacks it, unless another thread does that or has done it. Raises what the work raises."""
        if self._work is not None:
            begun = self._future
            self._parts = self._work() if begun is None or begun.cancel() else begun.result()
            self._work = self._future = None
        return self._parts


class UnpackedBatches:
    """The batches of all logs that were unpacked ahead, or for several readers; the least recently used are dropped."""

    def __init__(self, limit: int = KEPT_BYTES) -> None:
        self._limit = limit
        self.used = 0
        """Bytes of these batches."""
        self._resting = 0
        self._lock = threading.Lock()
        self._batches: OrderedDict[tuple[Segment, int], tuple[Unpacked, int, bool]] = OrderedDict()
        """By segment and position; with their lengths, and whether they were read."""

    def take(self, segment: Segment, position: int, *, keep: bool) -> Unpacked | None:
        """For a reader; None if it is not here. It stays only if it is to be kept."""
        key = segment, position
        with self._lock:
            found = self._batches.pop(key, None)
            if found is None:
                return None
            if keep:
                self._batches[key] = found[0], found[1], True
            else:
                self.used -= found[1]
        return found[0]

    def has(self, segment: Segment, position: int) -> bool:
        return (segment, position) in self._batches

    def put(self, segment: Segment, position: int, batch: Unpacked, size: int, *, was_read: bool) -> None:
        with self._lock:
            replaced = self._batches.pop((segment, position), None)
            self._batches[segment, position] = batch, size, was_read
            self.used += size - (0 if replaced is None else replaced[1])
            while self.used > self._limit:
                _, (_, dropped, was_useful) = self._batches.popitem(last=False)
                self.used -= dropped
                if not was_useful:
                    self._resting = REST_READS

    def may_go_ahead(self) -> bool:
        if self._resting:
            self._resting -= 1
        return not self._resting


class Readers:
    """The last reads of one log, and what they tell about its readers."""

    def __init__(self) -> None:
        self._ends: deque[int] = deque(maxlen=READS_REMEMBERED)
        self._shared = 0

    def goes_on(self, offset: int) -> bool:
        """Returns whether a reader that begins at an offset has read what comes before it."""
        return offset in self._ends

    def ended(self, offset: int) -> None:
        self._shared = READS_REMEMBERED if offset in self._ends else max(self._shared - 1, 0)
        self._ends.append(offset)

    @property
    def are_several(self) -> bool:
        """Returns whether some have read the same lately."""
        return self._shared > 0


unpacked_batches = UnpackedBatches()


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="unpacking", initializer=_leave_core)


def _leave_core() -> None:
    """A thread begins on the cores of the one that started it, and a shard may be pinned to one."""
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setaffinity(0, os.sched_getaffinity(os.getpid()))
