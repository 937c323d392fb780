"""Sends numbered messages to all partitions in turn, and says of each batch when it is acknowledged.

The text of a message is "partition:number". With a count it ends by itself, without one when it is told to stop.
"""

import asyncio

from scenario import Lasting, carry_out, heard, refusal, say, send

PAUSE_SECONDS = 0.002


async def main(task):
    lasting = Lasting(task)
    await lasting.connect()
    if task.get("create", True):
        await lasting.client.create_stream(task["stream"])
        await lasting.client.create_topic(task["stream"], task["topic"], task["partitions"])
    say(ready=True)
    await heard("go")
    stopped = asyncio.ensure_future(heard("stop"))
    number, size = task.get("first", 0), task.get("batch", 1)
    last = number + task.get("count", 10**9)
    while number < last and not stopped.done():
        for partition in range(task["partitions"]):
            texts = [f"{partition}:{number + index}" for index in range(size)]
            while (failed := await refusal(send, lasting.client, task, partition, texts)) is not None:
                await lasting.failed(failed)
            lasting.worked()
            say(acknowledged=texts)
        number += size
        await asyncio.sleep(PAUSE_SECONDS)
    say(next_number=number)


carry_out(main)
