"""HTTP/3 on the QUIC port, with the client of aioquic, and applications of the tests, so that each side can be slow."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import pylsqpack
import pytest
from aioquic.h3.connection import ErrorCode, FrameType, H3Connection, Setting, encode_frame
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic import events
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.packet import QuicErrorCode, QuicFrameType
from starlette.types import Message, Receive, Scope, Send

from tests.transports.support.quic import Client, World, served
from whippet.app.config.formats import Address
from whippet.app.config.listeners import HttpLimits
from whippet.transports.http.serving.listener import Listener
from whippet.transports.http3_exchange import BUFFERED_BYTES_MAX, PIECE_BYTES

MIB = 1 << 20


class Browser:
    """A client with one connection."""

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
        done = self.done[stream_id] = asyncio.get_running_loop().create_future()
        # A caller that stopped waiting does not learn of a failure.
        done.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
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


BROWSER: dict[str, Any] = {"verify_mode": ssl.CERT_NONE, "server_name": "localhost", "alpn_protocols": ["h3"]}


async def browser(world: World, **options: Any) -> Browser:
    client = await world.beginning(QuicConfiguration(**BROWSER | options))
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


async def test_a_request_reaches_the_application_and_its_response_the_client(tmp_path: Path) -> None:
    async with served(tmp_path, application=echo) as world:
        client = await browser(world)
        stream_id = client.begin("POST", "/a%20b?c=d", end=False)
        client.send(stream_id, b"one ", end=False)
        client.send(stream_id, b"two")
        assert await client.done[stream_id] == (200, b"POST /a b c=d 3 one two")
        head = client.heads[stream_id]
        assert parsedate_to_datetime(head.pop(b"date").decode()).tzinfo is not None
        assert head == {b":status": b"200", b"content-type": b"text/plain"}
        assert await client.ask("GET", "/") == (200, b"GET /  3 ")


@pytest.mark.parametrize("size", [1, 100_000, 5 * MIB])
async def test_bodies_of_any_size_are_received_and_sent(tmp_path: Path, size: int) -> None:
    async with served(tmp_path, application=echo) as world:
        client = await browser(world)
        status, body = await client.ask("PUT", "/", body=b"x" * size)
        assert (status, body) == (200, b"PUT /  3 " + b"x" * size)


async def test_many_concurrent_requests_are_answered(tmp_path: Path) -> None:
    async with served(tmp_path, application=echo) as world:
        client = await browser(world)
        answers = await asyncio.gather(*(client.ask("POST", f"/{number}", body=b"b") for number in range(50)))
        assert [body for _, body in answers] == [f"POST /{number}  3 b".encode() for number in range(50)]


async def test_a_response_to_head_has_no_body(tmp_path: Path) -> None:
    async with served(tmp_path, application=echo) as world:
        assert await (await browser(world)).ask("HEAD", "/") == (200, b"")


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "no-slash", {}, 400),
        ("CONNECT", "/", {}, 501),
        ("GET", "/a#b", {}, 400),
        ("GET", "/", {"host": "elsewhere"}, 400),
        ("GET", "/", {f"a{number}": "b" for number in range(200)}, 431),
        ("GET", "/", {"a": "b" * 40_000, "c": "d" * 40_000}, 431),
    ],
)
async def test_invalid_requests_are_refused_before_the_application(
    tmp_path: Path, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    async with served(tmp_path, application=echo, http={"headers_bytes": 65_536}) as world:
        client = await browser(world)
        try:
            answer = await client.ask(method, path, headers)
            assert answer[0] == status
        except ConnectionError as closed:
            # Headers that exceed the buffer by themselves.
            assert status == 431 and closed.args == (ErrorCode.H3_EXCESSIVE_LOAD,)
            client = await browser(world)
        assert (await client.ask("GET", "/"))[0] == 200


async def test_an_exception_in_the_application_is_answered_500(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/later":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        raise RuntimeError("nobody thought of this")

    async with served(tmp_path, application=broken) as world:
        client = await browser(world)
        assert await client.ask("GET", "/") == (500, b"")
        with pytest.raises(ConnectionResetError):
            await client.ask("GET", "/later")
    assert "nobody thought of this" in caplog.text


async def test_an_unread_body_is_stopped_by_flow_control(tmp_path: Path) -> None:
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
        await until(lambda: bool(connection.engine._frozen))
        await asyncio.sleep(0.1)
        window = world.gateway.config.quic.stream_receive_window
        assert sender.highest_offset <= BUFFERED_BYTES_MAX + 2 * window
        read.set()
        assert (await client.done[stream_id])[0] == 200


async def test_the_application_learns_that_a_client_disconnected(tmp_path: Path) -> None:
    heard: list[Message] = []

    async def waiting(scope: Scope, receive: Receive, send: Send) -> None:
        heard.append(await receive())

    async with served(tmp_path, application=waiting) as world:
        client = await browser(world)
        stream_id = client.begin("PUT", "/", end=False)
        await until(lambda: any(c._protocol._exchanges for c in world.listener._connections))  # type: ignore[union-attr]
        client.client.quic.reset_stream(stream_id, ErrorCode.H3_REQUEST_CANCELLED)
        client.client.transmit()
        await until(lambda: bool(heard))
        assert heard == [{"type": "http.disconnect"}]


async def test_no_response_is_started_on_a_stream_that_the_client_has_stopped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The reset arrives while the application runs, and is not processed before it returns."""

    async def empty(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/unwanted":
            (connection,) = world.listener._connections
            connection.engine._streams[stream_id].sender.reset(7)
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async with served(tmp_path, application=empty) as world:
        client = await browser(world)
        stream_id = client.begin("GET", "/unwanted")
        with pytest.raises(ConnectionResetError):
            await client.done[stream_id]
        assert (await client.ask("GET", "/"))[0] == 204
    assert "defect" not in caplog.text


async def test_an_application_gets_a_disconnect_after_its_response(tmp_path: Path) -> None:
    heard: list[Message] = []

    async def listening(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        later = asyncio.ensure_future(receive())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"all"})
        heard.extend((await later, await receive()))

    async with served(tmp_path, application=listening) as world:
        client = await browser(world)
        assert await client.ask("GET", "/") == (200, b"all")
        await until(lambda: len(heard) == 2)
        assert heard == [{"type": "http.disconnect"}] * 2


