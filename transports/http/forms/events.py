"""Server-Sent Events: encodes messages as events, and cursors as the ids of events.

The id of an event is the cursor after it: `3:43:1763` means that offset 43 of partition 3, in its epoch 1763, comes
next. With several partitions it names all of them. In another epoch the offset is that of another message, so a
partition that was purged or created again is read from its first message. A cursor may leave epochs out: then offsets
are taken as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import msgspec

from whippet.app.shared_feeds import Encode, Part, Position
from whippet.storage.batch import FRAME_BYTES
from whippet.storage.engine import Partition
from whippet.transports import offload
from whippet.transports.http.forms import user_headers
from whippet.transports.http.forms.batch_decoder import MessageHeader, iterate_messages, payload_views

EventFormat = Literal["json", "text"]


class TailedMessage(msgspec.Struct, frozen=True, gc=False):
    """The data of an event."""

    partition_id: int
    header: MessageHeader
    payload: bytes
    user_headers: user_headers.Outgoing


EMPTY_CURSOR = b"-"
"""The id of a tail without partitions. Not empty: an EventSource does not send an empty id again."""
CURSOR_BYTES_MAX = 6144
"""The longest id: 128 partitions, each with ten digits, and twenty for the offset and as many for the epoch, of which
fewer are ever used."""


class Place(NamedTuple):
    """Where a reader of a partition continues."""

    offset: int
    epoch: int | None
    """None: any."""


def event_id(numbers: Sequence[int], position: Iterable[int], epochs: Iterable[int]) -> bytes:
    return b",".join([b"%d:%d:%d" % place for place in zip(numbers, position, epochs, strict=True)]) or EMPTY_CURSOR


def parse_cursor(text: str) -> dict[int, Place] | None:
    """Returns the places by partition, None for a text that is no id of an event."""
    if len(text) > CURSOR_BYTES_MAX:
        return None
    found: dict[int, Place] = {}
    for each in () if text == EMPTY_CURSOR.decode() else text.split(","):
        parts = each.split(":")
        if len(parts) not in (2, 3) or not all(part.isascii() and part.isdigit() and len(part) <= 19 for part in parts):
            return None
        number, offset, *epoch = map(int, parts)
        if number in found:
            return None
        found[number] = Place(offset, epoch[0] if epoch else None)
    return found


def chunk(octets: bytes) -> bytes:
    """Frames a part of a body without a length (HTTP/1.1)."""
    return b"%x\r\n%b\r\n" % (len(octets), octets)


def event_encoder(form: EventFormat, partitions: tuple[Partition, ...], *, is_framed: bool) -> Encode[bytes]:
    """Returns the function that encodes messages of these partitions as events."""
    events_of = _json_events if form == "json" else _text_events
    numbers = tuple(partition.place.partition for partition in partitions)

    def events(position: Position, epochs: Sequence[int], parts: Sequence[Part]) -> bytes:
        at = list(position)
        found: list[bytes] = []
        for part in parts:
            for offset, event in events_of(numbers[part.of], part):
                at[part.of] = offset + 1
                found += (b"id: ", event_id(numbers, at, epochs), b"\n", event)
        return chunk(b"".join(found)) if is_framed else b"".join(found)

    async def encode(position: Position, parts: Sequence[Part]) -> bytes:
        size = sum(part.size for part in parts)
        # If one is purged meanwhile, the feed drops what is encoded here.
        epochs = [partition.epoch for partition in partitions]
        return await offload.call(size, size // FRAME_BYTES, events, position, epochs, parts)

    return encode


_encode = msgspec.json.Encoder().encode


def _json_events(partition_id: int, part: Part) -> Iterable[tuple[int, bytes]]:
    for message in iterate_messages(part.buffers):
        event = TailedMessage(partition_id, message.header, message.payload, message.user_headers)
        yield message.header.offset, b"data: %b\n\n" % _encode(event)


def _text_events(partition_id: int, part: Part) -> Iterable[tuple[int, bytes]]:
    payloads = payload_views(part.buffers)
    for message, payload in zip(iterate_messages(part.buffers), payloads, strict=True):
        yield message.header.offset, _text_event(bytes(payload))


def _text_event(payload: bytes) -> bytes:
    """A payload that is not UTF-8 is sent in base64, as an event of another name."""
    try:
        payload.decode()
    except UnicodeDecodeError:
        return b"event: base64\ndata: %b\n\n" % _encode(payload)[1:-1]
    lines = payload.replace(b"\r\n", b"\n").replace(b"\r", b"\n").replace(b"\n", b"\ndata: ")
    return b"data: %b\n\n" % lines


def resume_position(partitions: Sequence[Partition], wanted: Sequence[Place | None]) -> tuple[int, ...]:
    """Returns where a client resumes. A new partition starts at its first message, and so does one in another epoch
    than the client's, or that now ends before the client's position: it was purged meanwhile, and all of its messages
    are new."""
    return tuple([_resumed(one, at) for one, at in zip(partitions, wanted, strict=True)])


def _resumed(partition: Partition, at: Place | None) -> int:
    if at is None or at.epoch not in (None, partition.epoch) or at.offset > partition.readable:
        return partition.first_offset
    return at.offset
