"""The classic protocol over TCP: clients that do not read, and the memory budgets."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
import struct
from pathlib import Path

import pytest

from tests.support.clocks import Seconds
from tests.transports.support.crowded import crowded, waiting
from tests.transports.support.raw import (
    LOG_IN,
    OK,
    PING,
    Raw,
    Served,
    asked,
    frame,
    make_topic,
    message_body,
    only_other,
    poll,
    served,
)
from tests.transports.wire.classic.support.plainly import parse
from whippet.app.access.permissions import GlobalPermissions, Permissions
from whippet.app.commands import requests
from whippet.app.config.formats import Address
from whippet.app.model.identity import UserStatus
from whippet.transports import connections, listening, tcp
from whippet.transports.admission.frame_intake import QUEUE_MAX
from whippet.transports.connections import SCRATCH_BYTES

MIB = 1 << 20
SEND = 101


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Seconds:
    stopped = Seconds()
    monkeypatch.setattr(tcp, "time", stopped)
    monkeypatch.setattr(connections, "time", stopped)
    return stopped


MOST = b"\xff\xff\xff\xff"


# --------------------------------------------------------------------------------------------- clients that do not read


@pytest.fixture
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operating system buffers little for a client that does not read, so that few bytes are enough for these
    tests."""
    listen = listening.listen

    async def listen_small(address: Address, setting: str, *, ipv6: bool) -> socket.socket:
        listener = await listen(address, setting, ipv6=ipv6)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        return listener

    monkeypatch.setattr(listening, "listen", listen_small)


@pytest.mark.usefixtures("small_buffers")
async def test_a_flooding_client_that_never_reads_is_not_read_from_and_then_closed(
    tmp_path: Path, time: Seconds
) -> None:
    async with served(tmp_path) as world:
        flooding, other = await world.stranger(receive_bytes=4096), await world.root()
        flood = asyncio.ensure_future(flooding.send(PING * (4 * MIB)))
        connection = only_other(world, than=other)
        while connection._writable is None:
            assert await other.is_alive()
        assert connection._transport.get_write_buffer_size() < MIB
        held = world.listener.budgets.frames.used
        for _ in range(20):
            await time.passes(2.9, world.listener, witness=other)
            assert len(connection._intake.queue) <= QUEUE_MAX
            assert world.listener.budgets.frames.used <= held + SCRATCH_BYTES
        assert world.connections == 2
        await time.passes(6, world.listener, witness=other)
        with pytest.raises(OSError, match=r"reset|Broken"):
            await flood
        assert await other.is_alive()


@pytest.mark.usefixtures("small_buffers")
@pytest.mark.parametrize("half_closed", [False, True])
async def test_the_last_responses_are_dropped_if_the_client_never_reads_them(
    tmp_path: Path, time: Seconds, half_closed: bool
) -> None:
    """Less than makes the listener stop reading, more than the operating system buffers."""

    async with served(tmp_path) as world:
        witness, client = await world.root(), await world.root(receive_bytes=4096)
        await make_topic(client)
        await client.send(frame(SEND, message_body(60_000)))
        assert await client.answer() == OK
        await client.send(poll(1))
        if half_closed:
            client.say_no_more()
        connection = only_other(world, than=witness)
        while not connection._transport.get_write_buffer_size():
            assert await witness.is_alive()
        await time.passes(1, world.listener, witness)
        await time.passes(59, world.listener, witness)
        assert world.connections == 2
        await time.passes(2, world.listener, witness)
        while world.connections == 2:  # noqa: ASYNC110
            await asyncio.sleep(0)


@pytest.mark.usefixtures("small_buffers")
async def test_a_slow_reader_of_a_large_poll_gets_all_of_it(tmp_path: Path, time: Seconds) -> None:
    async with served(tmp_path) as world:
        other, slow = await world.root(), await world.root(receive_bytes=65536)
        await make_topic(other)
        await other.send(frame(SEND, message_body(*[MIB] * 24)))
        assert await other.answer() == OK
        await slow.send(poll(100))
        status, length = struct.unpack("<II", await slow.exactly(8))
        assert status == 0
        payload = bytearray()
        while len(payload) < length:
            payload += await slow.exactly(min(2 * MIB, length - len(payload)))
            # A client that reads nothing would be closed many times over until everything is there.
            await time.passes(40, world.listener, witness=other)
        assert [len(one.payload) for one in parse(bytes(payload[16:]), 64)] == [MIB] * 24
        assert await slow.is_alive()


