"""The interface of every backend (gateway, folder with files, both, archive), and the bounds of the partitions to read.

Topics are always named `stream/topic` here.
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
    """Where a partition starts and ends, and how many messages it has."""

    next_offset: int
    messages: int
    first_offset: int | None
    """None if the backend has to look it up."""
    epoch: int | None = None
    """None if it is not known."""


TopicBounds = dict[str, dict[int, PartitionBounds]]
"""Keyed by topic and partition, both sorted."""


class Backend(Protocol):
    """Where messages are read from. Queried on the driver, again for every plan."""

    def topic_names(self) -> Iterable[str]:
        """Returns the names of all topics."""

    def bounds_of(self, topic: str) -> dict[int, PartitionBounds] | None:
        """Returns the bounds of each partition, or None if there is no such topic."""

    def first_offset(self, topic: str, partition: int, bounds: PartitionBounds) -> int:
        """Returns the offset of the oldest message that still exists, or the end of the partition if there is none."""

    def offset_at(self, topic: str, partition: int, timestamp_us: int) -> int | None:
        """Returns the offset of the first message that was appended at this time or later, or None."""

    def still_has(self, topic: str, partition: int, offset: int) -> bool:
        """Whether the messages up to this offset still exist although the partition is reported to end before it."""

    def plan_splits(self, ranges: list[Range], settings: Settings) -> Sequence[Any]:
        """Returns what each task has to read, so that each message of the ranges is read once."""


def subscribed_bounds(backend: Backend, settings: Settings, *, all_there: bool = True) -> TopicBounds:
    """Returns the bounds of all partitions to read. With `all_there`, a missing topic that was named is an error."""
    found: TopicBounds = {}
    for topic in _topic_names(backend, settings):
        partitions = backend.bounds_of(topic)
        if partitions is None:
            if settings.topics is not None and all_there:
                raise OptionError(f"topic {topic!r} does not exist")
            continue
        if settings.assign is not None:
            missing = [number for number in settings.assign[topic] if number not in partitions]
            if missing:
                raise OptionError(
                    f"option 'assign': {topic} has {len(partitions)} partitions, and none is {missing[0]}"
                )
            partitions = {number: partitions[number] for number in settings.assign[topic]}
        found[topic] = partitions
    return found


def _topic_names(backend: Backend, settings: Settings) -> tuple[str, ...]:
    """Returns the topics to read; a pattern matches the topics that exist now."""
    if settings.topics is not None:
        return settings.topics
    assert settings.subscribe_pattern is not None
    pattern = re.compile(settings.subscribe_pattern)
    found = tuple(sorted(name for name in backend.topic_names() if pattern.fullmatch(name)))
    if settings.backend in ("gateway", "all"):
        _refuse_numbers(found)
    return found


def _refuse_numbers(names: Iterable[str]) -> None:
    """Refuses names that are numbers: in this protocol servers take them for ids, and another topic would be read."""
    for name in names:
        for part in name.split("/", 1):
            if part.isascii() and part.isdigit():
                raise OptionError(
                    f"option 'subscribePattern': {name!r} matches, but the gateway takes {part} for an id, not for a "
                    "name; leave it out of the pattern"
                )
