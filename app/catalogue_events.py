"""Events of the catalogue: what was created, changed, purged and deleted, and which consumer groups were rebalanced.

`registry.execute` publishes the changes, which costs nothing while nobody is subscribed. Membership of a group changes
without a command, so groups are checked at short intervals while somebody is subscribed. For the event loop; nothing is
kept.
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

CHECK_SECONDS = 0.25

EVENTS = {
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


class Reference(msgspec.Struct, frozen=True):
    id: int
    name: str


class MemberShare(msgspec.Struct, frozen=True):
    member_id: int
    client_id: int
    partitions: list[int]


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    at: int
    """Microseconds since 1970."""
    what: str
    """created, updated, purged, deleted or rebalanced."""
    kind: str
    """stream, topic, partitions or consumer_group."""
    stream: Reference
    topic: Reference | None = None
    consumer_group: Reference | None = None
    partitions_count: int | None = None
    """How many were created or deleted."""
    generation: int | None = None
    """The generation of the group; present together with its members."""
    members: list[MemberShare] | None = None


Listener = Callable[[Event], None]
Announce = Callable[[Any], None]


class CatalogueEvents:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._listeners: set[Listener] = set()
        self._watching: asyncio.Task[None] | None = None

    def subscribe(self, listener: Listener) -> None:
        self._listeners.add(listener)
        if self._watching is None:
            known = self._generations()
            self._watching = asyncio.get_running_loop().create_task(
                self._watch_groups(known), name="events of consumer groups"
            )

    def unsubscribe(self, listener: Listener) -> None:
        self._listeners.discard(listener)
        if not self._listeners and self._watching is not None:
            self._watching.cancel()
            self._watching = None

    def announcement(self, request: requests.Request, target: Target) -> Announce | None:
        """Returns a function to call with the response once the command has been executed, or None. Call this before,
        because it remembers the name of what is deleted."""
        event = EVENTS.get(type(request)) if self._listeners else None
        if event is None:
            return None
        what, kind = event
        stream, topic = target.found_stream, target.found_topic
        group: Reference | None = None
        if isinstance(request, requests.DeleteConsumerGroup) and topic is not None:
            found = topic.groups.find(request.group)
            group = None if found is None else Reference(found.id, found.name)
        count = request.count if isinstance(request, requests.CreatePartitions | requests.DeletePartitions) else None

        def announce(response: Any) -> None:
            of_stream = None if stream is None else reference(stream)
            of_topic = None if topic is None else reference(topic)
            of_group = group
            if isinstance(response, responses.StreamDetails):
                of_stream = reference(response.info)
            elif isinstance(response, responses.TopicDetails):
                of_topic = reference(response.info)
            elif isinstance(response, responses.GroupDetails):
                of_group = reference(response.info)
            if of_stream is not None:
                self._publish(Event(self._gateway.clock(), what, kind, of_stream, of_topic, of_group, count))

        return announce

    def _publish(self, event: Event) -> None:
        for listener in list(self._listeners):
            listener(event)

    def _generations(self) -> dict[tuple[int, int, int], int]:
        return {
            (stream.id, topic.id, group.id): group.generation
            for stream in self._gateway.streams
            for topic in stream.topics
            for group in topic.groups
        }

    async def _watch_groups(self, known: dict[tuple[int, int, int], int]) -> None:
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            now = self._generations()
            for key, generation in now.items():
                if known.get(key, 0) != generation:
                    self._publish_rebalance(*key)
            known = now

    def _publish_rebalance(self, stream_id: int, topic_id: int, group_id: int) -> None:
        stream = self._gateway.streams.find(stream_id)
        topic = None if stream is None else stream.topics.find(topic_id)
        group = None if topic is None else topic.groups.find(group_id)
        if stream is None or topic is None or group is None:
            return
        members = [MemberShare(member.id, member.client_id, list(member.partitions)) for member in group.members]
        self._publish(
            Event(
                self._gateway.clock(),
                "rebalanced",
                "consumer_group",
                reference(stream),
                reference(topic),
                reference(group),
                generation=group.generation,
                members=members,
            )
        )


def reference(thing: Any) -> Reference:
    return Reference(thing.id, thing.name)
