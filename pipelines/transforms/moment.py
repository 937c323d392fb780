"""What computed values are made of: nothing that another run of the same batch would have otherwise."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column


@dataclass(frozen=True)
class Moment:
    now: Column
    """The time of the batch; it is in the checkpoint, so a replay has it again."""
    unique: Column
    """A text that no other row has."""
