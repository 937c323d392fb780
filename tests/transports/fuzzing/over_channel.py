"""Browsers at `/ws` that send anything close to JSON: every command with members that it has, or might have."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import msgspec

from tests.transports.fuzzing import over_tcp
from tests.transports.fuzzing.over_tcp import say
from tests.transports.fuzzing.over_websocket import broken, connected, framed, hear
from tests.transports.fuzzing.place import Place
from tests.transports.support import made_up
from tests.transports.websocket.support.talking import frame
from whippet.transports.http import routes
from whippet.transports.websocket.commands import OWN, Command
from whippet.transports.websocket.framing import BINARY, CLOSE, TEXT

NEVER = frozenset({"log_in", "login_user", "change_password", "make_snapshot", "create_user"})
"""They cost the time of a hash each, or take long intentionally."""
RARE = frozenset({"delete_stream", "delete_topic", "delete_partitions", "log_out"})
COMMANDS = [Command(each) for each in (*routes.OPERATIONS, *OWN) if each.name not in NEVER]
OF_CHANNEL = ("subscribe", "unsubscribe", "grant", "ack", "sign_in", "nothing")
"""Commands without an operation of HTTP."""
VALUES: tuple[Any, ...] = (
    *(0, 1, 2, 3, 100, -1, 2**31, 2**32 - 1, 2**32, 2**63, 2**64 - 1, 2**64, 1.5, 1e308, True, False, None),
    *(
        "",
        "0",
        "s",
        "t",
        "g",
        "all",
        "first",
        "new",
        "x" * 300,
        "ä" * 100,
        "0:5",
        "0:1,1:2",
        "20ms",
        "1h",
        "\0",
        "\ud7ff",
    ),
    *([], [1, 2], {}, {"a": {"b": []}}, {"kind": "balanced", "value": ""}, {"0": 5}, {"header": "k", "value": 1}),
    [{"payload": "AAAA"}],
    [{"payload": "AAAA", "user_headers": [{"key": {"kind": "string", "value": "aw=="}, "value": {"kind": "raw"}}]}],
)
MEMBERS = (
    "stream",
    "topic",
    "group",
    "name",
    "partition",
    "credit",
    "sub",
    "offset",
    "count",
    "from",
    "last",
    "filter",
)
SUBSCRIPTIONS: tuple[dict[str, Any], ...] = (
    {"to": "topic", "stream": "s", "topic": "t", "from": "first"},
    {"to": "topic", "stream": "s", "topic": "t", "last": 2, "max_rate": 50, "behind": "skip"},
    {"to": "topic", "stream": "s", "topic": "t", "filter": {"key": "k"}, "partition": 0},
    {"to": "group", "stream": "s", "topic": "t", "group": "g"},
    {"to": "group", "stream": "s", "topic": "t", "group": "g", "ack": "auto"},
    {"to": "stats"},
    {"to": "events"},
)
SETTING_UP: tuple[dict[str, Any], ...] = (
    {"cmd": "create_stream", "name": "s"},
    {"cmd": "create_topic", "stream": "s", "name": "t", "partitions_count": 2},
    {"cmd": "create_consumer_group", "stream": "s", "topic": "t", "name": "g"},
    {
        "cmd": "send_messages",
        "stream": "s",
        "topic": "t",
        "partitioning": {"kind": "balanced", "value": ""},
        "messages": [{"payload": "AAAA"}] * 5,
    },
)


def weights(commands: list[Command]) -> list[float]:
    return [0.1 if each.operation.name in RARE else 1 for each in commands]


WEIGHTS = weights(COMMANDS)


def members(rng: random.Random, command: Command) -> dict[str, Any]:
    """Some members that it has, and some that it has not."""
    names = [*command.in_path, *command.in_query, *_fields(command)]
    found = {name: _sensible(rng, name) for name in names if rng.random() < 0.7}
    if rng.random() < 0.1:
        found[rng.choice(MEMBERS)] = rng.choice(VALUES)
    return found


def _fields(command: Command) -> tuple[str, ...]:
    body = command.operation.body
    return getattr(body, "__struct_encode_fields__", ())


def _sensible(rng: random.Random, name: str) -> Any:
    if rng.random() < 0.3:
        return rng.choice(VALUES)
    match name:
        case "stream" | "topic" | "group":
            return name[0]
        case "wait":
            return rng.choice(("10ms", "50ms"))
        case "partitioning":
            return {"kind": "balanced", "value": ""}
        case "messages":
            return [{"payload": "AAAA"}] * rng.choice((1, 10))
    return rng.choice((0, 1, 2, "s", "t", "g"))


def command(rng: random.Random) -> dict[str, Any]:
    dice = rng.random()
    if dice < 0.25:
        return rng.choice(SETTING_UP)
    if dice < 0.4:
        return {"cmd": "subscribe", "credit": rng.choice((0, 1, 100, 2**32 - 1)), **rng.choice(SUBSCRIPTIONS)}
    if dice < 0.55:
        said = {"cmd": rng.choice(OF_CHANNEL), "sub": rng.randrange(5), "credit": rng.choice((0, 1, 50)), "token": "x"}
        return said | {"partition_id": rng.randrange(3), "offset": rng.randrange(20)}
    chosen = rng.choices(COMMANDS, WEIGHTS)[0]
    return {"cmd": chosen.operation.name, **members(rng, chosen)}


def text(rng: random.Random, number: int) -> bytes:
    octets = msgspec.json.encode({"id": rng.choice((number, str(number))), **command(rng)})
    match rng.randrange(10):
        case 0 | 1:
            return made_up.spoilt(rng, octets)
        case 2:
            return rng.choice(
                (b"[" * 5000, b'{"id":' * 2000, b"null", b"{}", b"", b'{"id":1,"cmd":"\\ud800"}', b"\xff{}")
            )
        case _:
            return octets


class Heard:
    """The server sends whole objects, each a response or of a subscription, and no more than there is credit for."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def take(self, opcode: int, content: bytes, is_last: bool) -> None:
        assert opcode != BINARY
        if opcode != TEXT:
            return
        self._parts.append(content)
        if is_last:
            found = msgspec.json.decode(b"".join(self._parts))
            self._parts = []
            assert {"id", "sub"} & found.keys(), found
            assert "Traceback" not in str(found.get("error"))
            assert (found.get("error") or {}).get("id") != 500, found


