"""A run from its begin to its end: prepares the server, starts the processes with the actors, and collects what they
measured."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import random
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable, Sequence
from typing import NamedTuple

import msgspec

from whippet.app.client import Client
from whippet.app.commands.responses import Stats
from whippet.bench.run import jobs
from whippet.bench.run.cast import actors_of, divided, expected_by_scope
from whippet.bench.run.jobs import Actor, Begin, Failed, Finished, FromWorker, Job, Progress, Ready, Stop
from whippet.bench.run.messages import RUNS
from whippet.bench.run.preparation import Prepared
from whippet.bench.run.settings import MESSAGE_BYTES, Settings
from whippet.bench.run.verification import Findings, Tally, Verdict, judge

WORKER = "whippet.bench.run.worker"
LINE_BYTES_MAX = 1 << 30
CHECK_S = 0.05
LEAD_NS = 100_000_000
"""Between the decision to begin and the begin: every process has heard of it by then."""
STALLED_S = 10.0
"""Consumers that get nothing for this long, after the last message was sent, get nothing any more."""
ENDING_S = 10.0


class RunFailed(Exception):
    """A process of the load failed. `code` is the exit code of the command."""

    def __init__(self, sentence: str, code: int) -> None:
        super().__init__(sentence)
        self.code = code


class Measured(NamedTuple):
    """What a run measured, by process."""

    run: int
    started_at: datetime.datetime
    finished: list[Finished]
    verdict: Verdict
    stats: Stats
    """Of the server, after the run."""
    remarks: list[str]


Shown = Callable[[int, int, float | None], None]
"""Is told the messages sent and read so far, and which part of the run is done, if that is known."""


async def conduct(client: Client, address: str, settings: Settings, shown: Shown) -> Measured:
    run = random.SystemRandom().randrange(RUNS)
    prepared = Prepared(client, settings, run)
    started_at = datetime.datetime.now(datetime.UTC)
    try:
        await prepared.create()
        actors = actors_of(settings, prepared)
        async with _workers(settings, run, address, actors) as workers:
            await _until_stopped(settings, actors, workers, shown)
            finished = [await worker.finished() for worker in workers]
        stats = await client.get_stats()
    except BaseException as error:
        remains = await prepared.remove()
        if remains is not None and isinstance(error, RunFailed):
            raise RunFailed(f"{error}; {remains}", error.code) from None
        raise
    remains = await prepared.remove()
    verdict = _judged(settings, actors, finished)
    return Measured(run, started_at, finished, verdict, stats, [remains] if remains else [])


# ---------------------------------------------------------------------------------------------------------- the workers


class _Worker:
    """The other side of worker.py."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._decoder = msgspec.json.Decoder(jobs.FromWorker)
        self._ready = asyncio.Event()
        self._reading = asyncio.create_task(self._read())
        self.progress = Progress(1, {}, {}, 0)

    async def send(self, message: jobs.ToWorker) -> None:
        assert self._process.stdin
        self._process.stdin.write(msgspec.json.encode(message) + b"\n")
        # A process that has failed reads nothing; its own error is reported.
        with contextlib.suppress(ConnectionError):
            await self._process.stdin.drain()

    async def _read(self) -> Finished:
        assert self._process.stdout
        async for line in self._process.stdout:
            message: FromWorker = self._decoder.decode(line)
            match message:
                case Ready():
                    self._ready.set()
                case Progress():
                    self.progress = message
                case Failed():
                    raise RunFailed(message.sentence, message.code)
                case Finished():
                    return message
        raise RunFailed(f"a process of the load ended early, with exit code {await self._process.wait()}", 1)

    @property
    def has_ended(self) -> bool:
        return self._reading.done()

    async def ready(self) -> None:
        waiting = asyncio.create_task(self._ready.wait())
        await asyncio.wait([waiting, self._reading], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        self.check()

    def check(self) -> None:
        """Raises the failure of the process, if it has failed."""
        if self._reading.done():
            self._reading.result()

    async def finished(self) -> Finished:
        return await self._reading

    async def end(self) -> None:
        """A process whose input ends has nothing left to do."""
        self._reading.cancel()
        assert self._process.stdin
        self._process.stdin.close()
        try:
            async with asyncio.timeout(ENDING_S):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        await asyncio.gather(self._reading, return_exceptions=True)


@contextlib.asynccontextmanager
async def _workers(
    settings: Settings, run: int, address: str, actors: Sequence[Actor]
) -> AsyncIterator[Sequence[_Worker]]:
    workers: list[_Worker] = []
    try:
        for own in divided(list(actors), settings.processes):
            # In a session of its own: Ctrl-C is ours to handle.
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", WORKER, stdin=PIPE, stdout=PIPE, limit=LINE_BYTES_MAX, start_new_session=True
            )
            workers.append(_Worker(process))
            await workers[-1].send(Job(address, run, settings, own))
        for worker in workers:
            await worker.ready()
        begin = Begin(time.monotonic_ns() + LEAD_NS)
        for worker in workers:
            await worker.send(begin)
        yield workers
    finally:
        await asyncio.gather(*(worker.end() for worker in workers))


