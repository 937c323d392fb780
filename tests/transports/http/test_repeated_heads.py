"""A request with the same head as an earlier one is not parsed again, and nobody can tell."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.running import HANGS_S
from tests.transports.http.support.serving import PING, Link, Response, Serving, serving
from whippet.app.config.listeners import Http, HttpCors
from whippet.transports.http.serving import repeated_heads
from whippet.transports.http.serving.protocol import Phase, Protocol
from whippet.transports.http.serving.repeated_heads import Head, RepeatedHeads

MESSAGES = "/streams/s/topics/t/messages"
POLL = f"{MESSAGES}?partition_id=0&count=2"


@pytest.fixture
def repeated(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of the requests that were not parsed."""
    paths: list[str] = []
    repeat = Protocol._repeat

    def noted(self: Protocol, head: Head, body: bytes) -> None:
        paths.append(head.scope["path"])
        repeat(self, head, body)

    monkeypatch.setattr(Protocol, "_repeat", noted)
    return paths


async def make_topic(world: Serving) -> Link:
    link = await world.link()
    assert (await link.ask(world.request("POST", "/streams", {"name": "s"}))).status == 200
    assert (
        await link.ask(world.request("POST", "/streams/s/topics", {"name": "t", "partitions_count": 1}))
    ).status == 200
    return link


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(HANGS_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


def sending(text: str) -> dict[str, Any]:
    return {"partitioning": {"kind": "partition_id", "value": "AAAAAA=="}, "messages": [{"id": 7, "payload": text}]}


async def test_the_body_is_that_of_each_request(tmp_path: Path, repeated: list[str]) -> None:
    async with serving(tmp_path) as world:
        link = await make_topic(world)
        for text in ("AAAA", "BBBB", "CCCC"):
            assert (await link.ask(world.request("POST", MESSAGES, sending(text)))).status == 201
        found = [(await link.ask(world.request("GET", POLL + f"&value={value}"))).json() for value in (0, 0, 1)]
        payloads = [[message["payload"] for message in each["messages"]] for each in found]
        assert payloads == [["AAAA", "BBBB"], ["AAAA", "BBBB"], ["BBBB", "CCCC"]]
        assert repeated == [MESSAGES, MESSAGES, MESSAGES]


async def test_a_head_is_known_on_every_connection_of_the_listener(tmp_path: Path, repeated: list[str]) -> None:
    async with serving(tmp_path) as world:
        for _ in range(3):
            assert await (await world.link()).pings()
        assert repeated == ["/ping"] * 2


async def test_the_token_and_the_destination_are_checked_each_time(tmp_path: Path, repeated: list[str]) -> None:
    async with serving(tmp_path) as world:
        link = await make_topic(world)
        send, poll = world.request("POST", MESSAGES, sending("AAAA")), world.request("GET", POLL)
        for _ in range(2):
            assert ((await link.ask(send)).status, (await link.ask(poll)).status) == (201, 200)
        assert (await link.ask(world.request("DELETE", "/streams/s"))).status == 204
        assert ((await link.ask(send)).status, (await link.ask(poll)).status) == (404, 404)
        assert (await link.ask(world.request("DELETE", "/users/logout"))).status == 204
        assert ((await link.ask(send)).status, (await link.ask(poll)).status) == (401, 401)
        assert repeated == [MESSAGES] * 6


@pytest.mark.parametrize(
    "data",
    [
        b"\r\n" + PING,
        PING.replace(b"\r\n", b"\n"),
        PING[:-2] + b"Connection: close\r\n\r\n",
        PING.replace(b"1.1", b"1.0"),
        PING[:-2] + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        PING[:-2] + b"Expect: 100-continue\r\nContent-Length: 0\r\n\r\n",
        PING[:-2] + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
        PING[:-2] + b"X: " + b"x" * repeated_heads.HEAD_BYTES_MAX + b"\r\n\r\n",
    ],
    ids=["after an empty line", "line feeds", "close", "1.0", "chunked", "expect", "upgrade", "long"],
)
async def test_other_heads_are_parsed_each_time(tmp_path: Path, repeated: list[str], data: bytes) -> None:
    async with serving(tmp_path) as world:
        for _ in range(2):
            link = await world.link()
            await link.send(data)
            response = await link.response()
            if response.status == 100:
                response = await link.response()
            assert response.status == 200 or data == PING.replace(b"\r\n", b"\n")
        assert not repeated


async def test_requests_that_arrive_in_parts_or_together_are_parsed(tmp_path: Path, repeated: list[str]) -> None:
    async with serving(tmp_path) as world:
        link = await make_topic(world)
        send = world.request("POST", MESSAGES, sending("AAAA"))
        assert (await link.ask(send)).status == 201
        await link.send(send[:-5])
        await until(lambda: any(each.phase is Phase.BODY for each in world.server.listener.connections))
        await link.send(send[-5:])
        assert (await link.response()).status == 201
        await link.send(send * 3)
        assert [(await link.response()).status for _ in range(3)] == [201] * 3
        assert repeated == []
        assert (await link.ask(send)).status == 201
        assert repeated == [MESSAGES]
        assert (await link.ask(world.request("GET", POLL))).json()["current_offset"] == 5


async def test_a_repeated_request_is_pipelined_behind_one_that_waits(tmp_path: Path, repeated: list[str]) -> None:
    async with serving(tmp_path) as world:
        link, other = await make_topic(world), await world.link()
        assert await link.pings()
        await link.send(world.request("GET", f"{POLL}&wait=20s"))
        await until(lambda: any(each.phase is Phase.WORKING for each in world.server.listener.connections))
        await link.send(PING)
        await until(lambda: any(each._pipelined for each in world.server.listener.connections))
        assert (await other.ask(world.request("POST", MESSAGES, sending("AAAA")))).status == 201
        assert len((await link.response()).json()["messages"]) == 1
        assert (await link.response()).body == b"pong"
        assert repeated == []


async def test_the_headers_of_cors_and_refused_hosts_are_decided_each_time(tmp_path: Path, repeated: list[str]) -> None:
    config = Http(cors=HttpCors(enabled=True, allowed_origins=("https://a.example",)), allowed_hosts=("localhost",))
    async with serving(tmp_path, config) as world:
        link = await world.link()
        for origin, allowed in (("https://a.example", "https://a.example"), ("https://b.example", None)):
            request = PING[:-2] + f"Origin: {origin}\r\n\r\n".encode()
            for _ in range(3):
                assert (await link.ask(request)).headers.get("access-control-allow-origin") == allowed
        for _ in range(3):
            assert (await link.ask(PING.replace(b"localhost", b"evil.example"))).status == 421
        assert len(repeated) == 6


def scope_of(data: bytes) -> dict[str, Any]:
    _, *lines = data.partition(b"\r\n\r\n")[0].split(b"\r\n")
    headers = [(name.lower(), value) for name, _, value in (line.partition(b": ") for line in lines)]
    return dict.fromkeys(("method", "http_version", "path", "raw_path", "query_string"), "") | {"headers": headers}


def test_only_whole_requests_with_the_body_of_the_announced_length_are_found() -> None:
    data = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\n"
    heads = RepeatedHeads()
    assert heads.find(data + b"12345") is None
    heads.add(data + b"12345", scope_of(data))
    for body in (b"54321", b"\r\n\r\n1"):
        found = heads.find(data + body)
        assert found is not None
        assert found[1] == body
    for wrong in (b"", b"1234", b"123456"):
        assert heads.find(data + wrong) is None
    assert heads.find(data[:-1]) is None
    assert heads.find(b"") is None


def test_a_body_that_is_too_long_to_arrive_with_its_head_is_not_expected() -> None:
    for length, is_known in ((repeated_heads.BODY_BYTES_MAX, True), (repeated_heads.BODY_BYTES_MAX + 1, False)):
        data = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % length
        heads = RepeatedHeads()
        heads.add(data, scope_of(data))
        assert (heads.find(data + bytes(length)) is not None) is is_known


def test_the_number_of_heads_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated_heads, "HEADS_MAX", 3)
    heads = RepeatedHeads()
    known = []
    for number in range(7):
        data = b"GET /%d HTTP/1.1\r\nhost: a\r\n\r\n" % number
        heads.add(data, scope_of(data))
        assert heads.find(data) is not None
        known.append(data)
        assert sum(heads.find(each) is not None for each in known) <= 3