def _authorization(place: Place, rng: random.Random) -> tuple[str, ...]:
    match rng.randrange(8):
        case 0:
            return ()
        case 1:
            return ("Authorization: Bearer nobody's",)
        case 2:
            return (f"Sec-WebSocket-Protocol: whippet, bearer.{place.token}",)
        case _:
            return (f"Authorization: Bearer {place.token}",)


async def client(place: Place, rng: random.Random, end: float) -> None:
    while time.monotonic() < end:
        path = rng.choice(("/ws", "/ws", "/ws", "/ws?ticket=none", "/ws/", "/ws?token=x"))
        try:
            there = await connected(place, rng, path, *_authorization(place, rng))
        except OSError:
            return
        if there is None:
            continue
        reader, writer = there
        drain = asyncio.create_task(hear(reader, Heard().take))
        try:
            for number in range(rng.choice((1, 20, 200, 500))):
                await say(writer, rng, framed(rng, text(rng, number), TEXT))
                if time.monotonic() > end or writer.transport.is_closing():
                    break
            if rng.random() < 0.3:
                await say(writer, rng, broken(rng))
            if rng.random() < 0.5:
                await say(writer, rng, frame(CLOSE))
                await asyncio.wait([drain], timeout=1)
        except OSError:
            pass
        finally:
            await over_tcp.leave(writer, rng)
            await drain
