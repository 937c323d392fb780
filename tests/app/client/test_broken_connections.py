"""A numbered producer whose connection is cut at any byte, and whose server is killed."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from pathlib import Path
from random import Random

import pytest

from tests.app.client.support.cutting import cutting
from tests.app.client.support.reading import stored
from tests.app.client.support.server import Server, connected
from tests.app.support.process import starting
from tests.support import sizes
from whippet.app.client import Client, Producer, Reconnect
from whippet.app.client.commands import to_partition


@pytest.mark.parametrize("over", ["classic", "modern", "ws", "http"], indirect=True)
@pytest.mark.parametrize("seed", sizes.mostly_long(range(40), (0, 1)))
async def test_everything_is_stored_once_however_the_connection_is_cut(tmp_path: Path, seed: int) -> None:
    async with connected(tmp_path) as (server, client), cutting(server.port, seed) as proxy:
        address = server.address.replace(f":{server.port}?", f":{proxy.port}?")
        payloads = [b"%d " % number * 20 for number in range(1500)]
        async with await Client.connect(address, reconnect=Reconnect(interval_s=0.001)) as cut:
            proxy.bytes_max = 20_000
            server.cut()
            chance = Random(seed)
            async with Producer(cut, "s", "t", linger_ms=0, batch_messages=20, producer_id="p") as producer:
                for payload in payloads:
                    await producer.send(payload)
                    if chance.random() < 0.05:
                        await asyncio.sleep(0)
            assert proxy.cuts > 1
        await client.reconnect()
        assert await stored(client) == payloads


@pytest.mark.parametrize("over", ["classic", "quic", "http"], indirect=True)
async def test_nothing_is_lost_or_doubled_when_the_server_is_killed(tmp_path: Path) -> None:
    """At the default durability."""
    settings = {"IGGY_ROOT_USERNAME": "iggy", "IGGY_ROOT_PASSWORD": "a password", "IGGY_WEBSOCKET_ENABLED": "false"}
    with starting(tmp_path / "data") as start:
        gateway = start(**settings)
        port = int((await asyncio.to_thread(gateway.line, rf"\b{Server.transport}://127.0.0.1:(\d+)")).group(1))
        settings[f"IGGY_{Server.transport.upper()}_ADDRESS"] = f"127.0.0.1:{port}"
        wire = f"?wire={Server.wire}" if Server.transport == "tcp" else ""
        address = f"iggy+{Server.transport}://iggy:a password@127.0.0.1:{port}{wire}"
        async with await Client.connect(address, reconnect=Reconnect(interval_s=0.02, interval_max_s=0.05)) as client:
            await client.create_stream("s")
            await client.create_topic("s", "t")
            payloads = [b"%d" % number for number in range(3000)]
            async with Producer(client, "s", "t", linger_ms=0, batch_messages=25, numbered=True) as producer:
                for number, payload in enumerate(payloads):
                    delivery = await producer.send(payload, to_partition(0))
                    if number in (1000, 2000):
                        with contextlib.suppress(asyncio.TimeoutError):
                            await asyncio.wait_for(delivery, 0.01)
                        gateway.signal(signal.SIGKILL)
                        await asyncio.to_thread(gateway.end)
                        gateway = start(**settings)
                        await asyncio.to_thread(gateway.line, rf"\b{Server.transport}://")
            assert await stored(client) == payloads
