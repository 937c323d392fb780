"""How often Python looks for garbage in cycles: a setting of the whole process, made once everything is open.

Nearly nothing here is garbage of that kind, but the collector counts what is made against what is freed. Every batch in
a memory tail is made and kept, so a server that takes small messages looked through all of them again and again: that
was a tenth of its time, in pauses that grow with the tail.
"""

from __future__ import annotations

import gc

OBJECTS = 50_000
"""Made and not freed before the young ones are looked at; 700 is Python's default."""
YOUNG_ROUNDS = 20
ALL_ROUNDS = 100
"""Rounds of the younger generation before the next older one is looked at."""


def spare_the_living() -> None:
    """What is there now is there to stay, and is not looked at again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(OBJECTS, YOUNG_ROUNDS, ALL_ROUNDS)
