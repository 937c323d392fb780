"""Topics as the gateway reports them: which exist, where their partitions start and end, and which offset a time has.

Whippet reports the bounds of partitions (`first_offset`, `next_offset`); for other servers they are derived.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from pyspark_whippet import deduplication, offsets, polls
from pyspark_whippet.errors import GatewayError
from pyspark_whippet.gateway_reader import Split, split_of
from pyspark_whippet.offsets import Range
from pyspark_whippet.partition_bounds import PartitionBounds
from pyspark_whippet.session import Session, session_of, topic_path
from pyspark_whippet.settings import Access, Settings

FORBIDDEN = 403
HIDDEN = (FORBIDDEN, 404)
"""What a user may not see."""


class GatewayBackend:
    """Reads everything from the gateway."""

    def __init__(self, access: Access) -> None:
        self._access = access

    @property
    def _session(self) -> Session:
        return session_of(self._access)

    def topic_names(self) -> Iterator[str]:
        for stream in visible_streams(self._session):
            topics = self._session.call("GET", f"/streams/{quote(stream, safe='')}/topics", also=HIDDEN)
            for topic in topics.json if topics.status == 200 else ():
                yield f"{stream}/{topic['name']}"

    def bounds_of(self, topic: str) -> dict[int, PartitionBounds] | None:
        return bounds_of(self._session, topic)

    def document(self, topic: str) -> dict[str, Any] | None:
        """Returns the details of a topic, or None if there is no such topic."""
        return details(self._session, topic)

    def first_offset(self, topic: str, partition: int, bounds: PartitionBounds) -> int:
        if bounds.first_offset is not None:
            return bounds.first_offset
        found = polls.finish(polls.begin(self._session, topic, partition, "first", 0, 1))
        return int(found.offsets[0]) if len(found) else bounds.next_offset

    def offset_at(self, topic: str, partition: int, timestamp_us: int) -> int | None:
        found = polls.finish(polls.begin(self._session, topic, partition, "timestamp", timestamp_us, 1))
        return int(found.offsets[0]) if len(found) else None

    def still_has(self, topic: str, partition: int, offset: int) -> bool:
        """Messages that the gateway does not report do not exist."""
        return False

    def plan_splits(self, ranges: list[Range], settings: Settings) -> list[Split]:
        pieces = offsets.divide(ranges, settings.min_partitions, settings.max_records_per_partition)
        return [split_of(piece) for piece in pieces]


def visible_streams(session: Session) -> list[str]:
    """Returns the names of all streams, or, for a user who may not list them, of those that the user may read."""
    reply = session.call("GET", "/streams", also=(FORBIDDEN,))
    if reply.status != FORBIDDEN:
        return [stream["name"] for stream in reply.json]
    user = session.user_id
    own = None if user is None else session.call("GET", f"/users/{user}", also=HIDDEN)
    permissions = (own.json.get("permissions") or {}) if own is not None and own.status == 200 else {}
    found = [session.call("GET", f"/streams/{each}", also=HIDDEN) for each in permissions.get("streams") or {}]
    names = [each.json["name"] for each in found if each.status == 200]
    if not names:
        raise GatewayError("option 'subscribePattern': the user may read no stream; grant read_streams or read_stream")
    return names


def details(session: Session, topic: str) -> dict[str, Any] | None:
    """Returns None if there is no such topic."""
    reply = session.find(topic_path(topic))
    if reply is None:
        return None
    found: dict[str, Any] = reply.json
    return found


def bounds_of(session: Session, topic: str) -> dict[int, PartitionBounds] | None:
    """Returns the bounds of each partition, or None if there is no such topic."""
    found = details(session, topic)
    return None if found is None else bounds_in(found)


def bounds_in(found: dict[str, Any]) -> dict[int, PartitionBounds]:
    """Returns the bounds from the details of a topic."""
    partitions = sorted(found["partitions"], key=lambda partition: int(partition["id"]))
    return {int(partition["id"]): _partition_bounds(partition) for partition in partitions}


def reports_bounds(found: dict[str, Any]) -> bool:
    """Whether these details come from Whippet, which accepts batches over HTTP."""
    return all("next_offset" in partition for partition in found["partitions"])


def _partition_bounds(partition: dict[str, Any]) -> PartitionBounds:
    messages, current = int(partition["messages_count"]), int(partition["current_offset"])
    end = partition.get("next_offset")
    # The newest offset is 0 both for an empty partition and for one with a single message.
    end = int(end) if end is not None else (current + 1 if messages or current else 0)
    first = partition.get("first_offset")
    if first is None and messages >= end:
        first = 0
    epoch = partition.get("epoch")
    return PartitionBounds(end, messages, None if first is None else int(first), None if epoch is None else int(epoch))


def create(session: Session, topic: str, partitions: int, *, keeps_ids: bool) -> None:
    """Creates a topic and its stream, unless they exist."""
    stream, _, name = topic.partition("/")
    if session.find(topic_path(topic)) is not None:
        return
    if session.find(f"/streams/{quote(stream, safe='')}") is None:
        # 400: another client was faster. Whether it exists shows in the next step.
        session.call("POST", "/streams", json.dumps({"name": stream}).encode(), also=(400, 409))
    plain = {"name": name, "partitions_count": partitions}
    # The second attempt is for servers that do not know these options.
    for wanted in ({**plain, "options": deduplication.NEW_TOPIC_OPTIONS}, plain) if keeps_ids else (plain,):
        body = json.dumps(wanted).encode()
        reply = session.call("POST", f"/streams/{quote(stream, safe='')}/topics", body, also=(400, 409))
        if 200 <= reply.status < 300 or session.find(topic_path(topic)) is not None:
            return
    session.get(topic_path(topic))
