"""0.12 clients on sockets: deferred responses, and clients that leave before they arrive."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.running import HANGS_S
from tests.transports.support import quic
from tests.transports.support.modern import AS_ROOT, HEADER_BYTES, Reply, batch_of, sending
from tests.transports.support.newer import CLIENT, ME, SECRET, SPOKEN, frame
from tests.transports.support.raw import Raw, Served, only_other, served
from whippet.app.commands import requests as commands
from whippet.app.errors import Code
from whippet.storage import long_reads
from whippet.transports import quic_requests, reservations
from whippet.transports.wire.modern import registration as modern_registration
from whippet.transports.wire.modern.operations import READ, REGISTER
from whippet.transports.wire.next import registration, requests, responses
from whippet.transports.wire.next.operations import CODES, OF_CODE, PARTITION_OPERATIONS

FIRST = commands.Strategy(commands.StrategyKind.FIRST)
OTHER = bytes(range(1, 17))
MINUTE = 60_000_000
MIB = 1 << 20


class Numbered:
    """The frames of one session."""

    def __init__(self) -> None:
        self.session = self.number = self.incarnation = 0
        self.own = CLIENT

    def asked(self, request: commands.Request) -> bytes:
        self.number += 1
        code = requests.code_of(request)
        operation = OF_CODE.get(code, READ)
        named: dict[str, Any] = {"code": code} if operation == READ else {"stamp": self.number}
        if operation in PARTITION_OPERATIONS or isinstance(request, commands.PollMessagesDeferred):
            named |= {"incarnation": self.incarnation, "stamp": 0}
        body = b"".join(requests.encode(request))
        return frame(operation, body, client=self.own, session=self.session, number=self.number, **named)


class Client(Numbered, Raw):
    def __init__(self, raw: Raw) -> None:
        Raw.__init__(self, raw.link)
        Numbered.__init__(self)

    async def reply(self) -> Reply:
        head = await self.exactly(HEADER_BYTES)
        return Reply(head, await self.exactly(int.from_bytes(head[48:52], "little") - HEADER_BYTES))

    async def get(self, request: commands.Request) -> Any:
        await self.send(self.asked(request))
        reply = await self.reply()
        code = CODES.get(reply.operation, requests.code_of(request))
        return responses.OF_0_12_2.decode(code, memoryview(reply.content))


async def connected(world: Served, own: bytes = CLIENT, **options: Any) -> Client:
    client = Client(await world.stranger(**options))
    client.own = own
    body = registration.encode(SPOKEN, SECRET, AS_ROOT, "test", "1")
    await client.send(frame(REGISTER, body, client=own, stamp=7))
    client.session = modern_registration.decode_response(memoryview((await client.reply()).content)).session
    return client


async def with_topic(world: Served, **options: Any) -> Client:
    client = await connected(world, **options)
    await client.get(commands.CreateStream("s"))
    await client.get(commands.CreateTopic("s", "t", 1))
    client.incarnation = (await client.get(commands.GetPartitionRoute("s", "t", 0))).incarnation
    return client


def poll(wait: int = MINUTE, max_bytes: int = 64 * MIB, *, auto_commit: bool = False) -> commands.PollMessagesDeferred:
    return commands.PollMessagesDeferred(
        *(ME, "s", "t", 0, FIRST, 1000, auto_commit),
        wait_us=wait,
        max_bytes=max_bytes,
        request_timeout_us=wait + 1_000_000,
    )


async def test_a_waiting_poll_is_answered_after_a_long_response_and_never_within_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reservations, "HELD_BYTES_MAX", 100_000)
    monkeypatch.setattr(long_reads, "PIECE_BYTES", 50_000)
    async with served(tmp_path) as world:
        other = await with_topic(world)
        for _ in range(30):
            await other.get(sending(batch_of(b"x" * 50_000)))
        client = await connected(world, OTHER, receive_bytes=4096)
        client.incarnation = other.incarnation
        waiting = client.asked(
            msgspec.structs.replace(poll(), strategy=commands.Strategy(commands.StrategyKind.OFFSET, 30))
        )
        long = client.asked(poll())
        await client.send(waiting + long)
        connection = only_other(world, other)
        while connection._is_sending_long is None:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await other.get(sending(batch_of(b"there")))
        replies = [await client.reply() for _ in range(2)]
        assert [len(reply.content) > 30 * 50_000 for reply in replies] == [True, False]


async def test_a_waiting_poll_is_answered_after_later_requests(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client = await with_topic(world)
        waiting, ping, send = [client.asked(one) for one in (poll(), commands.Ping(), sending(batch_of(b"there")))]
        await client.send(waiting + ping + send)
        replies = [await client.reply() for _ in range(3)]
        assert [reply.number for reply in replies][:1] == [client.number - 1]
        assert {reply.number for reply in replies} == {client.number - number for number in range(3)}
        late = next(reply for reply in replies if reply.number == client.number - 2)
        assert b"there" in late.body


async def test_a_client_that_leaves_during_a_waiting_poll_leaves_nothing_behind(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client = await with_topic(world)
        await client.send(b"".join(client.asked(poll()) for _ in range(5)))
        await client.get(commands.GetMe())
        gateway = world.listener.gateway
        assert len(gateway.waiting_polls) == 5
        client.reset()
        while len(gateway.waiting_polls):  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_a_client_that_leaves_before_a_deferred_response_leaves_nothing_behind(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client = await with_topic(world, receive_bytes=4096)
        await client.send(b"".join(client.asked(poll()) for _ in range(3)))
        await client.send(client.asked(commands.Ping()))
        await client.reply()
        await client.send(client.asked(sending(batch_of(b"x" * 8 * MIB))))
        gateway = world.listener.gateway
        while len(gateway.waiting_polls):  # noqa: ASYNC110
            await asyncio.sleep(0)
        # Responses of 8 MiB are in flight, or wait for those before them.
        assert world.listener.budgets.responses.used >= 8 * MIB
        client.reset()


async def test_a_client_that_half_closes_still_gets_the_answer_to_a_waiting_poll(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        other, client = await with_topic(world), await connected(world, own=OTHER)
        client.incarnation = other.incarnation
        await client.send(client.asked(poll()))
        while not len(world.listener.gateway.waiting_polls):  # noqa: ASYNC110
            await asyncio.sleep(0)
        client.say_no_more()
        await other.get(commands.Ping())
        await other.send(other.asked(sending(batch_of(b"there"))))
        assert b"there" in await client.rest()
        assert len(world.listener.gateway.waiting_polls) == 0


async def test_a_half_closed_client_gets_no_messages_whose_offset_is_committed(tmp_path: Path) -> None:
    """The client may have crashed, and its successor has to get them."""
    async with served(tmp_path) as world:
        client = await with_topic(world)
        await client.send(client.asked(poll(auto_commit=True)))
        client.say_no_more()
        reply = await client.reply()
        assert (reply.refused, len(reply.body)) == (0, 40)
        assert await client.is_closed()


async def test_a_stop_does_not_wait_for_the_polls_of_half_closed_clients(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client = await with_topic(world)
        await client.send(client.asked(poll()))
        client.say_no_more()
        while not len(world.listener.gateway.waiting_polls):  # noqa: ASYNC110
            await asyncio.sleep(0)
        await world.listener.stop(HANGS_S)
        assert await client.is_closed()


# ------------------------------------------------------------------------------------------------------------ over QUIC


async def test_a_deferred_response_above_the_limit_of_quic_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quic_requests, "RESPONSE_BYTES_MAX", 100_000)
    async with quic.served(tmp_path) as world:
        link, client = await world.stranger(), Numbered()

        async def ask(octets: bytes) -> Reply:
            answer = await link.whole(octets)
            return Reply(answer[:HEADER_BYTES], answer[HEADER_BYTES:])

        body = registration.encode(SPOKEN, SECRET, AS_ROOT, "test", "1")
        registered = await ask(frame(REGISTER, body, client=CLIENT, stamp=7))
        client.session = modern_registration.decode_response(memoryview(registered.content)).session
        await ask(client.asked(commands.CreateStream("s")))
        await ask(client.asked(commands.CreateTopic("s", "t", 1)))
        route = await ask(client.asked(commands.GetPartitionRoute("s", "t", 0)))
        client.incarnation = responses.OF_0_12_2.decode(105, memoryview(route.content)).incarnation
        waiting = link.begin(client.asked(poll()))
        sent = await ask(client.asked(sending(batch_of(b"x" * 110_000))))
        assert not sent.refused
        late = await waiting
        assert len(late) == HEADER_BYTES
        assert Reply(late, b"").refused == Code.INVALID_SIZE_BYTES
        await ask(client.asked(commands.LogoutUser()))
