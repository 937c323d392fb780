"""No body, however it is made, holds the event loop up: the work of each of its turns is bounded, whatever is sent.

Work is counted, not timed: the calls that Python makes in the thread of the event loop between two turns. Each body is
as large as its limit allows, and is made to cost as much as a body of its kind can.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from tests.transports.http.support.calling import with_topic as with_http_topic
from tests.transports.support.modern import batch_of, sending, with_topic
from tests.transports.support.raw import frame, make_topic, poll, served
from tests.transports.wire.classic.support.plainly import Classic, send_body
from whippet.app.commands import requests as ask
from whippet.app.errors import Code
from whippet.storage.batch import TIME_SPAN_MAX_US
from whippet.transports.wire.classic import batching, frames, sends

TO_PARTITION_0 = bytes.fromhex("0104000000000104000000000204") + bytes(4)
CALLS_MAX = 40_000
"""About what 2,048 messages cost that are decoded at once, and some ten milliseconds."""
MESSAGES = "/streams/s/topics/t/messages"
BODY_BYTES = 2_000_000


class Turns:
    """Counts the calls of the longest turn of the event loop."""

    def __init__(self) -> None:
        self.longest = 0
        self._calls = 0

    def next(self) -> None:
        self.longest, self._calls = max(self.longest, self._calls), 0

    def count(self, frame: Any, event: str, argument: Any) -> None:
        if event in ("call", "c_call"):
            self._calls += 1


@contextlib.contextmanager
def counted() -> Iterator[Turns]:
    turns = Turns()
    loop = asyncio.get_running_loop()

    def tick() -> None:
        turns.next()
        if not over:
            loop.call_soon(tick)

    over = False
    tick()
    sys.setprofile(turns.count)
    try:
        yield turns
    finally:
        sys.setprofile(None)
        over = True
        turns.next()


def json_of(part: bytes) -> bytes:
    head, tail = b'{"partitioning":{"kind":"balanced","value":""},"messages":[', b"]}"
    return head + b",".join([part] * ((BODY_BYTES - len(head) - len(tail)) // (len(part) + 1))) + tail


BODIES: dict[str, tuple[bytes, dict[str, str]]] = {
    "json of tiny messages": (json_of(b'{"payload":"eA=="}'), {}),
    "json of messages without an end": (json_of(b'{"payload":"eA=="}')[:-1], {}),
    "json with members that come twice": (b'{"partitioning":{"kind":"balanced","value":""},' * 40_000, {}),
    "json with user headers": (
        json_of(
            b'{"payload":"eA==","user_headers":[{"key":{"kind":"string","value":"YQ=="},'
            b'"value":{"kind":"string","value":"YQ=="}}]}'
        ),
        {},
    ),
    "lines of one byte": (b"x\n" * (BODY_BYTES // 2), {"content_type": "text/plain"}),
    "lines that are empty": (b"\n" * BODY_BYTES, {"content_type": "text/plain"}),
    "carriage returns": (b"\r\n" * (BODY_BYTES // 2), {"content_type": "text/plain"}),
    "ndjson": (b"1\n" * (BODY_BYTES // 2), {"content_type": "application/x-ndjson"}),
    "ndjson with an error at its end": (
        b"1\n" * (BODY_BYTES // 2 - 1) + b"{\n",
        {"content_type": "application/x-ndjson"},
    ),
    "empty zstd frames": (
        zstandard.ZstdCompressor().compress(b"") * (BODY_BYTES // 9),
        {"content_type": "text/plain", "content_encoding": "zstd"},
    ),
    "empty zstd blocks": (
        b"\x28\xb5\x2f\xfd\x00\x58" + b"\0\0\0" * (BODY_BYTES // 3 - 4) + b"\1\0\0",
        {"content_type": "text/plain", "content_encoding": "zstd"},
    ),
    "empty gzip members": (
        gzip.compress(b"") * (BODY_BYTES // 20),
        {"content_type": "text/plain", "content_encoding": "gzip"},
    ),
    "lines that are compressed": (
        gzip.compress(b"x\n" * (BODY_BYTES // 2)),
        {"content_type": "text/plain", "content_encoding": "gzip"},
    ),
}


@pytest.mark.parametrize("name", list(BODIES))
async def test_the_body_of_a_send_over_http_holds_nobody_up(tmp_path: Path, name: str) -> None:
    body, headers = BODIES[name]
    async with with_http_topic(tmp_path) as world:
        with counted() as turns:
            response = await world.root.ask("POST", f"{MESSAGES}", body, **headers)
        assert response.status_code < 500, response.text
        assert turns.longest < CALLS_MAX


async def test_a_large_poll_holds_nobody_up_in_any_form(tmp_path: Path) -> None:
    async with with_http_topic(tmp_path, partitions=1) as world:
        lines = b"".join(b"%s\n" % (b"x" * (1 + n % 7)) for n in range(50_000))
        assert (await world.root.ask("POST", MESSAGES, lines, content_type="text/plain")).status_code == 201
        for accept in ("application/json", "application/x-ndjson", "text/plain", "application/vnd.iggy.batch"):
            with counted() as turns:
                response = await world.root.ask("GET", f"{MESSAGES}?count=50000", accept=accept)
            assert response.headers["iggy-count"] == "50000"
            assert turns.longest < CALLS_MAX, accept


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
async def test_a_body_is_looked_at_only_if_its_sender_may_send_it_there(tmp_path: Path, encoding: str) -> None:
    """Neither the server's time nor its memory is spent on a body that is refused whatever is in it."""
    async with with_http_topic(tmp_path) as world:
        alice = await world.user("alice")
        wrong = {"content_type": "text/plain", "content_encoding": encoding}
        assert await alice.refused("POST", MESSAGES, b"not gzip", **wrong) == (403, 41, None)
        assert await world.root.refused("POST", "/streams/s/topics/none/messages", b"not gzip", **wrong) == (
            *(404, 2010),
            "topic_id",
        )


