"""HTTP/3 on the QUIC port, with aioquic's client: an application of the test's own, so that each side can be late."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pylsqpack
import pytest
from aioquic.h3.connection import ErrorCode, H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic import events
from aioquic.quic.configuration import QuicConfiguration
from starlette.types import Message, Receive, Scope, Send

from tests.transports.support.quic import Client, World, served
from tests.transports.support.raw import run
from transports.http3 import AHEAD_BYTES_MAX, Announced

MIB = 1 << 20


class Browser:
    """One connection."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.http = H3Connection(client.quic)
        self.heads: dict[int, dict[bytes, bytes]] = {}
        self.bodies: dict[int, bytearray] = {}
        self.done: dict[int, asyncio.Future[tuple[int, bytes]]] = {}
        client.heard = self._on_event

    def _on_event(self, event: events.QuicEvent) -> None:
        for said in self.http.handle_event(event):
            stream_id = said.stream_id  # type: ignore[attr-defined]
            if isinstance(said, HeadersReceived):
                self.heads[stream_id] = dict(said.headers)
            elif isinstance(said, DataReceived):
                self.bodies.setdefault(stream_id, bytearray()).extend(said.data)
            if said.stream_ended:  # type: ignore[attr-defined]
                found = int(self.heads[stream_id][b":status"]), bytes(self.bodies.get(stream_id, b""))
                self.done[stream_id].set_result(found)
        if isinstance(event, events.ConnectionTerminated):
            for waiting in self.done.values():
                if not waiting.done():
                    waiting.set_exception(ConnectionError(event.error_code))
        elif isinstance(event, events.StreamReset) and not self.done[event.stream_id].done():
            self.done[event.stream_id].set_exception(ConnectionResetError(event.error_code))

    def begin(self, method: str, path: str, headers: dict[str, str] | None = None, *, end: bool = True) -> int:
        stream_id = self.client.quic.get_next_available_stream_id()
        fields = {":method": method, ":scheme": "https", ":authority": "localhost", ":path": path} | (headers or {})
        self.done[stream_id] = asyncio.get_running_loop().create_future()
        self.http.send_headers(stream_id, [(n.encode(), v.encode()) for n, v in fields.items()], end)
        self.client.transmit()
        return stream_id

    def send(self, stream_id: int, body: bytes, *, end: bool = True) -> None:
        self.http.send_data(stream_id, body, end)
        self.client.transmit()

    async def ask(
        self, method: str, path: str, headers: dict[str, str] | None = None, body: bytes = b""
    ) -> tuple[int, bytes]:
        stream_id = self.begin(method, path, headers, end=not body)
        if body:
            self.send(stream_id, body)
        return await self.done[stream_id]


