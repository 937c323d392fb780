"""The classic protocol over TCP: frames in any pieces, refused requests, deadlines, addresses, and the stop."""

from __future__ import annotations

import asyncio
import logging
import random
import struct
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from tests.app.access.support.world import ROOT
from tests.storage.support.world import SlowDisk, reached
from tests.support.clocks import Seconds
from tests.transports.support.raw import (
    LOG_IN,
    OK,
    PING,
    asked,
    frame,
    make_topic,
    message_body,
    only_other,
    poll,
    served,
)
from tests.transports.wire.classic.support.plainly import parse
from whippet.app.access.throttle import Throttle
from whippet.app.commands import requests
from whippet.app.config.formats import Address
from whippet.app.errors import Code
from whippet.app.model.identity import UserStatus
from whippet.transports import connections, lingering_close, tcp
from whippet.transports.admission.frame_intake import QUEUE_MAX
from whippet.transports.classic_conversation import UNAUTHENTICATED_FRAME_BYTES
from whippet.transports.connections import SCRATCH_BYTES

MIB = 1 << 20
SEND = 101


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Seconds:
    stopped = Seconds()
    monkeypatch.setattr(tcp, "time", stopped)
    monkeypatch.setattr(connections, "time", stopped)
    return stopped


def refusal(code: Code) -> tuple[int, bytes]:
    return int(code), b""


# ------------------------------------------------------------------------------------------------- frames in any pieces


