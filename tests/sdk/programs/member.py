"""Members of a group, each with its own connection: they report what they consume until they are told to stop."""

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
    """Consumes until something fails. A restless member takes silence for a failure.

    After a lost connection, consumers of 0.7 and 0.8 may be logged in again without being in the group, and wait.
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
