"""Follows all partitions of a topic on its own: it keeps its position and polls from there, whatever happens."""

import asyncio
from typing import Any

from apache_iggy import PollingStrategy
from scenario import Lasting, Task, execute, heard, say, text
from versions import poll as poll_messages

PAUSE_SECONDS = 0.005


async def poll(lasting: Lasting, task: Task, partition: int, offset: int) -> list[Any]:
    """Returns the next messages, or none while the server is away."""
    strategy = PollingStrategy.Offset(offset)
    try:
        found = await poll_messages(lasting.client, task["stream"], task["topic"], partition, strategy, 100, False)
    except RuntimeError as error:
        await lasting.failed(error)
        return []
    lasting.worked()
    return found


async def main(task: Task) -> None:
    lasting = Lasting(task)
    await lasting.connect()
    stopped = asyncio.ensure_future(heard("stop"))
    offsets = [0] * task["partitions"]
    while not stopped.done():
        for partition, begin in enumerate(offsets):
            found = await poll(lasting, task, partition, begin)
            assert [message.offset() for message in found] == list(range(begin, begin + len(found)))
            offsets[partition] += len(found)
            for message in found:
                say(consumed=text(message))
        await asyncio.sleep(PAUSE_SECONDS)


execute(main)
