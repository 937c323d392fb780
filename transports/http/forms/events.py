"""Server-Sent Events: encodes messages as events, and cursors as the ids of events.

The id of an event is the cursor after it: `3:43` means that offset 43 of partition 3 comes next. With several
partitions it names all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from whippet.app.shared_feeds import Encode, Part, Position
from whippet.storage.batch import FRAME_BYTES
from whippet.storage.partition import Partition
from whippet.transports import offload
from whippet.transports.http.forms import user_headers
from whippet.transports.http.forms.batch_decoder import MessageHeader, iterate_messages, payload_views

Form = Literal["json", "text"]


class TailedMessage(msgspec.Struct, frozen=True, gc=False):
    """The data of an event."""

    partition_id: int
    header: MessageHeader
    payload: bytes
    user_headers: user_headers.Outgoing


# ------------------------------------------------------------------------------------------------- events as bytes


NOWHERE = b"-"
"""The id of what follows no partitions; not empty, which an EventSource would not say again."""
CURSOR_BYTES_MAX = 4096
"""No id of an event is longer: 128 partitions, each with ten digits and twenty for the offset."""


def id_of(numbers: Sequence[int], position: Iterable[int]) -> bytes:
    return b",".join([b"%d:%d" % pair for pair in zip(numbers, position, strict=True)]) or NOWHERE


def cursor_of(text: str) -> dict[int, int] | None:
    """Offsets by partition; None for what is no id of an event."""
    if len(text) > CURSOR_BYTES_MAX:
        return None
    found: dict[int, int] = {}
    for each in () if text == NOWHERE.decode() else text.split(","):
        number, colon, offset = each.partition(":")
        if not colon or not all(part.isascii() and part.isdigit() and len(part) <= 19 for part in (number, offset)):
            return None
        if int(number) in found:
            return None
        found[int(number)] = int(offset)
    return found


def chunk(octets: bytes) -> bytes:
    """As a part of a body without a length."""
    return b"%x\r\n%b\r\n" % (len(octets), octets)


def encoder(form: Form, numbers: tuple[int, ...], *, is_framed: bool) -> Encode[bytes]:
    """For the partitions with these numbers."""
    events_of = _json_events if form == "json" else _text_events

    def events(position: Position, parts: Sequence[Part]) -> bytes:
        at = list(position)
        found: list[bytes] = []
        for part in parts:
            for offset, event in events_of(numbers[part.of], part):
                at[part.of] = offset + 1
                found += (b"id: ", id_of(numbers, at), b"\n", event)
        return chunk(b"".join(found)) if is_framed else b"".join(found)

    async def encode(position: Position, parts: Sequence[Part]) -> bytes:
        size = sum(part.size for part in parts)
        return await offload.call(size, size // FRAME_BYTES, events, position, parts)

    return encode


_encode = msgspec.json.Encoder().encode


def _json_events(partition_id: int, part: Part) -> Iterable[tuple[int, bytes]]:
    for message in iterate_messages(part.buffers):
        said = TailedMessage(partition_id, message.header, message.payload, message.user_headers)
        yield message.header.offset, b"data: %b\n\n" % _encode(said)


def _text_events(partition_id: int, part: Part) -> Iterable[tuple[int, bytes]]:
    payloads = payload_views(part.buffers)
    for message, payload in zip(iterate_messages(part.buffers), payloads, strict=True):
        yield message.header.offset, _text_event(bytes(payload))


def _text_event(payload: bytes) -> bytes:
    """What is no text comes in base64, as an event of another name."""
    try:
        payload.decode()
    except UnicodeDecodeError:
        return b"event: base64\ndata: %b\n\n" % _encode(payload)[1:-1]
    lines = payload.replace(b"\r\n", b"\n").replace(b"\r", b"\n").replace(b"\n", b"\ndata: ")
    return b"data: %b\n\n" % lines


def position_of(partitions: Sequence[Partition], wanted: Sequence[int | None]) -> tuple[int, ...]:
    """Where a reader goes on that comes back. A partition that is new begins at its beginning, and so does one that has
    come to end before the place where the reader was: it was emptied meanwhile, and all that is in it is new."""
    return tuple(
        [
            one.first_offset if at is None or at > one.readable else at
            for one, at in zip(partitions, wanted, strict=True)
        ]
    )
