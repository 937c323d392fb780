"""Single messages that arrive alone take a shorter way. What is stored and answered is the same as on the long one,
which a message takes that arrives in two pieces."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

import pytest

from tests.storage.support.world import SlowDisk, reached
from tests.transports.support.raw import OK, PING, Raw, Served, frame, make_topic, message_body, poll, served
from tests.transports.wire.classic.support.plainly import TO_PARTITION_10, Classic, parse, send_body
from whippet.app.commands import requests
from whippet.app.errors import Code
from whippet.transports import tcp
from whippet.transports.classic_conversation import SMALL_BYTES, ClassicConversation

SEND = 101
HELD = {"messages_required_to_save": 1}


@pytest.fixture
def direct(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each piece of bytes was sent in the short way."""
    taken = list[bool]()
    begin = ClassicConversation.begin_send

    def noticed(*arguments: object) -> object:
        response = begin(*arguments)  # type: ignore[arg-type]
        taken.append(response is not None)
        return response

    monkeypatch.setattr(ClassicConversation, "begin_send", noticed)
    return taken


async def in_two_pieces(client: Raw, octets: bytes, connection: tcp.Connection) -> None:
    await client.send(octets[:6])
    while not connection._intake.is_unfinished:  # noqa: ASYNC110
        await asyncio.sleep(0)
    await client.send(octets[6:])


def the_only(world: Served) -> tcp.Connection:
    (connection,) = world.listener._connections
    assert isinstance(connection, tcp.Connection)
    return connection


async def polled(client: Raw, header: int = 64) -> list[Classic]:
    await client.send(poll(1000))
    status, payload = await client.answer()
    assert status == 0
    return parse(payload[16:], header)


def body(message: Classic, *, header: int = 64, partition: int = 0) -> bytes:
    return send_body([message], header, TO_PARTITION_10[:-4] + struct.pack("<I", partition))


WHOLE = body(Classic(7, 0, 0, 5, b"x" * 30, b"\x02\x01\x00\x00\x00k\x02\x01\x00\x00\x00v"))
CASES = {
    "with an id": body(Classic(7, 0, 0, 5, b"x" * 30)),
    "with headers": WHOLE,
    "short header": body(Classic(7, 0, 0, 5, b"x"), header=56),
    "cut off": WHOLE[:-1],
    "too long": WHOLE + b"x",
    "empty": body(Classic(7, 0, 0, 5, b"")),
    "no such partition": body(Classic(7, 0, 0, 5, b"x"), partition=9),
    "no destination": b"",
    "half a destination": WHOLE[:9],
    "destination of any length": b"\xff\xff\xff\xff" + WHOLE[4:],
    "two messages": message_body(3, 4),
    "large": message_body(SMALL_BYTES),
    "just too large": message_body(SMALL_BYTES + 1),
}


