"""Decompresses request bodies, gzip or zstd, piece by piece and never beyond the limit.

Small bodies are decompressed at once, the others in a thread. A body may have several members or frames.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterator
from http import HTTPStatus

import zstandard

from whippet.transports.http.errors import Refused
from whippet.transports.http.forms.request_bodies import TOO_LONG

Coding = Callable[[bytes], Iterator[bytes]]

PIECE_BYTES = 64 * 1024
SMALL_BYTES = 16 * 1024
"""A larger body may have thousands of empty members or blocks, and each takes time."""
AT_ONCE_BYTES = 256 * 1024
MEMBERS_MAX = 1024
"""Members of a gzip body, or frames of a zstd body. An empty one has few bytes, but takes some microseconds."""
WINDOW_BYTES_MAX = 8 << 20
"""The largest window of a zstd frame: the limit that RFC 9659 sets for HTTP."""
CUT_OFF = "it ends prematurely"
ACCEPTED = (b"accept-encoding", b"zstd, gzip")


def find_coding(header: bytes | None) -> Coding | None:
    """Returns the decompressor for a `Content-Encoding`, None for a body that is not compressed."""
    name = (header or b"").strip().lower()
    if name in (b"", b"identity"):
        return None
    coding = _CODINGS.get(name)
    if coding is None:
        sentence = f"Content-Encoding is {name.decode('latin-1')!r}: gzip and zstd are supported, one at a time"
        raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, sentence, "content-encoding", (ACCEPTED,))
    return coding


async def decompress(body: bytes, coding: Coding, limit: int) -> bytes:
    found: list[bytes] = []
    pieces = coding(body)
    left = limit
    try:
        if len(body) <= SMALL_BYTES:
            left = _gather(pieces, found, left, AT_ONCE_BYTES)
        if left >= 0:
            left = await asyncio.to_thread(_gather, pieces, found, left, limit)
    except (zlib.error, zstandard.ZstdError, _Broken) as error:
        sentence = f"The body does not match its Content-Encoding: {error}"
        raise Refused(HTTPStatus.BAD_REQUEST, sentence, "content-encoding") from None
    if left < 0:
        raise Refused(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"{TOO_LONG} once it is decompressed (http.max_request_size = {limit} bytes)",
        )
    return b"".join(found)


class _Broken(Exception):
    pass


def _gather(pieces: Iterator[bytes], found: list[bytes], left: int, at_most: int) -> int:
    """Collects pieces until none are left, or about `at_most` bytes; returns how many bytes may still follow."""
    stop = left - at_most
    for piece in pieces:
        found.append(piece)
        left -= len(piece)
        if left < 0 or left <= stop:
            break
    return left


def _gzip(body: bytes) -> Iterator[bytes]:
    position, size, members = 0, len(body), 0
    decompressor = zlib.decompressobj(16 + zlib.MAX_WBITS)
    while position < size:
        feed = body[position : position + PIECE_BYTES]
        position += len(feed)
        while True:
            piece = decompressor.decompress(feed, PIECE_BYTES)
            if piece:
                yield piece
            feed = decompressor.unconsumed_tail
            if decompressor.eof or (not feed and len(piece) < PIECE_BYTES):
                break
        if decompressor.eof:
            position -= len(decompressor.unused_data)
            members += 1
            if members > MEMBERS_MAX:
                raise _Broken(f"it has more than {MEMBERS_MAX} gzip members")
            if position < size:
                decompressor = zlib.decompressobj(16 + zlib.MAX_WBITS)
    if not decompressor.eof:
        raise _Broken(CUT_OFF)


def _zstd(body: bytes) -> Iterator[bytes]:
    _check_frames(memoryview(body))
    reader = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES_MAX).stream_reader(body, read_across_frames=True)
    while piece := reader.read(PIECE_BYTES):
        yield piece


_CODINGS: dict[bytes, Coding] = {b"gzip": _gzip, b"x-gzip": _gzip, b"zstd": _zstd}

_SKIPPED, _SKIPPED_BYTES = 0x184D2A50, 8
_RLE = 1


def _check_frames(body: memoryview) -> None:
    """Refuses too many frames, which would take long, and a truncated last frame, which the reader would accept
    (RFC 8878, 3.1)."""
    position, size, frames = 0, len(body), 0
    while position < size:
        frames += 1
        if frames > MEMBERS_MAX:
            raise _Broken(f"it has more than {MEMBERS_MAX} zstd frames")
        if int.from_bytes(body[position : position + 4], "little") & ~0xF == _SKIPPED:
            position += _SKIPPED_BYTES + int.from_bytes(body[position + 4 : position + _SKIPPED_BYTES], "little")
            continue
        head = body[position : position + 18]
        position += zstandard.frame_header_size(head)
        last = False
        while not last:
            if position + 3 > size:
                raise _Broken(CUT_OFF)
            block = int.from_bytes(body[position : position + 3], "little")
            last = bool(block & 1)
            position += 3 + (1 if block >> 1 & 3 == _RLE else block >> 3)
        if zstandard.get_frame_parameters(head).has_checksum:
            position += 4
    if position != size or not size:
        raise _Broken(CUT_OFF)
