"""Logs in with the names and passwords of the task, reads whole partitions, and continues as a consumer group."""

import asyncio
import hashlib
import struct
from typing import Any

from apache_iggy import AutoCommit, IggyClient, PollingStrategy
from scenario import Task, connected, execute, milliseconds, refusal, say
from versions import consumer_group, poll


async def summary(client: IggyClient, stream: str, topic: str, partition: int) -> dict[str, Any]:
    """A partition in the form of the records that are kept of real folders."""
    digest, found, position = hashlib.sha256(), [], 0
    while messages := await poll(client, stream, topic, partition, PollingStrategy.Offset(position), 100, False):
        for message in messages:
            payload = bytes(message.payload())
            digest.update(struct.pack("<QQI", message.offset(), message.timestamp(), len(payload)))
            digest.update(int(message.id()).to_bytes(16, "little") + payload)
            found.append(message.offset())
        position = found[-1] + 1
    first, last = (found[0], found[-1]) if found else (None, None)
    return {"messages": len(found), "first_offset": first, "last_offset": last, "sha256": digest.hexdigest()}


async def consume(client: IggyClient, stream: str, topic: str, group: str, expected: int) -> list[int]:
    """The offsets that a member gets who continues where the group has stopped."""
    consumer = await consumer_group(
        client,
        group,
        stream,
        topic,
        polling_strategy=PollingStrategy.Next(),
        batch_length=100,
        auto_commit=AutoCommit.Disabled(),
        poll_interval=milliseconds(5),
    )
    consumed: list[int] = []
    stop = asyncio.Event()

    async def note(message: Any) -> None:
        consumed.append(message.offset())
        if len(consumed) == expected:
            stop.set()

    await consumer.consume_messages(note, stop)
    return sorted(consumed)


async def main(task: Task) -> None:
    for name, password in task["logins"]:
        say(login=name, refusal=await refusal(connected, task, credentials=f"{name}:{password}"))
    client = await connected(task, credentials=task["credentials"])
    for place in task["partitions"]:
        say(place=place, summary=await summary(client, *place))
    say(consumed=await consume(client, *task["group"]))


execute(main)
