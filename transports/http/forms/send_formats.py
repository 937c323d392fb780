"""Formats of messages to send other than JSON: lines, one message as it is, batches.

The query names the destination of such a body, and `Iggy-Header-<name>` headers become user headers of all of its
messages: strings, with lowercase keys, because HTTP does not preserve the case of names.
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import NamedTuple, NoReturn

import msgspec

from whippet.app.errors import Code, CommandError, of_storage
from whippet.storage import batch as batches
from whippet.storage.batch import HEADER, HEADER_BYTES, Checked, Writable
from whippet.storage.errors import InvalidBatch
from whippet.transports import offload
from whippet.transports.http.errors import Refused
from whippet.transports.http.forms import user_headers
from whippet.transports.http.forms.batch_encoder import encode_payloads
from whippet.transports.http.forms.request_bodies import COUNTED_BYTES_MIN, Body, count_octet
from whippet.transports.http.forms.user_headers import HeaderEntry, HeaderPart
from whippet.transports.http.operation import BodyFormat, Call
from whippet.transports.wire.modern.sends import ORIGIN_MAX

HEADER_PREFIX = b"iggy-header-"
PART_BYTES_MAX = 255
BATCHES_MAX = 1024
INVALID_LINE = "Failed to parse the request body as lines of JSON: line "


class EncodedBatches(NamedTuple):
    """Batches for the log, and the results of their checks."""

    batches: tuple[Writable, ...]
    checked: tuple[Checked, ...]


# ------------------------------------------------------------------------------------------------------------- lines

_check_json = msgspec.json.Decoder(msgspec.Raw).decode


def _ndjson(call: Call, body: Body) -> EncodedBatches:
    """Makes a message of each line, byte for byte, if it is JSON. Empty lines are skipped."""
    lines = _lines(body)
    try:
        str(body, "utf-8")
        for _ in map(_check_json, lines):
            pass
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        if not all(map(bytes.strip, lines)):
            lines = [line for line in lines if line.strip()]
        _refuse_line(bytes(body))
    return _packed(call, lines)


def _refuse_line(body: bytes) -> None:
    """Refuses the first line that is not JSON. Returns if only white space was the problem."""
    for number, line in enumerate(body.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            line.decode()
            _check_json(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Refused(HTTPStatus.BAD_REQUEST, f"{INVALID_LINE}{number}: {error}", f"line {number}") from None
        except RecursionError:
            sentence = f"{INVALID_LINE}{number}: it is nested too deeply"
            raise Refused(HTTPStatus.BAD_REQUEST, sentence, f"line {number}") from None


def _text(call: Call, body: Body) -> EncodedBatches:
    return _packed(call, _lines(body))


def _lines(body: Body) -> list[bytes]:
    """Splits at LF or CR LF, and drops empty lines."""
    octets = bytes(body)
    if b"\r" in octets:
        octets = octets.replace(b"\r\n", b"\n").removesuffix(b"\r")
    lines = octets.split(b"\n")
    return lines if all(lines) else list(filter(None, lines))


def _one(call: Call, body: Body) -> EncodedBatches:
    if not body:
        raise CommandError(Code.EMPTY_MESSAGE_PAYLOAD)
    return _packed(call, [bytes(body)])


def _packed(call: Call, payloads: Sequence[bytes]) -> EncodedBatches:
    made = encode_payloads(payloads, _user_headers(call), call.api.gateway.clock(), call.api.batch_limits)
    return EncodedBatches((made.batch,), (made.checked,))


# ----------------------------------------------------------------------------------------------------------- batches


def _batches(call: Call, body: Body) -> EncodedBatches:
    """Splits batches in the format of 0.9. All of them are valid, or none is stored."""
    refuse_headers(call)
    view = memoryview(body if isinstance(body, bytearray) else bytearray(body))
    found: list[Writable] = []
    position, size = 0, len(view)
    while position < size:
        if size - position < HEADER_BYTES:
            _refuse_batch(len(found), f"{size - position} bytes are no batch: a header has {HEADER_BYTES}")
        _, _, _, origin, length, _, _ = HEADER.unpack_from(view, position)
        if not HEADER_BYTES < length <= size - position:
            _refuse_batch(len(found), f"its header announces {length} bytes, but {size - position} are left")
        if origin > ORIGIN_MAX:
            sentence = f"batch {len(found) + 1}: the origin timestamp {origin} is out of range"
            raise CommandError(Code.TIMESTAMP_OUT_OF_RANGE, sentence)
        if len(found) == BATCHES_MAX:
            _refuse_batch(len(found), f"at most {BATCHES_MAX} may be sent at once")
        found.append(view[position : position + length])
        position += length
    if not found:
        raise CommandError(Code.INVALID_MESSAGES_COUNT)
    if len(found) == 1 and not offload.is_large(size, _messages_in(body)):
        # The log checks a single small batch.
        return EncodedBatches((found[0],), ())
    return EncodedBatches(tuple(found), tuple(_checked(call, number, batch) for number, batch in enumerate(found)))


def _lines_in(body: Body) -> int:
    if len(body) <= COUNTED_BYTES_MIN:
        return 0
    return count_octet(body, b"\n") + (count_octet(body, b"\r") if b"\r" in body else 0)


def _one_item(_: Body) -> int:
    return 1


def _messages_in(body: Body) -> int:
    """Several batches are checked one by one, so they count as many messages."""
    if len(body) < HEADER_BYTES:
        return 0
    _, _, _, _, length, _, count = HEADER.unpack_from(body)
    return int(count) if length == len(body) else offload.ITEMS_AT_ONCE + 1


def _checked(call: Call, number: int, batch: Writable) -> Checked:
    try:
        return batches.check(batch, call.api.batch_limits)
    except InvalidBatch as error:
        raise CommandError(of_storage(error).code, f"batch {number + 1}: {error}") from None


def _refuse_batch(number: int, sentence: str) -> NoReturn:
    raise CommandError(Code.INVALID_MESSAGES_SIZE, f"batch {number + 1}: {sentence}")


# ------------------------------------------------------------------------------------------------------ user headers


def _user_headers(call: Call) -> bytes:
    entries: dict[bytes, HeaderEntry] = {}
    for name, value in call.scope["headers"]:
        if not name.startswith(HEADER_PREFIX):
            continue
        key = name[len(HEADER_PREFIX) :]
        shown = name.decode("latin-1")
        if key in entries:
            raise Refused(HTTPStatus.BAD_REQUEST, f"the header {shown} occurs twice", shown)
        try:
            value.decode()
        except UnicodeDecodeError:
            raise CommandError(Code.INVALID_HEADER_VALUE, f"the value of {shown} is not UTF-8") from None
        if not 0 < len(key) <= PART_BYTES_MAX:
            raise CommandError(Code.INVALID_HEADER_KEY, f"{shown}: a key has 1 to {PART_BYTES_MAX} bytes")
        if not 0 < len(value) <= PART_BYTES_MAX:
            raise CommandError(Code.INVALID_HEADER_VALUE, f"{shown}: a value has 1 to {PART_BYTES_MAX} bytes")
        entries[key] = HeaderEntry(HeaderPart("string", key), HeaderPart("string", value))
    return user_headers.encode(list(entries.values()))


def refuse_headers(call: Call) -> None:
    """Refuses `Iggy-Header-` headers for a body whose messages have user headers of their own."""
    for name in call.headers:
        if name.startswith(HEADER_PREFIX):
            shown = name.decode("latin-1")
            raise Refused(HTTPStatus.BAD_REQUEST, f"{shown}: this body carries the user headers itself", shown)


BATCH = "application/vnd.iggy.batch"
NDJSON = "application/x-ndjson"
TEXT = "text/plain"
OCTETS = "application/octet-stream"

FORMS = (
    BodyFormat(NDJSON, _ndjson, "One JSON value per line, each a message; empty lines are skipped", _lines_in),
    BodyFormat(TEXT, _text, "One message per line; empty lines are skipped", _lines_in),
    BodyFormat(OCTETS, _one, "One message", _one_item),
    BodyFormat(
        BATCH, _batches, "Batches as clients of 0.9 send them, one after the other", _messages_in, writable=True
    ),
)