async def browser(world: World, **options: Any) -> Browser:
    options = {"verify_mode": ssl.CERT_NONE, "server_name": "localhost", "alpn_protocols": ["h3"]} | options
    client = await world.beginning(QuicConfiguration(**options))
    made = Browser(client)
    await client.wait_connected()
    return made


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    parts, more = [], True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        parts.append(message["body"])
        more = message["more_body"]
    headers = [(b"Content-Type", b"text/plain"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    said = f"{scope['method']} {scope['path']} {scope['query_string'].decode()} {scope['http_version']} ".encode()
    await send({"type": "http.response.body", "body": said + b"".join(parts)})


async def until(reached: Callable[[], bool]) -> None:
    while not reached():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


def test_a_request_reaches_the_application_and_its_answer_the_client(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path, application=echo) as world:
            client = await browser(world)
            stream_id = client.begin("POST", "/a%20b?c=d", end=False)
            client.send(stream_id, b"one ", end=False)
            client.send(stream_id, b"two")
            assert await client.done[stream_id] == (200, b"POST /a b c=d 3 one two")
            assert client.heads[stream_id] == {b":status": b"200", b"content-type": b"text/plain"}
            assert await client.ask("GET", "/") == (200, b"GET /  3 ")

    run(main())


@pytest.mark.parametrize("size", [1, 100_000, 5 * MIB])
def test_bodies_of_any_size_go_both_ways(tmp_path: Path, size: int) -> None:
    async def main() -> None:
        async with served(tmp_path, application=echo) as world:
            client = await browser(world)
            status, body = await client.ask("PUT", "/", body=b"x" * size)
            assert (status, body) == (200, b"PUT /  3 " + b"x" * size)

    run(main())


def test_many_requests_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path, application=echo) as world:
            client = await browser(world)
            answers = await asyncio.gather(*(client.ask("POST", f"/{number}", body=b"b") for number in range(50)))
            assert [body for _, body in answers] == [f"POST /{number}  3 b".encode() for number in range(50)]

    run(main())


def test_a_head_has_no_body(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path, application=echo) as world:
            assert await (await browser(world)).ask("HEAD", "/") == (200, b"")

    run(main())


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "no-slash", {}, 400),
        ("CONNECT", "/", {}, 501),
        ("GET", "/", {f"a{number}": "b" for number in range(200)}, 431),
        ("GET", "/", {"a": "b" * 40_000, "c": "d" * 40_000}, 431),
    ],
)
def test_what_the_application_should_not_see_is_refused(
    tmp_path: Path, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    async def main() -> None:
        async with served(tmp_path, application=echo, http={"headers_bytes": 65_536}) as world:
            client = await browser(world)
            try:
                answer = await client.ask(method, path, headers)
                assert answer[0] == status
            except ConnectionError as closed:
                # Fields that alone are more than may be gathered.
                assert status == 431 and closed.args == (ErrorCode.H3_EXCESSIVE_LOAD,)
                client = await browser(world)
            assert (await client.ask("GET", "/"))[0] == 200

    run(main())


def test_a_defect_of_the_application_is_answered(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/later":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        raise RuntimeError("nobody thought of this")

    async def main() -> None:
        async with served(tmp_path, application=broken) as world:
            client = await browser(world)
            assert await client.ask("GET", "/") == (500, b"")
            with pytest.raises(ConnectionResetError):
                await client.ask("GET", "/later")

    run(main())
    assert "nobody thought of this" in caplog.text


def test_a_body_that_nobody_reads_stops_coming(tmp_path: Path) -> None:
    async def main() -> None:
        read = asyncio.Event()

        async def late(scope: Scope, receive: Receive, send: Send) -> None:
            await read.wait()
            await echo(scope, receive, send)

        async with served(tmp_path, application=late) as world:
            client = await browser(world)
            stream_id = client.begin("PUT", "/", end=False)
            client.send(stream_id, bytes(4 * MIB))
            sender = client.client.quic._streams[stream_id].sender
            connection = next(iter(world.listener._connections))
            await until(lambda: bool(connection.engine._held))
            await asyncio.sleep(0.1)
            window = world.gateway.config.quic.stream_receive_window
            assert sender.highest_offset <= AHEAD_BYTES_MAX + 2 * window
            read.set()
            assert (await client.done[stream_id])[0] == 200

    run(main())


def test_a_client_that_goes_away_is_told_to_the_application(tmp_path: Path) -> None:
    async def main() -> None:
        heard: list[Message] = []

        async def waiting(scope: Scope, receive: Receive, send: Send) -> None:
            heard.append(await receive())

        async with served(tmp_path, application=waiting) as world:
            client = await browser(world)
            stream_id = client.begin("PUT", "/", end=False)
            await until(lambda: any(c._speaker._exchanges for c in world.listener._connections))  # type: ignore[union-attr]
            client.client.quic.reset_stream(stream_id, ErrorCode.H3_REQUEST_CANCELLED)
            client.client.transmit()
            await until(lambda: bool(heard))
            assert heard == [{"type": "http.disconnect"}]

    run(main())


def test_a_body_that_does_not_come_is_answered_408(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path, application=echo) as world:
            client = await browser(world)
            stream_id = client.begin("PUT", "/", end=False)
            await until(lambda: any(c._speaker._exchanges for c in world.listener._connections))  # type: ignore[union-attr]
            now = asyncio.get_running_loop().time()
            world.listener.close_overdue(now + 9)
            assert not client.done[stream_id].done()
            world.listener.close_overdue(now + 11)
            assert await client.done[stream_id] == (408, b"")

    run(main())


def test_fields_that_do_not_end_are_not_gathered(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path, application=echo) as world:
            client = await browser(world)
            witness = await browser(world)
            stream_id = client.client.quic.get_next_available_stream_id()
            client.done[stream_id] = asyncio.get_running_loop().create_future()
            client.client.quic.send_stream_data(stream_id, b"\x01\xbf\xff\xff\xff" + bytes(100_000))
            client.client.transmit()
            with pytest.raises(ConnectionError):
                await client.done[stream_id]
            assert (await witness.ask("GET", "/"))[0] == 200

    run(main())


def test_a_few_bytes_never_stand_for_many(tmp_path: Path) -> None:
    """A dynamic table, which the server does not offer, may not be used."""

    async def main() -> None:
        async with served(tmp_path, application=echo) as world:
            client = await browser(world)
            await client.ask("GET", "/")
            assert client.http.received_settings is not None
            assert client.http.received_settings[1] == 0
            encoder = pylsqpack.Encoder()
            stream_id = client.http._local_encoder_stream_id
            assert stream_id is not None
            client.client.quic.send_stream_data(stream_id, encoder.apply_settings(4096, 16))
            client.client.transmit()
            assert (await client.client.terminated).error_code == ErrorCode.QPACK_ENCODER_STREAM_ERROR

    run(main())


def test_it_is_not_agreed_on_where_there_is_no_application(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as world:
            with pytest.raises(ConnectionError):
                await browser(world)

    run(main())


def test_it_is_announced_on_the_other_ports() -> None:
    async def main() -> None:
        said: list[Message] = []

        async def send(message: Message) -> None:
            said.append(message)

        async def nothing() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "http_version": "1.1"}
        for port in (0, 3000):
            await Announced(echo, lambda port=port: port)(scope, nothing, send)
        assert b"alt-svc" not in dict(said[0]["headers"])
        assert dict(said[2]["headers"])[b"alt-svc"] == b'h3=":3000"; ma=86400'

    run(main())
