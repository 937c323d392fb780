"""What the gateway says of topics: which there are, where their partitions begin and end, what offset a time has.

Topics are named `stream/topic` everywhere here. Our gateway may tell where partitions begin and end (`first_offset`,
`next_offset`); of others it is worked out.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from app.pipeline import polls
from app.pipeline.errors import OptionError
from app.pipeline.options import Settings
from app.pipeline.session import Session, topic_path


@dataclass(frozen=True)
class Extent:
    """Where a partition ends, and how many messages are in it."""

    next_offset: int
    messages: int
    first_offset: int | None
    """None: it has to be asked for."""


Extents = dict[str, dict[int, Extent]]
"""By topic and partition, both in order."""


def named(session: Session, settings: Settings) -> tuple[str, ...]:
    """The topics to read, those of a pattern as they are now."""
    if settings.topics is not None:
        return settings.topics
    assert settings.subscribe_pattern is not None
    pattern = re.compile(settings.subscribe_pattern)
    found = []
    for stream in session.get("/streams").json:
        topics = session.find(f"/streams/{quote(stream['name'], safe='')}/topics")
        names = (f"{stream['name']}/{topic['name']}" for topic in (topics.json if topics else ()))
        found += [name for name in names if pattern.fullmatch(name)]
    return tuple(sorted(found))


def extents(session: Session, settings: Settings) -> Extents:
    """Of all partitions that are to be read."""
    found: Extents = {}
    for topic in named(session, settings):
        partitions = extents_of(session, topic)
        if partitions is None:
            if settings.topics is None:
                # It was there a moment ago, when the pattern was looked up.
                continue
            raise OptionError(f"topic {topic!r} is not there")
        if settings.assign is not None:
            missing = [number for number in settings.assign[topic] if number not in partitions]
            if missing:
                raise OptionError(f"option 'assign': {topic} has no partition {missing[0]}, it has {len(partitions)}")
            partitions = {number: partitions[number] for number in settings.assign[topic]}
        found[topic] = partitions
    return found


def extents_of(session: Session, topic: str) -> dict[int, Extent] | None:
    """None where there is no such topic."""
    reply = session.find(topic_path(topic))
    if reply is None:
        return None
    partitions = sorted(reply.json["partitions"], key=lambda partition: int(partition["id"]))
    return {int(partition["id"]): _extent(partition) for partition in partitions}


def _extent(partition: dict[str, Any]) -> Extent:
    messages, current = int(partition["messages_count"]), int(partition["current_offset"])
    end = partition.get("next_offset")
    # The newest offset is 0 both of an empty partition and of one with a single message.
    end = int(end) if end is not None else (current + 1 if messages or current else 0)
    first = partition.get("first_offset")
    if first is None and messages >= end:
        first = 0
    return Extent(end, messages, None if first is None else int(first))


def first_offset(session: Session, topic: str, partition: int, extent: Extent) -> int:
    """Of the oldest message that is still there; where the partition ends, if none is."""
    if extent.first_offset is not None:
        return extent.first_offset
    found = polls.finish(polls.begin(session, topic, partition, "first", 0, 1))
    return int(found.offsets[0]) if len(found) else extent.next_offset


def offset_at(session: Session, topic: str, partition: int, timestamp_us: int) -> int | None:
    """Of the first message that was appended then or later; None if there is none."""
    found = polls.finish(polls.begin(session, topic, partition, "timestamp", timestamp_us, 1))
    return int(found.offsets[0]) if len(found) else None


def create(session: Session, topic: str, partitions: int) -> None:
    """A topic and its stream, unless they are there."""
    stream, _, name = topic.partition("/")
    if session.find(topic_path(topic)) is not None:
        return
    if session.find(f"/streams/{quote(stream, safe='')}") is None:
        # 400: somebody else was quicker. Whether it is there shows in the next step.
        session.call("POST", "/streams", json.dumps({"name": stream}).encode(), also=(400, 409))
    body = json.dumps({"name": name, "partitions_count": partitions}).encode()
    reply = session.call("POST", f"/streams/{quote(stream, safe='')}/topics", body, also=(400, 409))
    if not 200 <= reply.status < 300:
        session.get(topic_path(topic))
