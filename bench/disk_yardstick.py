"""The yardsticks for the store: the same bytes through plain calls of the operating system."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from whippet.bench.measure import Contender
from whippet.storage.batch import Writable


def writing(folder: str, batches: Sequence[Writable], messages: int, *, sync: bool = False) -> Contender:
    """Measures messages per second with one `writev` per batch, into a new file, which is removed afterwards."""
    path = f"{folder}/yardstick.log"

    async def contender() -> float:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        start = time.perf_counter()
        for batch in batches:
            os.writev(handle, [batch])
            if sync:
                os.fdatasync(handle)
        seconds = time.perf_counter() - start
        os.close(handle)
        os.unlink(path)
        return messages / seconds

    return contender


def reading(path: str, length: int, messages: int) -> Contender:
    """Measures messages per second with one `pread` per batch, over a file with batches of one length."""

    async def contender() -> float:
        handle = os.open(path, os.O_RDONLY)
        size = os.fstat(handle).st_size
        start = time.perf_counter()
        for position in range(0, size, length):
            os.pread(handle, length, position)
        seconds = time.perf_counter() - start
        os.close(handle)
        return messages / seconds

    return contender


def walking(root: str) -> float:
    """Returns the seconds to list every folder and to read its last two files: the last `.index` and `.log`."""
    start = time.perf_counter()
    for folder, _, names in os.walk(root):
        for name in sorted(names)[-2:]:
            handle = os.open(f"{folder}/{name}", os.O_RDONLY)
            os.pread(handle, 1 << 20, 0)
            os.close(handle)
    return time.perf_counter() - start
