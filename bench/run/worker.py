"""A process with some of the actors of a run: `python -m whippet.bench.run.worker`, started by conductor.py.

It reads lines from its input and writes lines to its output (jobs.py). When its input ends, so does it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import sys
import time
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

import msgspec
import uvloop

from whippet.app.cli import exit_codes
from whippet.app.client import Client, SendsFailed
from whippet.app.errors import CommandError
from whippet.app.memory_tuning import freeze_live_objects, keep_freed_memory
from whippet.bench.run import jobs
from whippet.bench.run.actors import Actor, ConsumerPart, ProducerPart, Setting
from whippet.bench.run.jobs import CONSUMERS, PRODUCERS, Begin, Failed, Finished, FromWorker, Job, Progress, Ready
from whippet.bench.run.library_actors import LibraryConsumer, LibraryProducer
from whippet.bench.run.precise_timer import PreciseTimer
from whippet.bench.run.recorder import Recorder
from whippet.bench.run.series import Series
from whippet.bench.run.settings import TOPIC
from whippet.bench.run.verification import Findings, Tally

PROGRESS_S = 0.1
CONNECTING = 32
"""How many connections are opened at the same time."""
LINE_BYTES_MAX = 64 << 20

T = TypeVar("T")


class Ended(Exception):
    """The conductor is gone."""


class Conductor:
    """The other end of our input and output."""

    def __init__(self, reader: asyncio.StreamReader, output: int) -> None:
        self._reader = reader
        self._output = output
        self._decoder = msgspec.json.Decoder(jobs.ToWorker)

    @classmethod
    async def connect(cls) -> Conductor:
        reader = asyncio.StreamReader(limit=LINE_BYTES_MAX)
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        return cls(reader, sys.stdout.fileno())

    async def receive(self, kind: type[T]) -> T:
        line = await self._reader.readline()
        if not line:
            raise Ended
        message = self._decoder.decode(line)
        assert isinstance(message, kind)
        return message

    def send(self, message: FromWorker) -> None:
        line = msgspec.json.encode(message) + b"\n"
        while line:
            line = line[os.write(self._output, line) :]


async def work(conductor: Conductor) -> None:
    job = await conductor.receive(Job)
    timer = PreciseTimer()
    async with _connected(job) as clients:
        conductor.send(Ready())
        begin = await conductor.receive(Begin)
        warmup_ns = int(job.settings.warmup_s * 1e9)
        wall_offset = time.time_ns() - time.monotonic_ns()
        stopping = asyncio.Event()
        measure = begin.at_ns + warmup_ns
        setting = Setting(job.run, job.settings, timer, begin.at_ns, measure, wall_offset, stopping)
        run = _Run(job, clients, setting)
        freeze_live_objects()
        listening = asyncio.create_task(_listen(conductor, stopping))
        reporting = asyncio.create_task(_report(conductor, run))
        working = asyncio.create_task(run.run())
        try:
            await asyncio.wait([listening, working], return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                # Our input has ended, which raises.
                await listening
            finished = await working
        finally:
            for task in (listening, reporting, working):
                task.cancel()
            await asyncio.gather(listening, reporting, working, return_exceptions=True)
        conductor.send(run.progress())
        conductor.send(finished)
    timer.close()


async def _listen(conductor: Conductor, stopping: asyncio.Event) -> None:
    await conductor.receive(jobs.Stop)
    stopping.set()
    # There is no other message; this ends with our input.
    await conductor.receive(jobs.Stop)


async def _report(conductor: Conductor, run: _Run) -> None:
    while True:
        await asyncio.sleep(PROGRESS_S)
        conductor.send(run.progress())


@contextlib.asynccontextmanager
async def _connected(job: Job) -> AsyncIterator[Sequence[Client]]:
    clients: list[Client] = []
    try:
        for first in range(0, len(job.actors), CONNECTING):
            some = job.actors[first : first + CONNECTING]
            clients += await asyncio.gather(*(Client.connect(job.address) for _ in some))
        for client, actor in zip(clients, job.actors, strict=True):
            consume = actor.consume
            if consume is not None and consume.partition is None:
                await client.join_consumer_group(consume.stream, TOPIC, consume.name)
        yield clients
    finally:
        await asyncio.gather(*(client.close() for client in clients))


class _Run:
    """The actors of this process."""

    def __init__(self, job: Job, clients: Sequence[Client], setting: Setting) -> None:
        self._setting = setting
        self._series = {role: Series(job.settings.sampling_s) for role in (PRODUCERS, CONSUMERS)}
        self._recorders: list[tuple[str, str, Recorder]] = []
        kind, is_high = job.settings.described, job.settings.high_level
        self._producing = LibraryProducer if is_high else ProducerPart
        self._consuming = LibraryConsumer if is_high else ConsumerPart
        self._actors = [
            self._actor(given, client, echoes=kind.is_joint and not kind.is_grouped)
            for given, client in zip(job.actors, clients, strict=True)
        ]

    def _actor(self, given: jobs.Actor, client: Client, *, echoes: bool) -> Actor:
        setting, producer, consumer = self._setting, None, None
        if given.produce is not None:
            producer = self._producing(client, given.produce, setting, self._recorder(given.name, PRODUCERS))
        if given.consume is not None:
            recorder = self._recorder(given.name, CONSUMERS, with_end_to_end=given.consume.is_behind_producers)
            consumer = self._consuming(client, given.consume, setting, recorder)
        return Actor(given.name, client, producer, consumer, echoes=echoes)

    def _recorder(self, actor: str, role: str, *, with_end_to_end: bool = False) -> Recorder:
        recorder = Recorder(self._setting.measure_ns, self._series[role], with_end_to_end=with_end_to_end)
        self._recorders.append((actor, role, recorder))
        return recorder

    async def run(self) -> Finished:
        setting = self._setting
        await setting.timer.wait_until(setting.begin_ns)
        await asyncio.gather(*(actor.run(setting.stopping) for actor in self._actors), self._start_clock())
        cpu_s = time.process_time() - self._cpu_s
        sent: dict[str, Tally] = {}
        findings: dict[str, Findings] = {}
        for actor in self._actors:
            if actor.producer is not None:
                sent[str(actor.producer.job.number)] = actor.producer.tally
            if actor.consumer is not None:
                findings.setdefault(actor.consumer.job.scope, Findings()).join(actor.consumer.inspector.findings)
        performances = [recorder.performance(actor, role) for actor, role, recorder in self._recorders]
        series = {role: series.points() for role, series in self._series.items()}
        # Consumers that wait to be told to stop do nothing any more.
        seconds = max(performance.last_ns for performance in performances) / 1e9
        return Finished(performances, series, sent, findings, cpu_s, seconds)

    async def _start_clock(self) -> None:
        self._cpu_s = time.process_time()
        await self._setting.timer.wait_until(self._setting.measure_ns)
        self._cpu_s = time.process_time()

    def progress(self) -> Progress:
        sent: dict[str, int] = {}
        received: dict[str, int] = {}
        producing = size = 0
        for actor in self._actors:
            if actor.producer is not None:
                stream = actor.producer.job.stream
                sent[stream] = sent.get(stream, 0) + actor.producer.sent
                size += actor.producer.size
                producing += not actor.producer.is_done
            if actor.consumer is not None:
                scope = actor.consumer.job.scope
                received[scope] = received.get(scope, 0) + actor.consumer.received
                size += actor.consumer.size
        return Progress(producing, sent, received, size)


async def main() -> None:
    conductor = await Conductor.connect()
    try:
        await work(conductor)
    except Ended:
        return
    except CommandError as error:
        from whippet.app.cli.remote.framework import explained  # noqa: PLC0415 -- only for a failure

        conductor.send(Failed(*explained(error)))
    except SendsFailed as error:
        conductor.send(Failed(str(error), exit_codes.FAILED))


if __name__ == "__main__":
    keep_freed_memory()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    uvloop.run(main())
