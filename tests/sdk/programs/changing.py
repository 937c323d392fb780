"""A consumer that keeps running while its topic changes: what it gets after each change."""

import asyncio
from typing import Any

from apache_iggy import AutoCommit, AutoCommitWhen, SendMessage
from scenario import ATTENTIVE, Task, connected, execute, milliseconds, say, text


async def main(task: Task) -> None:
    stream, topic = task["name"], "t"
    client, own = await connected(task), await connected(task, ATTENTIVE.replace("&", "?"))
    await client.create_stream(stream)
    await client.create_topic(stream, topic, 2)
    consumer = await own.consumer_group(
        "g",
        stream,
        topic,
        auto_commit=AutoCommit.When(AutoCommitWhen.PollingMessages()),
        poll_interval=milliseconds(5),
        polling_retry_interval=milliseconds(20),
        # Offsets start again after a purge; a consumer that does not allow replays would skip them.
        allow_replay=True,
    )
    consumed: list[list[Any]] = []
    more = asyncio.Event()

    async def note(message: Any) -> None:
        consumed.append([message.partition_id(), text(message)])
        more.set()

    async def sent(*partitions: int, after: str) -> None:
        """Returns what is consumed until all of these messages have arrived."""
        expected = [[partition, f"{after} {partition}"] for partition in partitions]
        for partition, content in expected:
            await client.send_messages(stream, topic, partition, [SendMessage(content)])
        while any(message not in consumed for message in expected):
            more.clear()
            await more.wait()
        say(after=after, consumed=sorted(consumed))
        consumed.clear()

    consuming = asyncio.ensure_future(consumer.consume_messages(note, asyncio.Event()))
    await sent(0, 1, after="joining")
    await client.create_partitions(stream, topic, 2)
    await sent(0, 1, 2, 3, after="growing")
    await client.delete_partitions(stream, topic, 2)
    await sent(0, 1, after="shrinking")
    await client.purge_topic(stream, topic)
    await sent(0, 1, after="a purge")
    await client.delete_topic(stream, topic)
    await client.create_topic(stream, topic, 2)
    await sent(0, 1, after="the topic was made again")
    await client.delete_consumer_group(stream, topic, "g")
    await sent(0, 1, after="the group was deleted")
    assert not consuming.done()


execute(main)