async def test_a_half_closed_client_still_gets_all_responses(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        root = await world.root()
        await make_topic(root)
        await root.send(frame(SEND, message_body(*[MIB] * 8)) + asked(requests.CreateStream("last")) + poll(8))
        root.say_no_more()
        assert await root.answer() == OK
        assert (await root.answer())[0] == 0
        status, payload = await root.answer()
        assert status == 0
        assert len(parse(payload[16:], 64)) == 8
        assert await root.rest() == b""
        many = await world.stranger()
        await many.send(PING * 5000)
        many.say_no_more()
        assert await many.rest() == bytes(8) * 5000
        silent = await world.stranger()
        silent.say_no_more()
        assert await silent.rest() == b""


async def test_an_incomplete_request_is_not_executed(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        root, witness = await world.root(), await world.root()
        await root.send(asked(requests.CreateStream("half"))[:-1])
        root.say_no_more()
        assert await root.rest() == b""
        assert await witness.ask(requests.GetStreams()) == OK


async def test_resets_at_any_point_affect_no_other_client(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        rng = random.Random(5)
        async with served(tmp_path, frames_bytes=8 * MIB) as world:
            root = await world.root()
            await make_topic(root)
            await root.send(frame(SEND, message_body(*[MIB] * 4)))
            assert await root.answer() == OK
            send = frame(SEND, message_body(*[300_000] * 5))
            whole = [LOG_IN, LOG_IN + send * 3, LOG_IN + poll(4) * 20, PING * 3000, LOG_IN + poll(4) + send, MOST * 9]
            for turn in range(120):
                client = await world.stranger()
                octets = rng.choice(whole)
                with contextlib.suppress(OSError):
                    async with asyncio.timeout(0.02):
                        # All of it may be more than the listener reads before it responds.
                        await client.send(octets[: rng.randrange(1, len(octets) + 1)])
                if turn % 3 == 0 and octets.startswith(LOG_IN):
                    with contextlib.suppress(EOFError, TimeoutError):
                        async with asyncio.timeout(0.01):
                            await client.exactly(rng.randrange(1, 200_000))
                client.reset()
                if turn % 10 == 0:
                    assert await root.is_alive()
            await root.send(poll(1))
            assert (await root.answer())[0] == 0
    assert not caplog.records


# ------------------------------------------------------------------------------------------------- the budget of frames


async def test_many_large_requests_wait_for_memory_and_are_all_answered(tmp_path: Path) -> None:
    limit = 16 * MIB

    async with served(tmp_path, frames_bytes=limit) as world:
        root = await world.root()
        await make_topic(root)
        body, budget = message_body(*[MIB - 100] * 4), world.listener.budgets.frames
        clients = [await world.root() for _ in range(24)]
        most = 0

        async def sending(client: Raw) -> None:
            nonlocal most
            for _ in range(2):
                await client.send(frame(SEND, body))
                most = max(most, budget.used)
                assert await client.answer() == OK

        await asyncio.gather(*(sending(client) for client in clients))
        assert len(body) < most <= limit + len(body)
        await root.send(asked(requests.GetStream(0)))
        status, payload = await root.answer()
        assert status == 0
        assert struct.unpack_from("<Q", payload, 24)[0] == 24 * 2 * 4


async def test_a_request_that_waits_for_memory_is_not_late(tmp_path: Path, time: Seconds) -> None:
    async with served(tmp_path, frames_bytes=8 * MIB) as world:
        waits, leaves, witness = [await world.root() for _ in range(3)]
        await make_topic(witness)
        with crowded(world.listener.budgets.frames):
            for number, client in enumerate((leaves, waits), 1):
                await client.send(frame(SEND, message_body(2 * MIB))[: 2 * MIB - 1000 * number])
                while waiting(world.listener.budgets.frames) < number:
                    assert await witness.is_alive()
            await time.passes(1000, world.listener, witness)
            assert world.connections == 3
            only_other(world, than=(waits, witness)).abort()
        assert await leaves.is_closed()
        await time.passes(29, world.listener, witness)
        assert world.connections == 2, "the time begins when there is room"
        await waits.send(frame(SEND, message_body(2 * MIB))[2 * MIB - 2000 :])
        assert await waits.answer() == OK


async def test_a_request_has_a_second_more_for_each_mib_of_it_that_has_come(tmp_path: Path, time: Seconds) -> None:
    """Not for what it announces."""
    async with served(tmp_path) as world:
        much, little, witness = await world.root(), await world.root(), await world.root()
        octets = frame(SEND, message_body(60 * MIB))
        await much.send(octets[: 20 * MIB])
        await little.send(octets[:18])
        while world.listener.budgets.frames.used < 20 * MIB:
            assert await witness.is_alive()
        await time.passes(31, world.listener, witness)
        assert await little.is_closed()
        assert world.connections == 2
        await time.passes(21, world.listener, witness)
        assert await much.is_closed()


# -------------------------------------------------------------------------------------------------- unread responses


async def logged_in(world: Served, name: str, *, receive_bytes: int | None = None) -> Raw:
    client = await world.stranger(receive_bytes=receive_bytes)
    status, _ = await client.ask(requests.LoginUser(name, "their password", "test", "test"))
    assert status == 0
    return client


@pytest.mark.usefixtures("small_buffers")
async def test_clients_that_do_not_read_their_polls_are_limited_and_closed(tmp_path: Path, time: Seconds) -> None:
    """Thirty of them would have 30 * 16 MiB."""
    async with served(tmp_path, responses_bytes=16 * MIB) as world:
        root, room = await world.root(), world.listener.budgets.responses
        await make_topic(root)
        everything = Permissions(GlobalPermissions(poll_messages=True))
        for name in ("hostile", "honest"):
            created = requests.CreateUser(name, "their password", UserStatus.ACTIVE, everything)
            assert (await root.ask(created))[0] == 0
        await root.send(frame(SEND, message_body(*[MIB // 4] * 64)))
        assert await root.answer() == OK
        hostile = [await logged_in(world, "hostile", receive_bytes=4096) for _ in range(30)]
        honest = await logged_in(world, "honest")
        for client in hostile:
            await client.send(poll(100))
        while not waiting(room):
            assert await honest.is_alive()
        assert room.used <= 18 * MIB
        for _ in range(3):
            await honest.send(poll(100))
            assert (await honest.answer())[0] == 0
            assert room.used <= 18 * MIB
        for _ in range(8):
            await time.passes(1, world.listener, root)
        assert world.connections < 32, "who takes nothing is not kept while others wait"


async def test_a_poll_over_tcp_returns_less_when_memory_is_scarce(tmp_path: Path) -> None:
    async with served(tmp_path, responses_bytes=8 * MIB) as world:
        root = await world.root()
        await make_topic(root)
        await root.send(frame(SEND, message_body(*[MIB // 4] * 64)))
        assert await root.answer() == OK
        await root.send(poll(100))
        _, payload = await root.answer()
        assert MIB < len(payload) <= 4 * MIB + 1000
        assert world.listener.budgets.responses.used == 0
