"""A disk without room: every transport refuses messages and places for them with the same error, and nothing else.

The disk is the real one; only how much of it is free is up to the test.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from tests.app.access.support.world import world
from tests.storage.support.scarce_disk import PLENTY, RESERVE, ScarceDisk
from tests.storage.support.world import local
from tests.transports.http.support.calling import with_topic as over_http
from tests.transports.support import modern, newer, quic
from tests.transports.support.modern import batch_of, sending
from tests.transports.support.raw import ClassicClient, message_body, served
from tests.transports.websocket.support import browsing
from tests.transports.websocket.support.talking import talking
from whippet.app.commands import requests
from whippet.app.commands.requests import Consumer, ConsumerKind, Strategy, StrategyKind
from whippet.app.telemetry import metrics
from whippet.storage.store import Store

CANNOT_SAVE_MESSAGES = 4006
FREE = RESERVE - 1
REASON = f"the disk is full: {FREE} bytes are free, and system.disk.reserve keeps {RESERVE} bytes for everything"
SEND = 101
ME = Consumer(ConsumerKind.CONSUMER, 1)
FIRST = Strategy(StrategyKind.FIRST)
MORE_PLACES = (
    requests.CreateStream("another"),
    requests.CreateTopic(0, "another", 1),
    requests.CreatePartitions(0, 0, 1),
)
STILL_WORK = (
    requests.PollMessages(ME, 0, 0, 0, FIRST, 10, auto_commit=True),
    requests.StoreConsumerOffset(ME, 0, 0, 0, 0),
    requests.CreateConsumerGroup(0, 0, "g"),
    requests.FlushUnsavedBuffer(0, 0, 0, fsync=True),
    requests.PurgeTopic(0, 0),
    requests.DeletePartitions(0, 0, 1),
    requests.DeleteTopic(0, 0),
    requests.DeleteStream(0),
)


def options(disk: ScarceDisk) -> dict[str, Any]:
    return {"files": disk, "disk_reserve": RESERVE}


async def fill(disk: ScarceDisk, store: Store) -> None:
    disk.free = FREE
    await store.disk.check()


async def empty(disk: ScarceDisk, store: Store) -> None:
    disk.free = PLENTY
    await store.disk.check()


async def is_refused_to_classic(client: ClassicClient, disk: ScarceDisk, store: Store) -> None:
    async def send() -> int:
        await client.send(_frame(SEND, message_body(10)))
        return (await client.answer())[0]

    for request in (requests.CreateStream("s"), requests.CreateTopic(0, "t", 2)):
        assert (await client.ask(request))[0] == 0
    assert await send() == 0
    await fill(disk, store)
    assert await send() == CANNOT_SAVE_MESSAGES
    assert [(await client.ask(request))[0] for request in MORE_PLACES] == [CANNOT_SAVE_MESSAGES] * 3
    await empty(disk, store)
    assert await send() == 0
    await fill(disk, store)
    assert [(await client.ask(request))[0] for request in STILL_WORK] == [0] * len(STILL_WORK)


def _frame(code: int, payload: bytes) -> bytes:
    return (len(payload) + 4).to_bytes(4, "little") + code.to_bytes(4, "little") + payload


async def test_over_tcp_and_classic(tmp_path: Path) -> None:
    disk = ScarceDisk()
    async with served(tmp_path, store=options(disk)) as made:
        await is_refused_to_classic(await made.root(), disk, made.store)


async def test_over_websocket_and_classic(tmp_path: Path) -> None:
    disk = ScarceDisk()
    async with talking(tmp_path, store=options(disk)) as made:
        await is_refused_to_classic(await made.root(), disk, local(made.gateway.store))


async def test_over_quic_and_classic(tmp_path: Path) -> None:
    disk = ScarceDisk()
    async with quic.served(tmp_path, store=options(disk)) as made:
        client = await made.root()
        store = local(made.gateway.store)
        await quic.make_topic(client)
        await fill(disk, store)
        assert [(await client.ask(request))[0] for request in MORE_PLACES] == [CANNOT_SAVE_MESSAGES] * 3
        assert (await client.ask(_frame(SEND, message_body(10))))[0] == CANNOT_SAVE_MESSAGES
        await empty(disk, store)
        assert (await client.ask(_frame(SEND, message_body(10))))[0] == 0


async def test_modern_clients_get_the_number_and_may_repeat_the_request(tmp_path: Path) -> None:
    disk = ScarceDisk()
    async with served(tmp_path, store=options(disk)) as made:
        client, store = await modern.with_topic(made, 2), made.store
        assert not await client.refused(sending(batch_of(b"a")))
        await fill(disk, store)
        refused = client.asked(sending(batch_of(b"b")))
        assert (await client.say(refused)).refused == CANNOT_SAVE_MESSAGES
        assert [await client.refused(request) for request in MORE_PLACES] == [CANNOT_SAVE_MESSAGES] * 3
        await empty(disk, store)
        # The same request, byte for byte: the refusal is not remembered.
        assert not (await client.say(refused)).refused
        assert await client.payloads() == [b"a", b"b"]
        await fill(disk, store)
        assert [await client.refused(request) for request in STILL_WORK] == [0] * len(STILL_WORK)


async def test_next_clients_get_the_number(tmp_path: Path) -> None:
    disk = ScarceDisk()
    async with world(tmp_path, **options(disk)) as made:
        client = await newer.with_topic(made, 2)
        await fill(disk, made.store)
        assert await client.refused(sending(batch_of(b"b"))) == CANNOT_SAVE_MESSAGES
        assert [await client.refused(request) for request in MORE_PLACES] == [CANNOT_SAVE_MESSAGES] * 3
        await empty(disk, made.store)
        assert not await client.refused(sending(batch_of(b"b")))


async def test_browsers_get_the_name(tmp_path: Path) -> None:
    disk = ScarceDisk()
    async with talking(tmp_path, store=options(disk)) as made:
        browser = await browsing.with_topic(made)
        await fill(disk, local(made.gateway.store))
        refused = await browser.refused("send_messages", **browsing.sending("YQ=="))
        assert refused == (20013, "disk_full", None)
        await empty(disk, local(made.gateway.store))
        await browser.ask("send_messages", **browsing.sending("YQ=="))


async def test_http_names_the_setting_and_the_free_bytes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    disk = ScarceDisk()
    caplog.set_level(logging.INFO)
    async with over_http(tmp_path, **options(disk)) as made:
        root, store = made.root, local(made.gateway.store)
        messages = "/streams/s/topics/t/messages?partition=0"

        async def send(more: str = "") -> Any:
            return await root.ask("POST", messages + more, b"a message", content_type="text/plain")

        assert (await send()).status_code == 201
        await fill(disk, store)
        caplog.clear()
        for response in (
            await send(),
            await send("&ack=none"),
            await root.ask("POST", "/streams", {"name": "another"}),
            await root.ask("POST", "/streams/s/topics", {"name": "another", "partitions_count": 1}),
            await root.ask("POST", "/streams/s/topics/t/partitions", {"partitions_count": 1}),
        ):
            body = response.json()
            assert (response.status_code, body["id"], body["code"], body["field"]) == (507, 20013, "disk_full", None)
            assert body["reason"].startswith(REASON)
        # A producer that does not give up must not fill the disk with log lines.
        assert not [record for record in caplog.records if record.name != "httpx"]
        poll = "/streams/s/topics/t/messages?consumer_id=1&partition_id=0&kind=first&count=10"
        assert (await root.get(poll))["messages"]
        await root.put("/streams/s/topics/t/consumer-offsets", {"consumer_id": 1, "partition_id": 0, "offset": 0})
        assert await root.post("/streams/s/topics/t/consumer-groups", {"name": "g"})
        await root.delete("/streams/s/topics/t/purge")
        await empty(disk, store)
        assert (await send("&ack=none")).status_code == 202
        assert (await send()).status_code == 201


async def test_health_metrics_and_statistics_show_it(tmp_path: Path) -> None:
    disk = ScarceDisk()
    async with over_http(tmp_path, **options(disk)) as made:
        store = local(made.gateway.store)
        made.gateway.readiness.engine_problem = store.disk.summary
        assert (await made.root.get("/health/ready"))["problems"] == []

        def shown() -> dict[str, float]:
            return {each.name: each.values[0][1] for each in metrics._disk(made.gateway)}

        assert shown() == {
            "whippet_disk_free_bytes": PLENTY,
            "whippet_disk_reserve_bytes": RESERVE,
            "whippet_disk_full": 0,
            "whippet_disk_relief_bytes": 0,
        }
        await fill(disk, store)
        store.disk.deleted_bytes = 7
        assert shown() == {
            "whippet_disk_free_bytes": FREE,
            "whippet_disk_reserve_bytes": RESERVE,
            "whippet_disk_full": 1,
            "whippet_disk_relief_bytes": 7,
        }
        assert (await made.root.get("/health/ready"))["problems"] == [
            f"disk: messages are refused, because only {FREE} bytes are free (system.disk.reserve = {RESERVE})"
        ]
        text = (await made.stranger.ask("GET", "/metrics")).text
        assert "\nwhippet_disk_full 1\n" in text
        assert "\nwhippet_disk_relief_bytes_total 7\n" in text


async def test_without_a_reserve_there_are_no_metrics_of_the_disk(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        assert list(metrics._disk(made.gateway)) == []
