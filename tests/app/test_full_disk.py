"""A server whose disk fills up: a real, small one, while clients send over HTTP and TCP as fast as they can."""

from __future__ import annotations

import asyncio
import functools
import os
import re
import signal
from pathlib import Path

import httpx
import pytest

from tests.app.support.process import DEADLINE_S, Gateway, starting
from tests.storage.support.small_disk import on_a_small_disk
from tests.support.running import HANGS_S
from whippet.app.cli.main import main
from whippet.app.commands.requests import Consumer, ConsumerKind
from whippet.client import Client, CommandError, connect, from_offset, to_partition
from whippet.storage import batch as batches

MIB = 1 << 20
DISK = 64 * MIB
RESERVE = 8 * MIB
MESSAGE = 50_000
TOGETHER = 10
ROOT = {"IGGY_ROOT_USERNAME": "root", "IGGY_ROOT_PASSWORD": "a long password"}
SETTINGS = {**ROOT, "IGGY_SYSTEM_DISK_RESERVE": str(RESERVE), "IGGY_SYSTEM_SEGMENT_SIZE": "1 MiB"}
CANNOT_SAVE_MESSAGES = 4006
ME = Consumer(ConsumerKind.CONSUMER, 1)

on_64_mib = functools.partial(on_a_small_disk, size_bytes=DISK)


def free_on(small: Path) -> int:
    found = os.statvfs(small)
    return found.f_bavail * found.f_frsize


