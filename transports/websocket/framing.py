"""WebSocket frames (RFC 6455) as pure functions over bytes: decodes what a client sends, encodes what it receives.

Bytes may arrive in any pieces, and frames are not collected: each part of a payload is unmasked in place and passed on
at once, so that the caller decides how much memory a message takes. Only the payload of a control frame, at most 125
bytes, is kept until it is complete.

There are no extensions, so nothing is compressed. A client that breaks the rules causes a `Violation`, whose code
closes the connection.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from websockets.frames import EXTERNAL_CLOSE_CODES, CloseCode, Opcode

from whippet.storage.batch import Readable

try:
    from websockets.speedups import apply_mask
except ImportError:
    from websockets.utils import apply_mask

CONTINUATION, TEXT, BINARY = int(Opcode.CONT), int(Opcode.TEXT), int(Opcode.BINARY)
CLOSE, PING, PONG = int(Opcode.CLOSE), int(Opcode.PING), int(Opcode.PONG)

FIN, RESERVED, OPCODE = 0x80, 0x70, 0x0F
MASKED, LENGTH = 0x80, 0x7F
LENGTH_16, LENGTH_64 = 126, 127
NO_MASK = bytes(4)
CONTROL_BYTES_MAX = 125
FRAME_BYTES_MAX = 16 << 20
"""Official clients accept no larger frame."""
IN_PLACE_BYTES_MIN = 8 << 10
"""From this size on numpy is faster than a copy."""
JOINED_BYTES_MAX = 32 << 10
"""Up to this size one buffer is faster than several."""
FRAGMENTS_FREE = 4096
FRAGMENT_BYTES_MIN = 16
"""The average size that the fragments of a message must have, except for the first `FRAGMENTS_FREE`: each fragment
costs as much as many bytes."""
APPLICATION_CODES = range(3000, 5000)


class Violation(Exception):
    """A violation of the rules, and the code that closes the connection."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class Piece(NamedTuple):
    """A part of a message, or a control frame."""

    opcode: int
    """The opcode of the message, not that of a continuation frame."""
    content: memoryview
    is_last: bool


