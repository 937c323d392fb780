"""0.9 clients against a live listener: frames that lie, sessions that are not theirs, requests that come again.

Whatever is sent is answered clearly or ends the connection, nothing of what is refused is stored, and nobody else
notices. What holds for both protocols, time and memory above all, is in test_tcp.py.
"""

from __future__ import annotations

import asyncio
import logging
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.app.access.support.world import everywhere
from tests.storage.support.world import SlowDisk, reached, settled
from tests.support.clocks import Clock
from tests.transports.support.modern import (
    AS_ROOT,
    CLIENT,
    FIRST,
    ME,
    OTHER,
    SPOKEN,
    Modern,
    batch_of,
    checksum_of,
    confirmed,
    frame,
    login,
    resealed,
    root,
    sending,
    stranger,
    with_topic,
)
from tests.transports.support.raw import Served, served
from whippet.app.access.permissions import Permissions
from whippet.app.commands import messages as sending_commands
from whippet.app.commands import requests as commands
from whippet.app.commands import responses
from whippet.app.errors import Code
from whippet.app.model.sessions import Session
from whippet.storage import batch as batches
from whippet.transports import tcp
from whippet.transports.admission.frame_intake import QUEUE_MAX
from whippet.transports.classic_conversation import UNAUTHENTICATED_FRAME_BYTES
from whippet.transports.connections import SCRATCH_BYTES
from whippet.transports.modern_conversation import BODY_BYTES_MAX, REMEMBERED_BYTES_MAX
from whippet.transports.wire.modern import registration, requests
from whippet.transports.wire.modern.frames import Reason
from whippet.transports.wire.modern.operations import CODES, LOGOUT, OF_CODE, READ, REGISTER
from whippet.transports.wire.primitives import name, str8

MIB = 1 << 20
SEND, CREATE_STREAM = 160, 128
GROUP = commands.Consumer(commands.ConsumerKind.GROUP, "g")
NEXT = commands.Strategy(commands.StrategyKind.NEXT)
OF_GROUP = ("s", "t", "g")


@pytest.fixture(autouse=True)
def nothing_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.WARNING):
        yield
    said = [record.getMessage() for record in caplog.get_records("call")]
    # A socket of an earlier test's client, which is collected only now, may say that it was reset.
    assert [line for line in said if "ConnectionResetError" not in line] == []


async def with_alice(client: Modern, *, permissions: Permissions | None = None) -> commands.LoginUser:
    created = await client.demand(commands.CreateUser("alice", "alicealice", commands.UserStatus.ACTIVE, permissions))
    assert not created.refused
    return commands.LoginUser("alice", "alicealice", "1")


# ------------------------------------------------------------------------------------------------- frames in any pieces