# ------------------------------------------------------------------------------------------------------------- the end


async def _until_stopped(settings: Settings, actors: Sequence[Actor], workers: Sequence[_Worker], shown: Shown) -> None:
    """Tells the consumers to stop when they have everything."""
    changed_at, last = time.monotonic(), (0, 0)
    while not all(worker.has_ended for worker in workers):
        await asyncio.sleep(CHECK_S)
        for worker in workers:
            worker.check()
        progress = [worker.progress for worker in workers]
        sent = _added([each.sent for each in progress])
        received = _added([each.received for each in progress])
        counts = sum(sent.values()), sum(received.values())
        shown(*counts, _part_done(settings, actors, counts, sum(each.size for each in progress)))
        if counts != last:
            changed_at, last = time.monotonic(), counts
        if any(each.producing for each in progress):
            continue
        size = sum(each.size for each in progress)
        everything = _is_everything(settings, expected_by_scope(settings, list(actors), sent), received, size)
        if everything or time.monotonic() - changed_at > _patience_s(settings):
            for worker in workers:
                await worker.send(Stop())
            return


def _is_everything(settings: Settings, expected: dict[str, int], received: dict[str, int], size: int) -> bool:
    """Whether consumers have all that there is for them."""
    if settings.total_bytes is not None and not settings.described.produces:
        return size >= settings.total_bytes
    return bool(expected) and all(received.get(scope, 0) >= count for scope, count in expected.items())


def _patience_s(settings: Settings) -> float:
    """A low rate has long pauses."""
    if settings.rate_bytes_s is None:
        return settings.warmup_s + STALLED_S
    batch = settings.batch_messages.high * (settings.message_bytes.high if settings.message_bytes else MESSAGE_BYTES)
    return settings.warmup_s + STALLED_S + 3 * settings.actors * batch / settings.rate_bytes_s


def _part_done(settings: Settings, actors: Sequence[Actor], counts: tuple[int, int], size: int) -> float | None:
    """Returns None where the warm-up makes it unknown."""
    if settings.warmup_s:
        return None
    sent, received = counts
    readers = sum(actor.consume is not None for actor in actors)
    if settings.total_bytes is not None:
        return size / settings.total_bytes / (2 if settings.producers and readers else 1)
    batches = (settings.batches or 0) * settings.batch_messages.middle
    if settings.producers:
        return sent / (batches * settings.producers)
    return received / (batches * readers)


def _added(counts: Sequence[dict[str, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for each in counts:
        for key, count in each.items():
            found[key] = found.get(key, 0) + count
    return found


# --------------------------------------------------------------------------------------------------------- the verdict


def _judged(settings: Settings, actors: Sequence[Actor], finished: Sequence[Finished]) -> Verdict:
    findings: dict[str, Findings] = {}
    tallies: dict[str, Tally] = {}
    for each in finished:
        tallies |= each.sent
        for scope, found in each.findings.items():
            findings.setdefault(scope, Findings(sources={})).join(found)
    by_stream: dict[str, int] = {}
    producers: dict[str, list[str]] = {}
    for actor in actors:
        if actor.produce is not None:
            stream, number = actor.produce.stream, str(actor.produce.number)
            by_stream[stream] = by_stream.get(stream, 0) + tallies[number].messages
            producers.setdefault(stream, []).append(number)
    expected = expected_by_scope(settings, list(actors), by_stream)
    problems = []
    for scope, stream in {a.consume.scope: a.consume.stream for a in actors if a.consume is not None}.items():
        for number in producers.get(stream, ()):
            read = findings[scope].sources.get(number, Tally())
            if read.messages == tallies[number].messages and read != tallies[number]:
                problems.append(f"{scope} did not read the messages that producer {int(number) + 1} sent, but others")
    if settings.described.produces:
        return judge(sum(expected.values()), list(findings.values()), problems)
    # Members of a group read on until they are told to stop.
    total = sum(max(count, findings[scope].read) for scope, count in expected.items())
    size = sum(performance.size for each in finished for performance in each.performances)
    if size < (settings.total_bytes or 0):
        problems.append(f"the streams have only {size:,} bytes of the {settings.total_bytes:,} that were to be read")
    return judge(total, list(findings.values()), problems)
