"""News of the catalogue: what was made, changed, emptied and deleted, and whose partitions in a group have moved.

The table of commands tells it, and that costs nothing while nobody listens. Who is in a group changes without any, so
the groups are looked at often, for as long as somebody wants to know. For the event loop; nothing is kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from whippet.app.commands import requests, responses
from whippet.app.commands.target import Target

if TYPE_CHECKING:
    from whippet.app.gateway import Gateway

LOOK_SECONDS = 0.25

WORDS = {
    requests.CreateStream: ("created", "stream"),
    requests.UpdateStream: ("updated", "stream"),
    requests.PatchStream: ("updated", "stream"),
    requests.PurgeStream: ("purged", "stream"),
    requests.DeleteStream: ("deleted", "stream"),
    requests.CreateTopic: ("created", "topic"),
    requests.UpdateTopic: ("updated", "topic"),
    requests.PatchTopic: ("updated", "topic"),
    requests.PurgeTopic: ("purged", "topic"),
    requests.DeleteTopic: ("deleted", "topic"),
    requests.CreatePartitions: ("created", "partitions"),
    requests.DeletePartitions: ("deleted", "partitions"),
    requests.CreateConsumerGroup: ("created", "consumer_group"),
    requests.DeleteConsumerGroup: ("deleted", "consumer_group"),
}


class Place(msgspec.Struct, frozen=True):
    id: int
    name: str


class Share(msgspec.Struct, frozen=True):
    member_id: int
    client_id: int
    partitions: list[int]


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    at: int
    """In us since 1970."""
    what: str
    """created, updated, purged, deleted, rebalanced."""
    kind: str
    """stream, topic, partitions, consumer_group."""
    stream: Place
    topic: Place | None = None
    consumer_group: Place | None = None
    partitions_count: int | None = None
    """How many were made or deleted."""
    generation: int | None = None
    """Of the group; with it come its members."""
    members: list[Share] | None = None


Hear = Callable[[Event], None]
Telling = Callable[[Any], None]


class News:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._listeners: set[Hear] = set()
        self._looking: asyncio.Task[None] | None = None

    def listen(self, hear: Hear) -> None:
        self._listeners.add(hear)
        if self._looking is None:
            known = self._generations()
            self._looking = asyncio.get_running_loop().create_task(self._look(known), name="news of groups")

    def leave(self, hear: Hear) -> None:
        self._listeners.discard(hear)
        if not self._listeners and self._looking is not None:
            self._looking.cancel()
            self._looking = None

    def of(self, request: requests.Request, target: Target) -> Telling | None:
        """To be called with the answer, when the command is carried out; what is deleted is asked its name before."""
        words = WORDS.get(type(request)) if self._listeners else None
        if words is None:
            return None
        what, kind = words
        stream, topic = target.found_stream, target.found_topic
        group: Place | None = None
        if isinstance(request, requests.DeleteConsumerGroup) and topic is not None:
            found = topic.groups.find(request.group)
            group = None if found is None else Place(found.id, found.name)
        count = getattr(request, "partitions_count", None) if kind == "partitions" else None

        def tell(answer: Any) -> None:
            of_stream = None if stream is None else place(stream)
            of_topic = None if topic is None else place(topic)
            of_group = group
            if isinstance(answer, responses.StreamDetails):
                of_stream = place(answer.info)
            elif isinstance(answer, responses.TopicDetails):
                of_topic = place(answer.info)
            elif isinstance(answer, responses.GroupDetails):
                of_group = place(answer.info)
            if of_stream is not None:
                self._tell(Event(self._gateway.clock(), what, kind, of_stream, of_topic, of_group, count))

        return tell

    def _tell(self, event: Event) -> None:
        for hear in list(self._listeners):
            hear(event)

    def _generations(self) -> dict[tuple[int, int, int], int]:
        return {
            (stream.id, topic.id, group.id): group.generation
            for stream in self._gateway.streams
            for topic in stream.topics
            for group in topic.groups
        }

    async def _look(self, known: dict[tuple[int, int, int], int]) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = self._generations()
            for key, generation in now.items():
                if known.get(key, 0) != generation:
                    self._tell_of_group(*key)
            known = now

    def _tell_of_group(self, stream_id: int, topic_id: int, group_id: int) -> None:
        stream = self._gateway.streams.find(stream_id)
        topic = None if stream is None else stream.topics.find(topic_id)
        group = None if topic is None else topic.groups.find(group_id)
        if stream is None or topic is None or group is None:
            return
        members = [Share(member.id, member.client_id, list(member.partitions)) for member in group.members]
        self._tell(
            Event(
                self._gateway.clock(),
                "rebalanced",
                "consumer_group",
                place(stream),
                place(topic),
                place(group),
                generation=group.generation,
                members=members,
            )
        )


def place(thing: Any) -> Place:
    return Place(thing.id, thing.name)
