"""Random requests as a client might send them, and bytes that none should, from one seed, so that they are repeatable.

There are few names and numbers, so that most requests concern something that exists.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any

from tests.transports.support import modern
from whippet.app.access.permissions import GlobalPermissions, Permissions, StreamPermissions, TopicPermissions
from whippet.app.commands import requests as commands
from whippet.app.commands.registry import COMMANDS
from whippet.app.model.options import Option, OptionScope, ValueKind
from whippet.storage import batch as batches
from whippet.transports.wire.classic import frames, requests
from whippet.transports.wire.modern import requests as modern_requests
from whippet.transports.wire.modern.operations import CODES as OPERATIONS
from whippet.transports.wire.modern.operations import OF_CODE, READ, REGISTER

NAMES = [*(f"name {number}" for number in range(6)), "ä" * 100, "'\"\n\0%s{}", "x" * 255, "123"]
NUMBERS = [0, 1, 2, 3, 7, 255, 256, 65_535, 2**31, 2**32 - 2, 2**32 - 1]
LARGE = [*NUMBERS, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1, 1_700_000_000_000_000]
LENGTHS = [0, 1, 3, 4, 5, 8, 64, 1000, 65_537, 10 * 2**20 + 5, 2**27, 2**31, 2**32 - 1]
NEVER_WHOLE = frozenset({commands.LoginUser, commands.ChangePassword})
"""They cost the time of a hash each, intentionally, and guessing is slowed down: left to the tests of the throttle."""
CLASSIC = [command for command in COMMANDS if command.code in (*requests.LAYOUTS, frames.SEND_MESSAGES)]
KINDS = tuple(command.request for command in CLASSIC if command.request not in NEVER_WHOLE)
CODES = [command.code for command in CLASSIC if command.request not in NEVER_WHOLE]
RARE = frozenset(
    {commands.DeleteStream, commands.DeleteTopic, commands.DeletePartitions, commands.LogoutUser, commands.GetSnapshot}
)
"""After these less can be requested, or they take long."""
MODERN_KINDS = tuple(
    {kind: None for kind, _ in modern_requests.LAYOUTS.values() if kind not in NEVER_WHOLE}
    | {commands.SendMessages: None}
)


def _weight(kind: type[commands.Request]) -> float:
    if kind in RARE:
        return 0.1
    return 3 if kind.__name__.startswith(("Create", "Send")) else 1


WEIGHTS = {kind: _weight(kind) for kind in (*KINDS, *MODERN_KINDS)}


def _identifier(rng: random.Random) -> int | str:
    return rng.choice((0, 0, 1, 2, 99)) if rng.random() < 0.6 else rng.choice(NAMES)


def _flags(rng: random.Random, kind: type[Any], **others: Any) -> Any:
    names = [name for name in kind.__struct_fields__ if name not in others]
    return kind(**{name: rng.random() < 0.5 for name in names}, **others)


def permissions(rng: random.Random) -> Permissions | None:
    if rng.random() < 0.2:
        return None
    streams = {}
    for stream_id in rng.sample(range(5), rng.randrange(4)):
        topics = {topic_id: _flags(rng, TopicPermissions) for topic_id in rng.sample(range(5), rng.randrange(4))}
        streams[stream_id] = _flags(rng, StreamPermissions, topics=topics)
    return Permissions(_flags(rng, GlobalPermissions), streams)


def _batch(rng: random.Random) -> tuple[Any, ...]:
    sizes = [rng.choice((1, 10, 100, 3000)) for _ in range(rng.choice((1, 1, 3, 5, 40)))]
    sent = [batches.Message(rng.randbytes(size), rng.getrandbits(64), b"", 1 + rng.getrandbits(20)) for size in sizes]
    return (batches.build(sent, 0, rng.randbytes),)


def _partitioning(rng: random.Random) -> commands.Partitioning:
    match rng.randrange(3):
        case 0:
            return commands.Partitioning(commands.PartitioningKind.BALANCED)
        case 1:
            return commands.Partitioning(commands.PartitioningKind.PARTITION_ID, rng.choice((0, 1, 99)))
        case _:
            return commands.Partitioning(
                commands.PartitioningKind.MESSAGES_KEY, key=rng.randbytes(rng.randrange(1, 256))
            )


def _options(rng: random.Random) -> tuple[Option, ...]:
    keys = rng.sample(OPTION_KEYS, rng.choice((0, 0, 1, 2, 5)))
    return tuple(Option(key, rng.choice(list(ValueKind)), rng.choice(OPTION_VALUES)) for key in keys)


OPTION_KEYS = ["durability", "message_expiry", "max_topic_size", "segment_size", "preallocate_segments", *NAMES[:3]]
OPTION_VALUES = [b"persisted", b"replicated", b"1 GiB", b"\0", b"\1", bytes(8), b"\xff" * 8, b"x" * 255, bytes(16)]
SHARED = [bytes([number]) * 16 for number in (1, 2, 3)]
"""The ids that several 0.9 clients may use at the same time."""

FIELDS: dict[str, Callable[[random.Random], Any]] = {
    "stream": _identifier,
    "topic": _identifier,
    "group": _identifier,
    "user": _identifier,
    "name": lambda rng: rng.choice(NAMES),
    "username": lambda rng: rng.choice(NAMES),
    "password": lambda rng: "not a secret",
    "token": lambda rng: rng.choice(NAMES),
    "status": lambda rng: rng.choice(list(commands.UserStatus)),
    "permissions": permissions,
    "client_id": lambda rng: rng.choice(NUMBERS),
    "compression": lambda rng: rng.randrange(8),
    "types": lambda rng: tuple(rng.choice((1, 2, 3, 4, 5, 6, 100)) for _ in range(rng.randrange(4))),
    "expiry": lambda rng: rng.choice(LARGE),
    "consumer": lambda rng: commands.Consumer(rng.choice(list(commands.ConsumerKind)), _identifier(rng)),
    "partition_id": lambda rng: rng.choice((0, 0, 0, 1, 99, 2**32 - 1)),
    "strategy": lambda rng: commands.Strategy(rng.choice(list(commands.StrategyKind)), rng.choice(LARGE)),
    "count": lambda rng: rng.choice((0, 1, 1, 2, 2**31, 2**32 - 1)),
    "auto_commit": lambda rng: rng.random() < 0.5,
    "fsync": lambda rng: rng.random() < 0.1,
    "offset": lambda rng: rng.choice(LARGE),
    "partitions_count": lambda rng: rng.choice((0, 1, 1, 2, 1001, 2**32 - 1)),
    "compression_algorithm": lambda rng: rng.choice((1, 2)),
    "message_expiry": lambda rng: rng.choice(LARGE),
    "max_topic_size": lambda rng: rng.choice((0, 0, 2**64 - 1, 5)),
    "replication_factor": lambda rng: rng.randrange(4),
    "partitioning": _partitioning,
    "batches": _batch,
    "options": _options,
    "scope": lambda rng: rng.choice(list(OptionScope)),
    "client": lambda rng: rng.choice(SHARED),
    "number": lambda rng: rng.choice((0, 1, 2, 5, 100, 2**64 - 1)),
}


def request(rng: random.Random, kind: type[commands.Request] | None = None) -> commands.Request:
    return made(rng, kind or rng.choices(KINDS, [WEIGHTS[kind] for kind in KINDS])[0])


def made(rng: random.Random, kind: type[commands.Request]) -> commands.Request:
    return kind(**{name: FIELDS[name](rng) for name in kind.__struct_fields__ if name in FIELDS})


def encoded(rng: random.Random, kind: type[commands.Request] | None = None) -> bytes:
    """A whole frame."""
    asked = request(rng, kind)
    return frames.request(requests.code_of(asked), requests.encode_request(asked, rng.choice((56, 64))))


def spoilt(rng: random.Random, octets: bytes) -> bytes:
    """Bytes changed, removed, inserted, repeated, or replaced by significant numbers."""
    found = bytearray(octets)
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(found) + 1)
        match rng.randrange(6):
            case 0:
                found[at : at + 1] = rng.randbytes(1)
            case 1:
                del found[at : at + rng.choice((1, 4, 8, 100))]
            case 2:
                found[at:at] = rng.randbytes(rng.choice((1, 4, 8, 100)))
            case 3:
                found[at : at + 4] = struct.pack("<I", rng.choice(NUMBERS))
            case 4:
                found[at : at + 8] = struct.pack("<Q", rng.choice(LARGE))
            case _:
                found[at:at] = found[at : at + rng.choice((4, 16, 64))]
    return bytes(found)


def hostile(rng: random.Random) -> bytes:
    """A frame with the right length and any content."""
    frame = encoded(rng)
    code = struct.unpack_from("<I", frame, 4)[0]
    match rng.randrange(8):
        case 0 | 1 | 2:
            return frame
        case 3 | 4 | 5:
            return frames.request(code, spoilt(rng, frame[8:]))
        case 6:
            return frames.request(rng.choice((rng.choice(NUMBERS), rng.choice(CODES))), frame[8:])
        case _:
            return frames.request(code, frame[8 : rng.randrange(8, len(frame) + 1)] + encoded(rng)[8:])


def out_of_step(rng: random.Random) -> bytes:
    """Bytes after which the next frame cannot be found."""
    frame = hostile(rng)
    return struct.pack("<I", rng.choice(LENGTHS)) + frame[4:] if rng.random() < 0.5 else spoilt(rng, frame)


class Modern:
    """A 0.9 client that knows the protocol and violates it. Its responses have to be passed to it."""

    def __init__(self, rng: random.Random, token: str) -> None:
        self.client = rng.choice(SHARED) if rng.random() < 0.3 else rng.randbytes(16)
        self._registration = modern.login(commands.LoginWithPersonalAccessToken(token))
        self._session = 0
        self._number = 1
        self._last = self.beginning()

    def beginning(self) -> bytes:
        """A ping: the first bytes show the protocol."""
        return modern.frame(READ, client=self.client, code=1)

    def login(self) -> bytes:
        return modern.frame(REGISTER, self._registration, client=self.client)

    def heard(self, head: bytes, body: bytes) -> None:
        assert head[60] in (8, 13), "neither a reply nor an eviction"
        if head[60] == 8 and head[208] == REGISTER and body:
            self._session, self._number = struct.unpack_from("<Q", body, 8)[0], 1

    def encoded(self, rng: random.Random) -> bytes:
        """A whole valid frame."""
        asked = made(rng, rng.choices(MODERN_KINDS, [WEIGHTS[kind] for kind in MODERN_KINDS])[0])
        code = modern_requests.code_of(asked)
        operation = OF_CODE.get(code, READ)
        return self._frame(
            rng, operation, 0 if operation in OPERATIONS else code, b"".join(modern_requests.encode(asked))
        )

    def _frame(self, rng: random.Random, operation: int, code: int, body: bytes) -> bytes:
        number = self._number
        if operation in OPERATIONS:
            self._number += 1
        checksum = modern.checksum_of(body) if operation < modern.SEND and rng.random() < 0.7 else 0
        self._last = modern.frame(
            operation, body, client=self.client, number=number, session=self._session, code=code, checksum=checksum
        )
        return self._last

    def hostile(self, rng: random.Random) -> bytes:
        """A frame with the right length and any content."""
        last = self._last
        frame = self.encoded(rng)
        operation, code, body = frame[176], struct.unpack_from("<I", frame, 196)[0], frame[256:]
        match rng.randrange(9):
            case 0 | 1 | 2 | 3:
                return frame
            case 4:
                return self._frame(rng, operation, code, spoilt(rng, body))
            case 5:
                other = rng.choice((rng.randrange(256), rng.choice(list(OPERATIONS))))
                return self._frame(rng, other, rng.choice((*NUMBERS, *modern_requests.LAYOUTS)), body)
            case 6:
                head = bytearray(frame[:256])
                head[rng.randrange(62, 256)] = rng.randrange(256)
                # Significant fields: the client id, the number, the session.
                struct.pack_into("<Q", head, rng.choice((128, 144, 168, 184)), rng.choice(LARGE))
                return bytes(head) + body
            case 7:
                return last
            case _:
                registration = spoilt(rng, self._registration)
                return modern.frame(REGISTER, registration, client=rng.choice((self.client, *SHARED)))

    def out_of_step(self, rng: random.Random) -> bytes:
        """Bytes after which the next frame cannot be found."""
        frame = self.hostile(rng)
        if rng.random() < 0.5:
            return frame[:48] + struct.pack("<I", rng.choice(LENGTHS)) + frame[52:]
        return spoilt(rng, frame)
