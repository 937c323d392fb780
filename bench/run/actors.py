"""Producers and consumers, each on a connection with one request in progress, as Iggy's benchmark has them.

A latency contains what our client needs to encode the request. Consumers look at every message after the clock has
stopped.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import NamedTuple

from whippet.app.client import Client
from whippet.app.client.commands import BALANCED, NEXT, from_offset, to_partition
from whippet.app.client.consumer import last_offset
from whippet.app.commands.requests import Consumer, ConsumerKind
from whippet.app.commands.responses import Polled
from whippet.bench.run.jobs import Consume, Produce
from whippet.bench.run.messages import Maker, contents, source_of
from whippet.bench.run.pacing import Pacer
from whippet.bench.run.precise_timer import PreciseTimer
from whippet.bench.run.recorder import Recorder
from whippet.bench.run.settings import TOPIC, Settings
from whippet.bench.run.verification import Inspector, Tally

PAUSE_NS = 250_000
"""After an empty poll, and twice as long after each further one."""
PAUSE_MAX_NS = 2_000_000


class Setting(NamedTuple):
    """What the actors of a process share."""

    run: int
    settings: Settings
    timer: PreciseTimer
    begin_ns: int
    """When they begin."""
    measure_ns: int
    """When the warm-up is over."""
    wall_offset_ns: int
    """Wall clock minus monotonic clock."""
    stopping: asyncio.Event


def _pacer(setting: Setting, rate: float | None, turn: float) -> Pacer:
    """Actors take turns, so that not all of them send at the same moment."""
    settings = setting.settings
    begin = setting.begin_ns
    if rate is not None:
        size = settings.message_bytes.middle if settings.message_bytes else 1
        begin += int(turn * settings.batch_messages.middle * size / rate * 1e9)
    return Pacer(setting.timer, rate, begin)


class ProducerPart:
    def __init__(self, client: Client, job: Produce, setting: Setting, recorder: Recorder) -> None:
        settings = setting.settings
        assert settings.message_bytes is not None
        self.job = job
        self._client = client
        self._setting = setting
        self._recorder = recorder
        self._maker = Maker(setting.run, job.number, settings.message_bytes, settings.batch_messages)
        self._pacer = _pacer(setting, job.rate_bytes_s, job.turn)
        self._partitioning = BALANCED if job.partition is None else to_partition(job.partition)
        self._batches = self._measured_bytes = 0
        self.tally = Tally()
        self.sent = self.size = 0

    @property
    def last_number(self) -> int:
        return self._maker.next_number - 1

    @property
    def is_done(self) -> bool:
        if self.job.size is not None:
            return self._measured_bytes >= self.job.size
        return self._batches >= (self.job.batches or 0)

    async def send(self) -> None:
        first = self._maker.next_number
        due = self._pacer.due()
        made = self._maker.make((due + self._setting.wall_offset_ns) // 1000)
        began = await self._pacer.wait()
        await self._client.send_messages(self.job.stream, TOPIC, made.batch, self._partitioning)
        self._count(first, began, time.monotonic_ns(), made.messages, made.size)

    def _count(self, first: int, began: int, ended: int, messages: int, size: int) -> None:
        self._pacer.spend(size)
        self._recorder.request(began, ended, messages, size)
        self.tally.add_range(first, messages)
        self.sent += messages
        self.size += size
        if self._recorder.is_measured(began):
            self._batches += 1
            self._measured_bytes += size


class ConsumerPart:
    def __init__(self, client: Client, job: Consume, setting: Setting, recorder: Recorder) -> None:
        self.job = job
        self._client = client
        self._setting = setting
        self._recorder = recorder
        self._count = setting.settings.batch_messages.high
        kind = ConsumerKind.CONSUMER if job.partition is not None else ConsumerKind.GROUP
        self._consumer = Consumer(kind, job.name)
        self._pacer = _pacer(setting, job.rate_bytes_s, job.turn)
        self._next_offset = job.offset
        self._measured = self._measured_bytes = 0
        self._empty = 0
        """Polls that returned nothing, in a row."""
        self._warming_up = not job.is_behind_producers and setting.measure_ns > setting.begin_ns
        self.inspector = Inspector(setting.run if job.is_behind_producers else None)
        self.received = self.size = 0

    @property
    def is_done(self) -> bool:
        if self.job.size is not None:
            return self._measured_bytes >= self.job.size
        return self.job.messages is not None and self._measured >= self.job.messages

    def has_seen(self, producer: int, number: int) -> bool:
        assert self.job.partition is not None
        return self.inspector.last_number(self.job.partition, source_of(self._setting.run, producer)) >= number

    async def poll(self) -> None:
        due = await self._pacer.wait()
        now = time.monotonic_ns()
        # Where messages are yet to come, a poll cannot be late.
        began = now if self.job.is_behind_producers else due
        if self._warming_up and began >= self._setting.measure_ns:
            self._warming_up = False
            self._start_over()
        polled = await self._request()
        ended = time.monotonic_ns()
        if self._warming_up:
            self._pacer.spend(sum(map(len, polled.batches)))
            if polled.messages_count:
                self._next_offset = last_offset(polled) + 1
            else:
                self._start_over()
        elif polled.messages_count:
            self._empty = 0
            self._inspect(polled, began, ended)
        else:
            self._recorder.empty(began)
            await self._pause(ended)

    async def _pause(self, since_ns: int) -> None:
        """Waits a moment if all partitions that this consumer reads were empty: the server is asked for one after the
        other."""
        self._pacer.restart(since_ns)
        self._empty += 1
        rounds, rest = divmod(self._empty, self.job.partitions)
        if rounds and not rest:
            pause = min(PAUSE_NS << min(rounds - 1, 8), PAUSE_MAX_NS)
            await self._setting.timer.wait_until(since_ns + pause)

    def _start_over(self) -> None:
        """The warm-up has read what there is, without counting or committing it."""
        self._next_offset = self.job.offset

    def _request(self) -> Awaitable[Polled]:
        if self.job.partition is None:
            strategy, auto_commit = NEXT, not self._warming_up
        else:
            strategy, auto_commit = from_offset(self._next_offset), False
        count = self._count
        if self.job.messages is not None:
            count = min(count, max(self.job.messages - self._measured, 1))
        return self._client.poll_messages(
            self.job.stream,
            TOPIC,
            self._consumer,
            partition_id=self.job.partition,
            strategy=strategy,
            count=count,
            auto_commit=auto_commit,
        )

    def _inspect(self, polled: Polled, began: int, ended: int) -> None:
        messages = size = 0
        for batch in polled.batches:
            found = contents(batch)
            fresh = self.inspector.take(polled.partition_id, found)
            self._next_offset = max(self._next_offset, found.first_offset + found.messages)
            if fresh:
                messages += fresh
                size += found.size
                if self.job.is_behind_producers:
                    arrived = ended + self._setting.wall_offset_ns
                    self._recorder.arrived(began, arrived - found.origins_us[-fresh:] * 1000)
        self._pacer.spend(size)
        if messages:
            self._recorder.request(began, ended, messages, size)
            self.received += messages
            self.size += size
            if self._recorder.is_measured(began):
                self._measured += messages
                self._measured_bytes += size


class Actor:
    """One connection. With both parts, it sends and polls in turn; one that `echoes` waits for its own messages after
    each batch."""

    def __init__(
        self,
        name: str,
        client: Client,
        producer: ProducerPart | None,
        consumer: ConsumerPart | None,
        *,
        echoes: bool = False,
    ) -> None:
        self.name = name
        self.client = client
        self.producer = producer
        self.consumer = consumer
        self._echoes = echoes

    async def run(self, stopping: asyncio.Event) -> None:
        producer, consumer = self.producer, self.consumer
        while producer is not None and not producer.is_done:
            await producer.send()
            if consumer is not None:
                await consumer.poll()
                number, last = producer.job.number, producer.last_number
                while self._echoes and not (stopping.is_set() or consumer.has_seen(number, last)):
                    await consumer.poll()
        while consumer is not None and not (stopping.is_set() or consumer.is_done):
            await consumer.poll()
