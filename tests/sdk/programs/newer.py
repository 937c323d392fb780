"""The pre-release of the SDK, which speaks the next wire: creates a topic, sends, polls, and consumes in a group.

If asked to, it keeps sending while the server is killed and restarted.
"""

import asyncio
from typing import Any

import apache_iggy
from apache_iggy import AutoCommit, AutoCommitWhen, Consumer, IggyClient, PollingStrategy, SendMessage
from scenario import PATIENT, Task, connected, execute, heard, refusal, say, text


async def polled(client: IggyClient, task: Task, partition: int) -> list[str]:
    found: list[str] = []
    while True:
        messages = await client.poll_messages(
            task["stream"],
            task["topic"],
            consumer=Consumer.Single(0),
            polling_strategy=PollingStrategy.Offset(len(found)),
            count=1000,
            auto_commit=False,
            partition_id=partition,
        )
        if not messages:
            return found
        found += map(text, messages)


async def consumed(client: IggyClient, task: Task, count: int) -> list[str]:
    """Returns this many messages; the last one is sent when all others have arrived, to a consumer that is waiting."""
    found: list[str] = []
    stop = asyncio.Event()
    consumer = await client.consumer_group(
        "g",
        task["stream"],
        task["topic"],
        polling_strategy=PollingStrategy.Next(),
        auto_commit=AutoCommit.When(AutoCommitWhen.PollingMessages()),
    )

    async def note(message: Any) -> None:
        found.append(text(message))
        if len(found) == count - 1:
            await client.send_messages(task["stream"], task["topic"], 0, [SendMessage("late")])
        if len(found) == count:
            stop.set()

    await consumer.consume_messages(note, stop)
    return found


async def main(task: Task) -> None:
    client = await connected(task, PATIENT)
    await client.create_stream(task["stream"])
    await client.create_topic(task["stream"], task["topic"], apache_iggy.TopicOptions(partitions_count=2))
    topic = await client.get_topic(task["stream"], task["topic"])
    say(partitions=len(topic.partitions))
    for partition in range(2):
        messages = [SendMessage(f"{partition}:{number}") for number in range(10)]
        await client.send_messages(task["stream"], task["topic"], partition, messages)
    say(polled=[await polled(client, task, partition) for partition in range(2)])
    say(consumed=await consumed(client, task, 21))
    if not task.get("goes_on"):
        return
    say(ready=True)
    await heard("go")
    number, failed = 0, 0
    stopped = asyncio.ensure_future(heard("stop"))
    while not stopped.done():
        message = [SendMessage(f"again:{number}")]
        while await refusal(client.send_messages, task["stream"], task["topic"], 1, message) is not None:
            failed += 1
            await asyncio.sleep(0.02)
        say(acknowledged=f"again:{number}")
        number += 1
    say(sent=number, failed=failed, stored=(await polled(client, task, 1))[10:])


execute(main)
