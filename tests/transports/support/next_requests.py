"""Requests of 0.12 clients, and what they read back."""

from __future__ import annotations

from typing import Any

import msgspec

from tests.transports.support.modern import Reply, batch_of, sending
from tests.transports.support.newer import (
    ME,
    Newer,
)
from whippet.app.commands import requests
from whippet.app.config import Config
from whippet.app.model.options import Option, ValueKind
from whippet.storage import batch as batches

NEXT, FIRST = requests.Strategy(requests.StrategyKind.NEXT), requests.Strategy(requests.StrategyKind.FIRST)

SPARE = 1_000_000


def settings(**limits: Any) -> Config:
    config = Config()
    system = msgspec.structs.replace(config.system, limits=msgspec.structs.replace(config.system.limits, **limits))
    return msgspec.structs.replace(config, system=system)


def at(offset: int) -> requests.Strategy:
    return requests.Strategy(requests.StrategyKind.OFFSET, offset)


def poll(
    *, strategy: requests.Strategy = FIRST, count: int = 10, wait: int = 0, commit: bool = False, **more: Any
) -> requests.PollMessagesDeferred:
    """Polls partition 0 as consumer 1."""
    bounds = {"wait_us": wait, "max_bytes": 1 << 20, "request_timeout_us": wait + SPARE} | more
    return requests.PollMessagesDeferred(ME, "s", "t", 0, strategy, count, commit, **bounds)


def fetch(
    *targets: requests.FetchTarget, consumer: requests.Consumer = ME, wait: int = 0, **more: Any
) -> requests.FetchMessages:
    bounds = {"min_count": 1, "count": 1000, "max_bytes": 1 << 20, "auto_commit": False} | more
    return requests.FetchMessages(
        consumer, "s", "t", wait_us=wait, request_timeout_us=wait + SPARE, targets=targets, **bounds
    )


def target(
    partition: int, incarnation: int, strategy: requests.Strategy = NEXT, max_bytes: int = 1 << 20
) -> requests.FetchTarget:
    return requests.FetchTarget(partition, strategy, max_bytes, incarnation)


def payloads(found: Any) -> list[bytes]:
    octets = [message.payload for batch in found.batches for message in batches.messages(batch)]
    assert len(octets) == found.messages_count
    return octets


async def sent(client: Newer, *texts: bytes, partition: int = 0) -> Reply:
    return await client.demand(sending(batch_of(*texts), partition))


async def stored(client: Newer) -> list[bytes]:
    return payloads((await client.get(poll(count=1000))).polled)


def text(key: str, value: str) -> Option:
    return Option(key, ValueKind.STRING, value.encode())