class Incoming:
    """The decoder of one client's bytes."""

    __slots__ = (
        "_control",
        "_fin",
        "_fragments",
        "_frame_bytes_max",
        "_head",
        "_left",
        "_mask",
        "_message",
        "_message_bytes",
        "_message_bytes_max",
        "_opcode",
        "_unmasked_too",
        "position",
    )

    def __init__(
        self, *, frame_bytes_max: int | None = None, message_bytes_max: int | None = None, unmasked_too: bool = False
    ) -> None:
        """None: no limit."""
        self._frame_bytes_max = frame_bytes_max
        self._message_bytes_max = message_bytes_max
        self._unmasked_too = unmasked_too
        self.position = 0
        """The position after the last piece, in the data that is being decoded."""
        self._head = b""
        """The beginning of a header."""
        self._opcode = CONTINUATION
        self._fin = True
        self._left = 0
        """Bytes of the payload that have not arrived."""
        self._mask = b""
        """Rotated so that it starts with the next byte of the payload."""
        self._message = CONTINUATION
        """The opcode of the message that will be continued; CONTINUATION if there is none."""
        self._message_bytes = 0
        self._fragments = 0
        self._control = b""

    @property
    def left(self) -> int:
        """How many of the next bytes certainly belong to a message."""
        return self._left if self._opcode < CLOSE else 0

    def whole(self, data: memoryview, opcode: int) -> memoryview | None:
        """Returns the content of a message, unmasked, if `data` is exactly one masked frame, and a whole message of
        this type. Otherwise None, and `pieces` decodes the data. Most clients send one small message and wait."""
        size = len(data)
        if size < 6 or self._left or self._head or self._message or data[0] != FIN | opcode:
            return None
        second = data[1]
        if second < MASKED | LENGTH_16:
            start, length = 6, second - MASKED
        elif second == MASKED | LENGTH_16:
            start, length = 8, data[2] << 8 | data[3]
        else:
            return None
        if (
            size - start != length
            or (self._frame_bytes_max is not None and length > self._frame_bytes_max)
            or (self._message_bytes_max is not None and length > self._message_bytes_max)
        ):
            return None
        mask = bytes(data[start - 4 : start])
        if mask == NO_MASK:
            return data[start:]
        return memoryview(apply_mask(data[start:], mask))

    def take(self, content: memoryview) -> None:
        """Unmasks bytes of the payload that the caller has read into its own buffer."""
        assert len(content) <= self._left
        self._unmask(content)
        if not self._left and self._fin:
            self._message = CONTINUATION

    def pieces(self, data: memoryview) -> Iterator[Piece]:
        """Yields the pieces in `data`, unmasked in place; they are valid until the bytes are overwritten. A caller that
        stops after a piece continues with the data after `position`."""
        at, end = 0, len(data)
        while at < end:
            if not self._left:
                at += self._begin(data[at:])
                if self._head:
                    return
            content = data[at : at + self._left]
            at += len(content)
            self._unmask(content)
            if self._left and not content:
                return
            if self._opcode >= CLOSE:
                self._control += content
                if not self._left:
                    whole, self._control = self._control, b""
                    self.position = at
                    yield Piece(self._opcode, memoryview(whole), True)
                continue
            is_last = self._fin and not self._left
            opcode = self._message
            if is_last:
                self._message = CONTINUATION
            if content or is_last:
                self.position = at
                yield Piece(opcode, content, is_last)

    def _begin(self, data: memoryview) -> int:
        """Decodes the header of a frame; returns how many of its bytes were in `data`."""
        before = len(self._head)
        head = self._head + bytes(data[: 14 - before])
        if len(head) < 2 or len(head) < (size := _header_bytes(head[1])):
            # Reports an error without waiting for the rest of the header.
            if head:
                self._check(head[0], head[1] if len(head) > 1 else None)
            self._head = head
            return len(data)
        self._head = b""
        first, second = head[0], head[1]
        self._check(first, second)
        length = second & LENGTH
        if length == LENGTH_16:
            length = int.from_bytes(head[2:4], "big")
        elif length == LENGTH_64:
            length = int.from_bytes(head[2:10], "big")
        self._mask = head[size - 4 : size] if second & MASKED else b""
        self._opcode, self._left = first & OPCODE, length
        if self._opcode < CLOSE:
            self._begin_fragment(first, length)
        return size - before

    def _check(self, first: int, second: int | None) -> None:
        opcode = first & OPCODE
        if first & RESERVED:
            raise Violation(CloseCode.PROTOCOL_ERROR, "reserved bits are set without an extension")
        if opcode in (CONTINUATION, TEXT, BINARY):
            if (opcode == CONTINUATION) != (self._message != CONTINUATION):
                raise Violation(CloseCode.PROTOCOL_ERROR, "a continuation frame is missing or unexpected")
        elif opcode not in (CLOSE, PING, PONG):
            raise Violation(CloseCode.PROTOCOL_ERROR, f"there is no opcode {opcode}")
        elif not first & FIN:
            raise Violation(CloseCode.PROTOCOL_ERROR, "a control frame is fragmented")
        if second is None:
            return
        if not second & MASKED and not self._unmasked_too:
            raise Violation(CloseCode.PROTOCOL_ERROR, "a frame is not masked")
        if opcode >= CLOSE and second & LENGTH > CONTROL_BYTES_MAX:
            raise Violation(CloseCode.PROTOCOL_ERROR, "a control frame is too long")

    def _begin_fragment(self, first: int, length: int) -> None:
        if length >> 63:
            raise Violation(CloseCode.PROTOCOL_ERROR, "a length has its highest bit set")
        if self._message == CONTINUATION:
            self._message = first & OPCODE
            self._message_bytes = self._fragments = 0
        self._fin = bool(first & FIN)
        self._message_bytes += length
        self._fragments += 1
        if self._frame_bytes_max is not None and length > self._frame_bytes_max:
            raise Violation(CloseCode.MESSAGE_TOO_BIG, f"a frame has more than {self._frame_bytes_max} bytes")
        if self._message_bytes_max is not None and self._message_bytes > self._message_bytes_max:
            raise Violation(CloseCode.MESSAGE_TOO_BIG, f"a message has more than {self._message_bytes_max} bytes")
        if self._message_bytes < (self._fragments - FRAGMENTS_FREE) * FRAGMENT_BYTES_MIN:
            raise Violation(CloseCode.POLICY_VIOLATION, "a message has too many fragments that are too small")

    def _unmask(self, content: memoryview) -> None:
        size, mask = len(content), self._mask
        self._left -= size
        if not mask or not size:
            return
        unmask(content, mask)
        if turned := size & 3:
            self._mask = mask[turned:] + mask[:turned]


