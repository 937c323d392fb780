"""Reads all partitions of a topic from the beginning: by polling, and, where a group is named, as its only member."""

import asyncio

from apache_iggy import AutoCommit, AutoCommitWhen, PollingStrategy
from scenario import carry_out, connected, milliseconds, say, text
from versions import consumer_group, labels, origin, poll


async def polled(client, task, partition):
    """Everything, however little each answer holds."""
    found, answer = [], True
    while answer:
        strategy = PollingStrategy.Offset(len(found))
        answer = await poll(client, task["stream"], task["topic"], partition, strategy, 500, False)
        found += answer
    assert [message.offset() for message in found] == list(range(len(found)))
    return found


def seen(message):
    return [text(message), str(message.id()), message.timestamp()]


async def consumed(client, task, expected):
    """This many messages, from all partitions."""
    found, stop = [], asyncio.Event()
    # The others commit in the background, which the end of this program may overtake.
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

    async def note(message):
        found.append(text(message))
        if len(found) == expected:
            stop.set()

    await consumer.consume_messages(note, stop)
    return found


async def main(task):
    client = await connected(task)
    by_polling = [await polled(client, task, partition) for partition in range(task["partitions"])]
    if "group" in task:
        say(consumed=await consumed(client, task, sum(map(len, by_polling))))
    say(
        polled=[[text(message) for message in messages] for messages in by_polling],
        seen=[[seen(message) for message in messages] for messages in by_polling],
        origins=[[origin(message) for message in messages] for messages in by_polling],
        labels=[[labels(message) for message in messages] for messages in by_polling],
    )


carry_out(main)
