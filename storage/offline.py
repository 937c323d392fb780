"""A data folder for a tool that works on it while no server does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from whippet.storage.errors import StoreLocked, UnsupportedFormat
from whippet.storage.files import Files
from whippet.storage.layout import FORMAT_FILE, LOCK_FILE, Layout
from whippet.storage.options import StoreOptions


@contextlib.contextmanager
def locked(options: StoreOptions, files: Files) -> Iterator[Layout]:
    """No other process can open the folder meanwhile. What its lock says of the last server stays as it is."""
    layout = Layout(options)
    if not files.exists(layout.below(FORMAT_FILE)):
        raise UnsupportedFormat(f"{layout.below(FORMAT_FILE)}: missing; this is no data folder of Whippet")
    lock = files.lock(layout.below(LOCK_FILE))
    if lock is None:
        raise StoreLocked(f"{layout.root}: another process has this data folder open; stop it first")
    try:
        yield layout
    finally:
        files.close(lock)
