"""Syncs most of a log beside its shard's thread, so that the sync on that thread, for which producers wait, is short.

The files are opened apart: a handle tells of each failure of the disk once, and the shard's own handles have to tell
the shard. What is written meanwhile is left to the shard's sync, which follows in any case.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from whippet.storage.files import Files
from whippet.storage.log import Log

EARLY_BYTES = 4 << 20
"""With less to sync, the shard's own sync is short enough."""


async def sync_early(log: Log, call: Callable[[Callable[[], Sequence[str]]], asyncio.Future[Sequence[str]]]) -> None:
    """Syncs what the log has written so far, if it is much. Raises OSError if that fails: the shard's handles may have
    been opened too late to tell."""
    if log.unsynced_bytes < EARLY_BYTES:
        return
    paths = await call(log.unsynced_files)
    await asyncio.to_thread(_sync_all, log.files, paths)


def _sync_all(files: Files, paths: Sequence[str]) -> None:
    for path in paths:
        # A file that was deleted meanwhile needs no sync.
        with contextlib.suppress(FileNotFoundError):
            handle = files.open_for_reading(path)
            try:
                files.sync(handle)
            finally:
                files.close(handle)