class Clients:
    """One over HTTP, for partition 0, and one over TCP, for partition 1."""

    def __init__(self, gateway: Gateway, small: Path) -> None:
        self.small = small
        self.sent = {0: 0, 1: 0}
        self.refused: dict[int, list[str]] = {0: [], 1: []}
        self.lowest = DISK
        self._gateway = gateway
        self.tcp: Client
        self.http: httpx.AsyncClient

    async def __aenter__(self) -> Clients:
        at = self._gateway.line(r"tcp://(\S+)").group(1)
        self.tcp = await connect(f"iggy://root:a long password@{at}")
        self.http = httpx.AsyncClient(base_url=f"http://{self._gateway.address()}", trust_env=False, timeout=DEADLINE_S)
        login = await self.http.post("/users/login", json={"username": "root", "password": "a long password"})
        self.http.headers["authorization"] = f"Bearer {login.json()['access_token']['token']}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.tcp.close()
        await self.http.aclose()

    def payloads(self, partition: int) -> list[bytes]:
        numbers = range(self.sent[partition], self.sent[partition] + TOGETHER)
        return [(b"%08d" % number) * (MESSAGE // 8) for number in numbers]

    async def send_over_http(self) -> str | None:
        """Returns the text of a refusal."""
        answer = await self.http.post(
            "/streams/s/topics/t/messages?partition=0",
            content=b"\n".join(self.payloads(0)),
            headers={"content-type": "text/plain"},
        )
        if answer.status_code == httpx.codes.CREATED:
            return None
        assert (answer.status_code, answer.json()["code"]) == (507, "disk_full"), answer.text
        return str(answer.json()["reason"])

    async def send_over_tcp(self) -> str | None:
        try:
            await self.tcp.send_messages("s", "t", self.payloads(1), to_partition(1))
        except CommandError as refused:
            assert refused.code == CANNOT_SAVE_MESSAGES
            return str(refused)
        return None

    async def send(self, *, until_refused: int = 0, until_sent: int = 0) -> None:
        """Both send until each was refused so often, or has sent so many messages."""

        async def go_on(partition: int) -> None:
            refused = 0
            while self.sent[partition] < until_sent if until_sent else refused < until_refused:
                problem = await (self.send_over_tcp() if partition else self.send_over_http())
                self.lowest = min(self.lowest, free_on(self.small))
                if problem is None:
                    self.sent[partition] += TOGETHER
                else:
                    refused += 1
                    self.refused[partition].append(problem)

        async with asyncio.timeout(2 * HANGS_S):
            await asyncio.gather(go_on(0), go_on(1))

    async def check(self, partition: int) -> None:
        """All messages are there, in order, without gaps and repetitions."""
        offset = 0
        while offset < self.sent[partition]:
            found = await self.tcp.poll_messages(
                "s", "t", ME, partition_id=partition, strategy=from_offset(offset), count=100
            )
            for payload in (message.payload for batch in found.batches for message in batches.messages(batch)):
                assert payload[:8] == b"%08d" % offset, offset
                offset += 1

    async def metric(self, name: str) -> float:
        text = (await self.http.get("/metrics")).text
        found = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
        assert found is not None, text
        return float(found[1])


def test_a_reserve_larger_than_the_disk_is_reported_at_the_start_and_reads_still_work(tmp_path: Path) -> None:
    with starting(tmp_path / "data") as start:

        async def fill(gateway: Gateway) -> None:
            async with Clients(gateway, tmp_path) as clients:
                await clients.tcp.create_stream("s")
                await clients.tcp.create_topic("s", "t", 2)
                await clients.send(until_sent=TOGETHER)

        async def use(gateway: Gateway) -> None:
            async with Clients(gateway, tmp_path) as clients:
                await clients.send(until_refused=1)
                assert re.fullmatch(
                    r"the disk is full: \d+ bytes are free, and system\.disk\.reserve keeps 8000000000000000000 by.*",
                    clients.refused[0][0],
                )
                ready = (await clients.http.get("/health/ready")).json()
                assert (ready["status"], len(ready["problems"])) == ("ready", 1)
                assert "messages are refused" in ready["problems"][0]
                clients.sent = {0: TOGETHER, 1: TOGETHER}
                for partition in (0, 1):
                    await clients.check(partition)

        first = start(**ROOT)
        asyncio.run(fill(first))
        first.signal(signal.SIGTERM)
        assert first.end() == 0
        second = start(**ROOT, IGGY_SYSTEM_DISK_RESERVE="8 EB")
        second.line(r"system\.disk\.reserve \(8000000000000000000 bytes\) is not less than what the file system of ")
        asyncio.run(use(second))
        second.signal(signal.SIGTERM)
        assert second.end() == 0


@pytest.mark.long
@on_64_mib
def test_a_full_disk_refuses_messages_keeps_its_reserve_and_recovers(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    small = tmp_path / "small"

    async def use(gateway: Gateway) -> None:
        async with Clients(gateway, small) as clients:
            await clients.tcp.create_stream("s")
            await clients.tcp.create_topic("s", "t", 2)
            await clients.send(until_refused=5)
            assert "system.disk.reserve" in clients.refused[0][0]
            assert clients.lowest > RESERVE // 4
            assert sum(clients.sent.values()) * MESSAGE > DISK // 2
            assert await clients.metric("whippet_disk_full") == 1
            for partition in (0, 1):
                await clients.check(partition)
                await clients.tcp.store_consumer_offset("s", "t", ME, clients.sent[partition] - 1, partition)
            await clients.tcp.create_consumer_group("s", "t", "g")
            with pytest.raises(CommandError):
                await clients.tcp.create_stream("another")
            gateway.line("disk: messages are refused, because the file system of ")
            await clients.tcp.purge_topic("s", "t")
            clients.sent = {0: 0, 1: 0}
            gateway.line("disk: messages are accepted again, because ")
            await clients.send(until_sent=100)
            for partition in (0, 1):
                await clients.check(partition)

    with starting(small / "data") as start:
        gateway = start(**SETTINGS)
        asyncio.run(use(gateway))
        gateway.signal(signal.SIGTERM)
        assert gateway.end() == 0
    assert main(["check", str(small / "data")]) == 0


@pytest.mark.long
@on_64_mib
def test_with_an_archive_elsewhere_a_small_disk_takes_more_than_it_has_space_for(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    small = tmp_path / "small"
    archive = {
        "IGGY_DATA_MAINTENANCE_ARCHIVER_ENABLED": "true",
        "IGGY_DATA_MAINTENANCE_ARCHIVER_DISK_PATH": str(tmp_path / "archive"),
    }
    wanted = 2 * DISK // MESSAGE

    async def use(gateway: Gateway) -> None:
        async with Clients(gateway, small) as clients:
            await clients.tcp.create_stream("s")
            await clients.tcp.create_topic("s", "t", 2)
            await clients.send(until_sent=wanted)
            assert clients.lowest > RESERVE // 4
            assert await clients.metric("whippet_disk_relief_bytes_total") > DISK
            for partition in (0, 1):
                await clients.check(partition)
            gateway.line(r"disk: deleted \d+ archived segments ")

    async def read(gateway: Gateway) -> None:
        async with Clients(gateway, small) as clients:
            clients.sent = {0: wanted // TOGETHER * TOGETHER, 1: wanted // TOGETHER * TOGETHER}
            for partition in (0, 1):
                await clients.check(partition)

    with starting(small / "data") as start:
        gateway = start(**SETTINGS, **archive)
        asyncio.run(use(gateway))
        gateway.signal(signal.SIGKILL)
        gateway.end()
        gateway = start(**SETTINGS, **archive)
        asyncio.run(read(gateway))
        gateway.signal(signal.SIGTERM)
        assert gateway.end() == 0
