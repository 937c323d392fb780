"""Tools for messages and stored offsets.

A poll that stores the offset does so after the response was bounded, so that a message that was left out is not lost.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import contextlib
import time
from typing import Annotated, Literal

import msgspec

from whippet.app.cli.remote import rows
from whippet.app.cli.remote.messages import received, row_of
from whippet.app.cli.remote.output import Done
from whippet.app.client.batching import as_batch
from whippet.app.client.consumer import Received
from whippet.app.commands import requests, responses
from whippet.app.commands.requests import Partitioning, PartitioningKind, Strategy, StrategyKind
from whippet.app.mcp.bounds import FRAME_BYTES, Listing
from whippet.app.mcp.parameters import INVALID, U64_MAX, OfTopic, Parameters, PartitionId, identifier
from whippet.app.mcp.work import Group, Refused, Work
from whippet.storage.batch import Message, header

U128_MAX = 2**128 - 1
MESSAGES_MAX = 1000
KEY_BYTES_MAX = 255
Count = Annotated[int, msgspec.Meta(ge=1, le=2**32 - 1, description="how many messages at most")]
Offset = Annotated[int, msgspec.Meta(ge=0, description="the position of a message in its partition")]
STRATEGIES = {
    "offset": StrategyKind.OFFSET,
    "timestamp": StrategyKind.TIMESTAMP,
    "first": StrategyKind.FIRST,
    "last": StrategyKind.LAST,
    "next": StrategyKind.NEXT,
}


class Poll(OfTopic, frozen=True):
    partition_id: PartitionId = 0
    strategy: Annotated[
        Literal["offset", "timestamp", "first", "last", "next"],
        msgspec.Meta(description="where to begin; next: after the stored offset, and stores it"),
    ] = "offset"
    offset: Offset = 0
    timestamp: Annotated[
        int | None, msgspec.Meta(description="for the strategy timestamp: microseconds since 1970; now if absent")
    ] = None
    count: Count = 10
    auto_commit: Annotated[bool, msgspec.Meta(description="store the offset of the last message")] = False


class NewMessage(Parameters, frozen=True):
    payload: str
    id: Annotated[int | str | None, msgspec.Meta(description="up to 128 bits; random if absent or 0")] = None
    encoding: Annotated[Literal["text", "base64"], msgspec.Meta(description="how the payload is written")] = "text"


class Send(OfTopic, frozen=True):
    messages: Annotated[list[NewMessage], msgspec.Meta(min_length=1, max_length=MESSAGES_MAX)]
    partitioning: Annotated[
        Literal["balanced", "key", "partition"],
        msgspec.Meta(description="the next partition in turn, that of messages_key, or partition_id"),
    ] = "balanced"
    partition_id: PartitionId | None = None
    messages_key: str | None = None


class OfPartition(OfTopic, frozen=True):
    partition_id: PartitionId = 0


class NewOffset(OfPartition, frozen=True, kw_only=True):
    offset: Offset


class Polled(msgspec.Struct, frozen=True):
    partition_id: int
    current_offset: int
    """The offset of the last message in the partition."""


async def poll_messages(work: Work, given: Poll) -> Listing:
    commits = given.auto_commit or given.strategy == "next"
    if commits:
        work.require(Group.UPDATE, "storing an offset (the strategy next, or auto_commit)")
    value = given.offset if given.strategy == "offset" else 0
    if given.strategy == "timestamp":
        value = time.time_ns() // 1000 if given.timestamp is None else given.timestamp
    place = identifier(given.stream_id), identifier(given.topic_id)
    strategy = Strategy(STRATEGIES[given.strategy], _u64(value))
    count = min(given.count, work.limits.items)
    polled: responses.Polled = await work.execute(
        requests.PollMessages(
            work.consumer, *place, given.partition_id, strategy, count, False, work.limits.response_bytes
        )
    )
    room = work.limits.response_bytes
    messages = _fitting([_row(each, room) for each in received(_whole(polled))], room)
    if commits and messages:
        last = messages[-1].offset
        await work.execute(requests.StoreConsumerOffset(work.consumer, *place, polled.partition_id, last))
    return Listing(
        "messages",
        messages,
        0,
        lambda shown: f"poll again with strategy=offset and offset={messages[shown - 1].offset + 1}",
        Polled(polled.partition_id, polled.current_offset),
        is_whole=False,
        # Fewer than were asked for, although the partition goes on.
        is_capped=bool(messages) and len(messages) < given.count and messages[-1].offset < polled.current_offset,
    )


def _u64(value: int) -> int:
    """JSON schemas of msgspec have no such bound."""
    if not 0 <= value <= U64_MAX:
        raise Refused(INVALID, f"{value} is not between 0 and {U64_MAX}")
    return value


def _whole(polled: responses.Polled) -> responses.Polled:
    """Returns the poll with one buffer for each batch; in the gateway's own process a batch may have several."""
    octets = memoryview(b"".join(polled.batches))
    batches = []
    while octets:
        length = header(octets).length
        batches.append(octets[:length])
        octets = octets[length:]
    return msgspec.structs.replace(polled, batches=tuple(batches))


