"""The QUIC listener against aioquic's own client: streams and their ends, both protocols, order, bounds, restarts.

The listener runs in the test's process. After every test nobody is connected, nothing is taken from the budget of
frames, and no session is left.
"""

from __future__ import annotations

import asyncio
import random
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aioquic._buffer import Buffer
from aioquic.quic.packet import QuicTransportParameters, push_quic_transport_parameters

from tests.storage.support.world import SlowDisk
from tests.support.running import HANGS_S
from tests.transports.support.crowded import crowded, waiting
from tests.transports.support.modern import AS_ROOT, CLIENT, Reply, login
from tests.transports.support.modern import frame as modern_frame
from tests.transports.support.quic import Client, Closed, Reset, World, served
from tests.transports.support.raw import LOG_IN, PING, asked, frame, message_body, poll
from tests.transports.wire.classic.support.plainly import parse
from whippet.app.commands import requests
from whippet.app.errors import Code
from whippet.app.model.sessions import Transport
from whippet.transports import certificates, quic_connection, quic_engine, quic_requests
from whippet.transports.admission.stall_detector import STALLED_SECONDS
from whippet.transports.classic_conversation import UNAUTHENTICATED_FRAME_BYTES
from whippet.transports.datagrams import Datagrams, PeerAddress
from whippet.transports.quic_configuration import UNAUTHENTICATED_STREAMS
from whippet.transports.wire.modern.operations import REGISTER

MIB = 1 << 20
SEND = 101


async def make_topic(root: Client, partitions: int = 1) -> None:
    assert (await root.ask(requests.CreateStream("s")))[0] == 0
    assert (await root.ask(requests.CreateTopic("s", "t", partitions)))[0] == 0


async def until(reached: Callable[[], bool]) -> None:
    while not reached():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


# ------------------------------------------------------------------------------------------------ requests and answers


