"""Responses as bytes: for every command code whose success has a payload, its layout.

The server encodes, our own client decodes. A response of None is an empty payload: the command returns nothing, or
what was requested does not exist.
"""

from __future__ import annotations

from typing import Any

import msgspec

from whippet.app.commands import responses
from whippet.app.errors import Code, CommandError
from whippet.storage.batch import Readable
from whippet.transports.wire import numbered_sends
from whippet.transports.wire.classic import polls
from whippet.transports.wire.classic.dialect import Dialect
from whippet.transports.wire.permissions import PERMISSIONS_OF_USER
from whippet.transports.wire.primitives import (
    F32,
    NAME,
    STATUS,
    STR32,
    U8,
    U16,
    U32,
    U32_MAX,
    U64,
    Part,
    Reader,
    counted,
    repeated,
    structure,
    u32,
)

POLL_MESSAGES = 100
CACHE_METRICS_BYTES = 32


def times(info: Part, count: str, part: Part, kind: type[Any], field: str) -> Part:
    """A record that counts what follows it, and the items that follow."""

    def read(reader: Reader) -> Any:
        known = info.read(reader)
        return kind(known, tuple(part.read(reader) for _ in range(getattr(known, count))))

    def write(value: Any) -> bytes:
        follow = getattr(value, field)
        assert len(follow) == getattr(value.info, count), "clients refuse a count that is not that of what follows"
        return b"".join((info.write(value.info), *map(part.write, follow)))

    return Part(read, write)


STREAM = structure(
    responses.StreamInfo,
    id=U32,
    created_at=U64,
    topics_count=U32,
    size_bytes=U64,
    messages_count=U64,
    name=NAME,
)
GZIP, ZSTD = 2, 3
COMPRESSION = Part(U8.read, lambda algorithm: U8.write(GZIP if algorithm == ZSTD else algorithm))
"""Clients know none and gzip, and cannot read a response with another algorithm. To them zstd is gzip, because a topic
is compressed with it, too. The options of the topic, for clients since 0.9, have its name."""

TOPIC = structure(
    responses.TopicInfo,
    id=U32,
    created_at=U64,
    partitions_count=U32,
    message_expiry=U64,
    compression_algorithm=COMPRESSION,
    max_topic_size=U64,
    replication_factor=U8,
    size_bytes=U64,
    messages_count=U64,
    name=NAME,
)
PARTITION = structure(
    responses.PartitionInfo,
    id=U32,
    created_at=U64,
    segments_count=U32,
    current_offset=U64,
    size_bytes=U64,
    messages_count=U64,
)


def before_09(part: Part, field: str = "size_bytes") -> Part:
    """The same part with the size as servers before 0.9 count it."""

    def write(value: Any) -> Readable:
        classic = value.classic_size_bytes
        return part.write(value if classic is None else msgspec.structs.replace(value, **{field: classic}))

    return Part(part.read, write)


_STREAM, _TOPIC, _PARTITION = before_09(STREAM), before_09(TOPIC), before_09(PARTITION)

GROUP = structure(responses.GroupInfo, id=U32, partitions_count=U32, members_count=U32, name=NAME)
MEMBER = structure(responses.GroupMember, id=U32, partitions=counted(U32, U32))
STREAM_DETAILS = times(_STREAM, "topics_count", _TOPIC, responses.StreamDetails, "topics")
TOPIC_DETAILS = times(_TOPIC, "partitions_count", _PARTITION, responses.TopicDetails, "partitions")
GROUP_DETAILS = times(GROUP, "members_count", MEMBER, responses.GroupDetails, "members")

USER = structure(responses.UserInfo, id=U32, created_at=U64, status=STATUS, username=NAME)
USER_DETAILS = structure(responses.UserDetails, info=USER, permissions=PERMISSIONS_OF_USER)
LOGGED_IN = structure(responses.LoggedIn, user_id=U32)
TOKEN = structure(responses.TokenInfo, name=NAME, expires_at=U64)
RAW_TOKEN = structure(responses.RawToken, token=NAME)
OFFSET = structure(responses.ConsumerOffset, partition_id=U32, current_offset=U64, stored_offset=U64)

NODE = structure(
    responses.ClusterNode,
    name=STR32,
    ip=STR32,
    tcp_port=U16,
    quic_port=U16,
    http_port=U16,
    websocket_port=U16,
    role=U8,
    status=U8,
)
CLUSTER = structure(responses.ClusterMetadata, name=STR32, nodes=counted(U32, NODE))


def _read_user_id(reader: Reader) -> int | None:
    found = reader.u32()
    return None if found == U32_MAX else found


