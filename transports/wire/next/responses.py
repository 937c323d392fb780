"""Responses to 0.12 clients as bytes, where they differ from those to 0.9 clients.

In versions 0.12.0 and 0.12.1 the entry of a partition is shorter than in 0.12.2. Everything else is the same in all
three.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import msgspec

from whippet.app.commands import responses
from whippet.app.errors import Code, CommandError
from whippet.app.model.options import Option, ValueKind
from whippet.app.model.options import decode as value_of
from whippet.storage.batch import Readable
from whippet.transports.wire.classic import responses as classic
from whippet.transports.wire.classic.frames import SEND_MESSAGES
from whippet.transports.wire.modern import responses as modern
from whippet.transports.wire.modern import sends, tlv
from whippet.transports.wire.next import polls
from whippet.transports.wire.next.operations import FETCH, POLL, POLL_DEFERRED, RETIRED
from whippet.transports.wire.permissions import PERMISSIONS_OF_USER
from whippet.transports.wire.primitives import (
    NAME,
    STR32,
    U8,
    U32,
    U64,
    Part,
    Reader,
    counted,
    followed,
    repeated,
    structure,
)

NODE_ID = 0
"""The id of the only node, in the roster and in the list of nodes of each partition."""
NOT_ENCRYPTED = Option("encryption_key_source", ValueKind.STRING, b"none")

STREAM = followed(tlv.SIZED, (NOT_ENCRYPTED,))(modern.STREAM)
USER = followed(tlv.SIZED, ())(modern.USER)
USER_DETAILS = structure(responses.UserDetails, info=USER, permissions=PERMISSIONS_OF_USER)


_COMPRESSIONS = {"gzip": 2, "zstd": 3}


def _topic(*, explicit: tuple[Option, ...], derived: tuple[Option, ...], **fields: Any) -> responses.TopicInfo:
    """Expiry and size are only among the options."""
    values = {option.key: value_of(option) for option in (*explicit, *derived)}
    return responses.TopicInfo(
        **fields,
        message_expiry=int(values["message_expiry"]),
        compression_algorithm=_COMPRESSIONS.get(str(values["compression_algorithm"]), 1),
        max_topic_size=int(values["max_topic_size"]),
        replication_factor=1,
        explicit=explicit,
        derived=derived,
    )


TOPIC = structure(
    _topic,
    id=U32,
    created_at=U64,
    partitions_count=U32,
    size_bytes=U64,
    messages_count=U64,
    name=NAME,
    explicit=tlv.SIZED,
    derived=tlv.SIZED,
)
STREAM_DETAILS = classic.times(STREAM, "topics_count", TOPIC, responses.StreamDetails, "topics")

_CONTEXT = struct.Struct("<QQQ")
CONTEXT = Part(
    lambda reader: reader.unpack(_CONTEXT)[0],
    lambda incarnation: _CONTEXT.pack(incarnation, polls.OWNER_GENERATION, incarnation),
)
"""Incarnation, generation of the owner, and the change of the catalogue that created the partition, which has the same
number."""
_PARTITION = {
    "id": U32,
    "created_at": U64,
    "segments_count": U32,
    "current_offset": U64,
    "size_bytes": U64,
    "messages_count": U64,
    "incarnation": CONTEXT,
}
PARTITION_OF_0_12_0 = structure(responses.PartitionInfo, **_PARTITION)
_NODES = Part(lambda reader: bytes(reader.take(reader.u8())), lambda nodes: bytes((len(nodes), *nodes)))
PARTITION = followed(_NODES, bytes((NODE_ID,)))(followed(_NODES, bytes((NODE_ID,)))(PARTITION_OF_0_12_0))
"""After the context: the nodes that have the partition, and those of them that are in sync."""


def _read_node(reader: Reader) -> responses.ClusterNode:
    reader.u8()
    return classic.NODE.read(reader)  # type: ignore[no-any-return]


NODE = Part(_read_node, lambda node: b"".join((U8.write(NODE_ID), classic.NODE.write(node))))


_ROUTE = struct.Struct("<QQIIB")
_VIEW = 0


def _read_route(reader: Reader) -> responses.PartitionRoute:
    incarnation, metadata_op, _, partitions_count, _ = reader.unpack(_ROUTE)
    return responses.PartitionRoute(incarnation, metadata_op, partitions_count)


ROUTE = Part(
    _read_route,
    lambda route: _ROUTE.pack(route.incarnation, route.metadata_op, _VIEW, route.partitions_count, NODE_ID),
)


def _write_stats(stats: responses.Stats) -> bytes:
    return b"".join((classic.STATS.write(stats), _OPEN_FILES.pack(stats.open_files_count, stats.open_files_limit)))


def _read_stats(reader: Reader) -> responses.Stats:
    """Both numbers at the end, or neither."""
    stats: responses.Stats = classic.STATS.read(reader)
    if reader.at_end:
        return stats
    count, limit = reader.unpack(_OPEN_FILES)
    return msgspec.structs.replace(stats, open_files_count=count, open_files_limit=limit)


_OPEN_FILES = struct.Struct("<QQ")
STATS = Part(_read_stats, _write_stats)
OPTION = structure(responses.OptionDescription, key=NAME, kind=U8, flags=U8, default=modern.OCTETS, description=STR32)


def _layouts(partition: Part) -> dict[int, Part]:
    topic_details = classic.times(TOPIC, "partitions_count", partition, responses.TopicDetails, "partitions")
    known = {code: layout for code, layout in modern.LAYOUTS.items() if code not in RETIRED}
    return known | {
        10: STATS,
        12: structure(responses.ClusterMetadata, name=STR32, nodes=counted(U32, NODE)),
        13: counted(U32, OPTION),
        31: USER_DETAILS,
        32: repeated(USER),
        33: USER_DETAILS,
        105: ROUTE,
        107: counted(U32, U32),
        200: STREAM_DETAILS,
        201: repeated(STREAM),
        202: STREAM_DETAILS,
        300: topic_details,
        301: counted(U32, TOPIC),
        302: topic_details,
    }


class Responses:
    """The responses of one version."""

    def __init__(self, partition: Part) -> None:
        self.layouts: Mapping[int, Part] = _layouts(partition)

    def encode(self, code: int, answer: Any) -> list[Readable]:
        """Returns the body of a reply as buffers; none for an empty one."""
        if answer is None:
            return []
        if code in (POLL, POLL_DEFERRED):
            return polls.encode(answer)
        if code == FETCH:
            return polls.encode_fetched(answer)
        if code == SEND_MESSAGES:
            return sends.encode_response(answer)
        layout = self.layouts.get(code)
        if layout is None:
            return []
        body = layout.write(answer)
        return [body] if body else []

    def decode(self, code: int, body: memoryview) -> Any:
        """Returns what a client makes of the body of a success."""
        if code in (POLL, POLL_DEFERRED):
            return polls.decode(body)
        if code == FETCH:
            return polls.decode_fetched(body)
        if code == SEND_MESSAGES:
            return sends.decode_response(body)
        layout = self.layouts.get(code)
        if layout is None:
            return None
        if not body:
            return () if code in modern.LISTS else None
        reader = Reader(body)
        answer = layout.read(reader)
        if not reader.at_end:
            raise CommandError(
                Code.INVALID_FORMAT, f"{len(body) - reader.position} bytes follow the response to {code}"
            )
        return answer


OF_0_12_0 = Responses(PARTITION_OF_0_12_0)
OF_0_12_2 = Responses(PARTITION)
