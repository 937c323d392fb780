"""0.9 clients against a live listener: frames in any pieces, invalid frames, and invalid batches.

Every request is answered clearly or ends the connection, nothing of a refused request is stored, and other clients are
not affected. What applies to both protocols, time and memory above all, is in test_tcp.py.
"""

from __future__ import annotations

import asyncio
import logging
import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.storage.support.world import settled
from tests.transports.support.modern import (
    AS_ROOT,
    FIRST,
    ME,
    OTHER,
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
from tests.transports.support.modern_clients import nothing_is_logged  # noqa: F401
from tests.transports.support.raw import served
from whippet.app.commands import requests as commands
from whippet.app.errors import Code
from whippet.storage import batch as batches
from whippet.transports.admission.frame_intake import QUEUE_MAX
from whippet.transports.classic_conversation import UNAUTHENTICATED_FRAME_BYTES
from whippet.transports.connections import SCRATCH_BYTES
from whippet.transports.modern_conversation import BODY_BYTES_MAX
from whippet.transports.wire.modern import requests
from whippet.transports.wire.modern.frames import Reason
from whippet.transports.wire.modern.operations import CODES, OF_CODE, READ, REGISTER

MIB = 1 << 20

SEND, CREATE_STREAM = 160, 128


# ------------------------------------------------------------------------------------------------- frames in any pieces


async def test_a_conversation_may_be_split_at_every_byte(tmp_path: Path) -> None:
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
            # A response to another client: everything sent before has been read.
            assert await made.is_alive()
            await client.send(octets[cut:])
            assert [(await client.reply()).body for _ in range(3)][::2] == [one.body for one in expected][::2], cut
        drop = await stranger(world)
        for at in range(len(octets)):
            await drop.send(octets[at : at + 1])
            if at % 16 == 0:
                await made.is_alive()
        assert [(await drop.reply()).refused for _ in range(3)] == [0] * 3


async def test_header_and_body_may_arrive_separately(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client, witness = await with_topic(world), await root(world, OTHER)
        for size in (10, 10_000, SCRATCH_BYTES + 1):
            octets = client.asked(sending(batch_of(b"x" * size)))
            await client.send(octets[:256])
            assert await witness.is_alive()
            await client.send(octets[256:])
            assert not (await client.reply()).refused
        assert [len(payload) for payload in await client.payloads()] == [10, 10_000, SCRATCH_BYTES + 1]


async def test_requests_before_invalid_bytes_are_answered_then_the_connection_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also if those bytes arrived so early that they were kept unparsed."""
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


async def test_pipelined_requests_of_0_9_clients_are_answered_in_order(tmp_path: Path) -> None:
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


async def test_a_half_closed_client_still_gets_all_responses(tmp_path: Path) -> None:
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


# ----------------------------------------------------------------------------------------------------- invalid frames


@pytest.mark.parametrize("logged_in", [False, True])
async def test_after_invalid_bytes_the_connection_ends(tmp_path: Path, logged_in: bool) -> None:
    async with served(tmp_path) as world:
        witness = await root(world, OTHER)
        others = (bytes(4) + random.Random(3).randbytes(252), bytes(256), bytes(1000))
        lies = [frame(READ, code=1, size=size) for size in (0, 1, 4, 48, 255)]
        lies += [frame(READ, code=1, kind=kind) for kind in range(256) if kind != 5]
        for lie in (*lies, *others):
            client = await (root if logged_in else stranger)(world)
            # Earlier requests are still answered.
            ping = client.asked(commands.Ping())
            await client.send(ping + lie + ping)
            assert not (await client.reply()).refused
            assert await client.is_closed()
        assert await witness.is_alive()


async def test_a_size_that_is_too_large_takes_the_next_bytes_for_the_body(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client = await root(world)
        create = client.asked(commands.CreateStream("one"))
        ping = client.asked(commands.Ping())
        longer = create[:48] + struct.pack("<I", len(create) + len(ping)) + create[52:]
        await client.send(longer + ping)
        # The checksum does not match the body any more.
        assert (await client.reply()).refused == Code.INVALID_FORMAT
        shorter = create[:48] + struct.pack("<I", len(create) - 1) + create[52:]
        await client.send(shorter + bytes(300))
        assert (await client.reply()).refused == Code.INVALID_FORMAT
        assert await client.is_closed()
        assert await (await root(world)).get(commands.GetStreams()) == ()


async def test_requests_that_are_too_long_are_skipped_and_refused(tmp_path: Path) -> None:
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
        # The number is still free, and a valid request may use it.
        assert not await client.refused(sending(batch_of(b"x" * (11 * MIB))))


@pytest.mark.parametrize("request_", [commands.GetStream("s"), commands.CreateStream("t"), sending(batch_of(b"x"))])
async def test_a_checksum_of_the_body_is_verified_if_present(tmp_path: Path, request_: commands.Request) -> None:
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


async def test_a_client_without_an_id_is_refused_and_closed(tmp_path: Path) -> None:
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


async def test_unknown_operations_and_codes_are_refused(tmp_path: Path) -> None:
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


async def test_reading_the_code_of_a_login_is_an_eviction_and_the_connection_continues(tmp_path: Path) -> None:
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


# ---------------------------------------------------------------------------------------------------- invalid batches


def _with(position: int, form: str, *values: int) -> Callable[[bytearray], bytearray]:
    """Other numbers in a batch with correct checksums."""

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
    """Both messages in the other order, otherwise unchanged."""
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
async def test_invalid_batches_are_refused_and_nothing_of_them_is_stored(tmp_path: Path, times: int) -> None:
    """Two messages and forty: other code checks more than a few."""

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
                # In a long batch another error may be found first.
                assert found == code if times == 1 else found not in (0, Code.ERROR), what
            assert await client.is_alive()
        assert await client.payloads() == []
        # None of them has used up the number.
        assert confirmed(await client.demand(sending(PAIR))) == (0, 0, 0, 0)
        assert await client.payloads() == [b"one", b"two"]


@pytest.mark.parametrize("in_request", [0, 1, 2, 3, 2**32 - 1])
@pytest.mark.parametrize("in_batch", [0, 1, 2, 3, 2**31, 2**32 - 1])
async def test_both_counts_must_match_the_messages(tmp_path: Path, in_request: int, in_batch: int) -> None:
    async with served(tmp_path) as world:
        client = await with_topic(world)
        batch = _with(48, "<I", in_batch)(bytearray(PAIR))
        octets = frame(SEND, _send_body(batch, in_request), number=3, session=client.session)
        refused = (await client.say(octets)).refused
        assert refused == (0 if in_request == in_batch == 2 else Code.INVALID_MESSAGES_COUNT)
        assert len(await client.payloads()) == (0 if refused else 2)


async def test_the_latest_possible_origin_times_are_kept_and_later_ones_refused(tmp_path: Path) -> None:
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
async def test_a_missing_object_is_reported_where_the_client_expects_it(
    tmp_path: Path, request_: commands.Request, code: int
) -> None:
    async with served(tmp_path) as world:
        client = await with_topic(world)
        reply = await client.demand(request_)
        assert reply.refused == code
        # In the header if the operation has no section of results, or else in that.
        in_header = int.from_bytes(reply.head[216:220], "little")
        assert in_header == (code if isinstance(request_, commands.SendMessages | commands.PollMessages) else 0)
        assert await client.is_alive()
