"""The opening handshake of WebSocket on the HTTP port: who may connect, and how others are refused."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from websockets.asyncio.client import connect

from tests.transports.http.support.serving import serving, tls_context
from tests.transports.support.raw import PING
from tests.transports.websocket.support.talking import Classic, frame, handshake, talking
from whippet.app.config.listeners import Http, HttpCors
from whippet.transports.websocket.listener import WebSockets

KEY = "dGhlIHNhbXBsZSBub25jZQ=="


async def test_the_handshake_follows_the_standard_and_accepts_no_extension(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        link = await world.serves.link()
        offers = (
            "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits",
            "Sec-WebSocket-Protocol: chat, superchat",
        )
        await link.send(handshake("/", *offers, key=KEY))
        answer = await link.response(has_body=False)
        assert answer.status == 101
        assert answer.headers["sec-websocket-accept"] == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
        assert not {"sec-websocket-extensions", "sec-websocket-protocol"} & answer.headers.keys()


NO_HANDSHAKES = {
    "an old version": (handshake("/", version="8"), 400),
    "no key": (handshake("/").replace(b"Sec-WebSocket-Key", b"Sec-Other"), 400),
    "a short key": (handshake("/", key="c2hvcnQ="), 400),
    "a key that is none": (handshake("/", key="%" * 24), 400),
    "two keys": (handshake("/", f"Sec-WebSocket-Key: {KEY}"), 400),
    "no such path": (handshake("/streams"), 404),
    "another": (handshake("/ws/"), 404),
    "a POST": (handshake("/").replace(b"GET", b"POST"), 405),
    "no Host": (handshake("/").replace(b"Host: localhost\r\n", b""), 400),
    "two Hosts": (handshake("/", "Host: y"), 400),
    "said too early": (handshake("/") + frame(2, PING), 400),
    "another upgrade": (handshake("/").replace(b"Upgrade: websocket", b"Upgrade: h2c"), 200),
    "no upgrade": (handshake("/").replace(b"Connection: Upgrade", b"Connection: close"), 200),
}


@pytest.mark.parametrize("name", NO_HANDSHAKES)
async def test_an_invalid_handshake_is_refused_over_http(tmp_path: Path, name: str) -> None:
    octets, status = NO_HANDSHAKES[name]

    async with talking(tmp_path) as world:
        link = await world.serves.link()
        answer = await link.ask(octets)
        assert answer.status == status
        if status != 200:
            assert list(answer.json()) == ["id", "code", "reason", "field"]
        assert await link.is_over()
        assert world.connections == 0


async def test_an_upgrade_may_follow_answered_requests(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        link = await world.serves.link()
        assert await link.pings()
        await link.send(handshake("/"))
        assert (await link.response(has_body=False)).status == 101
        await link.send(frame(2, PING))


async def test_an_upgrade_pipelined_after_requests_is_refused(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        link = await world.serves.link()
        await link.send(b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n" + handshake("/"))
        assert (await link.response()).body == b"pong"
        assert await link.is_over()


ORIGINS = [
    (["*"], "https://anywhere.example", True),
    (["*"], "null", True),
    (["https://one.example"], "https://one.example", True),
    (["https://one.example"], "https://two.example", False),
    (["https://one.example"], "http://one.example", False),
    (["https://one.example"], "null", False),
    (["https://one.example"], "", False),
    ([], "http://here.example:3000", True),
    ([], "http://HERE.example:3000", True),
    ([], "https://here.example:3000", False),
    ([], "http://here.example", False),
    ([], "http://here.example:3001", False),
    ([], "http://here.example:3000.evil.example", False),
    ([], "http://here.example:port", False),
]


@pytest.mark.parametrize(("allowed", "origin", "is_let_in"), ORIGINS)
async def test_a_browser_may_connect_from_allowed_origins_and_from_this_server(
    tmp_path: Path, allowed: list[str], origin: str, is_let_in: bool
) -> None:
    http = Http(cors=HttpCors(allowed_origins=tuple(allowed)), allowed_hosts=("*",))
    async with talking(tmp_path, http=http) as world:
        link = await world.serves.link()
        await link.send(handshake("/", f"Origin: {origin}", host="here.example:3000"))
        assert (await link.response(has_body=False)).status == (101 if is_let_in else 403)


async def test_an_unknown_host_name_is_refused(tmp_path: Path) -> None:
    async with talking(tmp_path, http=Http(allowed_hosts=("here.example",))) as world:
        for host, status in (("here.example:3000", 101), ("evil.example:3000", 421)):
            link = await world.serves.link()
            await link.send(handshake("/", f"Origin: http://{host}", host=host))
            assert (await link.response(has_body=False)).status == status


@pytest.mark.parametrize("path", ["/", "/ws"])
async def test_by_default_no_other_origin_and_on_loopback_no_other_name_may_connect(tmp_path: Path, path: str) -> None:
    async with talking(tmp_path) as world:
        for host, origin, status in (
            ("localhost:3000", "http://localhost:3000", 101),
            ("127.0.0.1:3000", "http://127.0.0.1:3000", 101),
            ("localhost:3000", "https://evil.example", 403),
            ("localhost:3000", "null", 403),
            ("localhost:3000", "http://localhost:8000", 403),
            ("evil.example:3000", "http://evil.example:3000", 421),
        ):
            link = await world.serves.link()
            await link.send(handshake(path, f"Origin: {origin}", host=host))
            assert (await link.response(has_body=False)).status == status, (host, origin)


async def test_without_cors_only_pages_of_this_server_may_connect(tmp_path: Path) -> None:
    async with talking(tmp_path, cors=HttpCors(enabled=False)) as world:
        for host, status in (("localhost", 101), ("y", 403)):
            link = await world.serves.link()
            await link.send(handshake("/", f"Origin: http://{host}"))
            assert (await link.response(has_body=False)).status == status


async def test_a_client_without_an_origin_may_connect(tmp_path: Path) -> None:
    async with talking(tmp_path, cors=HttpCors(allowed_origins=())) as world:
        assert await (await world.stranger()).is_alive()


async def test_websocket_over_tls(tmp_path: Path) -> None:
    tls = tls_context(tmp_path)
    trusted = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
    async with serving(tmp_path / "data", tls=tls) as world:
        sockets = WebSockets(world.world.gateway)
        world.server.listener.websockets = sockets
        async with connect(f"wss://{world.server.address}", ssl=trusted, proxy=None) as link:
            client = await Classic(link).log_in()
            assert await client.is_alive()
            await sockets.stop(5)
            assert await client.closed() == (None, "")


async def test_without_websocket_an_upgrade_is_ignored(tmp_path: Path) -> None:
    async with serving(tmp_path) as world:
        answer = await (await world.link()).ask(handshake("/"))
        assert (answer.status, answer.body) == (200, b"Iggy API")