HOURS = 3_600_000_000


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (lambda _: 1, 0),
        (lambda n: n % 2 * 5 * HOURS, Code.INVALID_MESSAGES_COUNT),
        (lambda n: n * HOURS, Code.INVALID_MESSAGES_COUNT),
        (lambda n: n // 1000 * 5 * HOURS, 0),
    ],
    ids=["at once", "to and fro", "an hour apart", "a thousand every five hours"],
)
@pytest.mark.parametrize("sizes", [(1,), (1, 2, 3)], ids=["of one size", "of three sizes"])
async def test_a_classic_send_holds_nobody_up_whenever_its_messages_were_made(
    tmp_path: Path, origin: Callable[[int], int], status: int, sizes: tuple[int, ...]
) -> None:
    count = 50_000
    messages = [Classic(n + 1, 0, 0, origin(n), b"x" * sizes[n % len(sizes)]) for n in range(count)]
    octets = frame(frames.SEND_MESSAGES, send_body(messages, 64, TO_PARTITION_0))
    async with served(tmp_path) as world:
        root = await world.root()
        await make_topic(root)
        with counted() as turns:
            await root.send(octets)
            found, _ = await root.answer()
        assert found == status
        assert turns.longest < CALLS_MAX
        if not found:
            with counted() as turns:
                await root.send(poll(count))
                assert (await root.answer())[0] == 0
            assert turns.longest < CALLS_MAX


async def test_a_batch_of_a_modern_client_holds_nobody_up(tmp_path: Path) -> None:
    batch = batch_of(*(b"x" * (1 + n % 3) for n in range(50_000)))
    async with served(tmp_path) as world:
        client = await with_topic(world)
        with counted() as turns:
            assert not (await client.demand(sending(batch))).refused
        assert turns.longest < CALLS_MAX


async def test_a_large_classic_send_is_decoded_only_if_its_sender_may_send_it_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[int] = []
    monkeypatch.setattr(sends, "decode", lambda payload, *_: decoded.append(len(payload)))
    content = send_body([Classic(1, 0, 0, 0, b"x" * 20_000)], 64, TO_PARTITION_0)
    async with served(tmp_path) as world:
        root = await world.root()
        await root.send(frame(frames.SEND_MESSAGES, content))
        assert (await root.answer())[0] == Code.STREAM_ID_NOT_FOUND
        await make_topic(root)
        alice = ask.CreateUser("alice", "alicealice", ask.UserStatus.ACTIVE, None)
        assert (await root.ask(alice))[0] == 0
        stranger = await world.stranger()
        assert (await stranger.ask(ask.LoginUser("alice", "alicealice", "", "")))[0] == 0
        await stranger.send(frame(frames.SEND_MESSAGES, content))
        assert (await stranger.answer())[0] == Code.UNAUTHORIZED
    assert not decoded


def test_runs_of_times_are_as_long_as_they_can_be_however_they_lie() -> None:
    chance = random.Random(7)
    for _ in range(200):
        step = chance.choice([1, TIME_SPAN_MAX_US // 50, TIME_SPAN_MAX_US])
        origins = [chance.randrange(100) * step for _ in range(chance.randrange(1, 300))]
        expected, first = [], 0
        for i in range(1, len(origins) + 1):
            run = origins[first : i + 1]
            if i == len(origins) or max(run) - min(run) > TIME_SPAN_MAX_US:
                expected.append((first, i, min(origins[first:i])))
                first = i
        assert batching._runs_of(np.array(origins, dtype=np.uint64)) == expected
