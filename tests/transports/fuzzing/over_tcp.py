"""Clients of both binary protocols over TCP that violate them."""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
import time
from typing import Protocol

from tests.transports.fuzzing.place import Place
from tests.transports.support import made_up
from tests.transports.support.raw import asked
from whippet.app.commands import requests

MIB = 1 << 20


class Wire(Protocol):
    def beginning(self) -> bytes: ...
    def login(self) -> bytes: ...
    def hostile(self, rng: random.Random) -> bytes: ...
    def out_of_step(self, rng: random.Random) -> bytes: ...


class Classic:
    def __init__(self, token: str) -> None:
        self._login = asked(requests.LoginWithPersonalAccessToken(token))

    def beginning(self) -> bytes:
        return b""

    def login(self) -> bytes:
        return self._login

    def hostile(self, rng: random.Random) -> bytes:
        return made_up.hostile(rng)

    def out_of_step(self, rng: random.Random) -> bytes:
        return made_up.out_of_step(rng)


def any_wire(rng: random.Random, token: str) -> Wire:
    return Classic(token) if rng.random() < 0.6 else made_up.Modern(rng, token)


async def client(place: Place, rng: random.Random, end: float) -> None:
    while time.monotonic() < end:
        try:
            reader, writer = await asyncio.open_connection(*place.tcp)
        except OSError:
            return
        wire = any_wire(rng, place.token)
        drain = asyncio.create_task(hear(reader, wire))
        try:
            await _say(writer, rng, wire, end)
            if rng.random() < 0.8:
                writer.write_eof()
                # The rest of a frame that announced too much is waited for.
                await asyncio.wait([drain], timeout=1)
        except OSError:
            pass
        finally:
            await leave(writer, rng)
            await drain


async def leave(writer: asyncio.StreamWriter, rng: random.Random) -> None:
    if rng.random() < 0.3:
        writer.transport.abort()
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def turns(rng: random.Random, wire: Wire) -> list[bytes]:
    """Bytes to send before others run."""
    stays_a_stranger = rng.random() < 0.1
    found = []
    for _ in range(rng.choice((1, 5, 50, 200))):
        # Again and again, because one of the requests may log out.
        octets = b"" if stays_a_stranger else wire.login()
        found.append(octets + b"".join(wire.hostile(rng) for _ in range(rng.choice((1, 1, 3, 30)))))
    return found


async def _say(writer: asyncio.StreamWriter, rng: random.Random, wire: Wire, end: float) -> None:
    writer.write(wire.beginning())
    for said in turns(rng, wire):
        await say(writer, rng, said)
        if time.monotonic() > end:
            return
    for _ in range(rng.choice((0, 0, 1, 1, 5))):
        writer.write(wire.out_of_step(rng))


async def say(writer: asyncio.StreamWriter, rng: random.Random, octets: bytes) -> None:
    """In one piece or in two."""
    if rng.random() < 0.2:
        cut = rng.randrange(len(octets) + 1)
        writer.write(octets[:cut])
        await asyncio.sleep(0)
        octets = octets[cut:]
    writer.write(octets)
    await asyncio.wait_for(writer.drain(), 5)
    await asyncio.sleep(0)


async def hear(reader: asyncio.StreamReader, wire: Wire) -> None:
    """Whatever a 0.9 client sends, it receives whole frames of its own protocol."""
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        if not isinstance(wire, made_up.Modern):
            while await reader.read(1 << 16):
                pass
            return
        while True:
            head = await reader.readexactly(256)
            size = struct.unpack_from("<I", head, 48)[0]
            assert 256 <= size < 128 * MIB
            wire.heard(head, await reader.readexactly(size - 256))