async def test_a_missing_body_is_answered_408(tmp_path: Path) -> None:
    async with served(tmp_path, application=echo) as world:
        client = await browser(world)
        stream_id = client.begin("PUT", "/", end=False)
        await until(lambda: any(c._protocol._exchanges for c in world.listener._connections))  # type: ignore[union-attr]
        now = asyncio.get_running_loop().time()
        world.listener.close_overdue(now + 9)
        assert not client.done[stream_id].done()
        world.listener.close_overdue(now + 11)
        assert await client.done[stream_id] == (408, b"")


async def test_endless_headers_are_not_buffered(tmp_path: Path) -> None:
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


async def test_a_dynamic_header_table_is_refused(tmp_path: Path) -> None:
    """A few bytes must not expand to many: the server does not offer a dynamic table."""

    async with served(tmp_path, application=echo) as world:
        client = await browser(world)
        await client.ask("GET", "/")
        assert client.http.received_settings is not None
        assert client.http.received_settings[1] == 0
        assert Setting.ENABLE_CONNECT_PROTOCOL not in client.http.received_settings
        encoder = pylsqpack.Encoder()
        stream_id = client.http._local_encoder_stream_id
        assert stream_id is not None
        client.client.quic.send_stream_data(stream_id, encoder.apply_settings(4096, 16))
        client.client.transmit()
        assert (await client.client.terminated).error_code == ErrorCode.QPACK_ENCODER_STREAM_ERROR


# ------------------------------------------------------------------------------------------- early responses


