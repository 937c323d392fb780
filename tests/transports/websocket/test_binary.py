"""The binary protocols over WebSocket: any requests, split in any way, and unfinished ones.

The content of messages is tested in test_tcp.py and test_modern_tcp.py; here it is the transport in both directions.
"""

from __future__ import annotations

import asyncio
import random
import struct
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import websockets

from tests.support.clocks import Seconds
from tests.transports.support.crowded import crowded, waiting
from tests.transports.support.modern import AS_ROOT, batch_of, login, sending
from tests.transports.support.modern import Modern as OverRaw
from tests.transports.support.modern import frame as modern_frame
from tests.transports.support.raw import LOG_IN, OK, PING, asked, make_topic, message_body, poll
from tests.transports.support.raw import frame as request
from tests.transports.websocket.support.talking import Classic, RawLink, Talking, frame, message, talking
from whippet.app.commands import requests
from whippet.app.config.listeners import Websocket
from whippet.app.errors import Code
from whippet.app.model.sessions import Transport
from whippet.transports import connections, tcp
from whippet.transports.classic_conversation import UNAUTHENTICATED_FRAME_BYTES
from whippet.transports.connections import SCRATCH_BYTES
from whippet.transports.websocket import binary_connection, framing
from whippet.transports.wire.modern.operations import READ, REGISTER

SEND = 101


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Seconds:
    stopped = Seconds()
    monkeypatch.setattr(tcp, "time", stopped)
    monkeypatch.setattr(connections, "time", stopped)
    monkeypatch.setattr(binary_connection, "time", stopped)
    return stopped


class Modern(OverRaw):
    """A 0.9 client whose bytes are in messages."""

    def __init__(self, link: Classic) -> None:
        self.over = link
        super().__init__(cast(Any, link))

    async def send(self, octets: bytes) -> None:
        await self.over.send(octets)

    async def exactly(self, size: int) -> bytes:
        return await self.over.exactly(size)


# ----------------------------------------------------------------------------------------- requests and responses


