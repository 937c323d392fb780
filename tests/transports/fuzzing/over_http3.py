"""Browsers over HTTP/3 that are mostly well-behaved, but whose frames, fields and streams are often invalid."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import msgspec
import pylsqpack
from aioquic.buffer import encode_uint_var
from aioquic.h3.connection import H3Connection
from aioquic.h3.events import HeadersReceived
from aioquic.h3.exceptions import H3Error
from aioquic.quic import events

from tests.transports.fuzzing import over_channel
from tests.transports.fuzzing.over_quic import NUMBERS, Link, attack, configuration, made
from tests.transports.fuzzing.place import Place
from tests.transports.support import made_up
from whippet.transports.websocket.commands import Command

COMMANDS = [each for each in over_channel.COMMANDS if each.operation.method]
WEIGHTS = over_channel.weights(COMMANDS)
Fields = list[tuple[bytes, bytes]]
DATA, HEADERS = 0, 1
KINDS = (DATA, HEADERS, 3, 4, 5, 7, 13, 0x21, 0x41, 2, 6, 8, 9, 1 << 30)
"""Types of frames."""
STREAMS = (0, 1, 2, 3, 0x21, 0x54, 1 << 30)
"""Kinds of unidirectional streams."""
ODD: Fields = [
    (b"Content-Type", b"text/plain"),
    (b"connection", b"close"),
    (b"content-length", b"7"),
    (b"content-length", b"-1"),
    (b"te", b"gzip"),
    (b"host", b"elsewhere"),
    (b":path", b"/again"),
    (b":unknown", b"x"),
    (b":protocol", b"websocket"),
    (b"x", b"a\r\nb: c"),
    (b"x\0", b"\0"),
    (b"x" * 300, b"y" * 5000),
    (b"content-encoding", b"gzip"),
    (b"expect", b"100-continue"),
    (b"range", b"bytes=0-"),
]
PATHS = (b"", b"x", b"*", b"/%", b"/%00", b"/streams/%ff", b"//", b"/streams/s?count=%", b"/a#b", b"/" + b"x" * 9000)


def frame(kind: int, content: bytes, announced: int | None = None) -> bytes:
    return encode_uint_var(kind) + encode_uint_var(len(content) if announced is None else announced) + content


class Browser:
    def __init__(self, link: Link, rng: random.Random, token: str) -> None:
        self.link = link
        self.rng = rng
        self.quic = link.client.quic
        self.http = H3Connection(self.quic)
        self.answered = 0
        self.oddity = rng.choice((0, 0.02, 0.3))
        """How often it does what ends a connection: mostly one that never does it gets far."""
        self._token = token
        self._encoder = pylsqpack.Encoder()
        link.client.heard = self._heard

    def _heard(self, event: events.QuicEvent) -> None:
        try:
            found = self.http.handle_event(event)
        except H3Error:
            return
        for said in found:
            if isinstance(said, HeadersReceived):
                self.answered += 1
                assert dict(said.headers)[b":status"] != b"500"

    def fields(self, command: Command) -> Fields:
        rng, operation = self.rng, command.operation
        path = operation.path
        for name in command.in_path:
            path = path.replace(f"{{{name}}}", rng.choice((name[0], "0", "1", "x y", "%2F")))
        if rng.random() < 0.3:
            path += "?" + "&".join(f"{name}={rng.choice(('0', '1', 'x', '10ms'))}" for name in command.in_query)
        found = [
            (b":method", operation.method.encode()),
            (b":scheme", b"https"),
            (b":authority", b"localhost"),
            (b":path", rng.choice(PATHS[1:]) if rng.random() < 0.1 else path.encode()),
            (b"authorization", f"Bearer {self._token}".encode()),
        ]
        if operation.body is not None:
            found.append((b"content-type", rng.choice((b"application/json", b"text/plain", b"application/x-ndjson"))))
        if rng.random() < self.oddity:
            found.insert(rng.randrange(len(found) + 1), rng.choice(ODD))
        if rng.random() < self.oddity / 4:
            found.pop(rng.randrange(len(found)))
        return found

    def request(self) -> None:
        """Frames as they might be on a stream of a request."""
        rng = self.rng
        command = rng.choices(COMMANDS, WEIGHTS)[0]
        stream_id = self.quic.get_next_available_stream_id()
        _, fields = self._encoder.encode(stream_id, self.fields(command))
        body = msgspec.json.encode(over_channel.members(rng, command))
        octets = frame(HEADERS, fields)
        if command.operation.body is not None:
            octets += frame(DATA, made_up.spoilt(rng, body) if rng.random() < 0.2 else body)
        match rng.randrange(6) if rng.random() < self.oddity else 6:
            case 0:
                octets = made_up.spoilt(rng, octets)
            case 1:
                octets = frame(rng.choice(KINDS), rng.randbytes(rng.choice((0, 1, 100))), rng.choice((None, *NUMBERS)))
            case 2:
                octets += frame(rng.choice(KINDS), rng.randbytes(10))
            case 3:
                octets += frame(HEADERS, self._encoder.encode(stream_id, [rng.choice(ODD)])[1])
            case 4:
                octets = frame(0x21, bytes(rng.choice((0, 3000)))) + octets
            case 5:
                octets += frame(DATA, bytes(rng.choice((0, 100_000))))
        if rng.random() < 0.05:
            self._say(stream_id, octets[: rng.randrange(len(octets) + 1)], rng.random() < self.oddity)
        else:
            self._say(stream_id, octets, rng.random() < 0.9)
        if rng.random() < 0.05:
            self.quic.reset_stream(stream_id, rng.choice(NUMBERS))
        if rng.random() < 0.05:
            self.quic.stop_stream(stream_id, rng.choice(NUMBERS))

    def elsewhere(self) -> None:
        """Something on a stream that is no request, or not on any."""
        rng = self.rng
        match rng.randrange(5):
            case 0:
                stream_id = self.quic.get_next_available_stream_id(is_unidirectional=True)
                self._say(stream_id, encode_uint_var(rng.choice(STREAMS)) + rng.randbytes(50), rng.random() < 0.5)
            case 1:
                own = (self.http._local_control_stream_id, self.http._local_encoder_stream_id)
                stream_id = rng.choice((*own, self.http._local_decoder_stream_id)) or 0
                said = frame(rng.choice(KINDS), rng.randbytes(rng.choice((0, 2, 30_000))), rng.choice((None, *NUMBERS)))
                self._say(stream_id, said, False)
            case 2:
                attack(rng, self.link.client)
            case 3:
                self.link.throw_garbage()
            case _:
                stream_id = self.http._local_encoder_stream_id or 0
                self._say(stream_id, self._encoder.apply_settings(rng.choice((0, 4096)), 16), False)

    def _say(self, stream_id: int, octets: bytes, ends: bool) -> None:
        self.quic.send_stream_data(stream_id, octets, ends)
        self.link.client.transmit()


async def client(place: Place, rng: random.Random, end: float) -> None:
    while time.monotonic() < end:
        options: dict[str, Any] = {"alpn_protocols": ["h3"]}
        link = Link(made(configuration(**options)), place.quic, rng)
        try:
            is_connected = await link.connect()
            if link.is_refused.is_set():
                return
            if is_connected:
                link.way.is_safe = rng.random() < 0.5
                await _ask(Browser(link, rng, place.token), end)
        finally:
            link.leave()


async def _ask(browser: Browser, end: float) -> None:
    rng, link = browser.rng, browser.link
    for _ in range(rng.choice((1, 5, 50))):
        asked = rng.choice((1, 2, 10))
        wanted = browser.answered + asked
        for _ in range(asked):
            browser.request()
        if rng.random() < browser.oddity:
            browser.elsewhere()
        until = time.monotonic() + 0.2
        while browser.answered < wanted and time.monotonic() < until and not link.client.terminated.done():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        if time.monotonic() > end or link.client.terminated.done() or link.is_refused.is_set():
            return
