"""Encodes the messages of a JSON body as one stored batch, together with what `whippet.storage.batch.check` would find.

Few messages are encoded like those of a classic client. For many, numpy makes all frame headers at once. If all
messages have one size, it copies all payloads in one step; otherwise each message is joined and hashed by itself.
"""

from __future__ import annotations

import os
import re
import struct
from array import array
from collections.abc import Sequence
from itertools import chain
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import numpy as np
import xxhash
from msgspec import Meta

from whippet.app.errors import Code, CommandError
from whippet.storage.batch import FRAME_BYTES, HEADER_BYTES, Frames, Limits
from whippet.storage.single_batch import Single
from whippet.transports.http.forms import request_bodies, user_headers
from whippet.transports.http.forms.field_types import base64_of
from whippet.transports.http.forms.partition_context import Context
from whippet.transports.http.forms.request_bodies import unprocessable
from whippet.transports.random_pool import random_bytes, random_uuid
from whippet.transports.wire.classic import batching
from whippet.transports.wire.classic.batching import (
    UNPLACED,
    Made,
    alone,
    finished,
    random_uuids,
    with_ids,
)
from whippet.transports.wire.classic.message import counting, frame_type, rows, uniform_checksums

FEW_MESSAGES = 12
SURROUNDING_BYTES_MAX = 4096
U128_MAX = 2**128 - 1
_UUID = re.compile(r"[0-9a-fA-F]{32}|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", re.ASCII)
_DECIMAL = re.compile(r"[0-9]{1,39}", re.ASCII)


Id = Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": U128_MAX})]
IdText = Annotated[str, Meta(extra_json_schema={"pattern": f"^({_UUID.pattern}|[0-9]{{1,38}})$"})]


class PartitioningBody(msgspec.Struct, frozen=True, gc=False):
    """`value` is the number of a partition in four bytes, little-endian; a key of 1 to 255 bytes; or empty."""

    kind: Literal["balanced", "partition_id", "messages_key"]
    value: Annotated[bytes, base64_of(longest=255)]


_DESTINATIONS = [
    {"properties": {"kind": {"const": kind}, "value": {"minLength": characters}}}
    for kind, characters in (("balanced", 0), ("partition_id", 8), ("messages_key", 4))
]


class MessageBody(msgspec.Struct, frozen=True, gc=False):
    """`id` is a number of up to 128 bits, as a number or a string, or a UUID; for 0 the server generates one."""

    payload: Annotated[bytes, base64_of(shortest=1)]
    id: Id | IdText | None = 0
    user_headers: user_headers.Incoming = None