async def test_a_conversation_may_be_cut_at_every_byte(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        made = await with_topic(world, client=OTHER)
        octets = frame(READ, code=1) + frame(REGISTER, login(AS_ROOT)) + frame(READ, code=201)
        whole = await stranger(world)
        await whole.send(octets)
        expected = [await whole.reply() for _ in range(3)]
        assert [one.evicted for one in expected] == [None] * 3
        for cut in (*range(1, 20), *range(245, 330), *range(510, len(octets), 7)):
            client = await stranger(world)
            await client.send(octets[:cut])
            # An answer to somebody else: what was sent before has been read.
            assert await made.is_alive()
            await client.send(octets[cut:])
            assert [(await client.reply()).body for _ in range(3)][::2] == [one.body for one in expected][::2], cut
        drop = await stranger(world)
        for at in range(len(octets)):
            await drop.send(octets[at : at + 1])
            if at % 16 == 0:
                await made.is_alive()
        assert [(await drop.reply()).refused for _ in range(3)] == [0] * 3


async def test_header_and_body_may_come_apart(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client, witness = await with_topic(world), await root(world, OTHER)
        for size in (10, 10_000, SCRATCH_BYTES + 1):
            octets = client.asked(sending(batch_of(b"x" * size)))
            await client.send(octets[:256])
            assert await witness.is_alive()
            await client.send(octets[256:])
            assert not (await client.reply()).refused
        assert [len(payload) for payload in await client.payloads()] == [10, 10_000, SCRATCH_BYTES + 1]


async def test_what_was_asked_before_bytes_that_are_no_request_is_answered_then_the_connection_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also when those bytes have come so early that they were set aside."""
    async with served(tmp_path) as world:
        client = await root(world)
        count = QUEUE_MAX + 10
        no_request = bytearray(client.asked(commands.Ping()))
        no_request[48:52] = (5).to_bytes(4, "little")
        await client.send(b"".join(client.asked(commands.Ping()) for _ in range(count)) + no_request)
        for _ in range(count):
            assert not (await client.reply()).refused
        assert await client.is_closed()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_requests_may_be_sent_ahead_and_are_answered_in_order(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client = await with_topic(world)
        count = 3 * QUEUE_MAX
        octets = []
        for number in range(count):
            octets.append(client.asked(sending(batch_of(b"%d" % number, ids=[number + 1]))))
            octets.append(client.asked(commands.GetStream("s")))
        answering = asyncio.ensure_future(client.send(b"".join(octets)))
        for number in range(count):
            reply = await client.reply()
            assert (reply.operation, confirmed(reply)) == (SEND, (0, 0, 0, number))
            assert (await client.reply()).operation == READ
        await answering
        assert await client.payloads() == [b"%d" % number for number in range(count)]


async def test_a_slow_reader_of_large_polls_gets_all_of_them(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client = await with_topic(world, receive_bytes=65_536)
        assert not await client.refused(sending(batch_of(*[b"x" * MIB] * 8)))
        poll = client.asked(commands.PollMessages(ME, 0, 0, 0, FIRST, 100, False))
        await client.send(poll * 4)
        for _ in range(4):
            reply = await client.reply()
            assert len(reply.content) == 16 + 256 + 8 * (MIB + 48)
            await settled()
        assert await client.is_alive()


async def test_who_has_said_his_last_word_still_gets_all_answers(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client = await with_topic(world)
        await client.send(
            client.asked(sending(batch_of(*[b"x" * MIB] * 4)))
            + client.asked(commands.PollMessages(ME, 0, 0, 0, FIRST, 4, False))
        )
        client.say_no_more()
        assert confirmed(await client.reply()) == (0, 0, 0, 0)
        assert len((await client.reply()).content) > 4 * MIB
        assert await client.rest() == b""
        half = await root(world)
        await half.send(half.asked(commands.CreateStream("half"))[:-1])
        half.say_no_more()
        assert await half.rest() == b""
        assert len(await (await root(world)).get(commands.GetStreams())) == 1


# ---------------------------------------------------------------------------------------------------- frames that lie


@pytest.mark.parametrize("logged_in", [False, True])
async def test_after_what_is_no_request_nobody_knows_where_the_next_begins(tmp_path: Path, logged_in: bool) -> None:
    async with served(tmp_path) as world:
        witness = await root(world, OTHER)
        others = (bytes(4) + random.Random(3).randbytes(252), bytes(256), bytes(1000))
        lies = [frame(READ, code=1, size=size) for size in (0, 1, 4, 48, 255)]
        lies += [frame(READ, code=1, kind=kind) for kind in range(256) if kind != 5]
        for lie in (*lies, *others):
            client = await (root if logged_in else stranger)(world)
            # What was asked before is answered still.
            ping = client.asked(commands.Ping())
            await client.send(ping + lie + ping)
            assert not (await client.reply()).refused
            assert await client.is_closed()
        assert await witness.is_alive()


async def test_a_size_with_more_than_follows_takes_what_comes_next_for_its_body(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client = await root(world)
        create = client.asked(commands.CreateStream("one"))
        ping = client.asked(commands.Ping())
        longer = create[:48] + struct.pack("<I", len(create) + len(ping)) + create[52:]
        await client.send(longer + ping)
        # The checksum of the body is no longer that of the body.
        assert (await client.reply()).refused == Code.INVALID_FORMAT
        shorter = create[:48] + struct.pack("<I", len(create) - 1) + create[52:]
        await client.send(shorter + bytes(300))
        assert (await client.reply()).refused == Code.INVALID_FORMAT
        assert await client.is_closed()
        assert await (await root(world)).get(commands.GetStreams()) == ()


async def test_requests_that_are_too_long_are_read_past_and_refused(tmp_path: Path) -> None:
    async with served(tmp_path, frame_bytes=12 * MIB) as world:
        client = await stranger(world)
        for operation, code in ((REGISTER, 0), (READ, 1), (SEND, 0), (77, 0)):
            await client.send(
                frame(operation, bytes(UNAUTHENTICATED_FRAME_BYTES + 1), code=code, number=9, timestamp=7)
            )
            reply = await client.reply()
            assert (reply.refused, reply.operation, reply.number) == (Code.UNAUTHENTICATED, operation, 9)
            assert await client.is_alive()
        assert not (await client.register()).refused
        assert not await client.refused(commands.CreateStream("s"))
        assert not await client.refused(commands.CreateTopic("s", "t", 1))
        for operation, size in ((SEND, 12 * MIB), (SEND, 40 * MIB), (CREATE_STREAM, BODY_BYTES_MAX + 1)):
            assert world.listener.budgets.frames.used == 0
            octets = frame(operation, bytes(size), number=client.next_number, session=client.session)
            assert (await client.say(octets)).refused == Code.INVALID_COMMAND
            assert await client.is_alive()
        read = frame(READ, bytes(BODY_BYTES_MAX + 1), code=201, session=client.session)
        assert (await client.say(read)).refused == Code.INVALID_COMMAND
        # The number is still free, and what fits is taken.
        assert not await client.refused(sending(batch_of(b"x" * (11 * MIB))))


@pytest.mark.parametrize("request_", [commands.GetStream("s"), commands.CreateStream("t"), sending(batch_of(b"x"))])
async def test_a_checksum_of_the_body_is_checked_if_there_is_one(tmp_path: Path, request_: commands.Request) -> None:
    async with served(tmp_path) as world:
        client = await with_topic(world)
        body = b"".join(requests.encode(request_))
        for wrong in (1, checksum_of(body) ^ 1, checksum_of(body) | 1 << 64, 2**128 - 1):
            assert await client.refused(request_, checksum=wrong) == Code.INVALID_FORMAT
        assert await client.payloads() == []
        for right in (checksum_of(body), 0):
            reply = await client.demand(request_, checksum=right, timestamp=2**64 - 1)
            assert reply.refused in (0, Code.STREAM_NAME_ALREADY_EXISTS)
            assert reply.head[128:144] == right.to_bytes(16, "little")
            assert reply.head[192:200] == b"\xff" * 8


async def test_a_client_without_a_name_is_told_so_and_closed(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        for octets in (
            frame(READ, code=1, client=bytes(16)),
            frame(REGISTER, login(AS_ROOT), client=bytes(16)),
            frame(SEND, client=bytes(16), number=1, session=1),
        ):
            client = await stranger(world)
            await client.send(octets + frame(READ, code=1))
            assert (await client.reply()).head[216:220] == struct.pack("<I", Code.INVALID_COMMAND)
            assert await client.is_closed()


async def test_operations_and_codes_that_there_are_not_are_refused(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        known = {REGISTER, READ, *CODES}
        for client in (await stranger(world), await root(world, OTHER)):
            for operation in range(256):
                if operation not in known:
                    octets = frame(operation, b"body", client=client.client, number=1, session=client.session)
                    reply = await client.say(octets)
                    assert (reply.evicted, reply.head[216], reply.body) == (None, Code.INVALID_COMMAND, b"")
            for code in (0, 2, 16, 105, 500, 607, 2**31, 2**32 - 1, *OF_CODE):
                octets = frame(READ, b"body", client=client.client, session=client.session, code=code)
                reply = await client.say(octets)
                assert (reply.refused, reply.body) == (Code.INVALID_COMMAND, b""), code
            assert await client.is_alive()


async def test_the_code_of_a_login_is_an_eviction_and_the_connection_goes_on(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        for client in (await stranger(world), await root(world, OTHER)):
            for code in (38, 40, 44, 45):
                octets = frame(READ, login(AS_ROOT), client=client.client, session=client.session, code=code)
                reply = await client.say(octets)
                assert reply.evicted == Reason.MALFORMED_LOGIN
                assert reply.head[128:144] == client.client
                assert await client.is_alive()


async def test_the_code_in_the_header_counts_for_reads_only(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client = await root(world)
        assert not await client.refused(commands.CreateStream("s"), code=203)
        assert [stream.name for stream in await client.get(commands.GetStreams())] == ["s"]


# --------------------------------------------------------------------------------------------------- batches that lie


def _with(position: int, form: str, *values: int) -> Callable[[bytearray], bytearray]:
    """Other numbers in a batch, under checksums that are right."""

    def changed(batch: bytearray) -> bytearray:
        struct.pack_into(form, batch, position, *values)
        return resealed(batch)

    return changed


def _flipped(position: int) -> Callable[[bytearray], bytearray]:
    def changed(batch: bytearray) -> bytearray:
        batch[position] ^= 1
        return batch

    return changed


def _swapped(batch: bytearray) -> bytearray:
    """Both messages in the other order, as they are."""
    return resealed(batch[:256] + batch[256 + 51 :] + batch[256 : 256 + 51])


PAIR = batch_of(b"one", b"two")
FRAME_0, FRAME_1, END = 256, 256 + 51, 256 + 102
DELTA, HEADERS, PAYLOAD, RESERVED = 24, 32, 36, 40
LYING: dict[str, tuple[Callable[[bytearray], bytearray], Code]] = {
    "a frame checksum": (_flipped(FRAME_0), Code.INVALID_MESSAGE_CHECKSUM),
    "a payload that was changed": (_flipped(END - 1), Code.INVALID_MESSAGE_CHECKSUM),
    "an id that was changed": (_flipped(FRAME_0 + 8), Code.INVALID_MESSAGE_CHECKSUM),
    "a batch checksum": (_flipped(40), Code.INVALID_BATCH_CHECKSUM),
    "an origin that was changed": (_flipped(24), Code.INVALID_BATCH_CHECKSUM),
    "a partition that was changed": (_flipped(0), Code.INVALID_BATCH_CHECKSUM),
    "a length that is too large": (_with(32, "<Q", END + 1), Code.INVALID_MESSAGES_SIZE),
    "a length that is too small": (_with(32, "<Q", END - 1), Code.INVALID_MESSAGES_SIZE),
    "a length of nothing": (_with(32, "<Q", 0), Code.INVALID_MESSAGES_SIZE),
    "a length without end": (_with(32, "<Q", 2**64 - 1), Code.INVALID_MESSAGES_SIZE),
    "the first reserved byte": (_with(52, "<B", 1), Code.INVALID_RESERVED_FIELD),
    "the last reserved byte": (_with(255, "<B", 1), Code.INVALID_RESERVED_FIELD),
    "reserved bytes of a frame": (_with(FRAME_1 + RESERVED, "<Q", 1), Code.INVALID_RESERVED_FIELD),
    "a delta that repeats": (_with(FRAME_1 + DELTA, "<I", 0), Code.INVALID_COMMAND),
    "a delta that jumps": (_with(FRAME_1 + DELTA, "<I", 2), Code.INVALID_COMMAND),
    "a delta that is all there are": (_with(FRAME_1 + DELTA, "<I", 2**32 - 1), Code.INVALID_COMMAND),
    "deltas from one on": (_with(FRAME_0 + DELTA, "<I", 1), Code.INVALID_COMMAND),
    "deltas backwards": (_swapped, Code.INVALID_COMMAND),
    "an empty payload": (
        lambda batch: resealed(batch[:END] + batches.FRAME.pack(0, bytes(16), 2, 0, 0, 0, 0)),
        Code.INVALID_MESSAGES_SIZE,
    ),
    "only headers": (_with(FRAME_0 + HEADERS, "<II", 3, 0), Code.EMPTY_MESSAGE_PAYLOAD),
    "a payload beyond the end": (_with(FRAME_1 + PAYLOAD, "<I", 4), Code.INVALID_MESSAGES_SIZE),
    "a payload without end": (_with(FRAME_1 + PAYLOAD, "<I", 2**32 - 1), Code.TOO_BIG_MESSAGE_PAYLOAD),
    "headers without end": (_with(FRAME_1 + HEADERS, "<I", 2**32 - 1), Code.TOO_BIG_USER_HEADERS),
    "a payload that ends early": (_with(FRAME_1 + PAYLOAD, "<I", 2), Code.INVALID_MESSAGES_COUNT),
    "a frame that swallows the next": (_with(FRAME_0 + PAYLOAD, "<I", 54), Code.INVALID_MESSAGES_COUNT),
}


def _send_body(batch: bytes | bytearray, count: int) -> bytes:
    to = b"".join(requests.encode(sending(PAIR)))[: 4 + 18]
    return to + struct.pack("<I", count) + bytes(batch)


@pytest.mark.parametrize("times", [1, 20])
async def test_batches_that_lie_are_refused_and_nothing_of_them_is_stored(tmp_path: Path, times: int) -> None:
    """Of two messages and of forty: more than a few are checked in another way."""

    async with served(tmp_path) as world:
        client = await with_topic(world)
        for what, (lie, code) in LYING.items():
            batch = lie(bytearray(PAIR)) if times == 1 else lie(batch_of(*[b"one", b"two"] * times))
            count = batches.header(batch).message_count
            for checksum in (0, checksum_of(_send_body(batch, count))):
                octets = frame(
                    SEND,
                    _send_body(batch, count),
                    number=client.next_number,
                    session=client.session,
                    checksum=checksum,
                )
                found = (await client.say(octets)).refused
                # In a long batch another lie may be found first.
                assert found == code if times == 1 else found not in (0, Code.ERROR), what
            assert await client.is_alive()
        assert await client.payloads() == []
        # None of them has used up the number.
        assert confirmed(await client.demand(sending(PAIR))) == (0, 0, 0, 0)
        assert await client.payloads() == [b"one", b"two"]


@pytest.mark.parametrize("in_request", [0, 1, 2, 3, 2**32 - 1])
@pytest.mark.parametrize("in_batch", [0, 1, 2, 3, 2**31, 2**32 - 1])
async def test_both_counts_have_to_be_that_of_the_messages(tmp_path: Path, in_request: int, in_batch: int) -> None:
    async with served(tmp_path) as world:
        client = await with_topic(world)
        batch = _with(48, "<I", in_batch)(bytearray(PAIR))
        octets = frame(SEND, _send_body(batch, in_request), number=3, session=client.session)
        refused = (await client.say(octets)).refused
        assert refused == (0 if in_request == in_batch == 2 else Code.INVALID_MESSAGES_COUNT)
        assert len(await client.payloads()) == (0 if refused else 2)


async def test_times_of_origin_up_to_the_end_of_time_are_kept_and_those_beyond_are_refused(tmp_path: Path) -> None:
    latest = 2**64 - 2**32

    async with served(tmp_path) as world:
        client = await with_topic(world)
        batch = batch_of(b"one", b"two", origin=latest)
        struct.pack_into("<I", batch, FRAME_1 + 28, 2**32 - 1)
        assert not await client.refused(sending(resealed(batch)))
        for origin in (latest + 1, 2**64 - 1):
            assert await client.refused(sending(batch_of(b"x", origin=origin))) == Code.TIMESTAMP_OUT_OF_RANGE
        assert [message.origin_timestamp for message in await client.polled()] == [latest, 2**64 - 1]
        times = [message.timestamp for message in await client.polled()]
        later = commands.Strategy(commands.StrategyKind.TIMESTAMP, 2**64 - 1)
        assert await client.polled(strategy=later) == []
        assert times[0] == times[1]


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (
            commands.SendMessages(9, 0, commands.Partitioning(commands.PartitioningKind.BALANCED), (bytearray(PAIR),)),
            1009,
        ),
        (
            commands.SendMessages(0, 9, commands.Partitioning(commands.PartitioningKind.BALANCED), (bytearray(PAIR),)),
            2010,
        ),
        (sending(PAIR, 1), 3007),
        (commands.PollMessages(ME, 0, 0, 1, FIRST, 1, False), 3007),
        (commands.PollMessages(ME, 0, "none", 0, FIRST, 1, False), 2010),
        (commands.StoreConsumerOffset(ME, 0, 0, 0, 0), 4100),
        (commands.DeleteConsumerOffset(ME, 0, 0, 0), 3021),
    ],
)
async def test_what_is_not_there_is_refused_in_the_place_where_the_client_looks(
    tmp_path: Path, request_: commands.Request, code: int
) -> None:
    async with served(tmp_path) as world:
        client = await with_topic(world)
        reply = await client.demand(request_)
        assert reply.refused == code
        # In the header where the operation has no section of results, else in that.
        in_header = int.from_bytes(reply.head[216:220], "little")
        assert in_header == (code if isinstance(request_, commands.SendMessages | commands.PollMessages) else 0)
        assert await client.is_alive()


# -------------------------------------------------------------------------------------------------------- registration


async def test_before_a_login_only_a_ping_and_a_logout_are_answered(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        made, client = await with_topic(world, client=OTHER), await stranger(world)
        for request in (
            commands.GetStats(),
            commands.GetMe(),
            commands.GetClusterMetadata(),
            commands.GetStream("nothing"),
            commands.SyncConsumerGroup(*OF_GROUP),
            commands.PollMessages(ME, 0, 0, 0, FIRST, 1, False),
            commands.AttachSession(OTHER, made.session),
            commands.GetPollRouting(ME, 0, 0, 0, FIRST, 1, False),
        ):
            for session in (0, made.session, 2**64 - 1):
                assert await client.refused(request, session=session) == Code.UNAUTHENTICATED
        for change in (commands.CreateStream("x"), sending(PAIR), commands.StoreConsumerOffset(ME, 0, 0, 0, 0)):
            for session in (0, made.session):
                reply = await client.demand(change, session=session)
                assert reply.evicted == Reason.NO_SESSION
                assert reply.head[128:144] == CLIENT
        assert not await client.refused(commands.LogoutUser())
        assert await client.is_alive()
        assert await made.payloads() == []


async def test_a_login_is_answered_with_a_session_that_grows(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client, sessions = await stranger(world), []
        for _ in range(3):
            reply = await client.register()
            answer = registration.decode_response(memoryview(reply.content))
            assert answer == registration.Registered(0, client.session, SPOKEN, "0.9.0")
            assert reply.head[128:144] == bytes(16)
            assert reply.head[160:176] == CLIENT
            assert struct.unpack_from("<QQ", reply.head, 176) == (client.session, client.session)
            sessions.append(client.session)
            assert not await client.refused(commands.CreateStream(f"stream {client.session}"))
        assert sessions == sorted(set(sessions))
        assert sessions[0] >= 1


async def test_only_the_versions_that_are_spoken_may_log_in(tmp_path: Path) -> None:
    packed = registration.packed

    async with served(tmp_path) as world:
        client = await stranger(world)
        for spoken in (packed(0, 11, 0), packed(0, 11, 7), packed(0, 11, 1023)):
            assert (await client.register(protocol=spoken)).evicted is None
        for other in (0, packed(0, 10, 1023), packed(0, 12, 3), packed(1, 0, 0), 2**32 - 1):
            reply = await client.register(protocol=other)
            assert reply.evicted == Reason.INCOMPATIBLE_PROTOCOL
            newest, oldest = struct.unpack_from("<II", reply.head, 144)
            assert 1 <= oldest == packed(0, 11, 0) <= newest == packed(0, 12, 2)
            assert reply.head[128:144] == CLIENT
        # Who was logged in still is.
        assert not await client.refused(commands.GetMe())


HEAD = struct.pack("<I", SPOKEN) + name("sdk") + name("1")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        HEAD[:3],
        HEAD,
        HEAD[:4] + b"\0\0",
        HEAD + b"\xff" * 300,
        HEAD + name("root"),
        HEAD + name("root") + str8("password"),
        HEAD + name("root") + str8("password") + b"\1\0\0",
        HEAD + name("root") + str8("password") + b"\1\0\0\0",
        HEAD + b"\2\xff\xfe" + str8("password") + bytes(4),
        HEAD + name("token") + b"\1\0\0\0",
    ],
)
async def test_a_login_that_cannot_be_read_is_an_eviction(tmp_path: Path, body: bytes) -> None:
    async with served(tmp_path) as world:
        client = await stranger(world)
        for checksum in (0, checksum_of(body)):
            reply = await client.say(frame(REGISTER, body, checksum=checksum))
            assert reply.evicted == Reason.MALFORMED_LOGIN
        assert await client.refused(commands.GetMe()) == Code.UNAUTHENTICATED
        assert (await client.register()).evicted is None


async def test_a_login_has_neither_session_nor_number(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client = await stranger(world)
        for fields in ({"session": 1}, {"number": 1}):
            reply = await client.say(frame(REGISTER, login(AS_ROOT), **fields))  # type: ignore[arg-type]
            assert reply.evicted == Reason.MALFORMED_LOGIN
        reply = await client.say(frame(REGISTER, login(AS_ROOT), checksum=1))
        assert reply.refused == Code.INVALID_FORMAT
        assert await client.refused(commands.GetMe()) == Code.UNAUTHENTICATED


async def test_who_may_not_log_in_is_told_why_and_may_try_again(tmp_path: Path) -> None:
    clock = Clock()
    async with served(tmp_path, store={"clock": clock}) as world:
        admin = await root(world, OTHER)
        alice = await with_alice(admin)
        token = (await admin.get(commands.CreatePersonalAccessToken("short", 1_000_000))).token
        expired = commands.LoginWithPersonalAccessToken(token)
        client = await stranger(world)
        assert (await client.register(expired)).evicted is None
        clock.now += 1_000_001
        assert not await admin.refused(commands.UpdateUser("alice", None, commands.UserStatus.INACTIVE))
        client = await stranger(world)
        for who, reason in (
            (commands.LoginUser("root", "wrong", "1"), Reason.INVALID_CREDENTIALS),
            (commands.LoginUser("nobody", "wrong", "1"), Reason.INVALID_CREDENTIALS),
            (commands.LoginUser("r", "wrong", "1"), Reason.INVALID_CREDENTIALS),
            (commands.LoginUser("root", "x" * 200, "1"), Reason.INVALID_CREDENTIALS),
            (alice, Reason.INVALID_CREDENTIALS),
            (expired, Reason.INVALID_TOKEN),
            (commands.LoginWithPersonalAccessToken("nothing"), Reason.INVALID_TOKEN),
            (commands.LoginWithPersonalAccessToken("x" * 255), Reason.INVALID_TOKEN),
        ):
            reply = await client.register(who)
            assert reply.evicted == reason, who
            assert reply.head[128:152] == CLIENT + bytes(8)
            assert await client.refused(commands.GetMe()) == Code.UNAUTHENTICATED
        assert (await client.register()).evicted is None
        # A login that fails takes nothing from who has logged in.
        assert (await client.register(alice)).evicted == Reason.INVALID_CREDENTIALS
        assert not await client.refused(commands.CreateStream("s"))


async def test_a_login_replaces_the_one_before_with_all_that_it_was(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client = await with_topic(world)
        alice = await with_alice(client, permissions=everywhere(read_streams=True, poll_messages=True))
        assert not await client.refused(commands.CreateConsumerGroup(*OF_GROUP))
        assert not await client.refused(commands.JoinConsumerGroup(*OF_GROUP))
        assert (await client.get(commands.SyncConsumerGroup(*OF_GROUP))).partitions == (0,)
        old = client.asked(commands.CreateStream("as root"))
        client.client = OTHER
        assert (await client.register(alice)).evicted is None
        assert await client.get(commands.SyncConsumerGroup(*OF_GROUP)) is None
        assert await client.refused(commands.CreateStream("x")) == Code.UNAUTHORIZED
        assert (await client.say(old)).evicted == Reason.NO_SESSION
        assert (await client.get(commands.GetMe())).groups == ()


async def test_who_logs_out_may_log_in_under_another_name(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client = await with_topic(world)
        assert not await client.refused(commands.CreateConsumerGroup(*OF_GROUP))
        assert not await client.refused(commands.JoinConsumerGroup(*OF_GROUP))
        logout = client.asked(commands.LogoutUser())
        reply = await client.say(logout)
        assert (reply.operation, reply.refused, reply.body) == (LOGOUT, 0, b"")
        assert world.listener.gateway.replay_caches._sessions == {}
        # Again, and everything else is over.
        assert not (await client.say(logout)).refused
        assert await client.refused(commands.GetMe()) == Code.UNAUTHENTICATED
        assert (await client.demand(commands.CreateStream("x"))).evicted == Reason.NO_SESSION
        client.client = OTHER
        assert (await client.register()).evicted is None
        assert (await client.get(commands.GetConsumerGroup(*OF_GROUP))).members == ()
        assert not await client.refused(commands.CreateStream("x"))


async def test_a_logout_that_is_refused_is_no_logout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sent ahead, when the user is deactivated before its turn comes."""

    async with served(tmp_path) as world:
        client = await root(world)
        with monkeypatch.context() as patch:
            patch.setattr(world.listener.gateway.users, "by_login", lambda login: None)
            for request in (commands.LogoutUser(), commands.CreateStream("x"), commands.LogoutUser()):
                assert await client.refused(request) == Code.UNAUTHENTICATED
        assert not await client.refused(commands.CreateStream("x"))
        assert not await client.refused(commands.LogoutUser())


# ------------------------------------------------------------------------------------------------- sessions and numbers


async def test_a_session_that_is_not_ones_own_is_an_eviction(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client = await root(world)
        first = client.session
        other = await root(world, OTHER)
        assert (await client.register()).evicted is None
        for fields, reason in (
            ({"session": first}, Reason.SESSION_TOO_LOW),
            ({"session": other.session}, Reason.SESSION_TOO_LOW),
            ({"session": 2**64 - 1}, Reason.NO_SESSION),
            ({"session": client.session + 1}, Reason.NO_SESSION),
            ({"client": OTHER}, Reason.NO_SESSION),
            ({"client": OTHER, "session": other.session}, Reason.NO_SESSION),
        ):
            assert (await client.demand(commands.CreateStream("x"), **fields)).evicted == reason
            assert (await client.demand(commands.GetStreams(), **fields)).evicted == reason
            assert (await client.demand(commands.LogoutUser(), **fields)).evicted == reason
        # Without a session nothing is changed, but asked.
        assert (await client.demand(commands.CreateStream("x"), session=0)).evicted == Reason.SESSION_TOO_LOW
        assert await client.get(commands.GetStreams(), session=0) == ()
        assert await other.get(commands.GetStreams()) == ()


async def test_the_newest_session_of_a_client_is_the_one_that_counts(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        old = await with_topic(world)
        new = await root(world)
        assert (await old.demand(commands.CreateStream("x"))).evicted == Reason.SESSION_TOO_LOW
        assert (await old.demand(sending(PAIR))).evicted == Reason.SESSION_TOO_LOW
        assert not await old.refused(commands.GetStreams())
        assert not await new.refused(commands.CreateStream("x"))


async def test_numbers_are_a_watermark(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client = await root(world)
        assert await client.refused(commands.CreateStream("zero"), number=0) == Code.INVALID_COMMAND
        first = client.asked(commands.CreateStream("one"), number=5)
        answered = await client.say(first)
        assert (answered.refused, answered.number) == (0, 5)
        # As it was; it was not tried once more, which would be refused.
        assert (await client.say(first)).whole == answered.whole
        refused = await client.demand(commands.CreateStream("one"), number=6)
        assert refused.refused == Code.STREAM_NAME_ALREADY_EXISTS
        assert not await client.refused(commands.DeleteStream("one"), number=7)
        assert (await client.demand(commands.CreateStream("one"), number=6)).whole == refused.whole
        assert (await client.say(first)).whole == answered.whole
        assert await client.get(commands.GetStreams()) == ()
        for number, request, code in (
            (4, commands.CreateStream("four"), Code.REQUEST_ALREADY_APPLIED),
            (5, commands.CreateStream("other"), Code.INVALID_COMMAND),
            (7, commands.DeleteStream("other"), Code.INVALID_COMMAND),
            (7, commands.LogoutUser(), Code.INVALID_COMMAND),
        ):
            assert await client.refused(request, number=number) == code, number
        assert not await client.refused(commands.CreateStream("last"), number=2**64 - 1)
        assert await client.refused(commands.CreateStream("after"), number=8) == Code.REQUEST_ALREADY_APPLIED
        assert [stream.name for stream in await client.get(commands.GetStreams())] == ["last"]


async def test_a_poll_returns_as_much_as_official_clients_ask_for(tmp_path: Path) -> None:
    """100 MB: 5,000 messages of 20 KB, in batches as they are sent."""
    async with served(tmp_path) as world:
        client = await with_topic(world)
        for number in range(10):
            batch = batch_of(*[bytes(20_000)] * 500, ids=range(500 * number + 1, 500 * number + 501))
            assert not await client.refused(sending(batch))
        first = commands.Strategy(commands.StrategyKind.FIRST)
        polled = await client.get(commands.PollMessages(ME, 0, 0, 0, first, 5_000, False))
        assert (polled.messages_count, polled.current_offset) == (5_000, 4_999)


async def test_clients_may_count_what_concerns_one_partition_apart(tmp_path: Path) -> None:
    """As those of Java do: in a sequence that is behind the other one, or ahead of it."""
    async with served(tmp_path) as world:
        client = await with_topic(world)
        change = client.next_number
        for apart in (1, 2, 50, 51):
            octets = client.asked(sending(batch_of(b"%d" % apart, ids=[apart])), number=apart)
            answered = await client.say(octets)
            assert not answered.refused
            assert (await client.say(octets)).whole == answered.whole
            assert not await client.refused(commands.StoreConsumerOffset(ME, 0, 0, 0, 0), number=apart)
            assert not await client.refused(commands.CreateStream(f"stream {apart}"), number=change)
            change += 1
        assert await client.payloads() == [b"1", b"2", b"50", b"51"]


async def test_early_clients_send_under_the_number_that_the_next_change_takes(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client = await with_topic(world)
        for turn in range(1, 4):
            number = client.next_number
            for part in range(3):
                batch = batch_of(b"%d %d" % (turn, part), ids=[10 * turn + part])
                assert not await client.refused(sending(batch), number=number)
            assert not await client.refused(commands.StoreConsumerOffset(ME, 0, 0, 0, turn), number=number)
            assert not await client.refused(commands.CreateStream(f"stream {turn}"), number=number)
            client.next_number = number + 1
        assert await client.payloads() == [b"%d %d" % (turn, part) for turn in (1, 2, 3) for part in range(3)]


async def test_so_many_answers_are_remembered(tmp_path: Path) -> None:
    async with served(tmp_path, session_answers=2) as world:
        client = await root(world)
        octets = [client.asked(commands.CreateStream(f"stream {number}")) for number in range(3)]
        answered = [await client.say(one) for one in octets]
        assert [one.refused for one in answered] == [0] * 3
        assert (await client.say(octets[0])).refused == Code.REQUEST_ALREADY_APPLIED
        assert [await client.say(one) for one in octets[1:]] == answered[1:]


async def test_a_long_answer_is_not_remembered_but_that_it_was_given(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client = await root(world)
        assert not await client.refused(commands.CreateStream("s"))
        many = client.asked(commands.CreateTopic("s", "t", 200))
        reply = await client.say(many)
        assert not reply.refused
        assert len(reply.whole) > REMEMBERED_BYTES_MAX
        assert (await client.say(many)).refused == Code.REQUEST_ALREADY_APPLIED
        kept = world.listener.gateway.replay_caches._sessions[CLIENT]._kept
        assert len(kept) == 1


# ------------------------------------------------------------------------------------------ messages that come again


ONE = batch_of(b"one copy", b"of both")


async def test_messages_that_come_again_on_the_same_connection_are_stored_once(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client = await with_topic(world)
        octets = client.asked(sending(ONE))
        answered = await client.say(octets)
        assert confirmed(answered) == (0, 0, 0, 0)
        for _ in range(3):
            assert (await client.say(octets)).whole == answered.whole
        # The same under a new number is said to be something else.
        assert confirmed(await client.demand(sending(ONE))) == (0, 0, 0, 2)
        assert await client.payloads() == [b"one copy", b"of both"] * 2


@pytest.mark.parametrize("verbatim", [True, False], ids=["in the old session", "in the new session"])
async def test_messages_that_come_again_after_a_reconnect_are_stored_once(tmp_path: Path, verbatim: bool) -> None:
    async with served(tmp_path) as world:
        client = await with_topic(world)
        number = client.next_number
        octets = client.asked(sending(ONE))
        answered = await client.say(octets)
        client.reset()
        for _ in range(3):
            again = await root(world)
            assert again.session > client.session
            if not verbatim:
                octets = again.asked(sending(ONE), number=number)
            reply = await again.say(octets)
            assert confirmed(reply) == confirmed(answered)
            assert (reply.number, reply.operation) == (number, SEND)
            assert await again.payloads() == [b"one copy", b"of both"]
            again.reset()


async def test_another_client_or_another_user_is_not_taken_for_the_one_who_sent(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client = await with_topic(world)
        alice = await with_alice(client, permissions=everywhere(send_messages=True))
        number = client.next_number
        octets = client.asked(sending(ONE))
        assert confirmed(await client.say(octets)) == (0, 0, 0, 0)
        other = await root(world, OTHER)
        assert confirmed(await other.demand(sending(ONE), number=number)) == (0, 0, 0, 2)
        thief = await stranger(world)
        assert (await thief.register(alice)).evicted is None
        assert (await thief.say(octets)).evicted == Reason.SESSION_TOO_LOW
        assert confirmed(await thief.demand(sending(ONE), number=number)) == (0, 0, 0, 4)
        # And the one who was here first is still known on the connection that it has.
        assert confirmed(await client.say(octets)) == (0, 0, 0, 0)


async def test_what_was_sent_is_remembered_for_a_while_after_the_connection(tmp_path: Path) -> None:
    clock = Clock()
    async with served(tmp_path, store={"clock": clock}, session_memory=5.0) as world:
        client = await with_topic(world)
        octets = client.asked(sending(ONE))
        answered = await client.say(octets)
        for wait, known in ((4_900_000, True), (5_000_001, False)):
            client.reset()
            while world.connections:  # noqa: ASYNC110
                await asyncio.sleep(0)
            clock.now += wait
            client = await root(world)
            reply = await client.say(octets)
            assert (reply.whole == answered.whole) == known
            assert reply.evicted == (None if known else Reason.SESSION_TOO_LOW)


async def test_messages_that_come_again_while_they_are_being_written_are_stored_once(tmp_path: Path) -> None:
    disk = SlowDisk()
    async with served(tmp_path, store={"files": disk, "messages_required_to_save": 1}) as world:
        client = await with_topic(world)
        number = client.next_number
        octets = client.asked(sending(ONE))
        disk.stop()
        await client.send(octets)
        await reached(disk.reached)
        # Over again on the same connection, and on two others that have logged in meanwhile.
        await client.send(octets)
        verbatim = await root(world)
        await verbatim.send(octets)
        anew = await root(world)
        await anew.send(anew.asked(sending(ONE), number=number))
        for witness in (await root(world, OTHER), await root(world, OTHER)):
            assert await witness.is_alive()
        disk.go()
        replies = [await one.reply() for one in (client, client, verbatim, anew)]
        assert [confirmed(reply) for reply in replies] == [(0, 0, 0, 0)] * 4
        assert await anew.payloads() == [b"one copy", b"of both"]


async def test_messages_whose_connection_broke_while_they_were_written_are_stored_once(tmp_path: Path) -> None:
    disk = SlowDisk()
    async with served(tmp_path, store={"files": disk, "messages_required_to_save": 1}) as world:
        client, witness = await with_topic(world), await root(world, OTHER)
        octets = client.asked(sending(ONE))
        disk.stop()
        await client.send(octets)
        await reached(disk.reached)
        client.reset()
        while world.connections == 2:
            assert await witness.is_alive()
        again = await root(world)
        await again.send(octets)
        assert await witness.is_alive()
        disk.go()
        assert confirmed(await again.reply()) == (0, 0, 0, 0)
        assert await again.payloads() == [b"one copy", b"of both"]


async def test_messages_that_were_refused_may_come_again_and_are_then_stored(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client = await root(world)
        assert not await client.refused(commands.CreateStream("s"))
        early = client.asked(sending(ONE), number=7)
        assert (await client.say(early)).refused == Code.TOPIC_ID_NOT_FOUND
        assert (await client.say(early)).refused == Code.TOPIC_ID_NOT_FOUND
        made = await root(world, OTHER)
        assert not await made.refused(commands.CreateTopic("s", "t", 1))
        assert confirmed(await client.say(early)) == (0, 0, 0, 0)
        assert confirmed(await client.say(early)) == (0, 0, 0, 0)
        assert await client.payloads() == [b"one copy", b"of both"]


def _session_of(world: Served, client: bytes) -> Session:
    (found,) = (
        one for one in world.listener.gateway.sessions if one.registration and one.registration.client == client
    )
    return found


async def test_a_client_that_is_stale_is_evicted_and_what_it_sent_then_was_not_done(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        made = await with_topic(world, client=OTHER)
        for request in (
            commands.GetStreams(),
            commands.Ping(),
            commands.CreateStream("x"),
            sending(ONE),
            commands.LogoutUser(),
        ):
            client = await root(world)
            number = client.next_number
            _session_of(world, CLIENT).stale = True
            octets = client.asked(request)
            await client.send(octets + octets)
            reply = await client.reply()
            assert reply.evicted == Reason.STALE_CLIENT
            assert reply.head[128:144] == CLIENT
            assert await client.is_closed()
            client.reset()
            again = await root(world)
            assert (await again.demand(request, number=number)).evicted is None, request
            again.reset()
            while world.connections > 1:
                assert await made.is_alive()
        client = await root(world)
        _session_of(world, CLIENT).stale = True
        assert (await client.register()).evicted == Reason.STALE_CLIENT
        assert await client.is_closed()
        assert await made.payloads() == [b"one copy", b"of both"]
        assert len(await made.get(commands.GetStreams())) == 2


async def test_a_defect_is_answered_logged_once_and_may_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(tmp_path) as world:
        client = await with_topic(world)
        number = client.next_number
        octets = client.asked(sending(ONE))
        going, begun = asyncio.Event(), asyncio.Event()

        async def broken(*_: Any) -> Any:
            begun.set()
            await going.wait()
            raise RuntimeError("of ours")

        with monkeypatch.context() as patch:
            patch.setattr(sending_commands, "find_partition", lambda *_: 1 // 0)
            assert (await client.say(octets)).refused == Code.ERROR
            patch.setattr("whippet.transports.modern_conversation.execute", broken)
            await client.send(octets)
            await begun.wait()
        again, witness = await root(world), await root(world, OTHER)
        await again.send(octets)
        assert await witness.is_alive()
        going.set()
        # Who waits for the same hears the same; nobody is left without an answer.
        assert [(await one.reply()).refused for one in (client, again)] == [Code.ERROR] * 2
        assert confirmed(await again.demand(sending(ONE), number=number)) == (0, 0, 0, 0)
        assert await again.payloads() == [b"one copy", b"of both"]
    assert len(caplog.records) == 2
    caplog.clear()


async def test_a_login_that_outlives_its_connection_leaves_nothing_behind(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        witness = await root(world, OTHER)
        users = world.listener.gateway.users
        log_in, going, count = users.log_in, asyncio.Event(), 0

        async def slow(*credentials: str) -> Any:
            nonlocal count
            count += 1
            await going.wait()
            return await log_in(*credentials)

        users.log_in = slow  # type: ignore[assignment, method-assign]
        for number in range(20):
            client = await stranger(world, bytes([100 + number]) * 16)
            await client.send(frame(REGISTER, login(AS_ROOT), client=client.client))
            while count <= number:
                assert await witness.is_alive()
            client.reset()
        while world.connections > 1:
            assert await witness.is_alive()
        going.set()
        users.log_in = log_in  # type: ignore[method-assign]
        while any("_process_queue" in str(task.get_coro()) for task in asyncio.all_tasks()):  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert list(world.listener.gateway.replay_caches._sessions) == [OTHER]


async def test_requests_whose_connection_is_gone_before_their_turn_are_not_carried_out(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        witness = await root(world, OTHER)
        for requests_ in (
            [commands.CreateStream("x")],
            [commands.LogoutUser(), commands.CreateStream("x")],
            [commands.GetMe()],
        ):
            client = await root(world)
            ahead = [memoryview(client.asked(request)) for request in requests_]
            (connection,) = (
                one
                for one in world.listener._connections
                if isinstance(one, tcp.Connection) and one._session.registration == (CLIENT, client.session)
            )
            for one in ahead:
                connection._intake.claim.count(len(one))
                connection._intake.queue.append(one)
            connection._after_receive()
            # In the same turn of the loop in which they were read.
            connection.connection_lost(None)
            client.reset()
            while world.connections > 1:
                assert await witness.is_alive()
        assert await witness.get(commands.GetStreams()) == ()


async def test_a_flood_of_logins_under_new_names_is_not_remembered(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client = await with_topic(world)
        token = (await client.get(commands.CreatePersonalAccessToken("token", 0))).token
        who = commands.LoginWithPersonalAccessToken(token)
        octets = [frame(REGISTER, login(who), client=number.to_bytes(16, "big")) for number in range(1, 2000)]
        flooding = await stranger(world)
        sent = asyncio.ensure_future(flooding.send(b"".join(octets)))
        for _ in octets:
            assert not (await flooding.reply()).refused
        await sent
        # The one who is here, and the last of the flood.
        assert len(world.listener.gateway.replay_caches._sessions) == 2
        assert not world.listener.gateway.replay_caches._away


# --------------------------------------------------------------------------------------------------------------- groups


async def with_group(world: Served, partitions: int = 2) -> Modern:
    client = await with_topic(world, partitions)
    assert not await client.refused(commands.CreateConsumerGroup(*OF_GROUP))
    for partition_id in range(partitions):
        assert not await client.refused(sending(batch_of(b"%d" % partition_id), partition_id))
    return client


async def poll_of_group(client: Modern, partition_id: int | None, *, commit: bool = False) -> responses.Polled:
    found = await client.get(commands.PollMessages(GROUP, 0, 0, partition_id, NEXT, 10, commit))
    assert isinstance(found, responses.Polled)
    return found


async def test_members_are_told_their_partitions_and_strangers_that_they_are_none(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client, other = await with_group(world), await root(world, OTHER)
        sync = commands.SyncConsumerGroup(*OF_GROUP)
        assert (await client.demand(sync)).content == b""
        assert not await client.refused(commands.JoinConsumerGroup(*OF_GROUP))
        first = await client.get(sync)
        assert first.partitions == (0, 1)
        assert (await other.demand(sync)).content == b""
        assert not await other.refused(commands.JoinConsumerGroup(*OF_GROUP))
        second, others = await client.get(sync), await other.get(sync)
        assert sorted(second.partitions + others.partitions) == [0, 1]
        assert first.generation < second.generation == others.generation
        third = await root(world, b"3" * 16)
        assert not await third.refused(commands.JoinConsumerGroup(*OF_GROUP))
        content = (await third.demand(sync)).content
        assert (len(content), content[8:]) == (12, bytes(4))
        assert not await client.refused(commands.LeaveConsumerGroup(*OF_GROUP))
        assert (await client.demand(sync)).content == b""
        assert await client.refused(commands.LeaveConsumerGroup(*OF_GROUP)) == 5006
        other.reset()
        while world.connections > 2:
            assert await client.is_alive()
        assert (await third.get(sync)).partitions == (0, 1)


async def test_a_partition_of_another_member_is_neither_polled_nor_committed(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client, other = await with_group(world), await root(world, OTHER)
        for member in (client, other):
            assert not await member.refused(commands.JoinConsumerGroup(*OF_GROUP))
        (mine,) = (await client.get(commands.SyncConsumerGroup(*OF_GROUP))).partitions
        reply = await client.demand(commands.PollMessages(GROUP, 0, 0, 1 - mine, NEXT, 10, True))
        assert reply.content == bytes.fromhex("ffffffff") + bytes(12)
        for not_there in (2, 2**32 - 1):
            reply = await client.demand(commands.PollMessages(GROUP, 0, 0, not_there, NEXT, 10, True))
            assert reply.refused == 3007 or reply.content == bytes.fromhex("ffffffff") + bytes(12)
        assert (await poll_of_group(client, mine)).messages_count == 1
        commit, forget = commands.StoreConsumerOffset, commands.DeleteConsumerOffset
        assert await client.refused(commit(GROUP, 0, 0, 1 - mine, 0)) == 5009
        assert await client.refused(forget(GROUP, 0, 0, 1 - mine)) == 5009
        assert not await client.refused(commit(GROUP, 0, 0, mine, 0))
        assert not await client.refused(forget(GROUP, 0, 0, mine))
        stranger_ = await root(world, b"3" * 16)
        assert await stranger_.refused(commands.PollMessages(GROUP, 0, 0, 0, NEXT, 10, True)) == 5006
        assert await stranger_.refused(commit(GROUP, 0, 0, 0, 0)) == 5006


async def test_a_promised_partition_is_left_out_until_what_was_polled_is_committed(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client, other = await with_group(world), await root(world, OTHER)
        sync = commands.SyncConsumerGroup(*OF_GROUP)
        assert not await client.refused(commands.JoinConsumerGroup(*OF_GROUP))
        for partition_id in (0, 1):
            assert (await poll_of_group(client, partition_id)).messages_count == 1
        assert not await other.refused(commands.JoinConsumerGroup(*OF_GROUP))
        before = await client.get(sync)
        assert len(before.partitions) == 1
        promised = 1 - before.partitions[0]
        # Whose it is going to be has nothing yet: twelve bytes, because a member it is.
        assert (await other.get(sync)).partitions == ()
        reply = await other.demand(commands.PollMessages(GROUP, 0, 0, promised, NEXT, 10, False))
        assert reply.content[:4] == b"\xff\xff\xff\xff"
        assert not await client.refused(commands.StoreConsumerOffset(GROUP, 0, 0, promised, 0))
        assert (await other.get(sync)).partitions == (promised,)
        assert await client.refused(commands.StoreConsumerOffset(GROUP, 0, 0, promised, 0)) == 5009
        assert not (await poll_of_group(client, promised)).owned


async def test_a_join_that_comes_again_after_a_reconnect_is_done_again(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client = await with_group(world)
        join = client.asked(commands.JoinConsumerGroup(*OF_GROUP))
        answered = await client.say(join)
        assert (await client.say(join)).whole == answered.whole
        client.reset()
        again = await root(world)
        assert (await again.say(join)).evicted == Reason.SESSION_TOO_LOW
        assert await again.get(commands.SyncConsumerGroup(*OF_GROUP)) is None
        assert not await again.refused(commands.JoinConsumerGroup(*OF_GROUP), number=4)
        assert (await again.get(commands.SyncConsumerGroup(*OF_GROUP))).partitions == (0, 1)


# ---------------------------------------------------------------------------------------------------- what clusters ask


async def test_everything_is_to_be_asked_here(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client = await with_topic(world)
        world.listener.gateway.addresses.tcp = world.listener.address.port
        (node,) = (await client.get(commands.GetClusterMetadata())).nodes
        assert (node.ip, node.tcp_port) == ("127.0.0.1", world.listener.address.port)
        for request in (
            commands.GetPollRouting(ME, 0, 0, 0, NEXT, 1, True),
            commands.GetOffsetRouting(ME, 0, 0, 0),
        ):
            assert await client.get(request) == responses.Routing(CLIENT, client.session, 0, node)
        assert not await client.refused(sending(ONE))
        body = b"".join(requests.encode(commands.PollMessages(ME, 0, 0, 0, NEXT, 10, False)))
        polls = [
            (await client.say(frame(READ, body, session=client.session, code=code))).content for code in (100, 104)
        ]
        assert polls[0] == polls[1]
        assert b"one copy" in polls[0]


async def test_a_second_connection_acts_in_the_memberships_of_the_first(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        member, data = await with_group(world), await root(world, OTHER)
        assert not await member.refused(commands.JoinConsumerGroup(*OF_GROUP))
        poll = commands.PollMessages(GROUP, 0, 0, 1, NEXT, 10, False)
        assert await data.refused(poll) == 5006
        assert (await data.demand(commands.AttachSession(CLIENT, member.session))).content == b""
        assert (await data.get(commands.SyncConsumerGroup(*OF_GROUP))).partitions == (0, 1)
        assert (await data.get(poll)).messages_count == 1
        assert not await data.refused(commands.StoreConsumerOffset(GROUP, 0, 0, 1, 0))
        # To itself: it acts for itself again.
        assert not await data.refused(commands.AttachSession(OTHER, data.session))
        assert await data.refused(poll) == 5006


async def test_nobody_attaches_to_a_session_that_is_not_there_or_not_his(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        member, data = await with_group(world), await root(world, OTHER)
        old = member.session
        assert not (await member.register()).refused
        for client, number in ((CLIENT, old), (CLIENT, member.session + 1), (b"?" * 16, member.session)):
            assert await data.refused(commands.AttachSession(client, number)) == Code.CLIENT_NOT_FOUND
        # The same client twice: the number says which of its connections.
        twin = await root(world)
        for session in (member.session, twin.session):
            assert not await data.refused(commands.AttachSession(CLIENT, session))
        alices = await stranger(world, b"a" * 16)
        await alices.register(await with_alice(data, permissions=everywhere(poll_messages=True)))
        assert await alices.refused(commands.AttachSession(CLIENT, member.session)) == Code.UNAUTHORIZED


async def test_who_is_attached_to_one_user_does_not_act_for_the_next(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        member, data = await with_group(world), await root(world, OTHER)
        alice = await with_alice(member, permissions=everywhere(read_streams=True, read_topics=True))
        assert not await data.refused(commands.AttachSession(CLIENT, member.session))
        assert not (await member.register(alice)).refused
        assert not await member.refused(commands.JoinConsumerGroup(*OF_GROUP))
        assert await data.get(commands.SyncConsumerGroup(*OF_GROUP)) is None
        assert await data.refused(commands.PollMessages(GROUP, 0, 0, 0, NEXT, 10, False)) == 5006
        # And whoever logs in anew acts for himself.
        third = await root(world, b"3" * 16)
        assert not await third.refused(commands.JoinConsumerGroup(*OF_GROUP))
        assert not await data.refused(commands.AttachSession(b"3" * 16, third.session))
        assert (await data.get(commands.SyncConsumerGroup(*OF_GROUP))) is not None
        assert not (await data.register()).refused
        assert await data.get(commands.SyncConsumerGroup(*OF_GROUP)) is None


async def test_who_is_attached_to_a_connection_that_is_gone_is_evicted_when_it_polls(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        member, data = await with_group(world), await root(world, OTHER)
        assert not await member.refused(commands.JoinConsumerGroup(*OF_GROUP))
        assert not await data.refused(commands.AttachSession(CLIENT, member.session))
        member.reset()
        while world.connections > 1:
            assert await data.is_alive()
        assert await data.get(commands.SyncConsumerGroup(*OF_GROUP)) is None
        poll = commands.PollMessages(GROUP, 0, 0, 0, NEXT, 10, False)
        assert (await data.demand(poll)).evicted == Reason.STALE_CLIENT
        assert await data.is_closed()