class CutMessage(rows.Message, frozen=True):
    """A message whose payload does not fit."""

    payload_bytes: int
    """What it has in fact."""
    left_out: str = "the end of the payload, and headers if they do not fit, because of the limit of a response"


def _row(message: Received, room: int) -> rows.Message:
    """Cuts a payload that cannot fit in any case before it is decoded: it may have many megabytes."""
    whole = len(message.payload)
    if whole <= room:
        return row_of(message)
    beginning = message.payload[: room // 3 * 3]
    with contextlib.suppress(UnicodeDecodeError):
        # Without the part of a character at the end.
        beginning = codecs.getincrementaldecoder("utf-8")().decode(beginning).encode()
    return CutMessage(
        **msgspec.structs.asdict(row_of(msgspec.structs.replace(message, payload=beginning))), payload_bytes=whole
    )


def _fitting(found: list[rows.Message], room: int) -> list[rows.Message]:
    """Returns the messages that fit. The first one always does: its payload is cut."""
    room -= 2 * FRAME_BYTES
    for number, message in enumerate(found):
        size = len(msgspec.json.encode(message)) + 1
        if size > room:
            return found[:number] or [_cut(message, room)]
        room -= size
    return found


def _cut(message: rows.Message, room: int) -> rows.Message:
    fields = msgspec.structs.asdict(message)
    if "payload_bytes" not in fields:
        is_text = message.encoding == "text"
        fields["payload_bytes"] = len(message.payload.encode() if is_text else base64.b64decode(message.payload))
    headers = message.headers if len(msgspec.json.encode(message.headers)) < room // 2 else {}
    room -= len(msgspec.json.encode(headers))
    # A character takes up to six bytes; a group of base64 has four.
    length = max(room - FRAME_BYTES, 0) // 4 * 4
    kept = message.payload[:length]
    while len(msgspec.json.encode(kept)) > max(room - FRAME_BYTES, 2):
        kept = kept[: len(kept) // 8 * 4]
    return CutMessage(**fields | {"payload": kept, "headers": headers})


async def send_messages(work: Work, given: Send) -> rows.Sent:
    messages = [_message(each) for each in given.messages]
    batch = as_batch(messages)
    partitioning = _partitioning(given)
    await work.execute(
        requests.SendMessages(identifier(given.stream_id), identifier(given.topic_id), partitioning, (batch,))
    )
    return rows.Sent(len(messages), sum(len(message.payload) for message in messages))


def _message(given: NewMessage) -> Message:
    try:
        payload = base64.b64decode(given.payload, validate=True) if given.encoding == "base64" else None
    except binascii.Error as error:
        raise Refused(INVALID, f"a payload is no base64: {error}") from None
    octets = given.payload.encode() if payload is None else payload
    if given.id is None:
        return Message(octets)
    text = str(given.id)
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(U128_MAX)) and int(text) <= U128_MAX):
        raise Refused(INVALID, f"{text[:50]!r} is no id of a message: a number of up to 128 bits is needed")
    return Message(octets, id=int(text))


def _partitioning(given: Send) -> Partitioning:
    needed = {"key": given.messages_key, "partition": given.partition_id}
    for word, name in (("key", "messages_key"), ("partition", "partition_id")):
        if (needed[word] is not None) != (given.partitioning == word):
            raise Refused(INVALID, f"{name} and partitioning={word} need each other")
    if given.messages_key is not None:
        key = given.messages_key.encode()
        if not 0 < len(key) <= KEY_BYTES_MAX:
            raise Refused(INVALID, f"a key has 1 to {KEY_BYTES_MAX} bytes, not {len(key)}")
        return Partitioning(PartitioningKind.MESSAGES_KEY, key=key)
    if given.partition_id is not None:
        return Partitioning(PartitioningKind.PARTITION_ID, given.partition_id)
    return Partitioning(PartitioningKind.BALANCED)


# ------------------------------------------------------------------------------------------------------------ offsets


async def get_consumer_offset(work: Work, given: OfPartition) -> rows.Offset:
    place = identifier(given.stream_id), identifier(given.topic_id)
    request = requests.GetConsumerOffset(work.consumer, *place, given.partition_id)
    found = await work.found(request, f"a stored offset of the consumer {work.consumer_name!r}")
    offset: rows.Offset = rows.copied(rows.Offset, found)
    return offset


async def store_consumer_offset(work: Work, given: NewOffset) -> Done:
    place = identifier(given.stream_id), identifier(given.topic_id)
    await work.execute(requests.StoreConsumerOffset(work.consumer, *place, given.partition_id, _u64(given.offset)))
    return Done(f"stored offset {given.offset} of {work.consumer_name}, partition {given.partition_id}")


async def delete_consumer_offset(work: Work, given: OfPartition) -> Done:
    place = identifier(given.stream_id), identifier(given.topic_id)
    await work.execute(requests.DeleteConsumerOffset(work.consumer, *place, given.partition_id))
    return Done(f"deleted the stored offset of {work.consumer_name}, partition {given.partition_id}")