class NewMessages(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    partitioning: Annotated[PartitioningBody, Meta(extra_json_schema={"anyOf": _DESTINATIONS})]
    messages: Annotated[list[MessageBody], Meta(extra_json_schema={"minItems": 1})]
    context: Context | None = None
    """The context of the partition, from clients since 0.12."""


MEMBERS_MIN = 4
"""`partitioning`, its `kind` and `value`, and `messages`: all are needed, so without more colons there are no
duplicates."""
_MESSAGES = msgspec.json.Decoder(list[MessageBody])


def decode(decoder: msgspec.json.Decoder[NewMessages], body: bytes) -> NewMessages:
    """Refuses duplicate members surrounding the messages; those within messages are not checked.

    So the messages are cut out, from the first bracket to the last, and only what surrounds them is checked for
    duplicates. A body that is built differently, or is invalid, is checked as a whole, slowly.
    """
    first, last = body.find(b"["), body.rfind(b"]")
    surrounding = body[: first + 1] + body[last:]
    if 0 < first < last and len(surrounding) <= SURROUNDING_BYTES_MAX:
        try:
            outer = decoder.decode(surrounding)
            messages = _MESSAGES.decode(memoryview(body)[first : last + 1])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            pass
        else:
            if not outer.messages:
                if surrounding.count(b":") > MEMBERS_MIN:
                    request_bodies.refuse_duplicates(surrounding)
                return NewMessages(outer.partitioning, messages, outer.context)
    found: NewMessages = request_bodies.decode_once(decoder, body)
    pairs = request_bodies.refuse_duplicates(body, tuple)
    _refuse_names_that_occur_twice(tuple([(name, None if name == "messages" else value) for name, value in pairs]))
    return found


def _refuse_names_that_occur_twice(value: Any) -> None:
    """Objects are tuples of pairs here."""
    if isinstance(value, list):
        for each in value:
            _refuse_names_that_occur_twice(each)
    elif isinstance(value, tuple):
        seen = set()
        for name, inner in value:
            if name in seen:
                raise unprocessable(f"duplicate field `{name}`", name)
            seen.add(name)
            _refuse_names_that_occur_twice(inner)


_HEAD_TYPE = np.dtype(
    [
        ("id_low", "<u8"),
        ("id_high", "<u8"),
        ("delta", "<u4"),
        ("time", "<u4"),
        ("headers", "<u4"),
        ("payload", "<u4"),
        ("reserved", "<u8"),
    ]
)
"""The header of a frame after its checksum."""
_HEAD_ITEM = f"V{_HEAD_TYPE.itemsize}"
_U64_MAX = 2**64 - 1
_hash = xxhash.xxh3_64_intdigest


def encode_messages(messages: Sequence[MessageBody], now_us: int, limits: Limits) -> Made:
    count = len(messages)
    if not 0 < count <= limits.messages:
        raise CommandError(Code.INVALID_MESSAGES_COUNT, f"{count} messages: 1 to {limits.messages} may be sent at once")
    payloads = [message.payload for message in messages]
    lengths = list(map(len, payloads))
    uniform = lengths.count(lengths[0]) == count
    _check_payloads(lengths[:1] if uniform else lengths, limits)
    headers = [message.user_headers for message in messages]
    blocks = None if headers.count(None) == count else _blocks(headers, limits)
    ids = [message.id for message in messages]
    named = None if ids.count(0) == count else [_id(i, each) for i, each in enumerate(ids)]
    return _made(payloads, lengths, uniform, blocks, named, now_us)


def single(message: MessageBody, now_us: int, limits: Limits) -> Single | None:
    """Returns a message without user headers for `batching.alone`; None for others and those that are invalid."""
    payload, identity = message.payload, message.id
    if not 0 < len(payload) <= limits.payload_bytes or message.user_headers is not None:
        return None
    known = random_uuid() if identity == 0 or not (found := _id(0, identity)) else found.to_bytes(16, "little")
    return Single(known, now_us, 0, len(payload), payload)


def encode_message(message: MessageBody, now_us: int, limits: Limits) -> Made:
    """Does the same as `encode_messages` for one message."""
    found = single(message, now_us, limits)
    return encode_messages((message,), now_us, limits) if found is None else alone(found)


def encode_payloads(payloads: Sequence[bytes], user_headers: bytes, now_us: int, limits: Limits) -> Made:
    """The same for non-empty payloads that share their user headers and have no ids."""
    count = len(payloads)
    if not 0 < count <= limits.messages:
        raise CommandError(Code.INVALID_MESSAGES_COUNT, f"{count} messages: 1 to {limits.messages} may be sent at once")
    lengths = list(map(len, payloads))
    if max(lengths) > limits.payload_bytes:
        sentence = f"a payload of {max(lengths)} bytes is over the limit of {limits.payload_bytes}"
        raise CommandError(Code.TOO_BIG_MESSAGE_PAYLOAD, sentence)
    if len(user_headers) > limits.user_headers_bytes:
        sentence = f"user headers of {len(user_headers)} bytes, {limits.user_headers_bytes} are allowed"
        raise CommandError(Code.TOO_BIG_USER_HEADERS, sentence)
    uniform = lengths.count(lengths[0]) == count
    return _made(payloads, lengths, uniform, [user_headers] * count if user_headers else None, None, now_us)


def _made(
    payloads: Sequence[bytes],
    lengths: list[int],
    uniform: bool,
    blocks: list[bytes] | None,
    ids: list[int] | None,
    now_us: int,
) -> Made:
    if len(payloads) <= FEW_MESSAGES:
        return _few(payloads, blocks, ids, now_us)
    if blocks is None and uniform:
        return _uniform(payloads, ids, now_us)
    return _many(payloads, lengths, blocks, ids, now_us)


def _check_payloads(lengths: list[int], limits: Limits) -> None:
    if 0 in lengths:
        raise unprocessable(f"Invalid message payload length - at `$.messages[{lengths.index(0)}].payload`", "payload")
    if max(lengths) > limits.payload_bytes:
        raise unprocessable(f"a payload of {max(lengths)} bytes is over the limit of {limits.payload_bytes}", "payload")


def _blocks(headers: list[user_headers.Incoming], limits: Limits) -> list[bytes]:
    blocks = []
    for number, each in enumerate(headers):
        try:
            block = user_headers.encode(each)
        except ValueError as error:
            raise unprocessable(f"{error} - at `$.messages[{number}].user_headers`", "user_headers") from None
        if len(block) > limits.user_headers_bytes:
            sentence = f"message {number}: user headers of {len(block)} bytes, {limits.user_headers_bytes} are allowed"
            if isinstance(each, str):
                raise CommandError(Code.TOO_BIG_USER_HEADERS, sentence)
            raise unprocessable(sentence, "user_headers")
        blocks.append(block)
    return blocks


def _id(number: int, given: int | str | None) -> int:
    if given is None:
        return 0
    identity = given if isinstance(given, int) else parse_id(given)
    if identity is None or not 0 <= identity <= U128_MAX:
        raise unprocessable(f"invalid message id - at `$.messages[{number}].id`", "id")
    return identity


def parse_id(text: str) -> int | None:
    """Returns the message id that a text of digits or a UUID stands for; None for any other text."""
    if _DECIMAL.fullmatch(text) and int(text) <= U128_MAX:
        return int(text)
    return UUID(text).int if _UUID.fullmatch(text) else None


def _few(payloads: Sequence[bytes], blocks: list[bytes] | None, ids: list[int] | None, now_us: int) -> Made:
    plain = [
        Single(
            (0 if ids is None else ids[i]).to_bytes(16, "little"),
            now_us,
            0 if blocks is None else len(blocks[i]),
            len(payload),
            memoryview(payload),
            b"" if blocks is None else blocks[i],
        )
        for i, payload in enumerate(payloads)
    ]
    return batching.plain(plain, random_bytes)[0]


def _uniform(payloads: Sequence[bytes], ids: list[int] | None, now_us: int) -> Made:
    """Encodes many messages of one size, without user headers."""
    count, length = len(payloads), len(payloads[0])
    stride = FRAME_BYTES + length
    octets = np.empty(HEADER_BYTES + count * stride, dtype=np.uint8)
    octets[:HEADER_BYTES] = 0
    batch = octets.data
    rows(batch, HEADER_BYTES + FRAME_BYTES, count, stride, length)[:] = rows(
        b"".join(payloads), 0, count, length, length
    )
    frames = np.ndarray((count,), dtype=frame_type(stride), buffer=batch, offset=HEADER_BYTES)
    frames["id_low"], frames["id_high"] = random_uuids(count, os.urandom) if ids is None else _ids(ids)
    frames["delta"] = counting(count)
    frames["payload"] = length
    for name in ("time", "headers", "reserved"):
        frames[name] = 0
    found = uniform_checksums(batch, HEADER_BYTES, count, stride)
    frames["checksum"] = found
    return finished(batch, now_us, count, stride, found.tobytes(), UNPLACED)


def _many(
    payloads: Sequence[bytes], lengths: list[int], blocks: list[bytes] | None, ids: list[int] | None, now_us: int
) -> Made:
    count = len(payloads)
    heads = np.zeros(count, dtype=_HEAD_TYPE)
    heads["id_low"], heads["id_high"] = random_uuids(count, os.urandom) if ids is None else _ids(ids)
    heads["delta"] = counting(count)
    heads["payload"] = lengths
    texts: list[bytes] = heads.view(_HEAD_ITEM).tolist()
    if blocks is None:
        hashed = [head + payload for head, payload in zip(texts, payloads, strict=True)]
    else:
        heads["headers"] = list(map(len, blocks))
        texts = heads.view(_HEAD_ITEM).tolist()
        hashed = [b"".join(parts) for parts in zip(texts, payloads, blocks, strict=True)]
    checksums = struct.pack(f"<{count}Q", *map(_hash, hashed))
    each: list[bytes] = np.frombuffer(checksums, dtype="V8").tolist()
    batch = bytearray().join(chain((_NO_HEADER,), chain.from_iterable(zip(each, hashed, strict=True))))
    return finished(batch, now_us, count, _frames(heads), checksums, UNPLACED)


_NO_HEADER = bytes(HEADER_BYTES)


def _frames(heads: Any) -> Frames:
    sizes = heads["headers"].astype(np.int64) + heads["payload"] + FRAME_BYTES
    if (sizes == sizes[0]).all():
        return int(sizes[0])
    positions = array("I", (HEADER_BYTES,))
    positions.frombytes((np.cumsum(sizes) + HEADER_BYTES).astype(np.uint32).tobytes())
    return positions


def _ids(ids: list[int]) -> tuple[Any, Any]:
    low = np.array([identity & _U64_MAX for identity in ids], dtype="<u8")
    high = np.array([identity >> 64 for identity in ids], dtype="<u8")
    nameless = (low | high) == 0
    return with_ids(low, high, nameless, os.urandom) if nameless.any() else (low, high)


assert _HEAD_TYPE.itemsize == FRAME_BYTES - 8
