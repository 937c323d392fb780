"""The binary protocols over QUIC: requests and responses, their order, and the limits."""

from __future__ import annotations

import asyncio
import random
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.support.running import HANGS_S
from tests.transports.support.crowded import crowded, waiting
from tests.transports.support.modern import AS_ROOT, CLIENT, Reply, login
from tests.transports.support.modern import frame as modern_frame
from tests.transports.support.quic import Closed, Reset, make_topic, served, until
from tests.transports.support.raw import LOG_IN, PING, asked, frame, message_body, poll
from tests.transports.wire.classic.support.plainly import parse
from whippet.app.commands import requests
from whippet.app.errors import Code
from whippet.app.model.sessions import Transport
from whippet.transports import quic_requests
from whippet.transports.classic_conversation import UNAUTHENTICATED_FRAME_BYTES
from whippet.transports.quic_configuration import UNAUTHENTICATED_STREAMS
from whippet.transports.wire.modern.operations import REGISTER

MIB = 1 << 20
SEND = 101


# ---------------------------------------------------------------------------------------------- requests and responses


async def test_a_classic_client_uses_one_stream_for_each_request(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        root = await world.root()
        await make_topic(root)
        assert await root.ask(frame(SEND, message_body(100, 200))) == (0, b"")
        status, polled = await root.ask(poll(10))
        assert status == 0
        assert [len(message.payload) for message in parse(polled[16:], 64)] == [100, 200]
        (session,) = world.gateway.sessions
        assert session.transport is Transport.QUIC


async def test_a_modern_client_is_recognised_by_its_first_bytes(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client = await world.stranger()
        octets = await client.whole(modern_frame(REGISTER, login(AS_ROOT)))
        registered = Reply(octets[:256], octets[256:])
        assert not registered.refused
        session = struct.unpack_from("<Q", registered.content, 4)[0]
        pong = await client.whole(modern_frame(2, code=1, session=session, number=1, client=CLIENT))
        assert not Reply(pong[:256], pong[256:]).refused


@pytest.mark.parametrize("size", [1, 3, 4, 7, 8, 9, 1000])
async def test_a_request_may_arrive_in_any_pieces(tmp_path: Path, size: int) -> None:
    async with served(tmp_path) as world:
        client = await world.stranger()
        stream_id = client.open()
        for start in range(0, len(LOG_IN), size):
            client.say(stream_id, LOG_IN[start : start + size], fin=False)
            await asyncio.sleep(0)
        client.say(stream_id, b"")
        assert (await client.waiting[stream_id])[:4] == bytes(4)


async def test_a_request_is_answered_before_its_stream_ends(tmp_path: Path) -> None:
    """And the client is told that it need not continue."""

    async with served(tmp_path) as world:
        client = await world.stranger()
        assert await client.begin(PING, fin=False) == struct.pack("<II", 0, 0)
        await until(lambda: bool(client.stops))


async def test_bytes_after_a_request_are_ignored(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client = await world.stranger()
        assert await client.whole(PING + PING + b"more") == struct.pack("<II", 0, 0)
        assert await client.is_alive()


@pytest.mark.parametrize("octets", [b"", b"\4", PING[:7], LOG_IN[:20]])
async def test_a_stream_that_ends_before_its_request_is_reset(tmp_path: Path, octets: bytes) -> None:
    async with served(tmp_path) as world:
        client = await world.stranger()
        with pytest.raises(Reset):
            await client.whole(octets)
        assert await client.is_alive()


async def test_a_cancelled_request_leaves_nothing_behind(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        root = await world.root()
        stream_id = root.open()
        root.say(stream_id, frame(SEND, message_body(MIB))[: MIB // 2], fin=False)
        await until(lambda: world.listener.budgets.frames.used > 0)
        root.quic.reset_stream(stream_id, 7)
        root.transmit()
        await until(lambda: world.listener.budgets.frames.used == 0)
        assert await root.is_alive()


async def test_an_unwanted_response_is_not_sent(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        root = await world.root()
        await make_topic(root)
        assert (await root.ask(frame(SEND, message_body(4 * MIB))))[0] == 0
        stream_id = root.open()
        root.say(stream_id, poll(1))
        root.quic.stop_stream(stream_id, 7)
        root.transmit()
        assert await root.is_alive()
        await until(
            lambda: all(not connection.engine.unacknowledged_bytes for connection in world.listener._connections)
        )


async def test_unwanted_responses_make_room_for_others(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        root = await world.root(max_stream_data=50_000)
        await make_topic(root)
        assert (await root.ask(frame(SEND, message_body(2 * MIB))))[0] == 0
        # The client reads the beginning of each, and no more.
        root.quic._write_stream_limits = lambda **_: None  # type: ignore[method-assign]
        unwanted = [root.open() for _ in range(quic_requests.IN_PROGRESS_MAX)]
        for stream_id in unwanted:
            root.say(stream_id, poll(1))
        speaker: Any = next(iter(world.listener._connections))._protocol
        await until(lambda: len(speaker._responding) == quic_requests.IN_PROGRESS_MAX)
        waiting = root.begin(PING)
        await until(lambda: len(speaker._arriving) == 1)
        for stream_id in unwanted:
            root.quic.stop_stream(stream_id, 7)
        root.transmit()
        assert await waiting == struct.pack("<II", 0, 0)
        for stream_id in unwanted:
            with pytest.raises(Reset):
                await root.waiting[stream_id]


async def test_no_valid_request_ends_the_connection(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client = await world.stranger()
        assert await client.is_alive()
        broken = modern_frame(2, code=1, size=3)
        assert await client.ask(broken[:8] + bytes(8)) != (0, b"")
        other = await world.stranger()
        with pytest.raises(Closed):
            await other.whole(broken)


# -------------------------------------------------------------------------------------------------------- the order


async def test_many_streams_at_once_are_answered_in_order(tmp_path: Path) -> None:
    """Messages have the offsets in the order of their streams, whatever their sizes."""

    async with served(tmp_path) as world:
        root = await world.root()
        await make_topic(root)
        sizes = [random.Random(1).choice((1, 100, 5000, 60_000)) + number for number in range(60)]
        sent = [root.begin(frame(SEND, message_body(size))) for size in sizes]
        assert set(await asyncio.gather(*sent)) == {struct.pack("<II", 0, 0)}
        _, polled = await root.ask(poll(100))
        assert [len(message.payload) for message in parse(polled[16:], 64)] == sizes


async def test_requests_right_after_a_login_find_it_done(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client = await world.stranger()
        login_answer, made = client.begin(LOG_IN), client.begin(asked(requests.CreateStream("s")))
        assert (await login_answer)[:4] == bytes(4)
        assert (await made)[:4] == bytes(4)


async def test_a_stream_waits_for_earlier_streams(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client = await world.root()
        first = client.open()
        second = client.begin(PING)
        client.say(first, PING[:5], fin=False)
        await asyncio.sleep(0.05)
        assert not second.done()
        client.say(first, PING[5:])
        assert await second == await client.waiting[first]


# --------------------------------------------------------------------------------------------------------- the limits


def test_official_clients_accept_ten_million_bytes() -> None:
    assert quic_requests.RESPONSE_BYTES_MAX == 10_000_000


@pytest.fixture
def small_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """aioquic takes its time for ten million bytes."""
    monkeypatch.setattr(quic_requests, "RESPONSE_BYTES_MAX", 100_000)


@pytest.mark.usefixtures("small_answers")
async def test_a_poll_is_limited_to_what_official_clients_accept(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        root = await world.root()
        await make_topic(root)
        for _ in range(3):
            assert (await root.ask(frame(SEND, message_body(*[10_000] * 6))))[0] == 0
        answer = await root.whole(poll(18))
        assert 70_000 < len(answer) <= quic_requests.RESPONSE_BYTES_MAX
        assert len(parse(answer[24:], 64)) == 7


@pytest.mark.usefixtures("small_answers")
async def test_a_message_that_fits_no_response_is_refused(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        root = await world.root()
        await make_topic(root)
        assert (await root.ask(frame(SEND, message_body(110_000))))[0] == 0
        assert (await root.ask(poll(1)))[0] == Code.INVALID_SIZE_BYTES
        assert await root.is_alive()


async def test_an_unauthenticated_client_may_not_send_much(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client = await world.stranger()
        answer = await client.ask(frame(SEND, bytes(UNAUTHENTICATED_FRAME_BYTES)))
        assert answer == (Code.UNAUTHENTICATED, b"")
        assert world.listener.budgets.frames.used == 0


async def test_a_login_raises_the_limit_of_streams(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client = await world.stranger()
        assert client.quic._remote_max_streams_bidi == UNAUTHENTICATED_STREAMS
        await client.log_in()
        await until(lambda: client.quic._remote_max_streams_bidi >= 100)


async def test_a_client_that_exceeds_its_streams_is_closed(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client = await world.stranger()
        witness = await world.stranger()
        client.quic._remote_max_streams_bidi = 10_000
        client.quic.send_stream_data(4 * 9000, PING, True)
        client.transmit()
        assert (await client.terminated).error_code == 4
        assert await witness.is_alive()


async def test_gaps_in_a_stream_do_not_enlarge_its_window(tmp_path: Path) -> None:
    """aioquic alone would double it again and again for a few bytes, and allocate what lies between."""

    async with served(tmp_path) as world:
        client = await world.stranger()
        witness = await world.stranger()
        engine = next(iter(world.listener._connections)).engine
        stream_id = client.open()
        stream = client.quic._streams[stream_id]
        stream.max_stream_data_remote = client.quic._remote_max_data = 1 << 40
        offset = 100_000
        for _ in range(20):
            stream.sender._pending.add(offset, offset + 1)
            stream.sender._buffer_start, stream.sender._buffer = offset, bytearray(1)
            stream.sender._buffer_stop, stream.sender.buffer_is_empty = offset + 1, False
            client.transmit()
            await asyncio.sleep(0.005)
            offset = int(offset * 1.9)
        assert (await client.terminated).error_code == 3
        assert engine._local_max_data.value <= 2 * world.gateway.config.quic.receive_window
        assert await witness.is_alive()


async def test_large_requests_wait_for_memory_and_small_ones_do_not(tmp_path: Path) -> None:
    async with served(tmp_path, frames_bytes=2 * MIB) as world:
        client = await world.root()
        await make_topic(client)
        with crowded(world.listener.budgets.frames):
            large = client.begin(frame(SEND, message_body(3 * MIB // 2)))
            small = client.begin(PING)
            assert await small == struct.pack("<II", 0, 0)
            await until(lambda: waiting(world.listener.budgets.frames) == 1)
            assert not large.done()
        assert (await large)[:4] == bytes(4)


async def test_all_waiting_requests_are_answered_however_many_there_are(tmp_path: Path) -> None:
    """Each is answered at once, which makes room for the next one."""

    async with served(tmp_path, frames_bytes=MIB, frame_time=HANGS_S) as world:
        await make_topic(await world.root())
        nowhere = frame(SEND, message_body(17_000, partition_id=7))
        clients = [await world.root() for _ in range(5)]
        with crowded(world.listener.budgets.frames):
            streams = [(client, client.open()) for client in clients for _ in range(20)]
            # The rest arrives later: a complete request does not wait. This much fits the window.
            for client, stream_id in streams:
                client.say(stream_id, nowhere[:12_000], fin=False)
            await until(lambda: waiting(world.listener.budgets.frames) == len(streams))
        for client, stream_id in streams:
            client.say(stream_id, nowhere[12_000:])
        answers = [await client.waiting[stream_id] for client, stream_id in streams]
        assert {struct.unpack_from("<I", answer)[0] for answer in answers} == {Code.PARTITION_NOT_FOUND}
        assert world.listener.budgets.used == 0


async def test_connections_are_refused_above_the_limit(tmp_path: Path) -> None:
    async with served(tmp_path, connections=2) as world:
        first, second = await world.stranger(), await world.stranger()
        third = await world.beginning()
        await asyncio.sleep(0.05)
        assert world.connections == 2
        first.close()
        await until(lambda: world.connections == 1)
        await third.wait_connected()
        assert await third.is_alive() and await second.is_alive()
