"""Pauses Python's collector of cyclic garbage while thousands of objects are created that stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused() -> Iterator[None]:
    """Every partition has dozens of objects that live as long as the server. With the default thresholds the collector
    goes through all of them again after each few hundred new ones: four fifths of the time that it takes to open
    thousands of partitions."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