USER_ID = Part(_read_user_id, lambda user_id: u32(U32_MAX if user_id is None else user_id))
MEMBERSHIP = structure(responses.GroupMembership, stream_id=U32, topic_id=U32, group_id=U32)
_CLIENT = {"client_id": U32, "user_id": USER_ID, "transport": U8, "address": STR32}


def _groups_only_counted(reader: Reader) -> tuple[responses.GroupMembership, ...]:
    reader.u32()
    return ()


CLIENT = structure(responses.ClientInfo, **_CLIENT, groups=counted(U32, MEMBERSHIP))
LISTED_CLIENT = structure(
    responses.ClientInfo, **_CLIENT, groups=Part(_groups_only_counted, lambda groups: u32(len(groups)))
)
"""In the list of all clients, groups are counted but not named."""


def _read_cache_metrics(reader: Reader) -> None:
    for _ in range(reader.u32()):
        reader.take(CACHE_METRICS_BYTES)


_STATS_BEFORE_CACHE = {
    "process_id": U32,
    "cpu_usage": F32,
    "total_cpu_usage": F32,
    "memory_usage": U64,
    "total_memory": U64,
    "available_memory": U64,
    "run_time": U64,
    "start_time": U64,
    "read_bytes": U64,
    "written_bytes": U64,
    "messages_size_bytes": U64,
    "streams_count": U32,
    "topics_count": U32,
    "partitions_count": U32,
    "segments_count": U32,
    "messages_count": U64,
    "clients_count": U32,
    "consumer_groups_count": U32,
    "hostname": STR32,
    "os_name": STR32,
    "os_version": STR32,
    "kernel_version": STR32,
    "server_version": STR32,
    "server_semver": U32,
}
_STATS_AFTER_CACHE = {"threads_count": U32, "free_disk_space": U64, "total_disk_space": U64}


def _read_stats(reader: Reader) -> responses.Stats:
    found = {name: part.read(reader) for name, part in _STATS_BEFORE_CACHE.items()}
    _read_cache_metrics(reader)
    found |= {name: part.read(reader) for name, part in _STATS_AFTER_CACHE.items()}
    return responses.Stats(**found)


def _write_stats(stats: responses.Stats) -> bytes:
    """Writes the long form for all clients: older ones stop reading before its end. There is no cache with metrics."""
    before = [part.write(getattr(stats, name)) for name, part in _STATS_BEFORE_CACHE.items()]
    after = [part.write(getattr(stats, name)) for name, part in _STATS_AFTER_CACHE.items()]
    return b"".join((*before, u32(0), *after))


STATS = Part(_read_stats, _write_stats)
SNAPSHOT = Part(lambda reader: responses.Snapshot(bytes(reader.rest())), lambda snapshot: snapshot.content)

LAYOUTS: dict[int, Part] = {
    10: before_09(STATS, "messages_size_bytes"),
    11: SNAPSHOT,
    12: CLUSTER,
    20: CLIENT,
    21: CLIENT,
    22: repeated(LISTED_CLIENT),
    31: USER_DETAILS,
    32: repeated(USER),
    33: USER_DETAILS,
    38: LOGGED_IN,
    41: repeated(TOKEN),
    42: RAW_TOKEN,
    44: LOGGED_IN,
    120: OFFSET,
    200: STREAM_DETAILS,
    201: repeated(_STREAM),
    202: STREAM_DETAILS,
    300: TOPIC_DETAILS,
    301: repeated(_TOPIC),
    302: TOPIC_DETAILS,
    600: GROUP_DETAILS,
    601: repeated(GROUP),
    602: GROUP_DETAILS,
}
LAYOUTS[numbered_sends.CODE] = numbered_sends.SENT
LISTS = frozenset({22, 32, 41, 201, 301, 601})


def encode(code: int, answer: Any, dialect: Dialect) -> list[Readable]:
    """Returns the payload of a response as buffers; none for an empty one."""
    if answer is None:
        return []
    if code == POLL_MESSAGES:
        return polls.encode(answer, dialect.header_size)
    layout = LAYOUTS.get(code)
    if layout is None:
        return []
    payload = layout.write(answer)
    return [payload] if payload else []


def decode_response(code: int, payload: memoryview, dialect: Dialect) -> Any:
    """Returns what our own client makes of the payload of a success."""
    if code == POLL_MESSAGES:
        return polls.decode(payload, dialect.header_size)
    layout = LAYOUTS.get(code)
    if layout is None:
        return None
    if not payload and code not in LISTS:
        return None
    reader = Reader(payload)
    answer = layout.read(reader)
    if not reader.at_end:
        raise CommandError(Code.INVALID_FORMAT, f"{len(payload) - reader.position} bytes follow the response to {code}")
    return answer
