"""The connections of the channel: messages in any frames, limits, and deadlines."""

from __future__ import annotations

import asyncio
import base64
from collections import deque
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.clocks import Seconds
from tests.transports.support import raw
from tests.transports.support.crowded import crowded, waiting
from tests.transports.support.cursors import places
from tests.transports.websocket.support.browsing import root, sending, stranger, with_topic
from tests.transports.websocket.support.talking import frame, handshake, talking
from whippet.app import housekeeping
from whippet.app.commands import requests as commands
from whippet.app.config.listeners import Http, Websocket, WebsocketChannel
from whippet.transports import connections
from whippet.transports.admission.frame_intake import QUEUE_MAX
from whippet.transports.websocket import text_connection
from whippet.transports.wire.classic import requests


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Seconds:
    stopped = Seconds()
    monkeypatch.setattr(text_connection, "time", stopped)
    monkeypatch.setattr(connections, "time", stopped)
    return stopped


# ------------------------------------------------------------------------------------------------- messages and frames


@pytest.mark.parametrize(
    ("name", "octets", "code"),
    [
        ("binary", frame(2, b"{}"), 1003),
        ("not UTF-8", frame(1, b'{"id":"\xff"}'), 1007),
        ("a surrogate", frame(1, b'{"id":"\xed\xa0\x80"}'), 1007),
        ("cut in a character", frame(1, "ä".encode()[:1]), 1007),
        ("too large", frame(1, b" " * 70_000), 1009),
        ("announced too large", frame(1, b" " * 70_000)[:20], 1009),
        ("announced too large and not begun", frame(1, b" " * 70_000)[:14], 1009),
        ("announced too large together", frame(1, b" " * 60_000, fin=False) + frame(0, b" " * 60_000)[:8], 1009),
        ("too large in pieces", frame(1, b" " * 60_000, fin=False) + frame(0, b" " * 60_000), 1009),
        ("no mask", frame(1, b"{}", masked=False), 1002),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_violation_of_websocket_closes_the_connection(
    tmp_path: Path, name: str, octets: bytes, code: int
) -> None:
    async with talking(tmp_path) as world:
        witness = await root(world)
        raw = await world.raw("/ws")
        await raw.send(octets)
        assert await raw.closed() == code
        assert await witness.ask("ping") == "pong"


async def test_a_command_may_arrive_in_fragments_with_pings_between(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        raw = await world.raw("/ws")
        said = '{"id":"ä","cmd":"ping"}'.encode()
        # In the middle of a character, too.
        await raw.send(frame(1, said[:8], fin=False) + frame(9, b"x"))
        assert await raw.frame() == (10, b"x")
        await raw.send(frame(0, said[8:], fin=False) + frame(0))
        assert await raw.frame() == (1, '{"id":"ä","ok":"pong"}'.encode())
        for at in range(len(octets := frame(1, said))):
            await raw.send(octets[at : at + 1])
        assert await raw.frame() == (1, '{"id":"ä","ok":"pong"}'.encode())


async def test_a_message_has_the_size_limit_of_an_http_body(tmp_path: Path) -> None:
    async with talking(tmp_path, http=Http(max_request_size=200_000)) as world:
        browser = await with_topic(world)
        await browser.ask("send_messages", **sending("A" * 190_000))
        await browser.link.send(" " * 200_001)
        assert (await browser.closed())[0] == 1009


async def test_large_messages_reserve_memory_and_wait_for_it(tmp_path: Path) -> None:
    async with talking(tmp_path, http=Http(max_request_size=200_000), frames_bytes=250_000) as world:
        witness = await with_topic(world)
        raws = [await world.raw("/ws", f"Authorization: Bearer {world.serves.token}") for _ in range(3)]
        for raw in raws:
            await raw.send(frame(1, b'{"id":0,"cmd":"ping"}'))
            await raw.frame()
        said = frame(1, msgspec.json.encode({"id": 1, "cmd": "send_messages", **sending("A" * 150_000)}))
        room = world.websockets.budgets.frames
        with crowded(room):
            for raw in raws:
                await raw.send(said[:100_000])
            while waiting(room) < len(raws):
                await witness.ask("ping")
        for raw in raws:
            await raw.send(said[100_000:])
        for raw in raws:
            assert b'"ok"' in (await raw.frame())[1]
        assert world.websockets.budgets.frames.used == 0


class Watched(deque[Any]):
    most = 0

    def append(self, item: Any) -> None:
        super().append(item)
        self.most = max(self.most, len(self))


async def test_thousands_of_commands_are_parsed_a_few_at_a_time(tmp_path: Path) -> None:
    """However they are split between reads, none is lost, and control frames keep their places."""

    async with talking(tmp_path) as world:
        raw = await world.raw("/ws")
        (connection,) = world.websockets._connections
        ahead = connection._intake.queue = Watched()  # type: ignore[attr-defined]
        ping, junk = frame(1, b'{"id":1,"cmd":"ping"}'), frame(1, b"{}")
        large = frame(1, b'{"id":2,"cmd":"ping"' + b" " * 30_000 + b"}")
        octets = (ping * 500 + frame(9, b"a") + junk * 500) * 3 + large + ping[:10]
        await raw.send(octets)
        answers: list[tuple[int, bytes]] = []
        while len(answers) < 3004:
            answers.append(await raw.frame())
        said = [content for opcode, content in answers if opcode == 1]
        refused = b'{"id":null,"error":'
        expected = ([b'{"id":1,"ok":"pong"}'] * 500 + [refused] * 500) * 3 + [b'{"id":2,"ok":"pong"}']
        assert [each[: len(refused)] if each.startswith(refused) else each for each in said] == expected
        assert sum(answer == (10, b"a") for answer in answers) == 3
        assert 0 < ahead.most <= QUEUE_MAX
        assert world.websockets.budgets.frames.used == 0
        await raw.send(ping[10:] + frame(8, (1000).to_bytes(2, "big")))
        assert await raw.frame() == (1, b'{"id":1,"ok":"pong"}')
        assert await raw.closed() == 1000


async def test_a_client_that_leaves_with_thousands_of_commands_leaves_nothing_behind(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        witness = await root(world)
        for ending in (b"", frame(1, b"\xff"), frame(3)):
            raw = await world.raw("/ws", receive_bytes=4096)
            await raw.send(frame(1, b'{"id":1,"cmd":"ping"}') * 2000 + ending)
            await witness.ask("ping")
            raw.link.reset()
            while world.connections > 1:  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert world.websockets.budgets.frames.used == 0


async def test_a_close_is_answered(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        raw = await world.raw("/ws")
        await raw.send(frame(1, b'{"id":1,"cmd":"ping"}') + frame(8, (4001).to_bytes(2, "big")))
        assert await raw.frame() == (1, b'{"id":1,"ok":"pong"}')
        assert await raw.closed() == 4001


# ------------------------------------------------------------------------------------------------- deadlines


async def test_a_client_that_does_not_sign_in_is_closed(tmp_path: Path, time: Seconds) -> None:
    async with talking(tmp_path) as world:
        witness, quiet = await root(world), await stranger(world)
        await quiet.ask("ping")
        await time.passes(59, world.websockets, witness)
        assert world.connections == 2
        await time.passes(2, world.websockets, witness)
        assert (await quiet.closed())[0] is None


async def test_a_silent_client_is_pinged_and_stays_if_it_answers(tmp_path: Path, time: Seconds) -> None:
    async with talking(tmp_path, websocket=Websocket(channel=WebsocketChannel(ping_time=10, silence_time=35))) as world:
        witness, answering = await root(world), await root(world)
        raw = await world.raw("/ws", f"Authorization: Bearer {world.serves.token}")
        await raw.send(frame(1, b'{"id":0,"cmd":"ping"}'))
        await raw.frame()
        for _ in range(3):
            await time.passes(11, world.websockets, witness)
            assert await raw.frame() == (9, b"")
        await time.passes(11, world.websockets, witness)
        assert await raw.link.rest() == b""
        assert await answering.ask("ping") == "pong"


async def test_a_stop_is_announced(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        browser = await with_topic(world)
        await browser.ask("send_messages", **sending("AAAA"))
        sub = (await browser.ask("subscribe", to="topic", stream="s", topic="t", last=1))["sub"]
        assert await browser.offsets(sub, 1) == [(0, 0)]
        await world.websockets.stop(5)
        end: Any = (await browser.push(sub))["end"]
        assert (end["code"], places(end["cursor"])) == ("stopping", "0:1")
        assert (await browser.closed())[0] == 1001


async def test_a_stop_answers_waiting_polls(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        browser = await with_topic(world)
        asked = await browser.say(cmd="poll_messages", stream="s", topic="t", kind="next", wait="20s")
        while not len(world.serves.api.waiting):
            assert await browser.ask("ping") == "pong"
        world.serves.api.drain()
        await world.websockets.stop(5)
        assert (await browser.answer(asked))["ok"]["count"] == 0
        assert (await browser.closed())[0] == 1001


async def test_a_closed_client_does_not_wait_for_its_polls(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        browser = await with_topic(world)
        await browser.say(cmd="poll_messages", stream="s", topic="t", kind="next", wait="20s")
        while not len(world.serves.api.waiting):
            assert await browser.ask("ping") == "pong"
        await browser.link.close()
        while world.connections or len(world.serves.api.waiting):  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_an_invalid_request_for_the_channel_is_refused(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        for octets, status in (
            (handshake("/ws", version="12"), 400),
            (handshake("/ws?ticket=%FF"), 400),
            (handshake("/ws").replace(b"Upgrade: websocket\r\n", b""), 404),
        ):
            assert (await (await world.serves.link()).ask(octets)).status == status


async def test_beyond_the_limit_waiting_polls_stay_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whippet.transports.websocket.channel.WAITING_POLLS_MAX", 1)

    async with talking(tmp_path) as world:
        browser = await with_topic(world)
        poll = {"cmd": "poll_messages", "stream": "s", "topic": "t", "kind": "next"}
        first = await browser.say(**poll, wait="20s")
        second = await browser.say(**poll, wait="50ms")
        third = await browser.say(cmd="ping")
        assert (await browser.answer(third))["ok"] == "pong"
        assert (await browser.answer(second))["ok"]["count"] == 0
        await browser.ask("send_messages", **sending("AAAA"))
        assert (await browser.answer(first))["ok"]["count"] == 1


async def test_a_send_to_a_full_topic_is_refused(tmp_path: Path) -> None:
    async with talking(tmp_path, store={"segment_bytes": 1024, "delete_oldest_segments": False}) as world:
        browser = await with_topic(world)
        await browser.ask("update_topic", stream="s", topic="t", name="t", message_expiry=0, max_topic_size=1024)
        payload = base64.b64encode(b"x" * 500).decode()
        await browser.ask("send_messages", **sending(payload))
        assert await browser.refused("send_messages", **sending(payload)) == (3009, "topic_full", None)


async def test_a_channel_is_not_evicted_for_missing_heartbeats(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        browser, silent = await with_topic(world), await world.root()
        await browser.ask("create_consumer_group", stream="s", topic="t", name="g")
        await browser.ask("join_consumer_group", stream="s", topic="t", group="g")
        joining = requests.encode_request(commands.JoinConsumerGroup("s", "t", "g"))
        await silent.send(raw.frame(604, bytes(joining)))
        assert await silent.answer() == raw.OK
        assert len(world.gateway.sessions) == 2
        world.serves.world.clock.now += 3600 * 1_000_000
        await housekeeping.evict_silent_clients(world.gateway)
        (left,) = world.gateway.sessions
        assert left.is_watched
        assert await browser.ask("get_streams")
