"""Members of a group, each with a connection of its own: they say what they consume, until they are told to stop."""

import asyncio
from typing import Any

from apache_iggy import IggyClient, PollingStrategy
from scenario import Lasting, Task, auto_commit, execute, heard, milliseconds, say, text
from versions import Note, consume_endlessly, consumer_group


async def joined(client: IggyClient, task: Task) -> Any:
    return await consumer_group(
        client,
        task["group"],
        task["stream"],
        task["topic"],
        polling_strategy=PollingStrategy.Next(),
        batch_length=task.get("batch", 10),
        auto_commit=auto_commit(task["auto_commit"]),
        poll_interval=milliseconds(5),
        polling_retry_interval=milliseconds(20),
    )


async def consume(consumer: Any, note: Note, lasting: Lasting, restless: bool) -> None:
    """Until something is wrong. A restless one takes a silence for that.

    Consumers of 0.7 and 0.8 may come back from a lost connection logged in, but in no group, and wait.
    """
    consuming = asyncio.ensure_future(consume_endlessly(consumer, note))
    while not consuming.done():
        await asyncio.wait([consuming], timeout=0.1)
        if restless and not lasting.works():
            raise RuntimeError("silence")
    await consuming


async def member(task: Task, index: int) -> None:
    lasting = Lasting(task)
    await lasting.connect()
    consumer = await joined(lasting.client, task)

    async def note(message: Any) -> None:
        lasting.worked()
        say(consumed=text(message), member=index)

    while True:
        try:
            await consume(consumer, note, lasting, task.get("restless", False))
        except RuntimeError as error:
            if await lasting.failed(error):
                consumer = await joined(lasting.client, task)


async def main(task: Task) -> None:
    members = [asyncio.ensure_future(member(task, index)) for index in range(task.get("members", 1))]
    stop = asyncio.ensure_future(heard("stop"))
    await asyncio.wait([stop, *members], return_when=asyncio.FIRST_COMPLETED)
    for ended in members:
        if ended.done():
            ended.result()


execute(main)