async def test_the_rest_of_a_request_that_was_answered_early_is_harmless(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The rest of the body and its trailers arrive after the response."""

    async def refusing(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 401, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async with served(tmp_path, application=refusing) as world:
        client = await browser(world)
        # The client is so fast that it does not see the server stop the stream.
        handlers: Any = client.client.quic._QuicConnection__frame_handlers  # type: ignore[attr-defined]
        handlers[QuicFrameType.STOP_SENDING] = deaf, handlers[QuicFrameType.STOP_SENDING][1]
        stream_id = client.begin("POST", "/", end=False)
        assert (await client.done[stream_id])[0] == 401
        client.send(stream_id, bytes(70_000), end=False)
        client.http.send_headers(stream_id, [(b"checksum", b"1")], end_stream=True)
        client.client.transmit()
        assert (await client.ask("GET", "/"))[0] == 401
        world.listener.close_overdue(asyncio.get_running_loop().time() + 30)
        assert (await client.ask("GET", "/"))[0] == 401
    assert "defect" not in caplog.text


def deaf(context: Any, frame_type: int, buf: Any) -> None:
    buf.pull_uint_var()
    buf.pull_uint_var()


ENDS = ("reset", "stop")


async def test_a_finished_exchange_leaves_nothing_behind_however_it_ended(tmp_path: Path) -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/waits":
            await receive()
            await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"begun", "more_body": scope["path"] == "/breaks"})

    async with served(tmp_path, application=broken) as world:
        client = await browser(world)
        assert (await client.ask("GET", "/"))[0] == 200
        connection = next(iter(world.listener._connections))
        http: Any = connection._protocol
        kept = len(http.framing._stream)
        for _ in range(20):
            for path, ends in (("/breaks", ()), ("/waits", ("reset",)), ("/waits", ("stop",)), ("/waits", ENDS)):
                stream_id = client.begin("PUT" if ends else "GET", path, end=not ends)
                await until(lambda stream_id=stream_id: http._next > stream_id)  # type: ignore[misc]
                if "reset" in ends:
                    client.client.quic.reset_stream(stream_id, ErrorCode.H3_REQUEST_CANCELLED)
                if "stop" in ends:
                    client.client.quic.stop_stream(stream_id, ErrorCode.H3_REQUEST_CANCELLED)
                client.client.transmit()
                with pytest.raises(ConnectionResetError):
                    await client.done[stream_id]
        # Streams without a request: one ends, and one is reset.
        for said, is_reset in ((b"", False), (b"\x01", True)):
            stream_id = client.client.quic.get_next_available_stream_id()
            client.done[stream_id] = asyncio.get_running_loop().create_future()
            client.client.quic.send_stream_data(stream_id, said, not is_reset)
            if is_reset:
                client.client.quic.reset_stream(stream_id, ErrorCode.H3_REQUEST_CANCELLED)
            client.client.transmit()
            with pytest.raises(ConnectionResetError):
                await client.done[stream_id]
        assert (await client.ask("GET", "/"))[0] == 200
        await until(lambda: not http._exchanges and not http._awaiting_headers and not http._receiving)
        assert len(http.framing._stream) == kept
        await until(lambda: len(connection.engine._streams) <= 8)


# ------------------------------------------------------------------------------------------------- limits and stopping


async def test_concurrent_requests_are_limited_to_the_configured_streams(tmp_path: Path) -> None:
    """Tails stay open, and a client with several must still be able to send other requests."""

    go_on = asyncio.Event()

    async def waiting(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/tail":
            await go_on.wait()
        await echo(scope, receive, send)

    async with served(tmp_path, application=waiting, quic={"max_concurrent_bidi_streams": 40}) as world:
        client = await browser(world)
        tails = [client.begin("GET", "/tail") for _ in range(39)]
        assert (await client.ask("GET", "/"))[0] == 200
        go_on.set()
        assert {(await client.done[stream_id])[0] for stream_id in tails} == {200}


async def test_unread_responses_share_a_window(tmp_path: Path) -> None:
    async def large(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(MIB) if scope["path"] == "/large" else b"small"})

    async with served(tmp_path, application=large) as world:
        client = await browser(world, max_stream_data=4096)
        client.client.quic._write_stream_limits = lambda **_: None  # type: ignore[method-assign]
        many = [client.begin("GET", "/large") for _ in range(50)]
        engine = next(iter(world.listener._connections)).engine
        await until(lambda: engine.unacknowledged_bytes > world.gateway.config.quic.send_window)
        await asyncio.sleep(0.2)
        assert engine.unacknowledged_bytes < world.gateway.config.quic.send_window + len(many) * 2 * PIECE_BYTES
        assert await client.ask("GET", "/small") == (200, b"small")
        for stream_id in many:
            client.done[stream_id].cancel()


async def test_a_connection_counts_towards_the_limit_of_http(tmp_path: Path) -> None:
    http_listener = Listener(HttpLimits(connections=2), Address("127.0.0.1", 0))
    async with served(tmp_path, application=echo, http_listener=http_listener) as world:
        first, _ = await browser(world), await browser(world)
        assert not http_listener.has_room()
        refused = await world.beginning(QuicConfiguration(**BROWSER))
        assert (await refused.terminated).error_code == QuicErrorCode.CONNECTION_REFUSED
        assert await (await world.stranger()).is_alive(), "who speaks something else is no client of HTTP"
        first.client.close()
        await until(http_listener.has_room)
        assert (await (await browser(world)).ask("GET", "/"))[0] == 200


async def test_a_client_that_reads_steadily_is_kept_and_a_stalled_one_is_closed(tmp_path: Path) -> None:
    """Whenever it is checked, bytes are in flight."""

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not over.is_set():
            await send({"type": "http.response.body", "body": bytes(50_000), "more_body": True})

    over = asyncio.Event()

    async with served(tmp_path, application=endless) as world:
        client = await browser(world)
        client.begin("GET", "/")
        connection = next(iter(world.listener._connections))
        # It would check with another clock.
        world.listener._sweeper.cancel()  # type: ignore[union-attr]
        now = asyncio.get_running_loop().time()
        for _ in range(100):
            taken = connection.engine.acknowledged_bytes
            await until(lambda taken=taken: connection.engine.acknowledged_bytes - taken > 0.4 * MIB)  # type: ignore[misc]
            await until(lambda: bool(connection.engine.unacknowledged_bytes))
            now += 10
            world.listener.close_overdue(now)
            assert not connection._is_closed
        client.client.quic._write_stream_limits = lambda **_: None  # type: ignore[method-assign]
        client.client.quic._write_connection_limits = lambda **_: None  # type: ignore[method-assign]
        await asyncio.sleep(0.3)
        over.set()
        for _ in range(8):
            now += 10
            world.listener.close_overdue(now)
        assert (await client.client.terminated).error_code == ErrorCode.H3_EXCESSIVE_LOAD


async def test_an_application_that_writes_to_a_closed_stream_does_not_block_others(tmp_path: Path) -> None:
    sent = 0

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal sent
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            await send({"type": "http.response.body", "body": b"more", "more_body": True})
            sent += 1

    async with served(tmp_path, application=endless) as world:
        client = await browser(world)
        client.begin("GET", "/")
        await until(lambda: sent > 0)
        client.client.close()
        await until(lambda: not world.listener._connections)
        before = sent
        await until(lambda: sent > before)


async def test_a_stop_announces_which_requests_are_not_processed(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    async def waiting(scope: Scope, receive: Receive, send: Send) -> None:
        await go_on.wait()
        await echo(scope, receive, send)

    async with served(tmp_path, application=waiting) as world:
        client = await browser(world)
        said: list[bytes] = []
        asked = client.begin("GET", "/")
        http: Any = next(iter(world.listener._connections))._protocol
        await until(lambda: bool(http._exchanges))
        heard = client._on_event

        def hear(event: events.QuicEvent) -> None:
            if isinstance(event, events.StreamDataReceived):
                said.append(event.data)
            heard(event)

        client.client.heard = hear
        stopping = asyncio.create_task(world.listener.stop(10))
        await until(lambda: encode_frame(FrameType.GOAWAY, bytes((asked + 4,))) in said)
        late = client.begin("GET", "/late")
        with pytest.raises(ConnectionResetError) as refused:
            await client.done[late]
        assert refused.value.args == (ErrorCode.H3_REQUEST_REJECTED,)
        go_on.set()
        assert (await client.done[asked])[0] == 200
        await stopping
        assert (await client.client.terminated).error_code == ErrorCode.H3_NO_ERROR


async def test_a_stop_rejects_a_request_whose_headers_have_not_arrived(tmp_path: Path) -> None:
    """The client may repeat it elsewhere. Without the rejection it could not know whether it was processed."""

    async with served(tmp_path, application=echo) as world:
        client = await browser(world)
        stream_id = client.client.quic.get_next_available_stream_id()
        client.done[stream_id] = asyncio.get_running_loop().create_future()
        client.client.quic.send_stream_data(stream_id, encode_frame(FrameType.HEADERS, bytes(20))[:10])
        client.client.transmit()
        http: Any = next(iter(world.listener._connections))._protocol
        await until(lambda: bool(http._awaiting_headers))
        await world.listener.stop(10)
        with pytest.raises(ConnectionResetError) as rejected:
            await client.done[stream_id]
        assert rejected.value.args == (ErrorCode.H3_REQUEST_REJECTED,)


async def test_an_idle_connection_is_closed_gracefully(tmp_path: Path) -> None:
    async with served(tmp_path, application=echo) as world:
        client = await browser(world)
        assert (await client.ask("GET", "/"))[0] == 200
        now = asyncio.get_running_loop().time()
        world.listener.close_overdue(now + 70)
        assert (await client.ask("GET", "/"))[0] == 200
        world.listener.close_overdue(now + 90)
        assert (await client.client.terminated).error_code == ErrorCode.H3_NO_ERROR


async def test_http3_is_not_negotiated_without_an_application(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        with pytest.raises(ConnectionError):
            await browser(world)
