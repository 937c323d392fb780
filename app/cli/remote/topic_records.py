"""Messages of a topic as rows of a file, without loss, and as lines of NDJSON.

    {"partition_id":0,"offset":7,"timestamp":1785585600000000,"origin_timestamp":1785585599998000,"id":"17",
     "headers":[{"key":"source","kind":"string","value":"web"}],"payload":{"amount":3},"encoding":"json"}

`encoding` says what `payload` is: `json`, the bytes of the message as they are; `text`, a string; or `base64`. The
values of headers are texts of their kinds, raw ones in base64. Headers that this cannot express, such as encrypted
ones, are in `headers_base64` as they are. Reading needs only the payload: a string without `encoding` is text,
everything else JSON.
"""

from __future__ import annotations

import base64
import binascii
import re
import struct
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from whippet.app.cli.remote.failures import UsageFailure
from whippet.app.cli.remote.headers import KINDS, part_of
from whippet.app.model.options import Option, Value, ValueKind, decode, encode

if TYPE_CHECKING:
    from whippet.app.client.consumer import Received
    from whippet.storage.batch import Message

_LENGTH = struct.Struct("<BI")
_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")
"""What would break a line of JSON; such a payload is a text."""
PART_BYTES_MAX = 255
PAYLOAD_BYTES_MAX = 64_000_000
HEADERS_BYTES_MAX = 100_000
ID_MAX = 2**128 - 1
U64_MAX = 2**64 - 1
PARTITION_MAX = 2**32 - 1


class BadRow(Exception):
    """A row is not a message; the text says why."""


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key: str
    kind: str
    value: str


class Record(msgspec.Struct, frozen=True):
    """A message with its place. When it is imported, offset and timestamp are the server's to choose."""

    partition_id: int | None
    offset: int
    timestamp: int
    origin_timestamp: int | None
    id: int
    headers: bytes
    """As in the message."""
    payload: bytes

    def as_message(self) -> Message:
        from whippet.storage.batch import Message  # noqa: PLC0415 -- with numpy

        return Message(self.payload, self.id, self.headers, self.origin_timestamp)


def record_of(message: Received) -> Record:
    return Record(
        message.partition_id,
        message.offset,
        message.timestamp,
        message.origin_timestamp,
        message.id,
        message.user_headers,
        message.payload,
    )


def checked(record: Record) -> Record:
    """Raises BadRow for what no server accepts."""
    if not 0 < len(record.payload) <= PAYLOAD_BYTES_MAX:
        raise BadRow(f"the payload has {len(record.payload)} bytes; 1 to {PAYLOAD_BYTES_MAX} are possible")
    if len(record.headers) > HEADERS_BYTES_MAX:
        raise BadRow(f"the headers have {len(record.headers)} bytes; {HEADERS_BYTES_MAX} are possible")
    for name, value, most in (
        ("partition_id", record.partition_id, PARTITION_MAX),
        ("id", record.id, ID_MAX),
        ("origin_timestamp", record.origin_timestamp, U64_MAX),
    ):
        if value is not None and not 0 <= value <= most:
            raise BadRow(f"{name} is 0 to {most}, not {value}")
    return record


# ---------------------------------------------------------------------------------------------------------- headers


def headers_of(block: bytes) -> list[Header] | None:
    """Returns None for a block that would not be the same again."""
    found, position = [], 0
    try:
        while position < len(block):
            key_kind, key, position = part_of(block, position)
            if key_kind is not ValueKind.STRING:
                return None
            kind, octets, position = part_of(block, position)
            value = decode(Option("", kind, octets))
            found.append(Header(key.decode(), kind.name.lower(), _text(value)))
        return found if block_of(found) == block else None
    except (ValueError, struct.error, BadRow):
        return None


def _text(value: Value) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else repr(value)


