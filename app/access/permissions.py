"""Permissions as values: what a user may do everywhere, in a stream, or with a topic. There is no "may not".

The questions that commands ask of them are in this module too, so that what a flag implies is written down once.
"""

from __future__ import annotations

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
