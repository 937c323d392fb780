"""Permissions as values: what a user may do everywhere, in a stream, or with a topic. There are no denials.

The rights that commands require are in this module too, so that the implications of a flag are written down once: a
table of rights, each with the flags that grant it. The table in `whippet.app.commands.registry` refers to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

import msgspec


class TopicPermissions(msgspec.Struct, frozen=True):
    manage_topic: bool = False
    read_topic: bool = False
    poll_messages: bool = False
    send_messages: bool = False


class StreamPermissions(msgspec.Struct, frozen=True):
    manage_stream: bool = False
    read_stream: bool = False
    manage_topics: bool = False
    read_topics: bool = False
    poll_messages: bool = False
    send_messages: bool = False
    topics: dict[int, TopicPermissions] = {}


class GlobalPermissions(msgspec.Struct, frozen=True):
    manage_servers: bool = False
    read_servers: bool = False
    manage_users: bool = False
    read_users: bool = False
    manage_streams: bool = False
    read_streams: bool = False
    manage_topics: bool = False
    read_topics: bool = False
    poll_messages: bool = False
    send_messages: bool = False


class Permissions(msgspec.Struct, frozen=True):
    everywhere: GlobalPermissions = GlobalPermissions()
    streams: dict[int, StreamPermissions] = {}


ALL = Permissions(GlobalPermissions(**dict.fromkeys(GlobalPermissions.__struct_fields__, True)))
"""The root user always has these."""
NONE = Permissions()
_NO_STREAM = StreamPermissions()


# ------------------------------------------------------------------------------------------------------------- rights

Right = Callable[[Permissions, int, int], bool]
"""Returns True if the permissions grant the right, for a stream id and a topic id (ignored unless the right concerns
one)."""


def _right(everywhere: str, in_stream: str = "", on_topic: str = "") -> Right:
    """A right that any one of these flags grants, at any level. Checked for every batch, so the getters are created
    once."""
    of_all, of_stream, of_topic = _flags(everywhere), _flags(in_stream), _flags(on_topic)

    def granted(permissions: Permissions, stream_id: int, topic_id: int) -> bool:
        if True in of_all(permissions.everywhere):
            return True
        if (stream := permissions.streams.get(stream_id)) is None:
            return False
        if True in of_stream(stream):
            return True
        if (topic := stream.topics.get(topic_id)) is None:
            return False
        return True in of_topic(topic)

    return granted


def _no_flags(permissions: Any) -> tuple[bool, ...]:
    return ()


def _flags(names: str) -> Callable[[Any], tuple[bool, ...]]:
    match names.split():
        case []:
            return _no_flags
        case [name]:
            one = attrgetter(name)
            return lambda permissions: (one(permissions),)
        case several:
            return attrgetter(*several)


manage_servers = _right("manage_servers")
"""No command needs it yet; for granting, it is more than `read_servers`."""
read_servers = _right("manage_servers read_servers")
manage_users = _right("manage_users")
read_users = _right("manage_users read_users")
manage_streams = _right("manage_streams")
"""The right to create a stream, which has no permissions of its own yet."""
read_streams = _right("manage_streams read_streams")
read_stream = _right("manage_streams read_streams", "manage_stream read_stream")
manage_stream = _right("manage_streams", "manage_stream")
read_topics = _right(
    "manage_streams read_streams manage_topics read_topics",
    "manage_stream read_stream manage_topics read_topics",
)
read_topic = _right(
    "manage_streams read_streams manage_topics read_topics",
    "manage_stream read_stream manage_topics read_topics",
    "manage_topic read_topic",
)
manage_topics = _right("manage_streams manage_topics", "manage_stream manage_topics")
"""The right to create a topic in a stream."""
manage_topic = _right("manage_streams manage_topics", "manage_stream manage_topics", "manage_topic")
poll_messages = _right(
    "poll_messages manage_streams read_streams manage_topics read_topics",
    "poll_messages manage_stream read_stream manage_topics read_topics",
    "poll_messages manage_topic read_topic",
)
send_messages = _right(
    "send_messages manage_streams manage_topics",
    "send_messages manage_stream manage_topics",
    "send_messages manage_topic",
)


def route_messages(permissions: Permissions, stream_id: int, topic_id: int) -> bool:
    """A user who may send or poll may also look up a partition."""
    return poll_messages(permissions, stream_id, topic_id) or send_messages(permissions, stream_id, topic_id)


RIGHTS: dict[str, Right] = {
    "manage_servers": manage_servers,
    "read_servers": read_servers,
    "manage_users": manage_users,
    "read_users": read_users,
    "manage_streams": manage_streams,
    "read_streams": read_streams,
    "manage_stream": manage_stream,
    "read_stream": read_stream,
    "manage_topics": manage_topics,
    "read_topics": read_topics,
    "manage_topic": manage_topic,
    "read_topic": read_topic,
    "poll_messages": poll_messages,
    "send_messages": send_messages,
}
ELSEWHERE = -1
"""No stream or topic has this number: what is granted for it is granted for all that are not named."""


def right_not_held(holder: Permissions | None, before: Permissions | None, after: Permissions | None) -> str | None:
    """Returns a right in which `before` and `after` differ, and which `holder` does not have in the same place; None if
    there is no such right. Missing permissions equal empty ones."""
    holder, before, after = holder or NONE, before or NONE, after or NONE
    if holder == ALL:
        return None
    for stream_id, topic_id in _scopes(before, after):
        for name, right in RIGHTS.items():
            differs = right(before, stream_id, topic_id) != right(after, stream_id, topic_id)
            if differs and not right(holder, stream_id, topic_id):
                return name if stream_id == ELSEWHERE else f"{name} in stream {stream_id}"
    return None


def _scopes(before: Permissions, after: Permissions) -> Iterator[tuple[int, int]]:
    """Yields everywhere, and each stream and topic that either of them names."""
    yield ELSEWHERE, ELSEWHERE
    for stream_id in before.streams.keys() | after.streams.keys():
        old, new = before.streams.get(stream_id, _NO_STREAM), after.streams.get(stream_id, _NO_STREAM)
        yield stream_id, ELSEWHERE
        for topic_id in old.topics.keys() | new.topics.keys():
            yield stream_id, topic_id


# ------------------------------------------------------------------------------------------------------------ removal


def without_stream(permissions: Permissions, stream_id: int) -> Permissions:
    """Returns the permissions without those for a stream; the same object if there were none."""
    if stream_id not in permissions.streams:
        return permissions
    left = {identity: stream for identity, stream in permissions.streams.items() if identity != stream_id}
    return msgspec.structs.replace(permissions, streams=left)


def without_topic(permissions: Permissions, stream_id: int, topic_id: int) -> Permissions:
    """Returns the permissions without those for a topic; the same object if there were none."""
    stream = permissions.streams.get(stream_id)
    if stream is None or topic_id not in stream.topics:
        return permissions
    left = {identity: topic for identity, topic in stream.topics.items() if identity != topic_id}
    changed = msgspec.structs.replace(stream, topics=left)
    return msgspec.structs.replace(permissions, streams={**permissions.streams, stream_id: changed})
