"""Permissions as texts of the command line, as Iggy's has them.

--global-permissions read_streams,p_msg
--stream-permissions 1:m_str,r_top#2:send_messages#3:p_msg        a stream, then its topics, by their ids
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from whippet.app.access.permissions import GlobalPermissions, Permissions, StreamPermissions, TopicPermissions
from whippet.app.cli.remote.failures import UsageFailure

SHORT = {
    "m_srv": "manage_servers",
    "r_srv": "read_servers",
    "m_usr": "manage_users",
    "r_usr": "read_users",
    "m_str": "manage_streams",
    "r_str": "read_streams",
    "m_top": "manage_topics",
    "r_top": "read_topics",
    "p_msg": "poll_messages",
    "s_msg": "send_messages",
}
IN_STREAM = SHORT | {"m_str": "manage_stream", "r_str": "read_stream"}
ON_TOPIC = SHORT | {"m_top": "manage_topic", "r_top": "read_topic"}

Flags = TypeVar("Flags", GlobalPermissions, StreamPermissions, TopicPermissions)


def parse(everywhere: Sequence[str], streams: Sequence[str]) -> Permissions | None:
    """Returns None if there are no texts."""
    if not everywhere and not streams:
        return None
    flags = _flags(GlobalPermissions, SHORT, ",".join(everywhere))
    return Permissions(flags, dict(_stream(text) for text in streams))


def _stream(text: str) -> tuple[int, StreamPermissions]:
    first, *topics = text.split("#")
    stream_id, flags = _numbered(first, text)
    granted = _flags(StreamPermissions, IN_STREAM, flags)
    found = {}
    for each in topics:
        topic_id, topic_flags = _numbered(each, text)
        found[topic_id] = _flags(TopicPermissions, ON_TOPIC, topic_flags)
    return stream_id, msgspec.structs.replace(granted, topics=found)


def _numbered(part: str, whole: str) -> tuple[int, str]:
    number, _, flags = part.partition(":")
    if not (number.isascii() and number.isdecimal()):
        raise UsageFailure(
            f"{whole!r} are no permissions: {number!r} is no id; an example is 1:read_stream#2:poll_messages"
        )
    return int(number), flags


def _flags(kind: type[Flags], short: dict[str, str], text: str) -> Flags:
    names = [short.get(name, name) for name in text.split(",") if name]
    known = [name for name in kind.__struct_fields__ if name != "topics"]
    for name in names:
        if name not in known:
            raise UsageFailure(f"there is no permission {name!r} here: choose from {', '.join(known)}")
    granted: dict[str, Any] = dict.fromkeys(names, True)
    return kind(**granted)
