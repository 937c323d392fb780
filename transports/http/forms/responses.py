"""HTTP responses as bytes, with ETags and compression.

Only responses that are long enough to benefit are compressed, and very long ones in a thread.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import NamedTuple

import xxhash
import zstandard
from starlette.types import Scope, Send

Headers = Sequence[tuple[bytes, bytes]]

JSON = (b"content-type", b"application/json")
TEXT = (b"content-type", b"text/plain; charset=utf-8")
VIEW = (b"iggy-view", b"0")
"""The view of the consensus protocol, which a single node does not need; clients of 0.9 may read it."""
PRIVATE = (b"cache-control", b"private, no-cache")
NO_STORE = (b"cache-control", b"no-store")
VARY = (b"vary", b"accept-encoding")

RESPOND = "whippet.respond"
"""The key in the ASGI scope of a function that sends a whole response, in place of two messages, with its length added
to the headers. It returns False, and
has done nothing, if it would have to wait. Absent over HTTP/3, and where a middleware changes the messages."""
BODILESS = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})

COMPRESSED_BYTES_MIN = 1024
THREAD_BYTES_MIN = 128 * 1024
"""From this length on, compression takes longer than passing it to a thread."""
GZIP_LEVEL = 1
ZSTD_LEVEL = 1


class HttpResponse(NamedTuple):
    status: int
    body: bytes = b""
    headers: Headers = ()


async def send_response(response: HttpResponse, scope: Scope, send: Send) -> None:
    status, body, headers = response
    respond: Callable[[int, Headers, bytes], bool] | None = scope.get(RESPOND)
    if respond is None or not respond(status, headers, body):
        if status not in BODILESS:
            headers = ((b"content-length", b"%d" % len(body)), *headers)
        await send({"type": "http.response.start", "status": status, "headers": list(headers)})
        await send({"type": "http.response.body", "body": body})


def with_etag(response: HttpResponse, wanted: bytes | None) -> HttpResponse:
    """Adds an ETag, and omits the body if the client has it. The ETag is weak, because it ignores compression."""
    tag = b'W/"%016x"' % xxhash.xxh3_64_intdigest(response.body)
    headers = (*response.headers, (b"etag", tag), PRIVATE)
    if wanted is not None and _matches(wanted, tag):
        varies = (VARY,) if len(response.body) >= COMPRESSED_BYTES_MIN else ()
        kept = [header for header in headers if header[0] != b"content-type"]
        return HttpResponse(HTTPStatus.NOT_MODIFIED, b"", (*kept, *varies))
    return HttpResponse(response.status, response.body, headers)


def _matches(wanted: bytes, tag: bytes) -> bool:
    strong = tag.removeprefix(b"W/")
    return any(each.strip().removeprefix(b"W/") in (strong, b"*") for each in wanted.split(b","))


async def compress(response: HttpResponse, accepted: bytes | None) -> HttpResponse:
    if len(response.body) < COMPRESSED_BYTES_MIN:
        return response
    name = None if accepted is None else choose_coding(accepted)
    if name is None:
        return HttpResponse(response.status, response.body, (*response.headers, VARY))
    compress = _COMPRESSORS[name]
    body = response.body
    smaller = compress(body) if len(body) < THREAD_BYTES_MIN else await asyncio.to_thread(compress, body)
    return HttpResponse(response.status, smaller, (*response.headers, VARY, (b"content-encoding", name)))


def _gzip(body: bytes) -> bytes:
    compressor = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    return compressor.compress(body) + compressor.flush()


def _zstd(body: bytes) -> bytes:
    return zstandard.compress(body, ZSTD_LEVEL)


_COMPRESSORS: dict[bytes, Callable[[bytes], bytes]] = {b"zstd": _zstd, b"gzip": _gzip}
"""Compressors in order of preference."""


def choose_coding(accepted: bytes) -> bytes | None:
    """Returns the best coding that the client accepts, None for no compression (RFC 9110, 12.5.3)."""
    weights = quality_values(accepted)
    best, best_weight = None, 0.0
    for name in _COMPRESSORS:
        weight = weights.get(name, weights.get(b"*", 0.0))
        if weight > best_weight:
            best, best_weight = name, weight
    return best if best_weight >= weights.get(b"identity", 0.0) else None


def quality_values(accepted: bytes) -> dict[bytes, float]:
    """Returns the weight of each name in a header such as `Accept`."""
    weights: dict[bytes, float] = {}
    for each in accepted.lower().split(b","):
        name, *parameters = (part.strip() for part in each.split(b";"))
        weights[name] = _weight(parameters)
    return weights


def _weight(parameters: list[bytes]) -> float:
    for parameter in parameters:
        if parameter.startswith(b"q="):
            try:
                return min(max(float(parameter[2:]), 0.0), 1.0)
            except ValueError:
                return 0.0
    return 1.0
