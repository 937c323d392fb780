"""`metadata/snapshot.bin` of Iggy 0.9: the catalogue as of one entry of the journal, in MessagePack.

Structures are arrays whose last fields may be missing. Without its snapshot, a journal that was shortened has no
meaning, so one that cannot be read refuses the import.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

import msgspec
import xxhash

from whippet.app.access.permissions import GlobalPermissions, Permissions, TopicPermissions
from whippet.app.importing.iggy.catalogue import Catalogue, Group, Partition, Stream, Token, Topic, User
from whippet.app.importing.iggy.report import Refused
from whippet.app.importing.iggy.wire import of_stream
from whippet.app.model.options import Option, ValueKind
from whippet.app.model.topic_options import NUMBERS_OF_COMPRESSIONS

FORMAT_VERSION = 3
_MAGIC = (0x49534E50).to_bytes(4, "little")
_TRAILER_BYTES = 20
_NOT_UNDERSTOOD = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, IndexError, KeyError, TypeError, ValueError)


def read(content: bytes, path: str) -> tuple[Catalogue, int]:
    """Returns the catalogue, and the number of the entry that it includes."""
    payload = content
    trailer = content[-_TRAILER_BYTES:]
    if len(trailer) == _TRAILER_BYTES and trailer[:4] == _MAGIC:
        payload = content[:-_TRAILER_BYTES]
        if xxhash.xxh3_64_intdigest(payload) != int.from_bytes(trailer[4:], "little"):
            raise Refused(f"{path}: its checksum is wrong: the catalogue of this folder is damaged")
    try:
        fields = msgspec.msgpack.decode(payload)
        version = fields[0]
        if version != FORMAT_VERSION:
            raise Refused(f"{path}: format version {version!r} is not supported, only {FORMAT_VERSION} is")
        return Catalogue(_streams(fields[4]), _users(fields[3])), int(fields[2])
    except _NOT_UNDERSTOOD as error:
        raise Refused(f"{path}: cannot be understood ({error}): the catalogue of this folder is damaged") from error


def _streams(fields: Any) -> dict[int, Stream]:
    streams = {}
    for number, (_, name, created_at, _, topics, *_) in fields[0]:
        of_it = {identity: _topic(identity, topic) for identity, topic in topics}
        streams[int(number)] = Stream(int(number), str(name), int(created_at), of_it)
    return streams


def _topic(identity: int, fields: Any) -> Topic:
    _, name, created_at, expiry, compression, size, _, partitions, *more = fields
    missing: tuple[Any, ...] = ([], 0, {})
    groups, created, options, *_ = (*list(more), *missing[len(more) :])
    found = {int(number): Group(int(number), str(group[2]), int(created_at)) for number, group in groups}
    return Topic(
        id=int(identity),
        name=str(name),
        created_at=int(created_at),
        message_expiry=int(expiry),
        max_topic_size=int(size),
        compression_algorithm=NUMBERS_OF_COMPRESSIONS.get(str(compression), 1),
        replication_factor=1,
        partitions=[_partition(fields) for fields in partitions],
        explicit=_explicit(options),
        groups=found,
        groups_created=max(int(created), max(found, default=-1) + 1),
    )


def _partition(fields: Any) -> Partition:
    deleted_before, purges, *_ = (*list(fields[4:]), 0, 0)
    return Partition(purges=int(purges), deleted_before=int(deleted_before))


def _explicit(options: Any) -> dict[str, Option]:
    found = {}
    for (_, key), ((kind, value), is_explicit) in options.items():
        if is_explicit:
            name = _raw(key).decode()
            found[name] = Option(name, ValueKind[str(kind).upper()], _raw(value))
    return found


def _raw(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error:
        raise ValueError("the value of an option is not base64") from None


def _users(fields: Any) -> dict[int, User]:
    items, tokens, *_ = fields
    users = {}
    for number, (_, name, password_hash, status, created_at, permissions, *_) in items:
        is_active = str(status) == "active"
        users[int(number)] = User(
            int(number), str(name), str(password_hash), int(created_at), is_active, _permissions(permissions)
        )
    for number, owned in tokens:
        for name, (_, _, token_hash, expires_at) in owned:
            users[int(number)].tokens[str(name)] = Token(str(name), str(token_hash), 0, int(expires_at or 0))
    return users


def _permissions(fields: Any) -> Permissions | None:
    if fields is None:
        return None
    everywhere, streams = fields
    found = {}
    for number, (*flags, topics) in (streams or {}).items():
        of_topics = {int(topic): TopicPermissions(*map(bool, held)) for topic, held in (topics or {}).items()}
        found[int(number)] = of_stream([bool(flag) for flag in flags], of_topics)
    return Permissions(GlobalPermissions(*map(bool, everywhere)), found)
