"""Pauses Python's collector of cyclic garbage while thousands of objects are created that stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

MANY = 100_000
"""Objects: those of about 3,000 partitions."""


@contextmanager
def paused() -> Iterator[None]:
    """Every partition has dozens of objects that live as long as the server. With the default thresholds the collector
    goes through all of them again after each few hundred new ones: four fifths of the time that it takes to open
    thousands of partitions. If there are very many, they are also excluded from later collections, the first of which
    would begin at once."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if gc.get_count()[0] >= MANY:
            gc.freeze()
        if was_enabled:
            gc.enable()
