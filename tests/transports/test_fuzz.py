"""A live server against clients that send anything: valid requests, changed ones, fragments, in any order, over every
transport at the same time.

Afterwards it works as before, its memory is level, nothing of the clients remains, and its log has no unexpected error.
`make fuzz SECONDS=600` runs longer; WHIPPET_FUZZ_SEED repeats a run as far as several connections at once can be
repeated.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import signal
import struct
import time
from pathlib import Path

from tests.app.access.support.world import everywhere
from tests.app.support.process import Gateway, starting
from tests.support.sizes import sized
from tests.transports.fuzzing import over_channel, over_http3, over_quic, over_tcp, over_websocket
from tests.transports.fuzzing.leftovers import LEFT_SECONDS, TELLS, Leftovers
from tests.transports.fuzzing.place import Client, Place
from tests.transports.support import made_up
from tests.transports.support.raw import asked
from whippet.app.access.permissions import GlobalPermissions
from whippet.app.client import Client as App
from whippet.app.client.commands import FIRST, to_partition
from whippet.app.commands import requests
from whippet.app.errors import Code, CommandError
from whippet.storage import batch as batches
from whippet.transports.wire.classic import frames

SEED = int(os.environ.get("WHIPPET_FUZZ_SEED", "0")) or random.SystemRandom().getrandbits(32)
MIB = 1 << 20
ROUNDS = 4
CLIENTS: tuple[Client, ...] = (
    *(over_tcp.client,) * 2,
    over_websocket.client,
    over_channel.client,
    *(over_quic.client,) * 2,
    *(over_http3.client,) * 2,
)
CONNECTED = re.compile(r"whippet_(?:connections|sessions)\{transport=.(?:tcp|quic|websocket).\} [1-9]\d*")
ROOT = {"IGGY_ROOT_USERNAME": "root", "IGGY_ROOT_PASSWORD": "rootZroot"}
SETTINGS = ROOT | {
    "IGGY_SYSTEM_LIMITS_SESSION_MEMORY": "1s",
    "IGGY_QUIC_MAX_IDLE_TIMEOUT": "2s",
    "IGGY_HTTP_LEASES_EXPIRY": "2s",
    "IGGY_HTTP_LEASES_EXPIRY_MAX": "2s",
    "IGGY_SYSTEM_LIMITS_TAIL_BYTES": str(MIB),
    "IGGY_SYSTEM_LIMITS_FRAME_TIME": "3s",
    "IGGY_SYSTEM_STATE_ENFORCE_FSYNC": "false",
    "IGGY_PERSONAL_ACCESS_TOKEN_MAX_TOKENS_PER_USER": "10",
}
ALL_BUT_USERS = everywhere(**dict.fromkeys(set(GlobalPermissions.__struct_fields__) - {"manage_users"}, True))
"""A client that may change users may lock out everybody, the test included; changing users is fuzzed separately
below."""
ME = requests.Consumer(requests.ConsumerKind.CONSUMER, 1)
BAD_SIGNS = ("Traceback", "defect", "ERROR", "Warning", "unexpected error", "never awaited", "never retrieved")


@sized("seconds", 3, long=60, variable="WHIPPET_FUZZ_SECONDS")
def test_nothing_that_a_client_sends_does_lasting_damage(tmp_path: Path, seconds: int) -> None:
    print(f"WHIPPET_FUZZ_SEED={SEED} WHIPPET_FUZZ_SECONDS={seconds}")  # noqa: T201
    with starting(tmp_path / "data") as start:
        gateway = start(TELLS, **SETTINGS)
        asyncio.run(_warmed_up(address_of(gateway)))
        asyncio.run(_rounds(gateway, seconds))
        gateway.signal(signal.SIGTERM)
        _ended_well(gateway)
        again = start(**SETTINGS)
        asyncio.run(_stopped_in_the_middle(again))
        _ended_well(again)
        last = start(**SETTINGS)
        asyncio.run(_serves_fully(address_of(last)))


def address_of(gateway: Gateway, scheme: str = "tcp") -> str:
    return gateway.line(rf"{scheme}://(\S+)").group(1)


def place_of(gateway: Gateway, token: str) -> Place:
    def address(scheme: str) -> tuple[str, int]:
        host, port = address_of(gateway, scheme).rsplit(":", 1)
        return host, int(port)

    return Place(address("tcp"), address("http"), address("quic"), token)


def _ended_well(gateway: Gateway) -> None:
    assert gateway.end() == 0, str(gateway)
    said = [*gateway.out, *gateway.err]
    signs = [at for at, line in enumerate(said) if any(sign in line for sign in BAD_SIGNS)]
    assert not signs, f"seed {SEED}: {len(signs)} signs\n" + "\n".join(said[signs[0] : signs[0] + 60])


async def _stopped_in_the_middle(gateway: Gateway) -> None:
    """Stopped while all clients send, which they do until nobody listens any more."""
    address = address_of(gateway)
    await _serves_fully(address)
    place = place_of(gateway, await _token(address, "the middle"))
    end = time.monotonic() + 60
    asyncio.get_running_loop().call_later(1, gateway.signal, signal.SIGTERM)
    await asyncio.gather(
        *(client(place, random.Random(f"{SEED} stop {one}"), end) for one, client in enumerate(CLIENTS))
    )


async def _token(address: str, name: str) -> str:
    async with await App.connect(f"iggy://fuzzer:fuzzerZfuzzer@{address}") as fuzzer:
        for kept in await fuzzer.get_personal_access_tokens():
            await fuzzer.delete_personal_access_token(kept.name)
        return (await fuzzer.create_personal_access_token(name)).token


async def _warmed_up(address: str) -> None:
    """Does the work that takes most memory once on every thread that does it."""
    for _ in range(2):
        clients = [App.connect(f"iggy://root:rootZroot@{address}") for _ in range(8)]
        for client in await asyncio.gather(*clients):
            async with client:
                await client.get_snapshot(5)
                await client.get_stats()


async def _rounds(gateway: Gateway, seconds: int) -> None:
    sizes: list[int] = []
    before: dict[str, int] = {}
    address, leftovers = address_of(gateway), Leftovers(gateway)
    async with await App.connect(f"iggy://root:rootZroot@{address}") as root:
        await root.create_user("fuzzer", "fuzzerZfuzzer", permissions=ALL_BUT_USERS)
    for number in range(ROUNDS):
        place = place_of(gateway, await _token(address, f"round {number} {SEED}"))
        end = time.monotonic() + seconds / ROUNDS
        clients = [client(place, random.Random(f"{SEED} {number} {one}"), end) for one, client in enumerate(CLIENTS)]
        await asyncio.gather(*clients, _changing_users(address, random.Random(f"{SEED} {number} users"), end))
        await _serves_fully(address)
        if not before:
            await _until_they_have_left(gateway)
            before = leftovers.there()
        sizes.append(_resident_bytes(gateway))
    print("resident after each round, MiB:", [size // MIB for size in sizes])  # noqa: T201
    # The C library keeps freed memory, up to 64 MiB a heap; memory in use is checked below.
    assert max(sizes[1:]) < sizes[0] + 128 * MIB, f"seed {SEED}: {sizes}"
    await _until_they_have_left(gateway)
    assert not (more := leftovers.more(before)), f"seed {SEED}: {more}"


async def _until_they_have_left(gateway: Gateway) -> None:
    """Clients that have vanished count as connected until they have been silent for a while."""
    deadline = time.monotonic() + LEFT_SECONDS
    while left := CONNECTED.findall(gateway.get("/metrics").text):
        assert time.monotonic() < deadline, f"seed {SEED}: {left}"
        await asyncio.sleep(0.1)


def _resident_bytes(gateway: Gateway) -> int:
    pages = int(Path(f"/proc/{gateway.process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def _changing_users(address: str, rng: random.Random, end: float) -> None:
    """Creates users and sets permissions as root, both corrupted; nobody is renamed, deactivated or deleted."""
    host, port = address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    names_bob = asked(requests.DeleteUser("bob"))[8:]
    try:
        writer.write(
            asked(requests.LoginUser("root", ROOT["IGGY_ROOT_PASSWORD"]))
            + asked(requests.CreateUser("bob", "bobbob", requests.UserStatus.ACTIVE, None))
        )
        while time.monotonic() < end:
            if rng.random() < 0.5:
                code, payload = 33, made_up.spoilt(rng, made_up.encoded(rng, requests.CreateUser)[8:])
            else:
                permissions = asked(requests.UpdatePermissions("bob", made_up.permissions(rng)))
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
    """A normal client does everything, and removes what the others have left."""
    async with await App.connect(f"iggy://root:rootZroot@{address}") as root:
        # A lost connection may still have a command in progress, which deletes the same or creates another.
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
        stored = await root.get_consumer_offset("after", "all", ME, 0)
        assert stored is not None
        assert stored.stored_offset == 499
        assert (await root.get_stats()).messages_count == 1000
        await root.delete_stream("after")
