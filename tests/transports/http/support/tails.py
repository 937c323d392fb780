"""Servers with a topic to tail, and helpers for tests of tails."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.transports.http.support.events import Event, Events
from tests.transports.http.support.serving import Serving, serving
from whippet.app.access.permissions import GlobalPermissions, Permissions
from whippet.app.client.batching import pack
from whippet.app.commands import requests
from whippet.app.config.listeners import Http, HttpReaders
from whippet.transports.http.serving.open_tails import Tail

Readers = dict[str, Any]
POLLING = Permissions(GlobalPermissions(poll_messages=True))


@contextlib.asynccontextmanager
async def live(
    tmp_path: Path,
    partitions: int = 1,
    readers: Readers | None = None,
    limits: dict[str, Any] | None = None,
    **store: Any,
) -> AsyncIterator[Serving]:
    async with serving(tmp_path, Http(readers=HttpReaders(**(readers or {}))), store=store, **(limits or {})) as world:
        if not world.world.gateway.streams.find("s"):
            root = await world.world.root()
            await root.execute(requests.CreateStream("s"))
            await root.execute(requests.CreateTopic("s", "t", partitions))
        yield world
        assert len(world.api.tails) == 0, "a tail was left over"
        assert len(world.api.tails.feeds) == 0


async def send(world: Serving, *payloads: bytes, partition: int = 0) -> None:
    root = await world.world.root()
    to = requests.Partitioning(requests.PartitioningKind.PARTITION_ID, partition)
    await root.execute(requests.SendMessages("s", "t", to, (pack(payloads),)))


async def over(events: Events) -> Event:
    """Returns the last event, after which the connection is closed."""
    while True:
        event = await events.next()
        if event.name == "end":
            with pytest.raises(EOFError):
                await events.next()
            assert events.is_over
            assert await events.link.is_over()
            return event


def unsent_bytes(kept: Tail) -> int:
    assert kept._writer is not None
    return kept._writer.unsent_bytes


async def until_tails(world: Serving, count: int) -> None:
    while len(world.api.tails) != count:  # noqa: ASYNC110
        await asyncio.sleep(0)


async def leave(world: Serving, *tails: Events) -> None:
    left = len(world.api.tails) - len(tails)
    for events in tails:
        events.close()
    await until_tails(world, left)


def texts(events: list[Event]) -> list[bytes]:
    return [event.payload for event in events]
