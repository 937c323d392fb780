"""The permissions of a user as bytes: ten flags, then streams, and topics inside them, as chains of "another follows".

The Node SDK leaves out the flags that end a chain, so a flag that is missing at the end of the bytes counts as 0.
"""

from __future__ import annotations

import struct
from typing import Any

from whippet.app.access.permissions import GlobalPermissions, Permissions, StreamPermissions, TopicPermissions
from whippet.app.errors import Code, CommandError
from whippet.transports.wire.primitives import Part, Reader, pack, u32

BYTES_MAX = 1 << 20
"""Decoding blocks the event loop. These are the permissions for some 100,000 topics."""

_EVERYWHERE = struct.Struct("<10?")
_STREAM = struct.Struct("<I6?")
_TOPIC = struct.Struct("<I4?")


def read(octets: memoryview) -> Permissions:
    """The bytes must be permissions and nothing else."""
    if len(octets) > BYTES_MAX:
        raise CommandError(Code.INVALID_SIZE_BYTES, f"permissions of {len(octets)} bytes: {BYTES_MAX} are allowed")
    reader = Reader(octets)
    try:
        everywhere = GlobalPermissions(*reader.unpack(_EVERYWHERE))
        streams = {}
        more = reader.flag()
        while more:
            stream_id, *flags = reader.unpack(_STREAM)
            granted: list[Any] = [*flags, _read_topics(reader)]
            streams[stream_id] = StreamPermissions(*granted)
            more = _another(reader)
    except CommandError as error:
        raise CommandError(Code.INVALID_FORMAT, f"the permissions are cut off: {error}") from None
    if not reader.at_end:
        raise CommandError(Code.INVALID_FORMAT, f"the permissions end at byte {reader.position} of {len(octets)}")
    return Permissions(everywhere, streams)


def _read_topics(reader: Reader) -> dict[int, TopicPermissions]:
    topics = {}
    more = _another(reader)
    while more:
        topic_id, *flags = reader.unpack(_TOPIC)
        topics[topic_id] = TopicPermissions(*flags)
        more = _another(reader)
    return topics


def _another(reader: Reader) -> bool:
    return not reader.at_end and reader.flag()


def write(permissions: Permissions) -> bytes:
    g = permissions.everywhere
    parts = [
        _EVERYWHERE.pack(
            g.manage_servers,
            g.read_servers,
            g.manage_users,
            g.read_users,
            g.manage_streams,
            g.read_streams,
            g.manage_topics,
            g.read_topics,
            g.poll_messages,
            g.send_messages,
        )
    ]
    for stream_id, s in sorted(permissions.streams.items()):
        parts += (
            b"\1",
            pack(
                _STREAM,
                stream_id,
                s.manage_stream,
                s.read_stream,
                s.manage_topics,
                s.read_topics,
                s.poll_messages,
                s.send_messages,
            ),
        )
        for topic_id, t in sorted(s.topics.items()):
            parts += (b"\1", pack(_TOPIC, topic_id, t.manage_topic, t.read_topic, t.poll_messages, t.send_messages))
        parts.append(b"\0")
    parts.append(b"\0")
    return b"".join(parts)


def _read_sized(reader: Reader) -> Permissions | None:
    return read(reader.sized()) if reader.u8() == 1 else None


def _write_sized(permissions: Permissions | None) -> bytes:
    if permissions is None:
        return b"\0"
    octets = write(permissions)
    return b"".join((b"\1", u32(len(octets)), octets))


PERMISSIONS = Part(_read_sized, _write_sized)
"""A flag; if it is 1, the length of the permissions and the permissions follow."""


def _read_of_user(reader: Reader) -> Permissions | None:
    if reader.u8() == 1:
        return read(reader.sized())
    reader.take(3)
    return None


def _write_of_user(permissions: Permissions | None) -> bytes:
    return bytes(4) if permissions is None else _write_sized(permissions)


PERMISSIONS_OF_USER = Part(_read_of_user, _write_of_user)
"""The same at the end of a user's record, where four zero bytes stand for none."""
