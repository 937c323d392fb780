"""The binary protocols over QUIC: deadlines, the end of connections, and the size of datagrams."""

from __future__ import annotations

import asyncio
import struct
import time
from pathlib import Path
from typing import Any

import pytest
from aioquic._buffer import Buffer
from aioquic.quic.packet import QuicTransportParameters, push_quic_transport_parameters

from tests.storage.support.world import SlowDisk
from tests.transports.support.quic import Client, Closed, Reset, World, make_topic, served, until
from tests.transports.support.raw import PING, frame, message_body, poll
from whippet.transports import certificates, quic_connection, quic_engine, quic_requests
from whippet.transports.admission.stall_detector import STALLED_SECONDS
from whippet.transports.datagrams import Datagrams, PeerAddress

MIB = 1 << 20
SEND = 101


# ----------------------------------------------------------------------------------------------------------- the end


def overdue(world: World, seconds: float) -> None:
    world.listener.close_overdue(asyncio.get_running_loop().time() + seconds)


async def test_a_silent_client_is_closed_unless_it_has_logged_in(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        stranger, root = await world.stranger(), await world.root()
        overdue(world, 59.0)
        assert await stranger.is_alive()
        overdue(world, 61.0)
        await stranger.terminated
        assert await root.is_alive()


async def test_a_stalled_request_ends_its_connection(tmp_path: Path) -> None:
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
    """A clock that is ahead."""

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


async def test_a_client_that_reads_nothing_is_closed(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        root = await world.root(max_data=200_000, max_stream_data=50_000)
        await make_topic(root)
        assert (await root.ask(frame(SEND, message_body(2 * MIB))))[0] == 0
        # It does not move its windows any more.
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


async def test_a_stop_lets_requests_in_progress_finish(tmp_path: Path) -> None:
    """Requests that are executed, and those that have arrived and wait for their turn."""

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


async def test_a_stop_resets_incomplete_requests_and_those_after_them(tmp_path: Path) -> None:
    """The client knows that they were not executed, and their order is kept."""

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


async def test_a_stop_is_announced_even_when_the_kernel_has_no_room(
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


async def test_a_client_that_never_acknowledges_does_not_delay_a_stop(tmp_path: Path) -> None:
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


async def test_a_client_of_the_previous_process_is_reset_at_once(tmp_path: Path) -> None:
    """It would have waited for its idle timeout otherwise. aioquic's client does so all the same: it does not look for
    the token of a stateless reset at the end of a datagram."""

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


async def test_a_new_certificate_is_used_for_new_connections(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        before = await world.root()
        world.listener.use(certificates.self_signed())
        after = await world.root()
        assert before.quic.tls._peer_certificate != after.quic.tls._peer_certificate
        assert await before.is_alive()


# -------------------------------------------------------------------------------------------- the size of a datagram


class Narrow:
    """A client's transport on a path that drops whatever is larger."""

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
async def test_datagrams_grow_to_the_configured_size(tmp_path: Path, wanted: int) -> None:
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


async def test_a_narrower_path_is_detected(tmp_path: Path) -> None:
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


async def test_datagrams_do_not_exceed_what_the_client_accepts(tmp_path: Path) -> None:
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
