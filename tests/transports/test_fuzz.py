"""A live server against clients that send anything: valid requests, changed ones, pieces, in any order, from all sides.

Afterwards it serves as before, its memory is level, and its log knows of no defect. `make fuzz SECONDS=600` for long;
WHIPPET_FUZZ_SEED repeats a run as far as several connections at once can be repeated.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import struct
import time
from pathlib import Path
from typing import Protocol

from app.access.permissions import GlobalPermissions
from app.client import Client
from app.client.commands import FIRST, to_partition
from app.commands import requests as ask
from app.errors import Code, CommandError
from storage import batch as batches
from tests.app.access.support.world import everywhere
from tests.app.support.process import Gateway, starting
from tests.transports.support import made_up
from tests.transports.support.raw import asked
from transports.wire.classic import frames

SECONDS = float(os.environ.get("WHIPPET_FUZZ_SECONDS", "20"))
SEED = int(os.environ.get("WHIPPET_FUZZ_SEED", "0")) or random.SystemRandom().getrandbits(32)
MIB = 1 << 20
ROUNDS = 4
CONNECTIONS = 6
ROOT = {"IGGY_ROOT_USERNAME": "root", "IGGY_ROOT_PASSWORD": "rootZroot"}
SETTINGS = ROOT | {
    "IGGY_HTTP_ENABLED": "false",
    "IGGY_SYSTEM_LIMITS_TAIL_BYTES": str(MIB),
    "IGGY_SYSTEM_LIMITS_FRAME_TIME": "3s",
    "IGGY_SYSTEM_STATE_ENFORCE_FSYNC": "false",
    "IGGY_PERSONAL_ACCESS_TOKEN_MAX_TOKENS_PER_USER": "10",
}
ALL_BUT_USERS = everywhere(**dict.fromkeys(set(GlobalPermissions.__struct_fields__) - {"manage_users"}, True))
"""Whoever may change users may lock out everybody, the test included; changing users is fuzzed with care below."""
ME = ask.Consumer(ask.ConsumerKind.CONSUMER, 1)
BAD_SIGNS = ("Traceback", "defect", "ERROR", "Warning", "does not expect", "never awaited", "never retrieved")


def test_nothing_that_a_client_sends_does_lasting_harm(tmp_path: Path) -> None:
    print(f"WHIPPET_FUZZ_SEED={SEED} WHIPPET_FUZZ_SECONDS={SECONDS:.0f}")  # noqa: T201
    with starting(tmp_path / "data") as start:
        gateway = start(**SETTINGS)
        address = gateway.line(r"tcp://(\S+)").group(1)
        asyncio.run(_warmed_up(address))
        sizes = asyncio.run(_rounds(gateway, address))
        gateway.signal(signal.SIGTERM)
        _ended_well(gateway)
        print("memory after each round, MiB:", [size // MIB for size in sizes])  # noqa: T201
        # The first round warms up; what a thread has used once is kept for it and used again.
        assert max(sizes[1:]) < sizes[0] + 32 * MIB, f"seed {SEED}: {sizes}"
        again = start(**SETTINGS)
        asyncio.run(_stopped_in_the_middle(again, again.line(r"tcp://(\S+)").group(1)))
        _ended_well(again)
        last = start(**SETTINGS)
        asyncio.run(_serves_fully(last.line(r"tcp://(\S+)").group(1)))


def _ended_well(gateway: Gateway) -> None:
    assert gateway.end() == 0, str(gateway)
    said = [*gateway.out, *gateway.err]
    signs = [at for at, line in enumerate(said) if any(sign in line for sign in BAD_SIGNS)]
    assert not signs, f"seed {SEED}: {len(signs)} signs\n" + "\n".join(said[signs[0] : signs[0] + 60])


async def _stopped_in_the_middle(gateway: Gateway, address: str) -> None:
    """Told to stop while everybody sends, which they do until nobody listens any more."""
    await _serves_fully(address)
    token = await _token(address, "the middle")
    end = time.monotonic() + 60
    clients = [_client(address, token, random.Random(f"{SEED} stop {one}"), end) for one in range(CONNECTIONS)]
    asyncio.get_running_loop().call_later(1, gateway.signal, signal.SIGTERM)
    await asyncio.gather(*clients)


async def _token(address: str, name: str) -> str:
    async with await Client.connect(f"iggy://fuzzer:fuzzerZfuzzer@{address}") as fuzzer:
        for kept in await fuzzer.get_personal_access_tokens():
            await fuzzer.delete_personal_access_token(kept.name)
        return (await fuzzer.create_personal_access_token(name)).token


async def _warmed_up(address: str) -> None:
    """What takes most memory has been done once on every thread that does it."""
    for _ in range(2):
        clients = [Client.connect(f"iggy://root:rootZroot@{address}") for _ in range(8)]
        for client in await asyncio.gather(*clients):
            async with client:
                await client.get_snapshot(5)
                await client.get_stats()


async def _rounds(gateway: Gateway, address: str) -> list[int]:
    sizes = []
    async with await Client.connect(f"iggy://root:rootZroot@{address}") as root:
        await root.create_user("fuzzer", "fuzzerZfuzzer", permissions=ALL_BUT_USERS)
    for number in range(ROUNDS):
        token = await _token(address, f"round {number} {SEED}")
        end = time.monotonic() + SECONDS / ROUNDS
        clients = [_client(address, token, random.Random(f"{SEED} {number} {one}"), end) for one in range(CONNECTIONS)]
        await asyncio.gather(*clients, _changing_users(address, random.Random(f"{SEED} {number} users"), end))
        await _serves_fully(address)
        sizes.append(_resident_bytes(gateway))
    return sizes


def _resident_bytes(gateway: Gateway) -> int:
    pages = int(Path(f"/proc/{gateway.process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def _client(address: str, token: str, rng: random.Random, end: float) -> None:
    """One connection after the other, until the time is over or nobody listens."""
    host, port = address.rsplit(":", 1)
    while time.monotonic() < end:
        try:
            reader, writer = await asyncio.open_connection(host, int(port))
        except OSError:
            return
        wire: Wire = Classic(token) if rng.random() < 0.6 else made_up.Modern(rng, token)
        drain = asyncio.create_task(_read_all(reader) if isinstance(wire, Classic) else _hear_all(reader, wire))
        try:
            await _say(writer, rng, wire, end)
            if rng.random() < 0.8:
                writer.write_eof()
                # Of a frame of which too much was announced the rest is waited for.
                await asyncio.wait([drain], timeout=1)
        except OSError:
            pass
        finally:
            if rng.random() < 0.3:
                writer.transport.abort()
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            await drain


class Wire(Protocol):
    def beginning(self) -> bytes: ...
    def login(self) -> bytes: ...
    def hostile(self, rng: random.Random) -> bytes: ...
    def out_of_step(self, rng: random.Random) -> bytes: ...


class Classic:
    def __init__(self, token: str) -> None:
        self._login = asked(ask.LoginWithPersonalAccessToken(token))

    def beginning(self) -> bytes:
        return b""

    def login(self) -> bytes:
        return self._login

    def hostile(self, rng: random.Random) -> bytes:
        return made_up.hostile(rng)

    def out_of_step(self, rng: random.Random) -> bytes:
        return made_up.out_of_step(rng)


async def _say(writer: asyncio.StreamWriter, rng: random.Random, wire: Wire, end: float) -> None:
    writer.write(wire.beginning())
    stays_a_stranger = rng.random() < 0.1
    for _ in range(rng.choice((1, 5, 50, 200))):
        # Again and again, because one of the requests may log out.
        octets = b"" if stays_a_stranger else wire.login()
        octets += b"".join(wire.hostile(rng) for _ in range(rng.choice((1, 1, 3, 30))))
        if rng.random() < 0.2:
            cut = rng.randrange(len(octets) + 1)
            writer.write(octets[:cut])
            await asyncio.sleep(0)
            octets = octets[cut:]
        writer.write(octets)
        await asyncio.wait_for(writer.drain(), 5)
        await asyncio.sleep(0)
        if time.monotonic() > end:
            return
    for _ in range(rng.choice((0, 0, 1, 1, 5))):
        writer.write(wire.out_of_step(rng))


async def _read_all(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(OSError):
        while await reader.read(1 << 16):
            pass


async def _hear_all(reader: asyncio.StreamReader, client: made_up.Modern) -> None:
    """Whatever a 0.9 client says, what it hears are whole frames of its own protocol."""
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        while True:
            head = await reader.readexactly(256)
            size = struct.unpack_from("<I", head, 48)[0]
            assert 256 <= size < 128 * MIB
            client.heard(head, await reader.readexactly(size - 256))


async def _changing_users(address: str, rng: random.Random, end: float) -> None:
    """As root: users are made and given permissions, both spoilt; nobody is renamed, deactivated or deleted."""
    host, port = address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    names_bob = asked(ask.DeleteUser("bob"))[8:]
    try:
        writer.write(
            asked(ask.LoginUser("root", ROOT["IGGY_ROOT_PASSWORD"]))
            + asked(ask.CreateUser("bob", "bobbob", ask.UserStatus.ACTIVE, None))
        )
        while time.monotonic() < end:
            if rng.random() < 0.5:
                code, payload = 33, made_up.spoilt(rng, made_up.encoded(rng, ask.CreateUser)[8:])
            else:
                permissions = asked(ask.UpdatePermissions("bob", made_up.permissions(rng)))
                code, payload = 36, names_bob + made_up.spoilt(rng, permissions[8 + len(names_bob) :])
            writer.write(frames.request(code, payload))
            _, length = struct.unpack("<II", await reader.readexactly(8))
            await reader.readexactly(length)
            await asyncio.sleep(0.005)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _serves_fully(address: str) -> None:
    """A normal client does everything, and clears away what the others have left."""
    async with await Client.connect(f"iggy://root:rootZroot@{address}") as root:
        # A connection that is gone may have a command in hand still, which deletes the same or makes one more.
        while streams := await root.get_streams():
            for stream in streams:
                try:
                    await root.delete_stream(stream.id)
                except CommandError as refused:
                    assert refused.code is Code.STREAM_ID_NOT_FOUND
        for user in await root.get_users():
            if user.username not in ("root", "fuzzer"):
                await root.delete_user(user.id)
        await root.create_stream("after")
        await root.create_topic("after", "all", 2)
        for partition_id in (0, 1):
            payloads = [b"%d" % number for number in range(500)]
            await root.send_messages("after", "all", payloads, to_partition(partition_id))
            polled = await root.poll_messages("after", "all", ME, partition_id=partition_id, strategy=FIRST)
            found = [message.payload for batch in polled.batches for message in batches.messages(batch)]
            assert found == payloads
        await root.store_consumer_offset("after", "all", ME, 499, 0)
        assert (await root.get_consumer_offset("after", "all", ME, 0)).stored_offset == 499
        assert (await root.get_stats()).messages_count == 1000
        await root.delete_stream("after")
