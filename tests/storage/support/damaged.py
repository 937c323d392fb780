"""A data folder to damage, and names for its parts."""

from __future__ import annotations

import random
from pathlib import Path

from tests.storage.support.folders import MESSAGES, SEGMENT_MESSAGES, SEGMENTS

LAST = SEGMENTS - 1

GARBAGE = random.Random(5).randbytes(5000)


def segment(number: int) -> range:
    """The offsets of a segment."""
    return range(number * SEGMENT_MESSAGES, min((number + 1) * SEGMENT_MESSAGES, MESSAGES))


DOCUMENTS = ["stream.json", "topics/0/topic.json"]


def damage_file(path: Path, content: bytes | str | None) -> None:
    path.unlink()
    if isinstance(content, str):
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
