"""Actors that use the producers and consumers of the client library, for `--high-level-api`: what programs get."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

from whippet.app.client import AutoCommit, Client, Consumer, GroupConsumer, Producer
from whippet.app.client.commands import from_offset
from whippet.app.commands.responses import Polled
from whippet.bench.run.actors import ConsumerPart, ProducerPart, Setting
from whippet.bench.run.jobs import Consume, Produce
from whippet.bench.run.recorder import Recorder
from whippet.bench.run.settings import TOPIC
from whippet.storage.batch import Message

LINGER_MS = 1000.0
"""A batch is full, or flushed, long before."""
BATCH_BYTES = 1 << 30


class LibraryProducer(ProducerPart):
    """Hands over the messages one by one. The latency is that of a whole batch, until it is acknowledged."""

    def __init__(self, client: Client, job: Produce, setting: Setting, recorder: Recorder) -> None:
        super().__init__(client, job, setting, recorder)
        self._producer = Producer(
            client,
            job.stream,
            TOPIC,
            partitioning=self._partitioning,
            linger_ms=LINGER_MS,
            batch_messages=setting.settings.batch_messages.high,
            batch_bytes=BATCH_BYTES,
            in_flight=1,
        )

    async def send(self) -> None:
        first = self._maker.next_number
        origin_us = (self._pacer.due() + self._setting.wall_offset_ns) // 1000
        payloads = self._maker.payloads()
        messages = [
            Message(payload, (high << 64) | low, origin_timestamp=origin_us)
            for payload, (low, high) in zip(payloads, self._maker.ids(len(payloads)).tolist(), strict=True)
        ]
        began = await self._pacer.wait()
        for message in messages:
            await self._producer.send(message)
        await self._producer.flush()
        self._count(first, began, time.monotonic_ns(), len(payloads), sum(map(len, payloads)))


class LibraryConsumer(ConsumerPart):
    """Commits what it has read before it polls again, if it is a member of a group."""

    def __init__(self, client: Client, job: Consume, setting: Setting, recorder: Recorder) -> None:
        super().__init__(client, job, setting, recorder)
        self._reader = self._new_reader()
        self._polls: AsyncIterator[Polled] = self._reader.polls()

    def _new_reader(self) -> Consumer | GroupConsumer:
        job, count = self.job, self._count
        if job.partition is None:
            commits = AutoCommit.off() if self._warming_up else AutoCommit.each_poll_processed()
            return GroupConsumer(
                self._client, job.stream, TOPIC, job.name, create=False, batch=count, auto_commit=commits, follow=False
            )
        return Consumer(
            self._client,
            job.stream,
            TOPIC,
            job.name,
            partition_id=job.partition,
            strategy=from_offset(self._next_offset),
            batch=count,
            auto_commit=AutoCommit.off(),
            follow=False,
        )

    async def _request(self) -> Polled:
        polled = await anext(self._polls, None)
        if polled is None:
            # An iterator ends at the end of the topic; the next one goes on from there.
            self._polls = self._reader.polls()
            return Polled(0, 0, 0, ())
        return polled

    def _start_over(self) -> None:
        super()._start_over()
        self._reader = self._new_reader()
        self._polls = self._reader.polls()
