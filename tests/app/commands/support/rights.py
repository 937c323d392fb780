"""The permissions that grant each right, written down from the protocol's page (section 2.4), and the permissions of
users that the tests try."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from whippet.app.access.permissions import ALL, GlobalPermissions, Permissions, StreamPermissions, TopicPermissions

IN_STREAMS = "G.manage_streams G.read_streams"
TOPIC_READ = f"{IN_STREAMS} G.manage_topics G.read_topics S.manage_stream S.read_stream S.manage_topics S.read_topics"
RIGHTS = {
    "server read": "G.manage_servers G.read_servers",
    "users read": "G.manage_users G.read_users",
    "users manage": "G.manage_users",
    "all streams read": IN_STREAMS,
    "streams manage": "G.manage_streams",
    "stream read": f"{IN_STREAMS} S.manage_stream S.read_stream",
    "stream manage": "G.manage_streams S.manage_stream",
    "topics read": TOPIC_READ,
    "topic read": f"{TOPIC_READ} T.manage_topic T.read_topic",
    "topics manage": "G.manage_streams G.manage_topics S.manage_stream S.manage_topics",
    "topic manage": "G.manage_streams G.manage_topics S.manage_stream S.manage_topics T.manage_topic",
    "poll": f"{TOPIC_READ} T.manage_topic T.read_topic G.poll_messages S.poll_messages T.poll_messages",
    "send": "G.manage_streams G.manage_topics G.send_messages S.manage_stream S.manage_topics S.send_messages "
    "T.manage_topic T.send_messages",
    "route": f"{TOPIC_READ} T.manage_topic T.read_topic G.poll_messages S.poll_messages T.poll_messages "
    "G.send_messages S.send_messages T.send_messages",
}


def flags(kind: type[Any]) -> list[str]:
    return [name for name in kind.__struct_fields__ if name != "topics"]


def grants() -> Iterator[tuple[str, Permissions | None]]:
    """Every way to have a single permission, and to have all. The name "" grants nothing here."""
    yield "", None
    yield "", Permissions()
    for flag in flags(GlobalPermissions):
        yield f"G.{flag}", Permissions(GlobalPermissions(**{flag: True}))
    for flag in flags(StreamPermissions):
        for stream_id in (0, 1):
            of_stream = msgspec.convert({flag: True}, StreamPermissions)
            yield f"S.{flag}" if stream_id == 0 else "", Permissions(streams={stream_id: of_stream})
    for flag in flags(TopicPermissions):
        for stream_id, topic_id in ((0, 0), (0, 1), (1, 0)):
            of_topic = StreamPermissions(topics={topic_id: TopicPermissions(**{flag: True})})
            yield f"T.{flag}" if (stream_id, topic_id) == (0, 0) else "", Permissions(streams={stream_id: of_topic})
    every_topic = dict.fromkeys((0, 1), TopicPermissions(*[True] * 4))
    everything: dict[str, Any] = dict.fromkeys(flags(StreamPermissions), True)
    yield "", Permissions(streams={1: StreamPermissions(**everything, topics=every_topic)})
    yield "everything", ALL
