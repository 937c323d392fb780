"""Reads all partitions of a topic from the start: by polling or, if a group is named, as its only member."""

import asyncio
from typing import Any

from apache_iggy import AutoCommit, AutoCommitWhen, IggyClient, PollingStrategy
from scenario import Task, connected, execute, milliseconds, poll_all, say, text
from versions import consumer_group, labels, origin


def seen(message: Any) -> list[Any]:
    return [text(message), str(message.id()), message.timestamp()]


async def consumed(client: IggyClient, task: Task, expected: int) -> list[str]:
    """Returns this many messages, from all partitions."""
    found: list[str] = []
    stop = asyncio.Event()
    # Other modes commit in the background, perhaps only after this program has ended.
    committing = AutoCommit.When(AutoCommitWhen.PollingMessages())
    consumer = await consumer_group(
        client,
        task["group"],
        task["stream"],
        task["topic"],
        polling_strategy=PollingStrategy.Next(),
        auto_commit=committing,
        poll_interval=milliseconds(5),
    )

    async def note(message: Any) -> None:
        found.append(text(message))
        if len(found) == expected:
            stop.set()

    await consumer.consume_messages(note, stop)
    return found


async def main(task: Task) -> None:
    client = await connected(task)
    by_polling = [await poll_all(client, task, partition) for partition in range(task["partitions"])]
    if "group" in task:
        say(consumed=await consumed(client, task, sum(map(len, by_polling))))
    say(
        polled=[[text(message) for message in messages] for messages in by_polling],
        seen=[[seen(message) for message in messages] for messages in by_polling],
        origins=[[origin(message) for message in messages] for messages in by_polling],
        labels=[[labels(message) for message in messages] for messages in by_polling],
    )


execute(main)
