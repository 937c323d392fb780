"""Sends numbered messages to all partitions in turn, and reports each batch when it is acknowledged.

The text of a message is "partition:number". With a count it ends by itself, without one when it is told to stop.
Labelled messages also have ids and headers, if the SDK supports them.
"""

import asyncio

from apache_iggy import SendMessage
from scenario import Lasting, Task, execute, heard, refusal, say, send_all
from versions import labelled

PAUSE_SECONDS = 0.002


async def main(task: Task) -> None:
    lasting = Lasting(task)
    await lasting.connect()
    if task.get("create", True):
        await lasting.client.create_stream(task["stream"])
        await lasting.client.create_topic(task["stream"], task["topic"], task["partitions"])
    say(ready=True)
    await heard("go")
    stopped = asyncio.ensure_future(heard("stop"))
    made = labelled if task.get("labelled") else lambda text, _: SendMessage(text)
    number, size = task.get("first", 0), task.get("batch", 1)
    last = number + task.get("count", 10**9)
    while number < last and not stopped.done():
        for partition in range(task["partitions"]):
            texts = [f"{partition}:{number + index}" for index in range(size)]
            messages = [made(text, number + index) for index, text in enumerate(texts)]
            while (failed := await refusal(send_all, lasting.client, task, partition, messages)) is not None:
                await lasting.failed(failed)
            lasting.worked()
            say(acknowledged=texts)
        number += size
        await asyncio.sleep(PAUSE_SECONDS)
    say(next_number=number)


execute(main)