async def test_pipelined_requests_are_answered_in_order(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        root = await world.root()
        await root.is_answered_in_order(50)


async def test_a_request_may_be_split_at_every_byte(tmp_path: Path) -> None:
    conversation = LOG_IN + asked(requests.CreateStream("one")) + frame(2) + PING + struct.pack("<I", 3) + PING

    async with served(tmp_path) as world:
        whole = await world.stranger()
        await whole.send(conversation)
        expected = [await whole.answer() for _ in range(6)]
        assert [status for status, _ in expected] == [0, 0, 3, 0, 3, 0]
        expected[1] = refusal(Code.STREAM_NAME_ALREADY_EXISTS)
        for cut in range(1, len(conversation)):
            client = await world.stranger()
            await client.send(conversation[:cut])
            # A response to another client: everything sent before has been read.
            assert await whole.is_alive()
            await client.send(conversation[cut:])
            assert [await client.answer() for _ in range(6)] == expected, cut
        drop = await world.stranger()
        for at in range(len(conversation)):
            await drop.send(conversation[at : at + 1])
            await whole.is_alive()
        assert [await drop.answer() for _ in range(6)] == expected


async def test_a_send_may_be_split_anywhere_and_arrives_unchanged(tmp_path: Path) -> None:
    sizes = [1, 70, 300, SCRATCH_BYTES + 10, 5]
    body = message_body(*sizes)

    rng = random.Random(7)
    async with served(tmp_path) as world:
        root = await world.root()
        await make_topic(root)
        octets = (frame(SEND, body) + PING) * 8
        while octets:
            size = rng.choice((1, 3, 7, 100, 5_000, 100_000, 300_000))
            await root.send(octets[:size])
            octets = octets[size:]
        assert [await root.answer() for _ in range(16)] == [OK] * 16
        await root.send(poll(1000))
        status, payload = await root.answer()
        assert status == 0
        assert [len(one.payload) for one in parse(payload[16:], 64)] == sizes * 8


async def test_many_requests_in_one_segment_are_answered_in_portions(
    tmp_path: Path,
) -> None:
    count = 2 * SCRATCH_BYTES // len(PING)
    ahead: list[int] = []

    class Noted(deque[Any]):
        def append(self, item: Any) -> None:
            super().append(item)
            ahead.append(len(self))

    async with served(tmp_path) as world:
        other, client = await world.stranger(), await world.stranger()
        assert await other.is_alive()
        assert await client.is_alive()
        only_other(world, than=other)._intake.queue = Noted()
        sending = asyncio.ensure_future(client.send(PING * count))
        answers = asyncio.ensure_future(client.exactly(8 * count))
        while len(ahead) < count // 2:
            before = len(ahead)
            assert await other.is_alive()
            # Requests that were read with one read of the listener, and more, but never all.
            assert len(ahead) - before < count // 4
        await sending
        assert await answers == bytes(8) * count
        assert max(ahead) == QUEUE_MAX


# ----------------------------------------------------------------------------------------------------- refused requests


async def test_requests_that_are_too_long_are_skipped_and_refused(tmp_path: Path) -> None:
    async with served(tmp_path, frame_bytes=12 * MIB) as world:
        stranger = await world.stranger()
        for code in (38, 1, SEND, 999_999):
            await stranger.send(frame(code, bytes(UNAUTHENTICATED_FRAME_BYTES)) + PING)
            assert await stranger.answer() == refusal(Code.UNAUTHENTICATED)
            assert await stranger.answer() == OK
        await stranger.log_in()
        await make_topic(stranger)
        for code, size in ((SEND, 12 * MIB), (SEND, 40 * MIB), (202, 10 * MIB + 1), (1, 11 * MIB), (7, 11 * MIB)):
            assert world.listener.budgets.frames.used == 0
            await stranger.send(frame(code, bytes(size)) + PING)
            assert await stranger.answer() == refusal(Code.INVALID_COMMAND), (code, size)
            assert await stranger.answer() == OK
        name = asked(requests.CreateStream("a name and what follows it"))[8:]
        await stranger.send(frame(202, name + bytes(10 * MIB - len(name))))
        assert (await stranger.answer())[0] == 0
        await stranger.send(frame(SEND, message_body(11 * MIB)))
        assert await stranger.answer() == OK


async def test_a_limit_applies_wherever_the_header_is_split(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        root, other = await world.root(), await world.stranger()
        name = asked(requests.CreateStream("s"))[8:]
        for cut in range(1, 9):
            octets = frame(202, name + bytes(10 * MIB))
            await root.send(octets[:cut])
            await other.is_alive()
            await root.send(octets[cut:])
            assert await root.answer() == refusal(Code.INVALID_COMMAND), cut


async def test_a_length_too_small_for_a_code_is_refused_and_the_connection_continues(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client = await world.stranger()
        assert await client.is_alive()
        for length in (0, 1, 2, 3):
            await client.send(struct.pack("<I", length))
            assert await client.answer() == refusal(Code.INVALID_COMMAND)
            assert await client.is_alive()
        first = await world.stranger()
        await first.send(struct.pack("<I", 3) + PING)
        assert [await first.answer(), await first.answer()] == [refusal(Code.INVALID_COMMAND), OK]


async def test_unknown_codes_are_refused_and_the_connection_continues(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        for client in (await world.stranger(), await world.root()):
            for code in (0, 2, 40, 45, 500, 0x7FFFFFFF, 0xFFFFFFFF):
                for payload in (b"", b"x", bytes(1000)):
                    await client.send(frame(code, payload))
                    assert await client.answer() == refusal(Code.INVALID_COMMAND)
            assert await client.is_alive()


async def test_before_a_login_everything_but_a_ping_and_the_logins_is_unauthenticated(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        root, stranger = await world.root(), await world.stranger()
        await make_topic(root)
        for request in (
            requests.GetStats(),
            requests.GetMe(),
            requests.GetUsers(),
            requests.GetStream("s"),
            requests.GetStream("nothing"),
            requests.GetSnapshot(1, (4,)),
            requests.LogoutUser(),
            requests.CreatePersonalAccessToken("token", 0),
            requests.ChangePassword("root", ROOT["IGGY_ROOT_PASSWORD"], "another"),
        ):
            assert await stranger.ask(request) == refusal(Code.UNAUTHENTICATED), request
        await stranger.send(frame(SEND, message_body(10)) + poll(1) + PING)
        answers = [await stranger.answer() for _ in range(3)]
        assert answers == [refusal(Code.UNAUTHENTICATED), refusal(Code.UNAUTHENTICATED), OK]
        await root.ask(requests.LogoutUser())
        assert await root.ask(requests.GetMe()) == refusal(Code.UNAUTHENTICATED)


async def test_guessing_passwords_over_many_connections_costs_little_and_delays_nobody(tmp_path: Path) -> None:
    """Existing and unknown names, as fast as they can be sent, from one address."""

    seconds = Seconds()
    async with served(tmp_path, throttle=Throttle(clock=seconds, sleep=seconds.sleep)) as world:
        witness = await world.root()
        created = await witness.ask(requests.CreateUser("alice", "alicealice", requests.UserStatus.ACTIVE, None))
        assert created[0] == 0
        before, started = world.passwords.computed, seconds.now
        guesses = b"".join(
            asked(requests.LoginUser(name, f"guess {number}")) for number in range(25) for name in ("alice", "nobody")
        )
        clients = [await world.stranger() for _ in range(20)]
        for client in clients:
            await client.send(guesses)
        for client in clients:
            for _ in range(50):
                assert await client.answer() == refusal(Code.INVALID_CREDENTIALS)
            assert await witness.is_alive()
        # A thousand guesses: the free ones, and one for each wait that is shorter than a client's patience.
        assert world.passwords.computed - before < 30 + (seconds.now - started) / 0.25
        assert world.passwords.computed - before < 100
        # A user who has logged in from here before is not delayed by the guesses of others.
        assert await (await world.root()).is_alive()


MOST = b"\xff\xff\xff\xff"
BROKEN = {
    "a name that is not UTF-8": (202, b"\2\xff\xfe", Code.INVALID_FORMAT),
    "a name of half a surrogate pair": (202, b"\3\xed\xa0\x80", Code.INVALID_FORMAT),
    "a name that is cut off": (202, b"\xff" + b"a" * 10, Code.INVALID_COMMAND),
    "an empty name": (202, b"\0", Code.INVALID_FORMAT),
    "no payload": (202, b"", Code.INVALID_COMMAND),
    "a numeric identifier of three bytes": (200, b"\1\3abc", Code.INVALID_FORMAT),
    "an identifier of no kind": (200, b"\7\4abcd", Code.INVALID_COMMAND),
    "an identifier that is cut off": (200, b"\2\xffabc", Code.INVALID_COMMAND),
    "parts of a snapshot that are not there": (11, b"\1\xff\1", Code.INVALID_COMMAND),
    "a version longer than everything": (38, b"\4root\4pass" + MOST, Code.INVALID_SIZE_BYTES),
    "permissions longer than everything": (33, b"\4bobb\4pass\1\1" + MOST, Code.INVALID_SIZE_BYTES),
    "a destination longer than everything": (SEND, MOST + bytes(60), Code.INVALID_COMMAND),
    "more messages than bytes": (SEND, message_body(5).replace(b"\1\0\0\0\0\0\0\0", MOST + bytes(4), 1), None),
    "no message": (SEND, message_body(), Code.INVALID_MESSAGES_COUNT),
}


async def test_invalid_payloads_are_refused_and_the_connection_continues(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        root = await world.root()
        await make_topic(root)
        for what, (code, payload, expected) in BROKEN.items():
            await root.send(frame(code, payload) + PING)
            status, rest = await root.answer()
            assert rest == b""
            assert status == expected if expected is not None else status != 0, what
            assert status != Code.ERROR, what
            assert await root.answer() == OK
        assert world.listener.budgets.frames.used == 0


# ----------------------------------------------------------------------------------------------------------------- time


async def test_a_request_that_arrives_byte_by_byte_is_given_up(tmp_path: Path, time: Seconds) -> None:
    """It sends a byte a second, whatever the first ones announce, before and after a login."""

    beginnings = [b"\x05", struct.pack("<I", 100), frame(SEND, bytes(100_000))[:8], MOST, MOST + bytes(4)]
    async with served(tmp_path) as world:
        witness = await world.root()
        for opened in (world.stranger, world.root):
            for beginning in beginnings:
                client, started = await opened(), time.now
                await client.send(beginning)
                while world.connections == 2:
                    await client.send(b"x")
                    await time.passes(1, world.listener, witness)
                    await asyncio.sleep(0)
                    assert time.now - started < 65
                assert await client.is_closed()


async def test_a_large_request_that_is_skipped_has_the_time_that_its_bytes_take(tmp_path: Path, time: Seconds) -> None:
    async with served(tmp_path, frame_bytes=MIB) as world:
        root, witness = await world.root(), await world.root()
        octets = frame(SEND, bytes(128 * MIB))
        for at in range(0, len(octets), MIB):
            await root.send(octets[at : at + MIB])
            await time.passes(0.9, world.listener, witness)
        assert await root.answer() == refusal(Code.INVALID_COMMAND)
        await root.send(octets[: 2 * MIB])
        await time.passes(33, world.listener, witness)
        assert await root.is_closed()


async def test_a_large_request_has_a_second_for_each_mebibyte_and_then_no_more(tmp_path: Path, time: Seconds) -> None:
    async with served(tmp_path) as world:
        root, late, witness = await world.root(), await world.root(), await world.root()
        await make_topic(root)
        octets = frame(SEND, message_body(20 * MIB))
        for client in (root, late):
            await client.send(octets[:-1])
        await time.passes(49, world.listener, witness)
        await root.send(octets[-1:])
        assert await root.answer() == OK
        await time.passes(2, world.listener, witness)
        assert await late.is_closed()
        assert await root.is_alive()


async def test_thousands_of_silent_clients_are_closed_and_active_ones_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, time: Seconds
) -> None:
    with caplog.at_level(logging.WARNING):
        async with served(tmp_path) as world:
            root, speaking = await world.root(), await world.stranger()
            silent = [await world.stranger() for _ in range(2000)]
            for seconds in (20, 20, 19):
                await time.passes(seconds, world.listener, witness=speaking)
            assert world.connections == 2002
            await time.passes(2, world.listener, witness=speaking)
            await asyncio.gather(*(client.is_closed() for client in silent))
            assert world.connections == 2
            assert await root.is_alive()
    assert not caplog.records


async def test_a_client_may_be_silent_after_its_login(tmp_path: Path, time: Seconds) -> None:
    async with served(tmp_path) as world:
        root, other, stranger, witness = (
            await world.root(),
            await world.root(),
            await world.stranger(),
            await world.root(),
        )
        await time.passes(61, world.listener, witness)
        assert await stranger.is_closed()
        await time.passes(100_000, world.listener, witness)
        assert await other.ask(requests.LogoutUser()) == OK
        await time.passes(59, world.listener, witness)
        assert await other.is_alive()
        await time.passes(61, world.listener, witness)
        assert await other.is_closed()
        assert await root.is_alive()


async def test_connections_above_the_limit_are_closed_at_once_and_the_others_continue(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        async with served(tmp_path, connections=3) as world:
            inside = [await world.root() for _ in range(3)]
            for _ in range(50):
                assert await (await world.stranger()).is_closed()
            assert [await client.is_alive() for client in inside] == [True] * 3
            inside[0].reset()
            while world.connections == 3:  # noqa: ASYNC110
                await asyncio.sleep(0)
            assert await (await world.root()).is_alive()
    assert [record.message for record in caplog.records] == [
        "refusing new connections: system.limits.connections = 3 is reached",
    ]


# ----------------------------------------------------------------------------------------------------- other protocols


@pytest.mark.parametrize("request_line", [b"GET / HTTP/1.1\r\n", b"POST /streams HTTP/1.1\r\n", b"PRI * HTTP/2.0\r\n"])
async def test_an_http_client_on_this_port_learns_the_http_port(tmp_path: Path, request_line: bytes) -> None:
    async with served(tmp_path) as world:
        world.listener.gateway.addresses.http = 4711
        client = await world.stranger()
        await client.send(request_line + b"Host: whippet\r\n\r\n")
        answer = await client.rest()
        assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        head, body = answer.split(b"\r\n\r\n")
        assert b"Connection: close" in head
        assert f"Content-Length: {len(body)}".encode() in head
        assert body == b"This port speaks the binary protocol; HTTP is on port 4711.\n"
        world.listener.gateway.addresses.http = 0
        client = await world.stranger()
        for piece in (request_line[:3], request_line[3:] + b"\r\n"):
            await client.send(piece)
            await asyncio.sleep(0)
        assert b"HTTP is turned off" in await client.rest()


async def test_a_later_frame_that_looks_like_http_is_a_frame(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client = await world.stranger()
        assert await client.is_alive()
        await client.send(b"GET " + bytes(16))
        assert await (await world.stranger()).is_alive()
        assert world.connections == 2


# ------------------------------------------------------------------------------------------------------------ addresses


async def test_ipv6(tmp_path: Path) -> None:
    async with served(tmp_path, address=Address("::1", 0)) as world:
        root = await world.root()
        status, payload = await root.ask(requests.GetMe())
        assert status == 0
        host, port = root.link.getsockname()[:2]
        assert f"[{host}]:{port}".encode() in payload


# ------------------------------------------------------------------------------------------------------------- the stop


async def test_a_stop_finishes_requests_in_progress_and_closes_all_connections(tmp_path: Path) -> None:
    disk = SlowDisk()
    async with served(tmp_path, store={"files": disk, "messages_required_to_save": 1}) as world:
        root, idle, partial = await world.root(), await world.root(), await world.root()
        await make_topic(root)
        disk.stop()
        await root.send(frame(SEND, message_body(10)) + PING)
        await reached(disk.reached)
        await partial.send(frame(SEND, message_body(100_000))[:50_000])
        stopping = asyncio.ensure_future(world.listener.stop(10))
        assert await idle.is_closed()
        assert await partial.is_closed()
        with pytest.raises(ConnectionRefusedError):
            await world.stranger()
        assert not stopping.done()
        disk.go()
        assert [await root.answer(), await root.answer()] == [OK, OK]
        assert await root.is_closed()
        root.say_no_more()
        await stopping


async def test_a_stop_loses_no_response_of_a_busy_client(tmp_path: Path) -> None:
    """Unread requests would make the kernel drop what it has not sent yet."""

    disk = SlowDisk()
    async with served(tmp_path, store={"files": disk, "messages_required_to_save": 1}) as world:
        root = await world.root(receive_bytes=4096)
        await make_topic(root)
        await root.send(frame(SEND, message_body(60_000)))
        assert await root.answer() == OK
        disk.stop()
        await root.send(frame(SEND, message_body(10)) + poll(1))
        await reached(disk.reached)
        (connection,) = world.listener._connections
        assert isinstance(connection, tcp.Connection)
        while not connection._intake.queue:  # noqa: ASYNC110
            await asyncio.sleep(0)
        stopping = asyncio.ensure_future(world.listener.stop(10))
        while not connection._ended:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await root.send(PING * 1000)
        disk.go()
        while not (stopping.done() or connection._lingers_until):  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert await root.answer() == OK
        status, polled = await root.answer()
        assert (status, len(polled) > 60_000) == (0, True)
        assert await root.is_closed()
        root.say_no_more()
        await stopping


async def test_a_client_that_ignores_the_end_of_its_connection_is_aborted(
    tmp_path: Path, time: Seconds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "SWEEP_SECONDS", 0.001)

    disk = SlowDisk()
    async with served(tmp_path, store={"files": disk, "messages_required_to_save": 1}) as world:
        root = await world.root()
        await make_topic(root)
        disk.stop()
        await root.send(frame(SEND, message_body(10)))
        await reached(disk.reached)
        stopping = asyncio.ensure_future(world.listener.stop(60))
        (connection,) = world.listener._connections
        assert isinstance(connection, tcp.Connection)
        while not connection._ended:  # noqa: ASYNC110
            await asyncio.sleep(0)
        disk.go()
        assert await root.answer() == OK
        assert await root.is_closed()
        await root.send(PING)
        time.now += lingering_close.LINGER_SECONDS - 0.1
        world.listener.close_overdue(time.now)
        assert world.connections == 1
        time.now += 0.2
        await stopping


async def test_a_stop_ends_after_its_timeout(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with served(tmp_path) as world:
        stuck = await world.root(receive_bytes=4096)
        await make_topic(stuck)
        await stuck.send(frame(SEND, message_body(*[MIB] * 16)))
        assert await stuck.answer() == OK
        await stuck.send(poll(100))
        (connection,) = world.listener._connections
        assert isinstance(connection, tcp.Connection)
        while connection._writable is None:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await world.listener.stop(0.2)
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == [
        "aborting 1 connections that did not drain in time"
    ]


@pytest.mark.parametrize("size", [100, 20_000])
async def test_an_invalid_send_is_not_described_without_permission_to_send(tmp_path: Path, size: int) -> None:
    async with served(tmp_path) as world:
        root, alice, stranger = await world.root(), await world.stranger(), await world.stranger()
        await make_topic(root)
        assert (await root.ask(requests.CreateUser("alice", "alicealice", UserStatus.ACTIVE, None)))[0] == 0
        assert (await alice.ask(requests.LoginUser("alice", "alicealice", "test", "test")))[0] == 0
        cut_off = frame(101, message_body(size)[:-7])
        for client, code in ((root, None), (alice, Code.UNAUTHORIZED), (stranger, Code.UNAUTHENTICATED)):
            await client.send(cut_off)
            status, _ = await client.answer()
            if code is None:
                assert status not in (0, Code.UNAUTHORIZED, Code.UNAUTHENTICATED)
            else:
                assert status == code
