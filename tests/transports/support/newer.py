"""A 0.12 client without a socket: it sends frames to a conversation and receives responses in any order."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

from tests.app.access.support.world import World
from tests.transports.support.modern import AS_ROOT, HEADER_BYTES, Reply
from whippet.app.commands import requests as commands
from whippet.app.model.sessions import Session, Transport
from whippet.transports.admission.budgets import Budgets
from whippet.transports.conversation import Conversation, create_conversation
from whippet.transports.reservations import DeferredResponder, DeferredWork, Reservation
from whippet.transports.wire.modern import registration as modern_registration
from whippet.transports.wire.modern.operations import READ, REGISTER
from whippet.transports.wire.next import registration, requests, responses
from whippet.transports.wire.next.operations import BIND_SESSION, CANCEL, CODES, OF_CODE, PARTITION_OPERATIONS

SPOKEN = modern_registration.packed(0, 12, 2)
CLIENT = bytes(range(101, 117))
SECRET = bytes(range(32))
ME = commands.Consumer(commands.ConsumerKind.CONSUMER, 1)
OF_PARTITIONS = (commands.PollMessagesDeferred, commands.GetConsumerOffset)


def frame(
    operation: int,
    body: bytes = b"",
    *,
    client: bytes = CLIENT,
    stamp: int = 0,
    number: int = 0,
    session: int = 0,
    code: int = 0,
    incarnation: int = 0,
) -> bytes:
    head = bytearray(HEADER_BYTES)
    struct.pack_into("<I", head, 48, HEADER_BYTES + len(body))
    head[60] = 5
    head[128:144] = client
    head[144:160] = stamp.to_bytes(16, "little")
    struct.pack_into("<QB", head, 168, number, operation)
    struct.pack_into("<Q", head, 184, session)
    struct.pack_into("<IQ", head, 196, code, incarnation)
    return bytes(head) + body


class Newer:
    """One connection. `ended` when the server has closed it."""

    sends_long_reads = False

    def __init__(
        self, world: World, client: bytes = CLIENT, *, port: int = 5000, budgets: Budgets | None = None
    ) -> None:
        self.gateway = world.gateway
        self.client = client
        self.ended = False
        self.number = 0
        self.session = 0
        self.incarnation = 0
        self.late: list[asyncio.Task[list[Any]]] = []
        self._rooms = budgets or Budgets(world.gateway.config)
        self.own = Session(Transport.TCP, f"10.0.0.9:{port}", world.gateway.clock(), self._end)
        self.talk: Conversation = create_conversation(world.gateway, self.own, b"\0\0\0\0")

    def _end(self) -> None:
        self.ended = True

    # What a transport keeps of it.

    def response_reservation(self) -> Reservation:
        return Reservation(self._rooms.responses_to(self.own))

    def defer(self, work: DeferredWork) -> None:
        async def give() -> list[Any]:
            return await work(DeferredResponder(self.response_reservation()))

        self.late.append(asyncio.create_task(give()))

    def close(self) -> None:
        self.talk.close()

    # Sends a frame.

    async def say(self, octets: bytes) -> Reply | None:
        """None: there is no response, or it follows later."""
        buffers = await self.talk.respond(memoryview(bytearray(octets)), self)
        self.talk = self.talk.successor or self.talk
        return reply_of(buffers)

    async def reply(self, octets: bytes) -> Reply:
        found = await self.say(octets)
        assert found is not None
        return found

    async def register(
        self, who: Any = AS_ROOT, *, secret: bytes = SECRET, protocol: int = SPOKEN, stamp: int = 77
    ) -> Reply:
        body = registration.encode(protocol, secret, who, "test", "1")
        reply = await self.reply(frame(REGISTER, body, client=self.client, stamp=stamp))
        if reply.evicted is None and not reply.refused:
            self.session = modern_registration.decode_response(memoryview(reply.content)).session
        return reply

    async def bind(
        self, session: int, *, secret: bytes = SECRET, number: int = 1, client: bytes | None = None
    ) -> Reply:
        whose = client or self.client
        body = registration.encode_binding(SPOKEN, whose, session, secret, "test", "1")
        octets = frame(READ, body, client=self.client, number=number, session=session, code=BIND_SESSION)
        reply = await self.reply(octets)
        if reply.evicted is None and not reply.refused:
            self.session = modern_registration.decode_response(memoryview(reply.content)).session
            self.number = number
        return reply

    def asked(self, request: commands.Request, **fields: Any) -> bytes:
        """The frame of a request, with the next number."""
        self.number += 1
        code = requests.code_of(request)
        operation = OF_CODE.get(code, READ)
        named: dict[str, Any] = {"client": self.client, "session": self.session, "number": self.number}
        if operation == READ:
            named["code"] = 106 if isinstance(request, commands.PollMessagesDeferred) and request.wait_us else code
        elif operation not in PARTITION_OPERATIONS:
            named["stamp"] = 1_000 + self.number
        if operation in PARTITION_OPERATIONS or isinstance(request, OF_PARTITIONS):
            named["incarnation"] = self.incarnation
        return frame(operation, b"".join(requests.encode(request)), **(named | fields))

    async def demand(self, request: commands.Request, **fields: Any) -> Reply:
        return await self.reply(self.asked(request, **fields))

    async def get(self, request: commands.Request, **fields: Any) -> Any:
        """Returns the response to a request that must not be refused."""
        reply = await self.demand(request, **fields)
        code = CODES.get(reply.operation, requests.code_of(request))
        return responses.OF_0_12_2.decode(code, memoryview(reply.content))

    async def refused(self, request: commands.Request, **fields: Any) -> int:
        return (await self.demand(request, **fields)).refused

    async def cancel(self, number: int) -> Reply | None:
        octets = frame(READ, client=self.client, session=self.session, number=number, code=CANCEL)
        return await self.say(octets)

    async def come_late(self) -> Reply | None:
        """Returns the next deferred reply."""
        return reply_of(await self.late.pop(0))


def reply_of(buffers: list[Any]) -> Reply | None:
    octets = b"".join(buffers)
    if not octets:
        return None
    assert int.from_bytes(octets[48:52], "little") == len(octets)
    return Reply(octets[:HEADER_BYTES], octets[HEADER_BYTES:])


def is_committed(reply: Reply) -> bool:
    """Returns True if the reply is marked as final; then it has to repeat all fields that a client compares."""
    if not reply.head[220]:
        return False
    operation_number, commit = struct.unpack_from("<QQ", reply.head, 176)
    assert operation_number == commit != 0
    return True


async def root(world: World, client: bytes = CLIENT, **options: Any) -> Newer:
    found = Newer(world, client, **options)
    assert not (await found.register()).refused
    return found


async def with_topic(world: World, partitions: int = 1) -> Newer:
    """Stream 0 with topic 0, and a client that has created them and knows the incarnation."""
    found = await root(world)
    assert not await found.refused(commands.CreateStream("s"))
    assert not await found.refused(commands.CreateTopic("s", "t", partitions))
    found.incarnation = (await found.get(commands.GetPartitionRoute("s", "t", 0))).incarnation
    return found