def block_of(headers: Iterable[Header]) -> bytes:
    parts = []
    for header in headers:
        kind, key = KINDS.get(header.kind), header.key.encode()
        if kind is None:
            raise BadRow(f"the header {header.key!r} has no kind {header.kind!r}: there are {', '.join(KINDS)}")
        try:
            value = encode(kind, _value(kind, header.value))
        except (ValueError, OverflowError, struct.error):
            raise BadRow(f"the value of the header {header.key!r} is no {header.kind}: {header.value!r}") from None
        if not 0 < len(key) <= PART_BYTES_MAX or not 0 < len(value) <= PART_BYTES_MAX:
            raise BadRow(f"the key and the value of the header {header.key!r} must have 1 to {PART_BYTES_MAX} bytes")
        parts += [_LENGTH.pack(ValueKind.STRING, len(key)), key, _LENGTH.pack(kind, len(value)), value]
    return b"".join(parts)


def _value(kind: ValueKind, text: str) -> Value:
    if kind is ValueKind.RAW:
        return base64.b64decode(text, validate=True)
    if kind is ValueKind.STRING:
        return text
    if kind is ValueKind.BOOL:
        if text not in ("true", "false"):
            raise ValueError
        return text == "true"
    return float(text) if kind in (ValueKind.FLOAT32, ValueKind.FLOAT64) else int(text)


# ----------------------------------------------------------------------------------------------------------- NDJSON


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    payload: msgspec.Raw
    encoding: str = ""
    partition_id: int | None = None
    offset: int = -1
    timestamp: int = -1
    origin_timestamp: int | None = None
    id: str = "0"
    headers: list[Header] = []
    headers_base64: str = ""


_decode_line = msgspec.json.Decoder(_Line).decode
_encode = msgspec.json.Encoder().encode


def line_of(record: Record) -> bytes:
    """Returns the line without its end."""
    headers = headers_of(record.headers)
    payload, encoding = _payload_of(record.payload)
    columns: dict[str, Any] = {
        "partition_id": record.partition_id,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "origin_timestamp": record.origin_timestamp,
        "id": str(record.id),
        "headers": headers or [],
    }
    if headers is None:
        columns["headers_base64"] = base64.b64encode(record.headers).decode()
    columns |= {"payload": payload, "encoding": encoding}
    return _encode(columns)


def _payload_of(payload: bytes) -> tuple[msgspec.Raw | str, str]:
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return base64.b64encode(payload).decode(), "base64"
    if payload[:1] in (b"{", b"[") and payload[-1:] in (b"}", b"]") and not _CONTROL.search(payload):
        try:
            msgspec.json.decode(payload)
        except (msgspec.DecodeError, RecursionError):
            return text, "text"
        return msgspec.Raw(payload), "json"
    return text, "text"


def record_of_line(line: bytes) -> Record:
    """Raises BadRow."""
    try:
        found = _decode_line(line)
        if not (found.id.isascii() and found.id.isdecimal()):
            raise BadRow(f"the id is not a number: {found.id!r}")
        headers = block_of(found.headers)
        if found.headers_base64:
            if headers:
                raise BadRow("headers and headers_base64 exclude each other")
            headers = base64.b64decode(found.headers_base64, validate=True)
        payload = _octets(bytes(found.payload), found.encoding)
    except (msgspec.MsgspecError, UnicodeDecodeError, binascii.Error, RecursionError) as error:
        raise BadRow(str(error) or "it is nested too deeply") from None
    return checked(
        Record(
            found.partition_id,
            found.offset,
            found.timestamp,
            found.origin_timestamp,
            int(found.id),
            headers,
            payload,
        )
    )


def _octets(raw: bytes, encoding: str) -> bytes:
    if encoding == "json" or (not encoding and raw[:1] != b'"'):
        return raw
    if encoding not in ("", "text", "base64"):
        raise BadRow(f"there is no encoding {encoding!r}: it is json, text or base64")
    text = msgspec.json.decode(raw, type=str)
    return base64.b64decode(text, validate=True) if encoding == "base64" else text.encode()


def read_lines(file: BinaryIO, name: str) -> Iterator[Record]:
    """Yields the messages of a file; empty lines are none. Raises UsageFailure, which names the line."""
    for number, line in enumerate(file, 1):
        text = line.strip()
        if text:
            try:
                yield record_of_line(text)
            except BadRow as error:
                raise UsageFailure(f"{name}, line {number}: {error}") from None
