"""Messages in the JSON of the HTTP API, for the topic of `calling.with_topic`."""

from __future__ import annotations

import base64
from typing import Any

from tests.storage.support.world import split
from tests.transports.http.support.calling import Calling
from whippet.app.commands import requests
from whippet.storage.batch import check

MESSAGES = "/streams/s/topics/t/messages"
OFFSETS = "/streams/s/topics/t/consumer-offsets"
FIRST = {"kind": "partition_id", "value": "AAAAAA=="}
BALANCED = {"kind": "balanced", "value": ""}


def b64(octets: bytes) -> str:
    return base64.b64encode(octets).decode()


def message(payload: bytes = b"x", **more: Any) -> dict[str, Any]:
    return {"payload": b64(payload), **more}


def sent(*given: dict[str, Any], to: dict[str, str] = FIRST, **more: Any) -> dict[str, Any]:
    return {"partitioning": to, "messages": list(given), **more}


def header_entry(kind: str, key: bytes, value_kind: str, value: bytes) -> dict[str, Any]:
    return {"key": {"kind": kind, "value": b64(key)}, "value": {"kind": value_kind, "value": b64(value)}}


async def poll(world: Calling, query: str = "count=1000") -> list[Any]:
    polled = await world.root.get(f"{MESSAGES}?{query}")
    assert polled["count"] == len(polled["messages"])
    return list(polled["messages"])


async def payloads(world: Calling, query: str = "count=1000") -> list[bytes]:
    return [base64.b64decode(each["payload"]) for each in await poll(world, query)]


async def stored(world: Calling, partition: int = 0) -> list[Any]:
    """Returns the stored messages, after checking their batches."""
    root = await world.world.root()
    consumer = requests.Consumer(requests.ConsumerKind.CONSUMER, 9)
    polled = await root.execute(
        requests.PollMessages(
            consumer, "s", "t", partition, requests.Strategy(requests.StrategyKind.FIRST), 100_000, False
        )
    )
    batches = split(polled.batches)
    for each in batches:
        check(each)
    return batches
