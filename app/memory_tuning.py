"""Two process-wide settings that keep memory management cheap: one of the C library, one of Python's collector.

Programs that send or serve megabytes call `keep_freed_memory` when they start. The server calls `freeze_live_objects`
once everything is open.
"""

from __future__ import annotations

import ctypes
import gc

TRIM_THRESHOLD_BYTES = 64 << 20
"""Free memory that each heap may keep at its top. There is a heap for every allocating thread, up to eight a core."""
MAP_THRESHOLD_BYTES = 32 << 20
"""Allocations from this size on get pages of their own, which are returned when they are freed; glibc's maximum."""

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

YOUNG_OBJECTS = 50_000
"""Allocated and not freed before the youngest generation is collected; Python's default is 700."""
YOUNG_ROUNDS = 20
MIDDLE_ROUNDS = 100
"""Collections of a generation before the next older one is collected."""


def keep_freed_memory() -> bool:
    """Returns False where the C library has no such setting: only glibc does.

    glibc returns freed memory at the top of a thread's heap as soon as that is more than a few megabytes. A server that
    reads and frees a megabyte all the time then pays 256 page faults for each: reads of 1 MB, 8 in flight, are twice as
    fast without that.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES) and mallopt(_M_MMAP_THRESHOLD, MAP_THRESHOLD_BYTES))


def freeze_live_objects() -> None:
    """Excludes all present objects from garbage collection, and makes collections rare.

    There is hardly any cyclic garbage here, but the collector runs whenever allocations exceed frees. Every batch in a
    memory tail is allocated and kept, so a server that receives small messages scanned all of them again and again: a
    tenth of its time, in pauses that grow with the tail.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, YOUNG_ROUNDS, MIDDLE_ROUNDS)
