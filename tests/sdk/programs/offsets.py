"""Stores and deletes offsets by hand, consumes from them, and creates invalid consumers."""

import asyncio
from collections.abc import Awaitable
from typing import Any

from apache_iggy import AutoCommit, IggyClient, PollingStrategy
from scenario import Task, connected, execute, heard, milliseconds, refusal, say, send, text
from versions import MODERN, consumer_group

MESSAGES = 20
ONCE = milliseconds(60_000)
"""The interval between polls: a consumer gets everything it wants from the first one. When a consumer is stopped
while it polls, its client still gets the response. Over WebSocket (up to 0.9; over TCP the SDK takes care) the
client takes it for the response to the next request, which fails with "invalid format"."""
TWICE = milliseconds(1000)
"""For a consumer that needs a second poll, and must be stopped before its third."""


async def consume(consumer: Any, expected: int) -> list[int]:
    """Consumes this many messages, then stops."""
    consumed: list[int] = []
    stop = asyncio.Event()

    async def note(message: Any) -> None:
        if len(consumed) < expected:
            consumed.append(int(text(message)))
        if len(consumed) == expected:
            stop.set()

    await consumer.consume_messages(note, stop)
    return consumed


async def fill(client: IggyClient, task: Task, partition: int) -> None:
    await send(client, task, partition, [f"{100 * partition + number}" for number in range(MESSAGES)])


async def filled(client: IggyClient, task: Task, first: int, partitions: int) -> None:
    """Creates a topic with messages in the first partition or partitions."""
    await client.create_topic(task["stream"], task["topic"], partitions)
    for partition in range(first):
        await fill(client, task, partition)


def group(
    client: IggyClient, task: Task, name: str, strategy: PollingStrategy | None = None, **options: Any
) -> Awaitable[Any]:
    options = {"batch_length": 5, "auto_commit": AutoCommit.Disabled(), "poll_interval": ONCE} | options
    strategy = strategy or PollingStrategy.Next()
    return consumer_group(client, name, task["stream"], task["topic"], polling_strategy=strategy, **options)


async def by_hand(client: IggyClient, task: Task, allow_replay: bool) -> None:
    """Returns the result of every call in turn, and the stored offset that the test sees after it."""
    name = f"replay {allow_replay}"
    task = task | {"topic": name}
    await filled(client, task, first=1, partitions=2)
    interval = TWICE if allow_replay else ONCE
    consumer = await group(client, task, name, partition_id=0, allow_replay=allow_replay, poll_interval=interval)
    say(consumed=await consume(consumer, 10 if allow_replay else 5))
    await fill(client, task, 1)
    calls: dict[str, tuple[Any, ...]] = {
        "store 4": (consumer.store_offset, 4, None),
        "store 2": (consumer.store_offset, 2, 0),
        "store 3 elsewhere": (consumer.store_offset, 3, 1),
        "store 1000": (consumer.store_offset, 1000, 0),
        "store in no partition": (consumer.store_offset, 3, 2),
        "delete": (consumer.delete_offset, 0),
        "delete again": (consumer.delete_offset, 0),
    }
    for what, call in calls.items():
        say(group=name, did=what, answer=await refusal(*call), last_stored=consumer.get_last_stored_offset(0))
        await heard("go on")


async def begin(*arguments: Any, **options: Any) -> None:
    """A mistake in a consumer is reported when it is created or, by the SDK 0.6, when it starts to consume."""
    await (await group(*arguments, **options)).consume_messages(None, None)


async def impossible(client: IggyClient, task: Task) -> None:
    say(no_group=await refusal(begin, client, task, "nobody made this", create_consumer_group_if_not_exists=False))
    retries = {"init_retries": 2, "init_retry_interval": milliseconds(10)}
    for key in ("stream", "topic"):
        say(absent=await refusal(begin, client, task | {key: "nobody made this"}, "g", **retries))


async def patient(client: IggyClient, task: Task) -> None:
    """A consumer that is created before its topic."""
    later = task | {"topic": "later"}
    made = asyncio.ensure_future(
        group(client, later, "g", init_retries=1000, init_retry_interval=milliseconds(10), batch_length=1)
    )
    await client.create_topic(task["stream"], "later", 1)
    await send(client, later, 0, ["7"])
    say(patient=await consume(await made, 1))


async def main(task: Task) -> None:
    client = await connected(task)
    await client.create_stream(task["stream"])
    await filled(client, task, first=2, partitions=2)
    # Members of 0.9 read all their partitions, whichever one is requested.
    one = task | {"topic": "one"} if MODERN else task
    if MODERN:
        await filled(client, one, first=1, partitions=1)
    await impossible(client, task)

    strategies = {
        "First": (PollingStrategy.First(), task["expected"]),
        "Offset": (PollingStrategy.Offset(7), 10),
        "Last": (PollingStrategy.Last(), 5),
        "Timestamp": (PollingStrategy.Timestamp(1), task["expected"]),
    }
    for name, (strategy, expected) in strategies.items():
        consumer = await group(client, one, name, strategy, partition_id=0, batch_length=expected)
        say(strategy=name, consumed=await consume(consumer, expected))
    say(strategy="partition 1", consumed=await consume(await group(client, task, "one", partition_id=1), 5))

    await group(client, task, "not joined", auto_join_consumer_group=False)
    await by_hand(client, task, allow_replay=False)
    await by_hand(client, task, allow_replay=True)
    await patient(client, task)


execute(main)
