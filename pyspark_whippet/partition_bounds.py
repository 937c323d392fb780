"""Where messages are read from: the gateway, a folder with its files, or both. What all three answer, and the choice.

Topics are named `stream/topic` everywhere here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark_whippet.errors import OptionError
from pyspark_whippet.offsets import Range
from pyspark_whippet.settings import Settings


@dataclass(frozen=True)
class PartitionBounds:
    """Where a partition ends, and how many messages are in it."""

    next_offset: int
    messages: int
    first_offset: int | None
    """None: it has to be asked for."""


TopicBounds = dict[str, dict[int, PartitionBounds]]
"""By topic and partition, both in order."""


class Backend(Protocol):
    """Asked on the driver, anew for every plan."""

    def topic_names(self) -> Iterable[str]:
        """Of all topics."""

    def bounds_of(self, topic: str) -> dict[int, PartitionBounds] | None:
        """Of its partitions; None where there is no such topic."""

    def first_offset(self, topic: str, partition: int, bounds: PartitionBounds) -> int:
        """Of the oldest message that is still there; where the partition ends, if none is."""

    def offset_at(self, topic: str, partition: int, timestamp_us: int) -> int | None:
        """Of the first message that was appended then or later; None if there is none."""

    def still_has(self, topic: str, partition: int, offset: int) -> bool:
        """Whether messages up to there are still there although the partition is said to end before."""

    def plan_splits(self, ranges: list[Range], settings: Settings) -> Sequence[Any]:
        """What tasks have to read, so that each message of the ranges is read once."""


def subscribed_bounds(backend: Backend, settings: Settings, *, all_there: bool = True) -> TopicBounds:
    """Of all partitions that are to be read; `all_there`: a topic that is named and is not there is an error."""
    found: TopicBounds = {}
    for topic in _topic_names(backend, settings):
        partitions = backend.bounds_of(topic)
        if partitions is None:
            if settings.topics is not None and all_there:
                raise OptionError(f"topic {topic!r} is not there")
            continue
        if settings.assign is not None:
            missing = [number for number in settings.assign[topic] if number not in partitions]
            if missing:
                raise OptionError(f"option 'assign': {topic} has no partition {missing[0]}, it has {len(partitions)}")
            partitions = {number: partitions[number] for number in settings.assign[topic]}
        found[topic] = partitions
    return found


def _topic_names(backend: Backend, settings: Settings) -> tuple[str, ...]:
    """The topics to read, those of a pattern as they are now."""
    if settings.topics is not None:
        return settings.topics
    assert settings.subscribe_pattern is not None
    pattern = re.compile(settings.subscribe_pattern)
    found = tuple(sorted(name for name in backend.topic_names() if pattern.fullmatch(name)))
    if settings.backend != "files":
        _refuse_numbers(found)
    return found


def _refuse_numbers(names: Iterable[str]) -> None:
    """What is a number is an id to every server of this protocol: by such a name another topic would be read."""
    for name in names:
        for part in name.split("/", 1):
            if part.isascii() and part.isdigit():
                raise OptionError(
                    f"option 'subscribePattern': {name!r} matches, and the gateway takes {part} for an id, not for a "
                    "name; leave it out of the pattern"
                )
