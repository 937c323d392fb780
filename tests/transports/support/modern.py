"""A 0.9 client's socket that sends anything: frames are built here independently, field by field."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import xxhash

from tests.app.access.support.world import ROOT
from tests.transports.support.raw import Raw, Served
from whippet.app.commands import requests as commands
from whippet.app.commands.requests import Partitioning, PartitioningKind
from whippet.storage import batch as batches
from whippet.storage.batch import StoredMessage
from whippet.transports.wire.modern import registration, requests, responses
from whippet.transports.wire.modern.operations import CODES, OF_CODE, PLAIN, READ, REGISTER

HEADER_BYTES = 256
CLIENT = bytes(range(1, 17))
OTHER = bytes(range(17, 33))
SPOKEN = registration.packed(0, 11, 0)
PING, SEND = 1, 160
AS_ROOT = commands.LoginUser(ROOT["IGGY_ROOT_USERNAME"], ROOT["IGGY_ROOT_PASSWORD"], "1")
ME = commands.Consumer(commands.ConsumerKind.CONSUMER, 1)
FIRST = commands.Strategy(commands.StrategyKind.FIRST)


def frame(
    operation: int,
    body: bytes = b"",
    *,
    client: bytes = CLIENT,
    number: int = 0,
    session: int = 0,
    code: int = 0,
    checksum: int = 0,
    timestamp: int = 0,
    size: int | None = None,
    kind: int = 5,
) -> bytes:
    head = bytearray(HEADER_BYTES)
    struct.pack_into("<I", head, 48, HEADER_BYTES + len(body) if size is None else size)
    head[60] = kind
    head[128:144] = client
    head[144:160] = checksum.to_bytes(16, "little")
    struct.pack_into("<QQB", head, 160, timestamp, number, operation)
    struct.pack_into("<Q", head, 184, session)
    struct.pack_into("<I", head, 196, code)
    return bytes(head) + body


def checksum_of(body: bytes) -> int:
    return xxhash.xxh3_64_intdigest(body)


def login(who: commands.LoginUser | commands.LoginWithPersonalAccessToken, protocol: int = SPOKEN) -> bytes:
    return registration.encode(protocol, who, "test", "1")


class Reply(NamedTuple):
    head: bytes
    body: bytes

    @property
    def whole(self) -> bytes:
        return self.head + self.body

    @property
    def evicted(self) -> int | None:
        """The reason, if it is an eviction."""
        return self.head[255] if self.head[60] == 13 else None

    @property
    def operation(self) -> int:
        return self.head[208]

    @property
    def number(self) -> int:
        return int.from_bytes(self.head[200:208], "little")

    @property
    def refused(self) -> int:
        """The number of the error, in the header or in the section of results; 0: it succeeded."""
        assert self.head[60] == 8, f"evicted for reason {self.evicted}"
        status = int.from_bytes(self.head[216:220], "little")
        if status:
            assert not self.body
            return status
        if self.operation in PLAIN or not struct.unpack_from("<I", self.body)[0]:
            return 0
        count, index, code = struct.unpack("<III", self.body)
        assert (count, index) == (1, 0)
        return int(code)

    @property
    def content(self) -> bytes:
        assert not self.refused, self.refused
        return self.body if self.operation in PLAIN else self.body[4:]


class Modern(Raw):
    """Numbers its requests as the wheel does, unless told otherwise."""

    def __init__(self, raw: Raw, client: bytes = CLIENT) -> None:
        super().__init__(raw.link)
        self.client = client
        self.session = 0
        self.next_number = 1

    async def reply(self) -> Reply:
        head = await self.exactly(HEADER_BYTES)
        assert head[60] in (8, 13)
        return Reply(head, await self.exactly(int.from_bytes(head[48:52], "little") - HEADER_BYTES))

    async def say(self, octets: bytes) -> Reply:
        await self.send(octets)
        return await self.reply()

    async def register(
        self, who: commands.LoginUser | commands.LoginWithPersonalAccessToken = AS_ROOT, protocol: int = SPOKEN
    ) -> Reply:
        reply = await self.say(frame(REGISTER, login(who, protocol), client=self.client))
        if reply.evicted is None and not reply.refused:
            self.session = registration.decode_response(memoryview(reply.content)).session
            self.next_number = 1
        return reply

    def asked(self, request: commands.Request, **fields: Any) -> bytes:
        """The frame of a request, with the next number if it needs one."""
        code = requests.code_of(request)
        operation = OF_CODE.get(code, READ)
        body = b"".join(requests.encode(request))
        named: dict[str, Any] = {"client": self.client, "session": self.session, "number": self.next_number}
        if operation == READ:
            named["code"] = code
        else:
            self.next_number += 1
            if operation < SEND:
                named["checksum"] = checksum_of(body)
        return frame(operation, body, **(named | fields))

    async def demand(self, request: commands.Request, **fields: Any) -> Reply:
        return await self.say(self.asked(request, **fields))

    async def get(self, request: commands.Request, **fields: Any) -> Any:
        """Returns the response to a request that must not be refused."""
        reply = await self.demand(request, **fields)
        code = CODES.get(reply.operation, requests.code_of(request))
        return responses.decode(code, memoryview(reply.content))

    async def refused(self, request: commands.Request, **fields: Any) -> int:
        return (await self.demand(request, **fields)).refused

    async def is_alive(self) -> bool:
        reply = await self.say(frame(READ, code=PING, client=self.client, session=self.session))
        return not reply.refused and not reply.body

    async def polled(
        self,
        partition_id: int | None = 0,
        *,
        count: int = 1000,
        strategy: commands.Strategy = FIRST,
        consumer: commands.Consumer = ME,
        commit: bool = False,
    ) -> list[StoredMessage]:
        found = await self.get(commands.PollMessages(consumer, 0, 0, partition_id, strategy, count, commit))
        assert found.owned
        polled = [message for batch in found.batches for message in batches.messages(batch)]
        assert len(polled) == found.messages_count
        return polled

    async def payloads(self, partition_id: int = 0) -> list[bytes]:
        return [message.payload for message in await self.polled(partition_id)]


async def stranger(world: Served, client: bytes = CLIENT, **options: Any) -> Modern:
    return Modern(await world.stranger(**options), client)


async def root(world: Served, client: bytes = CLIENT, **options: Any) -> Modern:
    found = await stranger(world, client, **options)
    assert not (await found.register()).refused
    return found


async def with_topic(world: Served, partitions: int = 1, **options: Any) -> Modern:
    """Stream 0 with topic 0, and the client that has created them."""
    found = await root(world, **options)
    assert not await found.refused(commands.CreateStream("s"))
    assert not await found.refused(commands.CreateTopic("s", "t", partitions))
    return found


# ------------------------------------------------------------------------------------------------------------ messages


def batch_of(*payloads: bytes, origin: int = 10**15, ids: Sequence[int] = (), headers: bytes = b"") -> bytearray:
    """Bytes that are sent twice are equal."""
    plain = [
        batches.Message(payload, ids[index] if ids else index + 1, headers, origin)
        for index, payload in enumerate(payloads)
    ]
    return batches.build(plain, 0, bytes)


def sending(batch: bytes | bytearray, partition_id: int = 0) -> commands.SendMessages:
    """To stream 0, topic 0."""
    return commands.SendMessages(
        0, 0, Partitioning(PartitioningKind.PARTITION_ID, partition_id), (memoryview(bytearray(batch)),)
    )


def resealed(batch: bytearray) -> bytearray:
    """Corrects all checksums, whatever the rest is; ends where the batch cannot be walked further."""
    position, sums = HEADER_BYTES, b""
    while position + 48 <= len(batch):
        headers, payload = struct.unpack_from("<II", batch, position + 32)
        end = position + 48 + headers + payload
        struct.pack_into("<Q", batch, position, checksum_of(bytes(batch[position + 8 : end])))
        sums += batch[position : position + 8]
        position = end
    struct.pack_into("<Q", batch, 40, checksum_of(bytes(batch[:40]) + bytes(batch[48:52]) + sums))
    return batch


def confirmed(reply: Reply) -> tuple[int, int, int, int]:
    """Stream, topic, partition and first offset."""
    count, *place = struct.unpack("<IIIIQ", reply.content)
    assert count == 1
    return tuple(place)
