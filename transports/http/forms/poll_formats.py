"""Formats of polled messages, which `Accept` selects; headers carry the cursor.

    application/json              the format of Iggy
    application/x-ndjson          the same messages, one object per line
    application/x-ndjson; values  their payloads, one JSON value per line, as such lines are sent
    application/vnd.iggy.batch    the stored batches, one after the other; the first and the last may be slices
    text/plain                    one payload per line; a payload with line breaks takes several lines
    application/octet-stream      the payload of one message; needs `count=1`

`Iggy-Count` is the number of messages, `Iggy-Next-Offset` where the next poll starts, and `Iggy-Epoch` the epoch in
which these offsets are valid, in every format.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any

import msgspec

from whippet.app.commands import responses
from whippet.transports import offload
from whippet.transports.http.errors import Refused
from whippet.transports.http.forms.batch_decoder import PolledMessages, decode_messages, payload_views
from whippet.transports.http.forms.responses import NO_STORE, VIEW, HttpResponse, compress, quality_values
from whippet.transports.http.forms.send_formats import BATCH, NDJSON, OCTETS, TEXT
from whippet.transports.http.operation import Call

JSON = "application/json"
VALUES = f"{NDJSON}; values"
VARY = (b"vary", b"accept")


def choose_format(accept: bytes | None) -> str:
    """Returns the format that the client prefers, JSON if it accepts anything."""
    if accept is None:
        return JSON
    exact = _FORMS_BY_NAME.get(accept)
    if exact is not None:
        return exact
    weights = quality_values(accept)
    best, best_weight = None, 0.0
    for form in MEDIA:
        name = form.encode()
        kind = name.partition(b"/")[0] + b"/*"
        weight = weights.get(name, weights.get(kind, weights.get(b"*/*", 0.0)))
        if weight > best_weight:
            best, best_weight = form, weight
    if best == NDJSON and any(map(_wants_values, accept.split(b","))):
        return VALUES
    if best is None:
        sentence = f"Messages are available as {', '.join(MEDIA)}; tails, at .../messages/tail, as text/event-stream"
        raise Refused(HTTPStatus.NOT_ACCEPTABLE, sentence, "accept")
    return best


def _wants_values(accepted: bytes) -> bool:
    name, *parameters = (part.strip() for part in accepted.lower().split(b";"))
    return name == NDJSON.encode() and b"values" in parameters


def check_count(form: str, count: int) -> None:
    """Refuses several messages in a format that cannot separate them, before anything is read."""
    if form == OCTETS and count != 1:
        raise Refused(HTTPStatus.BAD_REQUEST, f"`count`: {OCTETS} holds one message, so it needs count=1", "count")


async def encode_response(call: Call, form: str, polled: responses.Polled) -> HttpResponse:
    body = await FORMS[form](call, polled)
    # A list, because headers that differ in each response are not worth remembering.
    headers = [
        (b"content-type", _TYPES.get(form, form).encode()),
        VIEW,
        NO_STORE,
        VARY,
        (b"iggy-partition", b"%d" % polled.partition_id),
        (b"iggy-count", b"%d" % polled.messages_count),
        (b"iggy-current-offset", b"%d" % polled.current_offset),
        (b"iggy-next-offset", b"%d" % polled.next_offset),
        (b"iggy-epoch", b"%d" % polled.epoch),
    ]
    return await compress(HttpResponse(HTTPStatus.OK, body, headers), call.headers.get(b"accept-encoding"))


async def encode_json(call: Call, polled: responses.Polled) -> bytes:
    messages: Any = await decode_messages(polled.batches, for_0_6=call.bearer.generation == "0.6")
    found = PolledMessages(polled.partition_id, polled.current_offset, len(messages), messages)
    encode = msgspec.json.Encoder().encode
    if offload.is_large(_size(polled), len(messages)):
        return await asyncio.to_thread(encode, found)
    return encode(found)


async def _ndjson(call: Call, polled: responses.Polled) -> bytes:
    messages = await decode_messages(polled.batches, for_0_6=False)
    return await offload.call(_size(polled), len(messages), msgspec.json.Encoder().encode_lines, messages)


async def _values(call: Call, polled: responses.Polled) -> bytes:
    return await offload.call(_size(polled), polled.messages_count, _values_of, polled)


def _values_of(polled: responses.Polled) -> bytes:
    return b"".join(b"%b\n" % _value(bytes(payload)) for payload in payload_views(polled.batches))


def _value(payload: bytes) -> bytes:
    """Returns a line. What is no JSON is not refused, because its offset may be committed already: a text becomes a
    string, anything else an object with its base64."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return msgspec.json.encode({"base64": payload})
    try:
        _any.decode(payload)
    except (msgspec.DecodeError, RecursionError):
        return msgspec.json.encode(text)
    return msgspec.json.format(payload, indent=-1) if b"\n" in payload or b"\r" in payload else payload.strip()


async def _batches(call: Call, polled: responses.Polled) -> bytes:
    return b"".join(polled.batches)


async def _text(call: Call, polled: responses.Polled) -> bytes:
    return await offload.call(_size(polled), polled.messages_count, _lines_of, polled)


def _lines_of(polled: responses.Polled) -> bytes:
    payloads = payload_views(polled.batches)
    return b"\n".join((*payloads, b"")) if payloads else b""


def _size(polled: responses.Polled) -> int:
    return sum(map(len, polled.batches))


async def _octets(call: Call, polled: responses.Polled) -> bytes:
    return b"".join(payload_views(polled.batches))


FORMS: Mapping[str, Callable[[Call, responses.Polled], Awaitable[bytes]]] = {
    JSON: encode_json,
    NDJSON: _ndjson,
    VALUES: _values,
    BATCH: _batches,
    TEXT: _text,
    OCTETS: _octets,
}
"""Formats in order of preference."""
MEDIA = tuple(form for form in FORMS if form != VALUES)
"""Those with a content type of their own."""
_FORMS_BY_NAME = {form.encode(): form for form in FORMS} | {b"*/*": JSON}
"""What clients accept most often needs no weighing."""
_TYPES = {TEXT: "text/plain; charset=utf-8", VALUES: NDJSON}
_any = msgspec.json.Decoder(msgspec.Raw)