async def test_a_classic_client_sends_and_polls(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        root = await world.root()
        await make_topic(cast(Any, root))
        await root.send(request(SEND, message_body(10, 100_000, 3)))
        assert await root.answer() == OK
        await root.send(poll(10))
        status, payload = await root.answer()
        assert (status, len(payload)) == (0, 16 + 3 * 64 + 100_013)


async def test_a_0_9_client_sends_and_polls(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        client = Modern(await world.stranger())
        await client.register()
        for wanted in (requests.CreateStream("s"), requests.CreateTopic("s", "t", 1)):
            assert not (await client.demand(wanted)).refused
        payloads = [b"small", b"x" * 300_000]
        for payload in payloads:
            assert not (await client.demand(sending(batch_of(payload)))).refused
        assert await client.payloads() == payloads


async def test_a_client_is_listed_as_one_over_websocket(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        root = await world.root()
        status, payload = await root.ask(requests.GetMe())
        assert status == 0
        assert payload[8] == Transport.WEBSOCKET
        host, port = root.link.local_address[:2]
        assert f"{host}:{port}".encode() in payload


@pytest.mark.parametrize("wire", ["classic", "modern"])
async def test_requests_may_be_split_into_any_messages_fragments_and_reads(tmp_path: Path, wire: str) -> None:
    rng = random.Random(11)
    async with talking(tmp_path) as world:
        witness = await world.root()
        if wire == "classic":
            conversation, count = LOG_IN + asked(requests.GetStreams()) + PING + asked(requests.GetStream("none")), 4
        else:
            conversation = modern_frame(READ, code=1) + modern_frame(REGISTER, login(AS_ROOT))
            conversation, count = conversation + modern_frame(READ, code=201), 3
        expected: list[bytes] | None = None
        for attempt in range(60):
            client = await world.raw()
            octets, rest = b"", conversation
            while rest:
                part, rest = rest[: (size := rng.choice((1, 2, 7, 50, 400, 2_000)))], rest[size:]
                octets += message(part, *sorted(rng.randint(0, len(part)) for _ in range(rng.randint(0, 3))))
                if rng.random() < 0.2:
                    octets += frame(10, b"unasked")
            while octets:
                size = len(octets) if attempt == 0 else rng.choice((1, 5, 6, 7, 100, 1_000))
                await client.send(octets[:size])
                octets = octets[size:]
                await witness.is_alive()
            heard = [(await client.frame())[1] for _ in range(count)]
            # The second request of a 0.9 client carries the number of its session.
            told = [heard[0], *heard[2:]] if wire == "modern" else heard
            expected = expected or told
            assert [len(each) for each in told] == [len(each) for each in expected]
            assert told[0] == expected[0]


@pytest.mark.parametrize("read_bytes", [None, 100, 5_000])
async def test_a_send_may_be_split_anywhere_and_arrives_unchanged(tmp_path: Path, read_bytes: int | None) -> None:
    sizes = [1, 70, 300, SCRATCH_BYTES + 10, 5]
    body = message_body(*sizes)

    rng = random.Random(7)
    async with talking(tmp_path, websocket=Websocket(read_buffer_size=read_bytes)) as world:
        root = await world.raw()
        await root.send(frame(2, LOG_IN))
        assert await root.answer() == (0, bytes(4))
        for wanted in (requests.CreateStream("s"), requests.CreateTopic("s", "t", 1)):
            await root.send(frame(2, asked(wanted)))
            assert (await root.answer())[0] == 0
        said, octets = (request(SEND, body) + PING) * 8, b""
        while said:
            part, said = said[: (size := rng.choice((100, 5_000, 100_000, 700_000)))], said[size:]
            octets += message(part, *sorted(rng.randint(0, len(part)) for _ in range(rng.randint(0, 2))))
        while octets:
            size = rng.choice((1, 3, 7, 100, 5_000, 100_000, 300_000))
            await root.send(octets[:size])
            octets = octets[size:]
        assert [await root.answer() for _ in range(16)] == [OK] * 16
        await root.send(frame(2, poll(1000)))
        _, content = await root.frame()
        assert content.count(b"x" * (SCRATCH_BYTES + 10)) == 8
        assert len(content) == 8 + 16 + 8 * (5 * 64 + sum(sizes))


async def test_a_response_too_long_for_a_frame_is_sent_in_several_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(framing, "FRAME_BYTES_MAX", 1000)

    async with talking(tmp_path) as world:
        root = await world.root()
        await make_topic(cast(Any, root))
        for _ in range(20):
            await root.send(request(SEND, message_body(300, 3)))
            assert await root.answer() == OK
        await root.send(poll(100))
        parts = [await root.link.recv(decode=False) for _ in range(9)]
        assert [len(part) for part in parts[:-1]] == [1000] * 8
        assert len(b"".join(parts)) == 8 + 16 + 40 * 64 + 20 * 303


async def test_pipelined_requests_over_websocket_are_answered_in_order(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        root = await world.root()
        await root.is_answered_in_order(300)


# ------------------------------------------------------------------------------------------------- control frames


async def test_a_ping_is_answered_in_the_middle_of_a_message(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        client = await world.raw()
        await client.send(frame(2, PING[:3], fin=False) + frame(9, b"there?"))
        assert await client.frame() == (10, b"there?")
        await client.send(frame(10, b"unasked") + frame(0, PING[3:]))
        assert await client.answer() == OK
        await client.send(frame(9) * 10 + frame(9, bytes(125)))
        assert [await client.frame() for _ in range(11)] == [(10, b"")] * 10 + [(10, bytes(125))]


async def test_a_close_is_answered_after_earlier_requests(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        for code in (1000, 1001, 3000, 4999):
            client = await world.raw()
            await client.send(frame(2, PING * 3) + frame(8, struct.pack(">H", code) + b"enough") + frame(2, PING))
            assert [await client.answer() for _ in range(3)] == [OK] * 3
            assert await client.closed() == code
        client = await world.raw()
        await client.send(frame(8))
        assert await client.closed() is None


async def test_the_client_of_the_library_closes_cleanly(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        root = await world.root()
        await root.link.close(1000, "Client requested shutdown")
        assert root.link.close_code == 1000
        await asyncio.wait_for(root.link.wait_closed(), 5)


async def test_a_vanished_client_is_removed(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        witness = await world.root()
        for leave in ("no more", "reset"):
            client = await world.raw()
            await client.send(frame(2, LOG_IN))
            await client.answer()
            client.link.say_no_more() if leave == "no more" else client.link.reset()
            while len(world.gateway.sessions) > 1:  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert await witness.is_alive()


BROKEN = {
    "text": (frame(1, b"text"), 1003),
    "text that is none": (frame(1, b"\xff\xfe"), 1003),
    "no mask": (frame(2, PING, masked=False), 1002),
    "a reserved bit": (frame(2, PING, reserved=0x40), 1002),
    "a reserved opcode": (frame(3, b""), 1002),
    "a continuation of nothing": (frame(0, PING), 1002),
    "a message in a message": (frame(2, PING[:2], fin=False) + frame(2, PING), 1002),
    "a long ping": (frame(9, bytes(126)), 1002),
    "half a ping": (frame(9, b"", fin=False), 1002),
    "half a code": (frame(8, b"\x03"), 1002),
    "a code that nobody says": (frame(8, struct.pack(">H", 1005)), 1002),
    "a reason that is no text": (frame(8, struct.pack(">H", 1000) + b"\xed\xa0\x80"), 1007),
    "dust": (frame(2, PING[:1], fin=False) + frame(0, b"", fin=False) * 5_000, 1008),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_a_violation_is_reported_after_the_responses(tmp_path: Path, name: str) -> None:
    octets, code = BROKEN[name]

    async with talking(tmp_path) as world:
        witness = await world.root()
        client = await world.raw()
        await client.send(frame(2, PING * 2) + octets + frame(2, PING))
        assert [await client.answer() for _ in range(2)] == [OK] * 2
        assert await client.closed() == code
        assert await witness.is_alive()


async def test_unmasked_frames_are_accepted_if_configured(tmp_path: Path) -> None:
    async with talking(tmp_path, websocket=Websocket(accept_unmasked_frames=True)) as world:
        client = await world.raw()
        await client.send(frame(2, PING, masked=False) + frame(2, PING))
        assert [await client.answer() for _ in range(2)] == [OK] * 2


# ------------------------------------------------------------------------------------------------- limits


@pytest.mark.parametrize("key", ["max_message_size", "max_frame_size"])
async def test_a_message_above_the_configured_size_closes_the_connection(tmp_path: Path, key: str) -> None:
    async with talking(tmp_path, websocket=msgspec.convert({key: 1000}, Websocket)) as world:
        client = await world.raw()
        await client.send(frame(2, PING * 125) + frame(2, bytes(1001))[:20])
        assert [await client.answer() for _ in range(125)] == [OK] * 125
        assert await client.closed() == 1009


async def test_a_request_that_is_too_large_is_skipped_and_refused(tmp_path: Path) -> None:
    async with talking(tmp_path, frame_bytes=65_536) as world:
        root = await world.root()
        await root.send(request(SEND, bytes(70_000)) + PING)
        assert await root.answer() == (Code.INVALID_COMMAND, b"")
        assert await root.answer() == OK
        stranger = await world.stranger()
        await stranger.send(request(SEND, bytes(UNAUTHENTICATED_FRAME_BYTES + 10)) + PING)
        assert await stranger.answer() == (Code.UNAUTHENTICATED, b"")
        assert await stranger.answer() == OK


async def test_requests_over_websocket_wait_for_memory(tmp_path: Path) -> None:
    async with talking(tmp_path, frames_bytes=300_000) as world:
        first, second = await world.root(), await world.raw()
        await make_topic(cast(Any, first))
        await second.send(frame(2, LOG_IN))
        await second.answer()
        room = world.websockets.budgets.frames
        with crowded(room):
            await second.send(frame(2, request(SEND, message_body(250_000))))
            while not waiting(room):
                assert await first.is_alive()
            assert room.used < 2 * 300_000
        assert await second.answer() == OK


async def test_an_unauthenticated_client_may_be_silent_for_a_while(tmp_path: Path, time: Seconds) -> None:
    async with talking(tmp_path) as world:
        witness, stranger = await world.root(), await world.raw()
        await time.passes(59, world.websockets, witness)
        assert await stranger.is_alive()
        await time.passes(59, world.websockets, witness)
        assert await stranger.is_alive()
        await time.passes(61, world.websockets, witness)
        assert await stranger.link.rest() in (b"", b"\x89\x00")
        assert await witness.is_alive()


async def test_an_unfinished_request_has_a_deadline(tmp_path: Path, time: Seconds) -> None:
    async with talking(tmp_path) as world:
        witness = await world.root()
        slow = await world.raw()
        await slow.send(frame(2, LOG_IN))
        await slow.answer()
        await slow.send(frame(2, request(SEND, bytes(100_000)))[:50_000])
        await time.passes(29, world.websockets, witness)
        assert world.connections == 2
        await time.passes(2, world.websockets, witness)
        while world.connections == 2:  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_a_silent_client_is_pinged_and_not_closed(tmp_path: Path, time: Seconds) -> None:
    async with talking(tmp_path) as world:
        witness, quiet = await world.root(), await world.raw()
        await quiet.send(frame(2, LOG_IN))
        await quiet.answer()
        for _ in range(5):
            await time.passes(31, world.websockets, witness)
            assert await quiet.frame() == (9, b"")
        assert await quiet.is_alive()


async def test_a_client_that_does_not_read_is_closed_without_affecting_others(tmp_path: Path, time: Seconds) -> None:
    async with talking(tmp_path) as world:
        witness = await world.root()
        await make_topic(cast(Any, witness))
        await witness.send(request(SEND, message_body(*[1_000_000] * 8)))
        assert await witness.answer() == OK
        greedy = await world.raw(receive_bytes=4096)
        await greedy.send(frame(2, LOG_IN))
        await greedy.answer()
        await greedy.send(frame(2, poll(100) * 50))
        before = len(world.gateway.sessions)
        while not any(one._stall._since or one._writable for one in world.websockets._connections):  # type: ignore[attr-defined]  # noqa: ASYNC110
            await asyncio.sleep(0)
        await time.passes(1, world.websockets, witness)
        await time.passes(61, world.websockets, witness)
        while len(world.gateway.sessions) == before:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert await witness.is_alive()


async def test_pings_of_a_client_that_does_not_read_are_not_all_answered(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        witness = await world.root()
        flood = await world.raw(receive_bytes=4096)
        pings = frame(9, bytes(125)) * 500
        most = 0
        for _ in range(200):
            await flood.send(pings)
            (there,) = (one for one in world.websockets._connections if one is not mine(world, witness))
            most = max(most, there._transport.get_write_buffer_size())  # type: ignore[attr-defined]
        assert most < 200_000
        assert await witness.is_alive()


async def test_a_ping_is_answered_later_when_there_is_no_room(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        client = await world.raw(receive_bytes=4096)
        (there,) = world.websockets._connections
        while there._writable is None:  # type: ignore[attr-defined]
            await client.send(frame(9, b"first" * 20) * 500)
            await asyncio.sleep(0)
        await client.send(frame(9, b"last but one") + frame(9, b"last"))
        while await client.frame() != (10, b"last"):
            pass


def mine(world: Talking, client: Classic) -> Any:
    own = "{}:{}".format(*client.link.local_address[:2])
    (found,) = (one for one in world.websockets._connections if one.address == own)
    return found


async def test_the_buffer_of_a_slow_reader_is_configurable(tmp_path: Path) -> None:
    async with talking(tmp_path, websocket=Websocket(max_write_buffer_size=100_000)) as world:
        root = await world.root()
        await make_topic(cast(Any, root))
        await root.send(request(SEND, message_body(*[1_000_000] * 8)))
        assert await root.answer() == OK
        slow = await world.raw(receive_bytes=4096)
        await slow.send(frame(2, LOG_IN))
        await slow.answer()
        await slow.send(frame(2, poll(100)))
        while world.connections == 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert await root.is_alive()


async def test_websocket_connections_are_limited(tmp_path: Path) -> None:
    async with talking(tmp_path, connections=2) as world:
        first = await world.root()
        await world.root()
        with pytest.raises(websockets.InvalidStatus) as refused:
            await world.stranger()
        assert refused.value.response.status_code == 503
        await first.link.close()
        await (await world.root()).is_alive()


async def test_a_websocket_does_not_count_as_an_http_connection(tmp_path: Path) -> None:
    async with talking(tmp_path, http_limits={"connections": 2}) as world:
        for _ in range(5):
            assert await (await world.stranger()).is_alive()
        assert world.serves.connections == 0


# ------------------------------------------------------------------------------------------------- the end


async def test_a_stop_answers_requests_in_progress_and_sends_no_close_frame(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        idle, busy = await world.root(), await world.root()
        await make_topic(cast(Any, busy))
        await busy.send(PING * 100)
        assert await busy.answer() == OK
        await world.websockets.stop(5)
        assert [await busy.answer() for _ in range(99)] == [OK] * 99
        # Official clients 0.6 and 0.7 do not reconnect after one.
        assert await idle.closed() == (None, "")
        with pytest.raises(websockets.InvalidStatus) as refused:
            await world.stranger()
        assert refused.value.response.status_code == 503


async def test_a_client_that_ignores_the_end_is_aborted(tmp_path: Path, time: Seconds) -> None:
    async with talking(tmp_path) as world:
        witness = await world.root()
        stays = await world.raw()
        await stays.send(frame(1, b"text"))
        assert await stays.closed() == 1003
        await stays.send(frame(2, PING))
        assert world.connections == 2
        await time.passes(1, world.websockets, witness)
        assert world.connections == 2
        await time.passes(2, world.websockets, witness)
        while world.connections == 2:  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_an_ended_session_closes_its_connection(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        root = await world.root()
        assert (await root.ask(requests.CreateUser("alice", "alicealice", requests.UserStatus.ACTIVE, None)))[0] == 0
        alice = await world.stranger()
        assert (await alice.ask(requests.LoginUser("alice", "alicealice", "", "")))[0] == 0
        assert (await root.ask(requests.DeleteUser("alice")))[0] == 0
        assert await alice.closed() == (None, "")


# ---------------------------------------------------------------------------------------------------- random bytes


async def test_garbage_in_frames_affects_no_other_client(tmp_path: Path) -> None:
    rng = random.Random(5)
    async with talking(tmp_path) as world:
        witness = await world.root()
        for number in range(300):
            client: RawLink = await world.raw()
            octets = b"".join(
                rng.choice(
                    (
                        frame(rng.choice((0, 1, 2, 2, 2, 2, 8, 9, 10)), rng.randbytes(rng.randint(0, 200))),
                        frame(2, PING),
                        frame(2, LOG_IN),
                        rng.randbytes(rng.randint(1, 50)),
                    )
                )
                for _ in range(rng.randint(1, 12))
            )
            await client.send(octets)
            client.link.say_no_more() if number % 2 else client.link.reset()
        assert await witness.is_alive()