def _header_bytes(second: int) -> int:
    length = second & LENGTH
    return 2 + (4 if second & MASKED else 0) + (2 if length == LENGTH_16 else 8 if length == LENGTH_64 else 0)


def unmask(content: memoryview, mask: bytes) -> None:
    """Unmasks in place."""
    size = len(content)
    if size < IN_PLACE_BYTES_MIN:
        content[:] = apply_mask(content, mask)
        return
    whole = size & ~7
    words = np.frombuffer(content[:whole], np.uint64)
    np.bitwise_xor(words, np.frombuffer(mask * 2, np.uint64), out=words)
    if whole < size:
        content[whole:] = apply_mask(content[whole:], mask)


# ----------------------------------------------------------------------------------------------- encoding


def header(opcode: int, size: int) -> bytes:
    """Returns the header of a frame that is a whole message."""
    first = FIN | opcode
    if size < LENGTH_16:
        return bytes((first, size))
    if size < 1 << 16:
        return bytes((first, LENGTH_16)) + size.to_bytes(2, "big")
    return bytes((first, LENGTH_64)) + size.to_bytes(8, "big")


def binary(buffers: Sequence[Readable]) -> list[Readable]:
    """Encodes bytes as one message, or as several if one would be too long."""
    size = sum(map(len, buffers))
    if size <= FRAME_BYTES_MAX:
        return [header(BINARY, size), *buffers]
    framed: list[Readable] = []
    left, room = size, 0
    for buffer in buffers:
        rest = memoryview(buffer)
        while rest:
            if not room:
                room = min(left, FRAME_BYTES_MAX)
                left -= room
                framed.append(header(BINARY, room))
            framed.append(rest[:room])
            taken = min(len(rest), room)
            rest, room = rest[taken:], room - taken
    return framed


def small_binary(buffers: Sequence[Readable]) -> bytes | None:
    """Encodes bytes as one message in one buffer, which is sent faster than several; None if they are too many."""
    size = sum(map(len, buffers))
    is_small = size <= min(JOINED_BYTES_MAX, FRAME_BYTES_MAX)
    return b"".join((header(BINARY, size), *buffers)) if is_small else None


def close(code: int | None, reason: str = "") -> bytes:
    """Encodes a Close frame; None: without a code."""
    content = b"" if code is None else code.to_bytes(2, "big") + _shortened(reason)
    return header(CLOSE, len(content)) + content


def _shortened(reason: str) -> bytes:
    return reason.encode()[: CONTROL_BYTES_MAX - 2].decode(errors="ignore").encode()


def close_code(content: memoryview) -> int | None:
    """Returns the code of a client's Close frame; None if it has none."""
    if not content:
        return None
    code = int.from_bytes(content[:2], "big")
    if len(content) < 2 or not (code in EXTERNAL_CLOSE_CODES or code in APPLICATION_CODES):
        raise Violation(CloseCode.PROTOCOL_ERROR, "the close code is invalid")
    try:
        str(content[2:], "utf-8")
    except UnicodeDecodeError:
        raise Violation(CloseCode.INVALID_DATA, "the close reason is not UTF-8") from None
    return code
