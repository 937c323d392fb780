"""0.12 clients on sockets: responses out of their turn, and clients that go away before those come."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.transports.support.modern import AS_ROOT, HEADER_BYTES, Reply, batch_of, sending
from tests.transports.support.newer import CLIENT, ME, SECRET, SPOKEN, frame
from tests.transports.support.raw import Raw, Served, served
from whippet.app.commands import requests as commands
from whippet.transports.wire.modern import registration as modern_registration
from whippet.transports.wire.modern.operations import READ, REGISTER
from whippet.transports.wire.next import registration, requests, responses
from whippet.transports.wire.next.operations import CODES, OF_CODE, PARTITION_OPERATIONS

FIRST = commands.Strategy(commands.StrategyKind.FIRST)
MINUTE = 60_000_000
MIB = 1 << 20


class Client(Raw):
    def __init__(self, raw: Raw) -> None:
        super().__init__(raw.link)
        self.session = self.number = self.incarnation = 0

    async def reply(self) -> Reply:
        head = await self.exactly(HEADER_BYTES)
        return Reply(head, await self.exactly(int.from_bytes(head[48:52], "little") - HEADER_BYTES))

    def asked(self, request: commands.Request) -> bytes:
        self.number += 1
        code = requests.code_of(request)
        operation = OF_CODE.get(code, READ)
        named: dict[str, Any] = {"code": code} if operation == READ else {"stamp": self.number}
        if operation in PARTITION_OPERATIONS or isinstance(request, commands.PollMessagesDeferred):
            named |= {"incarnation": self.incarnation, "stamp": 0}
        body = b"".join(requests.encode(request))
        return frame(operation, body, session=self.session, number=self.number, **named)

    async def get(self, request: commands.Request) -> Any:
        await self.send(self.asked(request))
        reply = await self.reply()
        code = CODES.get(reply.operation, requests.code_of(request))
        return responses.OF_0_12_2.decode(code, memoryview(reply.content))


async def connected(world: Served, **options: Any) -> Client:
    client = Client(await world.stranger(**options))
    body = registration.encode(SPOKEN, SECRET, AS_ROOT, "test", "1")
    await client.send(frame(REGISTER, body, client=CLIENT, stamp=7))
    client.session = modern_registration.decode_answer(memoryview((await client.reply()).content)).session
    return client


async def with_topic(world: Served, **options: Any) -> Client:
    client = await connected(world, **options)
    await client.get(commands.CreateStream("s"))
    await client.get(commands.CreateTopic("s", "t", 1))
    client.incarnation = (await client.get(commands.GetPartitionRoute("s", "t", 0))).incarnation
    return client


def poll(wait: int = MINUTE, max_bytes: int = 64 * MIB) -> commands.PollMessagesDeferred:
    return commands.PollMessagesDeferred(
        ME, "s", "t", 0, FIRST, 1000, False, None, wait, 1, max_bytes, wait + 1_000_000
    )


async def test_a_poll_that_waits_is_answered_after_what_was_asked_behind_it(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client = await with_topic(world)
        waiting, ping, send = [client.asked(one) for one in (poll(), commands.Ping(), sending(batch_of(b"there")))]
        await client.send(waiting + ping + send)
        replies = [await client.reply() for _ in range(3)]
        assert [reply.number for reply in replies][:1] == [client.number - 1]
        assert {reply.number for reply in replies} == {client.number - number for number in range(3)}
        late = next(reply for reply in replies if reply.number == client.number - 2)
        assert b"there" in late.body


async def test_whoever_goes_while_a_poll_waits_leaves_nothing_behind(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client = await with_topic(world)
        await client.send(b"".join(client.asked(poll()) for _ in range(5)))
        await client.get(commands.GetMe())
        gateway = world.listener.gateway
        assert len(gateway.waiting_polls) == 5
        client.reset()
        while len(gateway.waiting_polls):  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_whoever_goes_without_taking_a_late_response_leaves_nothing_behind(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client = await with_topic(world, receive_bytes=4096)
        await client.send(b"".join(client.asked(poll()) for _ in range(3)))
        await client.send(client.asked(commands.Ping()))
        await client.reply()
        await client.send(client.asked(sending(batch_of(b"x" * 8 * MIB))))
        gateway = world.listener.gateway
        while len(gateway.waiting_polls):  # noqa: ASYNC110
            await asyncio.sleep(0)
        # Responses of 8 MiB are on their way, or wait for those before them.
        assert world.listener.rooms.responses.used >= 8 * MIB
        client.reset()
