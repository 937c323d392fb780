"""Sends batches of large messages, waits for a word, and polls all of them with one request."""

import asyncio

from apache_iggy import PollingStrategy
from scenario import Task, connected, execute, heard, say, send
from versions import poll


async def main(task: Task) -> None:
    client = await connected(task)
    stream, topic, count, size = task["stream"], task["topic"], task["count"], task["size"]
    await client.create_stream(stream)
    await client.create_topic(stream, topic, 1)
    for start in range(0, count, 500):
        await send(client, task, 0, [f"{start + index}.".ljust(size, "x") for index in range(500)])
    say(sent=count)
    await heard("poll")
    clients = [client, *[await connected(task) for _ in range(task["clients"] - 1)]]
    # Each response fits into the memory that the server has for all responses; together they do not.
    found = await asyncio.gather(
        *(poll(each, stream, topic, 0, PollingStrategy.First(), count, False) for each in clients)
    )
    for messages in found:
        assert all(len(message.payload()) == size for message in messages)
        say(polled=[int(bytes(message.payload()[:9]).partition(b".")[0]) for message in messages])


execute(main)
