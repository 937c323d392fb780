"""Reads request bodies within their limit, and decodes JSON into the type of the operation.

Bodies reserve memory like requests on other transports (transports/admission); small ones never wait. A body is read
as a whole, because a batch is in memory as a whole anyway.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

import msgspec
import numpy as np
from starlette.requests import ClientDisconnect
from starlette.types import Receive

from whippet.transports.admission.budget import step
from whippet.transports.http.errors import CLOSE, Refused
from whippet.transports.http.forms.valid_values import explained
from whippet.transports.reservations import Reservation

COUNTED_BYTES_MIN = 4096
Body = bytes | bytearray

JSON = b"application/json"
NOT_JSON = "Failed to parse the request body as JSON: "
WRONG_TYPE = "Failed to deserialize the JSON body into the target type: "
TOO_LONG = "Failed to buffer the request body: length limit exceeded"


@asynccontextmanager
async def reading(
    receive: Receive,
    announced: int | None,
    limit: int,
    reserve: Callable[[], Reservation],
    *,
    grows: bool = False,
    writable: bool = False,
) -> AsyncIterator[Body]:
    """Yields the body, and keeps its memory reserved meanwhile. `announced` is the length, None if unknown; a body that
    `grows` will be decompressed; a `writable` one is a bytearray."""
    if announced is not None and announced > limit:
        raise body_too_long(limit)
    reservation = reserve()
    reservation.claim.is_unfinished = True
    try:
        body = await read(receive, limit, writable=writable, reservation=reservation, announced=announced)
        reservation.claim.is_unfinished = False
        if grows:
            await reservation.reserve(limit)
        yield body
    finally:
        reservation.close()


async def read(
    receive: Receive,
    limit: int,
    *,
    writable: bool = False,
    reservation: Reservation | None = None,
    announced: int | None = None,
) -> Body:
    """Reserves memory as the body arrives: each time as much again as there is already."""
    parts: list[bytes] = []
    size = reserved = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise body_too_long(limit)
        parts.append(part)
        if reservation is not None and size > reserved:
            reservation.claim.count(size - reserved)
            reserved = size
        if not message.get("more_body", False):
            if writable:
                return bytearray().join(parts)
            return parts[0] if len(parts) == 1 else b"".join(parts)
        if reservation is not None and reserved == size:
            left = max((limit if announced is None else announced) - size, 0)
            reserved += await reservation.reserve(step(size, left), left)


async def until_disconnected(receive: Receive) -> None:
    """Returns when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass


def body_too_long(limit: int) -> Refused:
    return Refused(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"{TOO_LONG} (http.max_request_size = {limit} bytes)", headers=(CLOSE,)
    )


# ------------------------------------------------------------------------------------------------------------ JSON


def count_values(body: Body) -> int:
    """Estimates the number of values in a JSON text: all but the first of an array or an object follow a comma, and the
    nesting is limited. Short texts count as 0."""
    return count_octet(body, b",") if len(body) > COUNTED_BYTES_MIN else 0


def count_octet(body: Body, octet: bytes) -> int:
    """Counts a byte in a long body several times as fast as `bytes.count`."""
    return int(np.count_nonzero(np.frombuffer(body, np.uint8) == octet[0]))


def media_type(value: bytes | None) -> bytes:
    """Returns the media type of a `Content-Type`, without parameters."""
    if value == JSON:
        return JSON
    return (value or b"").partition(b";")[0].strip().lower()


def is_json(media: bytes) -> bool:
    return media == JSON or (media.startswith(b"application/") and media.endswith(b"+json"))


def check_json(media: bytes, also: Iterable[bytes] = ()) -> None:
    """`also` has the other media types that the operation accepts."""
    if not is_json(media):
        expected = "Expected request with `Content-Type: application/json`"
        others = ", ".join(f"`{each.decode()}`" for each in also)
        raise Refused(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"{expected} or one of {others}" if others else expected, "content-type"
        )


def decode(decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:
    """Decodes a small body. Duplicate members are refused, because other programs may read the other one."""
    found = decode_once(decoder, body)
    refuse_duplicates(body)
    return found


def decode_once(decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise wrong_type(error, decoder.type) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refused(HTTPStatus.BAD_REQUEST, NOT_JSON + str(error)) from None
    except RecursionError:
        raise Refused(HTTPStatus.BAD_REQUEST, NOT_JSON + "it is nested too deeply") from None


def unprocessable(why: str, field: str | None = None) -> Refused:
    return Refused(HTTPStatus.UNPROCESSABLE_ENTITY, WRONG_TYPE + why, field)


def wrong_type(error: msgspec.ValidationError, of: Any) -> Refused:
    """The refusal of JSON that was to be decoded into a type."""
    return unprocessable(explained(error, of), field_of(error))


def field_of(error: msgspec.ValidationError) -> str | None:
    """Returns the member that an error is about: its path, or the name that is missing or unknown."""
    text = str(error)
    what, _, path = text.partition(" - at `$")
    named = what.partition("field `")[2].partition("`")[0]
    path = path.rstrip("`").lstrip(".")
    return ".".join(filter(None, (path, named))) or None


def refuse_duplicates(body: bytes, hook: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    try:
        return json.loads(body, object_pairs_hook=hook or _pairs)
    except (ValueError, RecursionError):
        # It was decoded before: only the limits of this decoder can fail.
        raise Refused(HTTPStatus.BAD_REQUEST, NOT_JSON + "it is nested too deeply, or a number is too long") from None


def _pairs(pairs: list[tuple[str, Any]]) -> None:
    seen = set()
    for name, _ in pairs:
        if name in seen:
            raise unprocessable(f"duplicate field `{name}`", name)
        seen.add(name)
