"""Consumes a partition in one group per commit mode, all at the same time."""

import asyncio
from typing import Any

from apache_iggy import PollingStrategy
from scenario import Task, auto_commit, connected, execute, heard, milliseconds, say, send, text
from versions import MODERN, consumer_group


class Consumer:
    """A group with one member."""

    def __init__(self, name: str, words: list[Any], batch: int, expected: int, iterates: bool) -> None:
        self.name, self.words, self.batch = name, words, batch
        self.expected, self.iterates = expected, iterates
        self.consumed: list[str] = []
        self.done, self.stop = asyncio.Event(), asyncio.Event()

    async def begin(self, task: Task) -> None:
        self.client = await connected(task)
        self.consumer = await consumer_group(
            self.client,
            self.name,
            task["stream"],
            task["topic"],
            polling_strategy=PollingStrategy.Next(),
            batch_length=self.batch,
            auto_commit=auto_commit(self.words),
            poll_interval=milliseconds(5),
        )
        self.running = asyncio.ensure_future(self.iterate() if self.iterates else self.call_back())
        await self.done.wait()

    async def note(self, message: Any) -> None:
        self.consumed.append(text(message))
        if len(self.consumed) >= self.expected:
            self.done.set()

    async def call_back(self) -> None:
        await self.consumer.consume_messages(self.note, self.stop)

    async def iterate(self) -> None:
        async for message in self.consumer.iter_messages():
            await self.note(message)
            if self.done.is_set():
                return

    async def end(self) -> None:
        self.stop.set()
        await self.running
        consumer = self.consumer
        say(
            group=consumer.name(),
            stream=str(consumer.stream()),
            topic=str(consumer.topic()),
            partition=consumer.partition_id(),
            last_consumed=consumer.get_last_consumed_offset(0),
            last_of_other=consumer.get_last_stored_offset(7),
        )
        if MODERN:
            # Otherwise over QUIC the next member would wait until the server considers this client gone.
            await self.client.logout_user()


async def main(task: Task) -> None:
    if task["produce"]:
        client = await connected(task)
        await client.create_stream(task["stream"])
        await client.create_topic(task["stream"], task["topic"], 1)
        await send(client, task, 0, [f"{number}" for number in range(task["produce"])])
    consumers = [Consumer(name, *mode) for name, mode in task["modes"].items()]
    await asyncio.gather(*(consumer.begin(task) for consumer in consumers))
    say(consumed={consumer.name: consumer.consumed for consumer in consumers})
    await heard("stop")
    await asyncio.gather(*(consumer.end() for consumer in consumers))


execute(main)