REQUESTS = (
    ("GET", "/streams"),
    ("GET", "/streams/s"),
    ("HEAD", "/streams/s"),
    ("GET", "/streams/none"),
    ("GET", f"{MESSAGES}?count=x"),
    ("GET", f"{MESSAGES}?partition_id=7"),
    ("GET", POLL),
    ("GET", f"{POLL}&kind=last"),
    ("POST", MESSAGES),
    ("POST", f"{MESSAGES}?key=a&partition_id=0"),
    ("PUT", MESSAGES),
    ("GET", "/nowhere"),
    ("GET", "/ping"),
)
HEADERS = (
    (),
    ("Accept: text/plain",),
    ("Accept: application/x-ndjson", "Accept-Encoding: gzip"),
    ("Accept: image/png",),
    ("Authorization: Bearer x",),
    ("If-None-Match: *",),
    ("Content-Encoding: br",),
)
BODIES: tuple[Any, ...] = (sending("AAAA"), sending(""), sending("A" * 4000), {"messages": []}, b"{", b"[]", None)


@pytest.mark.parametrize("seed", range(4))
async def test_repeated_and_parsed_requests_get_the_same_responses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """One server parses every request, the other one does not parse those that it knows."""
    chance = random.Random(seed)
    made = [(chance.choice(REQUESTS), chance.choice(HEADERS), chance.choice(BODIES)) for _ in range(60)]
    made = [chance.choice(made) for _ in range(300)]

    async def responses(path: Path) -> list[tuple[int, dict[str, str], bytes]]:
        found = []
        async with serving(path) as world:
            link = await make_topic(world)
            for (method, target), headers, body in made:
                content = body if body is None or isinstance(body, bytes) else msgspec.json.encode(body)
                await link.send(world.request(method, target, content if method in ("POST", "PUT") else None, *headers))
                response: Response = await link.response(has_body=method != "HEAD")
                response.headers.pop("date")
                found.append((response.status, response.headers, response.body))
        return found

    repeating = await responses(tmp_path / "repeating")
    monkeypatch.setattr(RepeatedHeads, "find", lambda *_: None)
    assert repeating == await responses(tmp_path / "parsing")
    assert len({status for status, _, _ in repeating}) > 5