@pytest.mark.parametrize("payload", CASES.values(), ids=CASES)
async def test_both_ways_answer_and_store_the_same(tmp_path: Path, payload: bytes, direct: list[bool]) -> None:
    async with served(tmp_path) as world:
        root = await world.root()
        await make_topic(root)
        connection = the_only(world)
        direct.clear()
        header = 56 if payload == CASES["short header"] else 64
        await root.send(frame(SEND, payload))
        short = await root.answer()
        assert len(direct) >= 1
        taken = direct[0]
        await in_two_pieces(root, frame(SEND, payload), connection)
        assert await root.answer() == short
        assert taken == any(direct) == (short == OK and len(payload) < SMALL_BYTES and payload != CASES["two messages"])
        found = [(one.id, one.origin, one.payload, one.user_headers) for one in await polled(root, header)]
        assert found[: len(found) // 2] == found[len(found) // 2 :]
        assert bool(found) == (short == OK)
        assert await root.is_alive()


async def test_a_message_without_an_id_gets_a_new_one(tmp_path: Path, direct: list[bool]) -> None:
    async with served(tmp_path) as world:
        root = await world.root()
        await make_topic(root)
        direct.clear()
        for _ in range(3):
            await root.send(frame(SEND, body(Classic(0, 0, 0, 5, b"x"))))
            assert await root.answer() == OK
        assert direct == [True] * 3
        assert len({one.id for one in await polled(root)}) == 3


async def test_a_limit_of_frames_applies(tmp_path: Path) -> None:
    async with served(tmp_path, frame_bytes=1000) as world:
        root = await world.root()
        await make_topic(root)
        await root.send(frame(SEND, message_body(2000)))
        assert await root.answer() == (Code.INVALID_COMMAND, b"")
        await root.send(frame(SEND, message_body(500)))
        assert await root.answer() == OK


async def test_requests_that_arrive_meanwhile_are_answered_afterwards_and_in_order(
    tmp_path: Path, direct: list[bool]
) -> None:
    disk = SlowDisk()
    async with served(tmp_path, store={"files": disk, **HELD}) as world:
        root = await world.root()
        await make_topic(root)
        connection = the_only(world)
        disk.stop()
        direct.clear()
        await root.send(frame(SEND, message_body(1)))
        await reached(disk.reached)
        assert connection._is_working
        await root.send(PING + frame(SEND, message_body(2)) + poll(10) + frame(SEND, message_body(3)) + PING)
        while len(connection._intake.queue) < 5:  # noqa: ASYNC110
            await asyncio.sleep(0)
        disk.go()
        answers = [await root.answer() for _ in range(6)]
        assert [answers[0], answers[1], answers[2], answers[4], answers[5]] == [OK] * 5
        assert [len(one.payload) for one in parse(answers[3][1][16:], 64)] == [1, 2]
        assert direct == [True]
        await root.send(frame(SEND, message_body(4)))
        assert await root.answer() == OK
        assert direct[-1]


@pytest.mark.parametrize("ending", ["reset", "half-closed", "evicted"])
async def test_a_connection_that_ends_meanwhile_loses_no_message(tmp_path: Path, ending: str) -> None:
    disk = SlowDisk()
    async with served(tmp_path, store={"files": disk, **HELD}) as world:
        root = await world.root()
        await make_topic(root)
        connection = the_only(world)
        disk.stop()
        await root.send(frame(SEND, message_body(1)))
        await reached(disk.reached)
        if ending == "reset":
            root.reset()
        elif ending == "half-closed":
            root.say_no_more()
        else:
            connection.drain()
        while not connection._ended:  # noqa: ASYNC110
            await asyncio.sleep(0)
        disk.go()
        if ending != "reset":
            assert await root.answer() == OK
            assert await root.is_closed()
            root.link.close()
        while world.connections:  # noqa: ASYNC110
            await asyncio.sleep(0)
        again = await world.root()
        # Nobody has waited for the answer after a reset, so the write may still be in progress.
        while not (found := await polled(again)):  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert [len(one.payload) for one in found] == [1]


async def test_a_write_that_fails_is_refused_and_the_connection_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk()
    async with served(tmp_path, store={"files": disk, **HELD}) as world:
        root = await world.root()
        await make_topic(root)

        def fail(*_: object) -> int:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(SlowDisk, "write", fail)
            await root.send(frame(SEND, message_body(1)))
            assert await root.answer() == (Code.CANNOT_SAVE_MESSAGES_TO_SEGMENT, b"")
        assert await root.is_alive()
        assert (await root.ask(requests.FlushUnsavedBuffer("s", "t", 0, True)))[0] == 0
        await root.send(frame(SEND, message_body(2)))
        assert await root.answer() == OK
        assert [len(one.payload) for one in await polled(root)] == [2]


async def test_a_defect_is_logged_and_answered_and_the_connection_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(tmp_path) as world:
        root = await world.root()
        await make_topic(root)
        with monkeypatch.context() as patched:
            patched.setattr("whippet.app.commands.direct_sends.choose_partition", None)
            await root.send(frame(SEND, message_body(1)))
            assert await root.answer() == (Code.ERROR, b"")
        assert "failed with an unexpected error" in caplog.text
        await root.send(frame(SEND, message_body(2)))
        assert await root.answer() == OK