async def test_a_classic_client_does_everything_on_a_stream_each(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        root = await world.root()
        await make_topic(root)
        assert await root.ask(frame(SEND, message_body(100, 200))) == (0, b"")
        status, polled = await root.ask(poll(10))
        assert status == 0
        assert [len(message.payload) for message in parse(polled[16:], 64)] == [100, 200]
        (session,) = world.gateway.sessions
        assert session.transport is Transport.QUIC


async def test_a_modern_client_is_told_apart_by_its_first_bytes(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client = await world.stranger()
        octets = await client.whole(modern_frame(REGISTER, login(AS_ROOT)))
        registered = Reply(octets[:256], octets[256:])
        assert not registered.refused
        session = struct.unpack_from("<Q", registered.content, 4)[0]
        pong = await client.whole(modern_frame(2, code=1, session=session, number=1, client=CLIENT))
        assert not Reply(pong[:256], pong[256:]).refused


@pytest.mark.parametrize("size", [1, 3, 4, 7, 8, 9, 1000])
async def test_a_request_may_come_in_any_pieces(tmp_path: Path, size: int) -> None:
    async with served(tmp_path) as world:
        client = await world.stranger()
        stream_id = client.open()
        for start in range(0, len(LOG_IN), size):
            client.say(stream_id, LOG_IN[start : start + size], fin=False)
            await asyncio.sleep(0)
        client.say(stream_id, b"")
        assert (await client.waiting[stream_id])[:4] == bytes(4)


async def test_a_request_is_answered_before_its_stream_ends(tmp_path: Path) -> None:
    """And the client is told that it need not go on."""

    async with served(tmp_path) as world:
        client = await world.stranger()
        assert await client.begin(PING, fin=False) == struct.pack("<II", 0, 0)
        await until(lambda: bool(client.stops))


async def test_what_comes_after_a_request_means_nothing(tmp_path: Path) -> None:
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


async def test_a_request_that_is_taken_back_leaves_nothing(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        root = await world.root()
        stream_id = root.open()
        root.say(stream_id, frame(SEND, message_body(MIB))[: MIB // 2], fin=False)
        await until(lambda: world.listener.budgets.frames.used > 0)
        root.quic.reset_stream(stream_id, 7)
        root.transmit()
        await until(lambda: world.listener.budgets.frames.used == 0)
        assert await root.is_alive()


async def test_an_answer_that_nobody_wants_is_not_sent(tmp_path: Path) -> None:
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


async def test_answers_that_nobody_wants_make_room_for_others(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        root = await world.root(max_stream_data=50_000)
        await make_topic(root)
        assert (await root.ask(frame(SEND, message_body(2 * MIB))))[0] == 0
        # It takes the beginning of each, and no more.
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


async def test_nothing_that_is_a_request_ends_the_connection(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client = await world.stranger()
        assert await client.is_alive()
        broken = modern_frame(2, code=1, size=3)
        assert await client.ask(broken[:8] + bytes(8)) != (0, b"")
        other = await world.stranger()
        with pytest.raises(Closed):
            await other.whole(broken)


# -------------------------------------------------------------------------------------------------------- the order


async def test_many_streams_at_once_are_answered_in_their_order(tmp_path: Path) -> None:
    """Messages have the offsets of their streams' order, whatever their sizes."""

    async with served(tmp_path) as world:
        root = await world.root()
        await make_topic(root)
        sizes = [random.Random(1).choice((1, 100, 5000, 60_000)) + number for number in range(60)]
        sent = [root.begin(frame(SEND, message_body(size))) for size in sizes]
        assert set(await asyncio.gather(*sent)) == {struct.pack("<II", 0, 0)}
        _, polled = await root.ask(poll(100))
        assert [len(message.payload) for message in parse(polled[16:], 64)] == sizes


async def test_what_follows_a_login_on_its_heels_finds_it_done(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client = await world.stranger()
        login_answer, made = client.begin(LOG_IN), client.begin(asked(requests.CreateStream("s")))
        assert (await login_answer)[:4] == bytes(4)
        assert (await made)[:4] == bytes(4)


async def test_a_stream_waits_for_those_before_it(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client = await world.root()
        first = client.open()
        second = client.begin(PING)
        client.say(first, PING[:5], fin=False)
        await asyncio.sleep(0.05)
        assert not second.done()
        client.say(first, PING[5:])
        assert await second == await client.waiting[first]


# --------------------------------------------------------------------------------------------------------- the bounds


def test_official_clients_take_ten_million_bytes() -> None:
    assert quic_requests.RESPONSE_BYTES_MAX == 10_000_000


@pytest.fixture
def small_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """aioquic takes its time for ten million bytes."""
    monkeypatch.setattr(quic_requests, "RESPONSE_BYTES_MAX", 100_000)


@pytest.mark.usefixtures("small_answers")
async def test_a_poll_is_cut_to_what_official_clients_take(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        root = await world.root()
        await make_topic(root)
        for _ in range(3):
            assert (await root.ask(frame(SEND, message_body(*[10_000] * 6))))[0] == 0
        answer = await root.whole(poll(18))
        assert 70_000 < len(answer) <= quic_requests.RESPONSE_BYTES_MAX
        assert len(parse(answer[24:], 64)) == 7


@pytest.mark.usefixtures("small_answers")
async def test_a_message_that_fits_no_answer_is_refused_instead_of_sent(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        root = await world.root()
        await make_topic(root)
        assert (await root.ask(frame(SEND, message_body(110_000))))[0] == 0
        assert (await root.ask(poll(1)))[0] == Code.INVALID_SIZE_BYTES
        assert await root.is_alive()


async def test_a_stranger_may_not_send_much(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client = await world.stranger()
        answer = await client.ask(frame(SEND, bytes(UNAUTHENTICATED_FRAME_BYTES)))
        assert answer == (Code.UNAUTHENTICATED, b"")
        assert world.listener.budgets.frames.used == 0


async def test_a_login_gives_more_streams(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client = await world.stranger()
        assert client.quic._remote_max_streams_bidi == UNAUTHENTICATED_STREAMS
        await client.log_in()
        await until(lambda: client.quic._remote_max_streams_bidi >= 100)


async def test_a_client_that_opens_more_streams_than_it_may_is_closed(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client = await world.stranger()
        witness = await world.stranger()
        client.quic._remote_max_streams_bidi = 10_000
        client.quic.send_stream_data(4 * 9000, PING, True)
        client.transmit()
        assert (await client.terminated).error_code == 4
        assert await witness.is_alive()


async def test_a_window_is_no_larger_than_it_says_however_much_is_left_out(tmp_path: Path) -> None:
    """aioquic alone would double it again and again for a byte here and there, and set aside what lies between."""

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


async def test_large_requests_wait_for_room_and_small_ones_do_not(tmp_path: Path) -> None:
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


async def test_all_who_wait_for_room_are_answered_however_many_they_are(tmp_path: Path) -> None:
    """Each is answered at once, which makes room for the next one."""

    async with served(tmp_path, frames_bytes=MIB, frame_time=HANGS_S) as world:
        await make_topic(await world.root())
        nowhere = frame(SEND, message_body(17_000, partition_id=7))
        clients = [await world.root() for _ in range(5)]
        with crowded(world.listener.budgets.frames):
            streams = [(client, client.open()) for client in clients for _ in range(20)]
            # The rest comes later: a request that is there as a whole does not wait. So much fits into the window.
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


# ----------------------------------------------------------------------------------------------------------- the end


def overdue(world: World, seconds: float) -> None:
    world.listener.close_overdue(asyncio.get_running_loop().time() + seconds)


async def test_a_silent_stranger_is_closed_and_a_silent_user_is_not(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        stranger, root = await world.stranger(), await world.root()
        overdue(world, 59.0)
        assert await stranger.is_alive()
        overdue(world, 61.0)
        await stranger.terminated
        assert await root.is_alive()


async def test_a_request_that_does_not_go_on_ends_its_connection(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        root = await world.root()
        root.begin(PING[:6], fin=False)
        arriving = speaker_of(root, world)._arriving
        await until(lambda: bool(arriving))
        overdue(world, 29.0)
        overdue(world, 31.0)
        assert (await root.terminated).error_code == quic_requests.OVERDUE
        with pytest.raises(Closed):
            await asyncio.gather(*root.waiting.values())


class LaterTime:
    """What the time will be."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def monotonic(self) -> float:
        return time.monotonic() + self._seconds


async def test_a_client_that_vanishes_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(tmp_path, quic={"max_idle_timeout": 600.0}) as world:
        root = await world.root()
        await make_topic(root)
        root.say(root.open(), frame(SEND, message_body(MIB))[: MIB // 2], fin=False)
        await until(lambda: world.listener.budgets.frames.used > 0)
        root.vanish()
        (connection,) = world.listener._connections
        assert connection._timer is not None
        monkeypatch.setattr(quic_connection, "time", LaterTime(700))
        connection._on_time()
        assert world.connections == 0
        assert world.listener.budgets.frames.used == 0
        assert len(world.gateway.sessions) == 0


async def test_a_client_that_takes_nothing_is_not_kept(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        root = await world.root(max_data=200_000, max_stream_data=50_000)
        await make_topic(root)
        assert (await root.ask(frame(SEND, message_body(2 * MIB))))[0] == 0
        # It raises no window any more.
        root.quic._write_stream_limits = lambda **_: None  # type: ignore[method-assign]
        root.quic._write_connection_limits = lambda **_: None  # type: ignore[method-assign]
        root.begin(poll(1))
        speaker = speaker_of(root, world)
        await until(lambda: bool(speaker._responding))
        overdue(world, 1)
        assert world.connections == 1
        overdue(world, 1 + STALLED_SECONDS + 1)
        await root.terminated
        with pytest.raises(Closed):
            await asyncio.gather(*root.waiting.values())


async def test_a_stop_lets_requests_in_hand_finish(tmp_path: Path) -> None:
    """Those that are being carried out, and those that have arrived and wait for their turn."""

    disk = SlowDisk()
    async with served(tmp_path, store={"files": disk, "messages_required_to_save": 1}) as world:
        root, idle = await world.root(), await world.stranger()
        await make_topic(root)
        disk.stop()
        answers = [root.begin(frame(SEND, message_body(10))) for _ in range(3 * quic_requests.IN_PROGRESS_MAX)]
        speaker = speaker_of(root, world)
        arriving = speaker._arriving
        await until(lambda: len(speaker._in_progress) + len(arriving) == len(answers))
        await until(lambda: all(request.is_whole for request in arriving.values()))
        stopping = asyncio.create_task(world.listener.stop(20))
        assert (await idle.terminated).error_code == 0
        assert not stopping.done()
        disk.go()
        assert set(await asyncio.gather(*answers)) == {struct.pack("<II", 0, 0)}
        assert (await root.terminated).error_code == 0
        await stopping


async def test_a_stop_resets_requests_that_have_not_arrived_and_those_behind_them(tmp_path: Path) -> None:
    """The client knows then that they were not carried out, and their order is kept."""

    disk = SlowDisk()
    async with served(tmp_path, store={"files": disk, "messages_required_to_save": 1}) as world:
        root = await world.root()
        await make_topic(root)
        disk.stop()
        sent = root.begin(frame(SEND, message_body(10)))
        partial = root.open()
        root.say(partial, PING[:5], fin=False)
        behind = root.begin(PING)
        speaker = speaker_of(root, world)
        await until(lambda: len(speaker._arriving) == 2)
        stopping = asyncio.create_task(world.listener.stop(20))
        for waiting in (root.waiting[partial], behind):
            with pytest.raises(Reset):
                await waiting
        disk.go()
        assert await sent == struct.pack("<II", 0, 0)
        await stopping


async def test_a_stop_is_told_also_when_the_kernel_has_no_room_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(tmp_path) as world:
        idle = await world.stranger()
        give = Datagrams._send_run
        refused: list[bytes] = []

        def give_later(self: Datagrams, run: list[bytes], peer: PeerAddress) -> bool:
            if len(refused) < 20:
                refused.extend(run)
                return False
            return give(self, run, peer)

        monkeypatch.setattr(Datagrams, "_send_run", give_later)
        await world.listener.stop(20)
        assert refused
        assert (await idle.terminated).error_code == 0


def speaker_of(client: Client, world: World) -> Any:
    port = port_of(client)
    return next(each._protocol for each in world.listener._connections if each.session.address.endswith(":" + port))


async def test_a_client_that_does_not_hear_its_last_answer_does_not_hold_up_a_stop(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        root, other = await world.root(), await world.root()
        deaf = next(each for each in world.listener._connections if each.session.address.endswith(port_of(root)))
        root.datagram_received = lambda data, addr: None  # type: ignore[method-assign]
        root.begin(PING).add_done_callback(lambda done: done.cancelled() or done.exception())
        await until(lambda: bool(deaf.engine.unacknowledged_bytes))
        stopping = asyncio.create_task(world.listener.stop(20))
        await other.terminated
        now = asyncio.get_running_loop().time()
        overdue(world, 1)
        assert not stopping.done()
        world.listener.close_overdue(now + 2 + quic_connection.LINGER_SECONDS)
        await stopping


def port_of(client: Client) -> str:
    return str(client._transport.get_extra_info("sockname")[1])  # type: ignore[union-attr]


async def test_a_client_of_the_process_before_is_reset_at_once(tmp_path: Path) -> None:
    """It would have waited for its idle time-out otherwise. aioquic's client does so all the same: it does not look for
    the token that it was given for this, at the end of a datagram."""

    async with served(tmp_path) as world:
        client = await world.root()
        given = client.quic._peer_cid.stateless_reset_token
        connection = next(iter(world.listener._connections))
        connection.discard()
        heard: list[bytes] = []
        client.datagram_received = lambda data, addr: heard.append(bytes(data))  # type: ignore[method-assign, arg-type]
        client.begin(PING)
        await until(lambda: bool(heard))
        assert heard[0].endswith(given)
        client.vanish()


async def test_a_new_certificate_is_for_those_who_come_later(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        before = await world.root()
        world.listener.use(certificates.self_signed())
        after = await world.root()
        assert before.quic.tls._peer_certificate != after.quic.tls._peer_certificate
        assert await before.is_alive()


# -------------------------------------------------------------------------------------------- the size of a datagram


class Narrow:
    """A client's transport on a path that loses whatever is larger."""

    def __init__(self, client: Client, carries: int) -> None:
        self.carries = carries
        self._client = client
        self._hear = client.datagram_received
        client.datagram_received = self._narrowed  # type: ignore[method-assign]

    def _narrowed(self, data: bytes | str, addr: object) -> None:
        if len(data) <= self.carries:
            self._hear(data, addr)


async def carried(world: World) -> quic_engine.Engine:
    (connection,) = world.listener._connections
    await world.until(lambda: connection.engine.is_established and connection.engine.probe.is_over)
    return connection.engine


@pytest.mark.parametrize("wanted", [1_200, 1_452, 8_952, 16_384])
async def test_datagrams_grow_to_what_was_configured(tmp_path: Path, wanted: int) -> None:
    async with served(tmp_path, quic={"max_datagram_size": wanted}) as world:
        root = await world.root()
        assert (await carried(world))._max_datagram_size == wanted
        await make_topic(root)
        assert (await root.ask(frame(SEND, message_body(MIB))))[0] == 0
        assert len((await root.ask(poll(1)))[1]) > MIB


async def test_datagrams_are_no_larger_than_the_path_carries(tmp_path: Path) -> None:
    async with served(tmp_path, quic={"max_datagram_size": 16_384}) as world:
        root = await world.beginning()
        Narrow(root, 1_420)
        await root.wait_connected()
        await root.log_in()
        await make_topic(root)
        engine = next(iter(world.listener._connections)).engine
        while not engine.probe.is_over:
            assert await root.is_alive()
            await asyncio.sleep(0.01)
        assert engine._max_datagram_size == 1_400
        assert (await root.ask(frame(SEND, message_body(MIB))))[0] == 0
        assert len((await root.ask(poll(1)))[1]) > MIB


async def test_a_path_that_becomes_narrower_is_noticed(tmp_path: Path) -> None:
    async with served(tmp_path, quic={"max_datagram_size": 8_952}) as world:
        root = await world.beginning()
        path = Narrow(root, 10_000)
        await root.wait_connected()
        await root.log_in()
        await make_topic(root)
        assert (await carried(world))._max_datagram_size == 8_952
        assert (await root.ask(frame(SEND, message_body(50_000))))[0] == 0
        path.carries = 1_300
        assert len((await root.ask(poll(1)))[1]) > 50_000
        (connection,) = world.listener._connections
        assert connection.engine._max_datagram_size <= 1_280


async def test_datagrams_are_no_larger_than_the_client_takes(tmp_path: Path) -> None:
    async with served(tmp_path, quic={"max_datagram_size": 16_384}) as world:
        client = await world.beginning()
        await client.wait_connected()
        engine = await carried(world)
        assert engine._max_datagram_size == 16_384
        other = quic_engine.Engine(world.listener._rules, bytes(8), None)  # type: ignore[arg-type]
        said = Buffer(capacity=64)
        push_quic_transport_parameters(said, QuicTransportParameters(max_udp_payload_size=1472))
        other._remote_initial_source_connection_id = None
        other._parse_transport_parameters(said.data, from_session_ticket=True)
        assert other.probe.largest == 1472
