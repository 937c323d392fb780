"""The same clients over WebSocket: requests split into messages, fragments and reads, between frames that are valid,
and others that are not.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections.abc import Callable, Iterator

from tests.transports.fuzzing import over_tcp
from tests.transports.fuzzing.over_tcp import say
from tests.transports.fuzzing.place import Place
from tests.transports.support import made_up
from tests.transports.websocket.support.talking import frame, handshake
from whippet.transports.websocket import framing
from whippet.transports.websocket.framing import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, Incoming

SIZES = (0, 1, 2, 7, 100, 125, 126, 3000, 70_000)
LENGTHS = (0, 125, 126, 65_535, 65_536, 10 << 20, 1 << 40, (1 << 63) - 1, 1 << 63)


def framed(rng: random.Random, octets: bytes, opcode: int = BINARY) -> bytes:
    """As valid frames, however unusual they are. Text is one whole message."""
    found, at, is_first = bytearray(), 0, True
    while at < len(octets) or is_first:
        is_piece = rng.random() < 0.5
        size = rng.choice(SIZES) if is_piece else len(octets) - at
        is_last = at + size >= len(octets) or (opcode == BINARY and rng.random() < 0.5)
        found += frame(opcode if is_first else CONTINUATION, octets[at : at + size], fin=is_last)
        at, is_first = at + size, is_last and opcode == BINARY
        if is_first and at >= len(octets):
            break
        if rng.random() < 0.1:
            found += frame(rng.choice((PING, PONG)), os.urandom(rng.choice((0, 4, 125))))
        if is_last and opcode == TEXT:
            break
    return bytes(found)


def broken(rng: random.Random) -> bytes:
    """Mostly invalid frames."""
    content = rng.randbytes(rng.choice((0, 1, 5, 200)))
    match rng.randrange(9):
        case 0:
            return rng.randbytes(rng.choice((1, 2, 20, 2000)))
        case 1:
            return frame(rng.randrange(16), content, reserved=rng.randrange(8) << 4, fin=rng.random() < 0.7)
        case 2:
            return frame(rng.choice((TEXT, BINARY)), content, masked=False)
        case 3:
            return frame(rng.choice((CLOSE, PING, PONG)), content, fin=rng.random() < 0.5)
        case 4:
            return bytes((0x80 | rng.choice((TEXT, BINARY)), 0xFF)) + rng.choice(LENGTHS).to_bytes(8, "big") + content
        case 5:
            return frame(CLOSE, rng.choice((0, 999, 1000, 1005, 1006, 2999, 3000, 65_535)).to_bytes(2, "big") + content)
        case 6:
            return frame(TEXT, "schön".encode()[: rng.randrange(7)])
        case 7:
            return frame(BINARY, b"x", fin=False) + frame(CONTINUATION, b"", fin=False) * rng.choice((1, 100, 9000))
        case _:
            return frame(rng.choice((TEXT, BINARY)), content, fin=False) + frame(rng.choice((TEXT, BINARY)), content)


async def connected(
    place: Place, rng: random.Random, path: str, *lines: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
    """Returns an upgraded connection, or None if it was refused. OSError: nobody listens."""
    reader, writer = await asyncio.open_connection(*place.http)
    octets = handshake(path, *lines)
    with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        if rng.random() < 0.1:
            writer.write(made_up.spoilt(rng, octets))
            writer.write_eof()
            await asyncio.wait_for(reader.read(1 << 16), 5)
        else:
            writer.write(octets)
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"HTTP/1.1 101 "):
                return reader, writer
    await over_tcp.leave(writer, rng)
    return None


def messages(data: bytes, incoming: Incoming) -> Iterator[tuple[int, bytes, bool]]:
    """What the server sends is valid."""
    for opcode, content, is_last in incoming.pieces(memoryview(bytearray(data))):
        if opcode == CLOSE:
            framing.close_code(content)
        yield opcode, bytes(content), is_last


async def hear(reader: asyncio.StreamReader, take: Callable[[int, bytes, bool], None]) -> None:
    incoming = Incoming(unmasked_too=True)
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            for opcode, content, is_last in messages(data, incoming):
                take(opcode, content, is_last)


async def client(place: Place, rng: random.Random, end: float) -> None:
    while time.monotonic() < end:
        try:
            there = await connected(place, rng, "/")
        except OSError:
            return
        if there is None:
            continue
        reader, writer = there
        wire = over_tcp.any_wire(rng, place.token)
        answers = asyncio.StreamReader()

        def take(opcode: int, content: bytes, is_last: bool, answers: asyncio.StreamReader = answers) -> None:
            assert opcode != TEXT
            if opcode == BINARY:
                answers.feed_data(content)

        drains = [asyncio.create_task(hear(reader, take)), asyncio.create_task(over_tcp.hear(answers, wire))]
        try:
            writer.write(framed(rng, wire.beginning()))
            for octets in over_tcp.turns(rng, wire):
                await say(writer, rng, framed(rng, octets))
                if time.monotonic() > end:
                    break
            for _ in range(rng.choice((0, 1, 3))):
                await say(writer, rng, framed(rng, wire.out_of_step(rng)) if rng.random() < 0.5 else broken(rng))
            if rng.random() < 0.5:
                await say(writer, rng, frame(CLOSE))
                await asyncio.wait([drains[0]], timeout=1)
        except OSError:
            pass
        finally:
            await over_tcp.leave(writer, rng)
            await drains[0]
            answers.feed_eof()
            await drains[1]
