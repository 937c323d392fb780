"""Reads what is in the partitions of a topic between two places, in order, some polls ahead."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from whippet.app.cli.remote import starts
from whippet.app.cli.remote.activity import end_of
from whippet.app.cli.remote.failures import UsageFailure

if TYPE_CHECKING:
    from whippet.app.client import Client
    from whippet.app.client.consumer import Received
    from whippet.app.commands.responses import Polled

POLLED = 1000
AHEAD = 2
"""Polls in progress: while one response is processed, the next is on its way."""
NAME = "whippet"

TopicPlace = tuple[int | str, int | str]


async def bounds(
    client: Client, place: TopicPlace, partition: Any, begin: str = "first", to: str = "end"
) -> tuple[int, int]:
    """Returns the offset of the first message, and the one after the last; `partition` is from get_topic."""
    end = end_of(partition)
    if to != "end":
        end = min(end, await _place_of(client, place, partition.id, to, end, "--to"))
    return await _place_of(client, place, partition.id, begin, end_of(partition), "--from"), end


async def _place_of(client: Client, place: TopicPlace, partition: int, text: str, end: int, option: str) -> int:
    """Returns the offset that a text such as `2h-ago` stands for in a partition."""
    if text == "end":
        return end
    if text.isascii() and text.isdecimal():
        return int(text)
    if text.startswith("-") and text[1:].isdecimal():
        return max(0, end - int(text[1:]))
    if text == "first":
        return 0
    start = starts.parse(text)
    if start is None:
        raise UsageFailure(f"{option} {text}: no place")
    from whippet.storage.batch import first_offset  # noqa: PLC0415 -- not for --help

    found = await poll(client, place, partition, start[0], 1)
    return first_offset(found.batches[0]) if found.messages_count else end


async def messages(
    client: Client, place: TopicPlace, partition: int, begin: int, end: int
) -> AsyncIterator[list[Received]]:
    """Yields the messages from one offset up to, and without, another one. What retention deletes meanwhile is left
    out."""
    from whippet.app.client.commands import from_offset  # noqa: PLC0415
    from whippet.app.client.consumer import received  # noqa: PLC0415

    pending: deque[tuple[int, asyncio.Future[Polled]]] = deque()
    position = asked = begin
    try:
        while position < end:
            while len(pending) < AHEAD and asked < end:
                pending.append((asked, poll(client, place, partition, from_offset(asked), min(POLLED, end - asked))))
                asked += POLLED
            _, answer = pending.popleft()
            polled = await answer
            found = [each for each in received(polled) if position <= each.offset < end]
            if not found:
                # The rest was deleted meanwhile.
                return
            yield found
            position = found[-1].offset + 1
            if not pending or pending[0][0] != position:
                # The poll returned less than it could, because its messages are large, or later ones, because the
                # first were deleted.
                _forget(pending)
                asked = position
    finally:
        _forget(pending)


def _forget(pending: deque[tuple[int, asyncio.Future[Any]]]) -> None:
    for _, answer in pending:
        if not answer.cancel():
            answer.exception()
    pending.clear()


def poll(client: Client, place: TopicPlace, partition: int, strategy: Any, count: int) -> asyncio.Future[Polled]:
    from whippet.app.commands.requests import Consumer, ConsumerKind  # noqa: PLC0415

    consumer = Consumer(ConsumerKind.CONSUMER, NAME)
    return client.poll_messages(*place, consumer, partition_id=partition, strategy=strategy, count=count)
