"""Code that the load generators share: the jobs, their outcomes, and the loop that runs one job after the other.

A load generator is a process of its own: it reads a job from each line of its input and prints the outcome. Requests
are encoded before the clock starts, because on a machine with two cores the load must not be what is measured.
Responses are counted and discarded. A refusal ends a job at once.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import sys
from array import array
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np

from whippet.app.client.batching import pack
from whippet.app.client.wires import WIRES, Prepared, Wire
from whippet.app.commands import requests
from whippet.bench.orders import orders

PERCENTILES = (50.0, 99.0, 99.9)
DELIVERY_S_MAX = 10.0
"""How long subscribers may keep receiving after the last message was sent."""

P = TypeVar("P")


class Place(msgspec.Struct, frozen=True):
    """A server on this machine, and how to log in there. A yardstick has no token."""

    port: int
    token: str
    wire: str = "classic"


class Exchange(msgspec.Struct, frozen=True, tag=True):
    """Sends of `messages` payloads of `payload` bytes; without a payload, polls of as many messages; without messages,
    pings."""

    place: Place
    stream: int
    topic: int
    messages: int
    payload: int
    requests: int
    in_flight: int = 1
    datagram_bytes: int = 1200
    """Used over QUIC only."""
    connections: int = 1
    """They share the requests; each has `in_flight` at a time. Used over QUIC only."""


class Outcome(msgspec.Struct, frozen=True):
    seconds: float
    received_bytes: int = 0
    latencies_us: tuple[float, ...] = ()
    """One for each of PERCENTILES."""


class Refused(Exception):
    """The server refused a request, or closed a connection."""


# ------------------------------------------------------------------------------------------------------------- requests


def prepare_login(place: Place, wire: Wire) -> Prepared:
    return wire.prepare(requests.LoginWithPersonalAccessToken(place.token or "nobody"))


def prepare_send(wire: str, stream: int, topic: int, messages: int, payload: int) -> Prepared:
    """Random payloads; orders if `payload` is 0."""
    to = requests.Partitioning(requests.PartitioningKind.PARTITION_ID, 0)
    batch = pack([os.urandom(payload) for _ in range(messages)] if payload else orders(messages))
    return WIRES[wire]().prepare(requests.SendMessages(stream, topic, to, (batch,)))


def prepare_poll(wire: Wire, stream: int, topic: int, messages: int, offset: int | None = None) -> Prepared:
    """Without an offset, polls from the first message."""
    consumer = requests.Consumer(requests.ConsumerKind.CONSUMER, 1)
    strategy = requests.Strategy(requests.StrategyKind.FIRST)
    if offset is not None:
        strategy = requests.Strategy(requests.StrategyKind.OFFSET, offset)
    return wire.prepare(requests.PollMessages(consumer, stream, topic, 0, strategy, messages, False))


def prepare_exchange(job: Exchange) -> Prepared:
    if not job.messages:
        return WIRES[job.place.wire]().prepare(requests.Ping())
    if job.payload:
        return prepare_send(job.place.wire, job.stream, job.topic, job.messages, job.payload)
    return prepare_poll(WIRES[job.place.wire](), job.stream, job.topic, job.messages)


# ------------------------------------------------------------------------------------------------ progress of a job


class Run(Generic[P]):
    """What the connections of one closed-loop job share."""

    def __init__(self, prepared: P, count: int) -> None:
        self.prepared = prepared
        self.count = count
        self.sent = self.answered = self.received = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def fail(self, reason: str) -> None:
        if not self.done.done():
            self.done.set_exception(Refused(reason))


class Deliveries:
    """What the subscribers of one job share. A message contains the time at which it was sent; of the messages that
    arrive together, the oldest counts."""

    def __init__(self, subscribers: int) -> None:
        self._subscribers = subscribers
        self._left = subscribers
        """Subscribers that have not started, or not received everything."""
        self._all_done = asyncio.Event()
        self._problem = ""
        self.latencies = array("d")
        self.expected = sys.maxsize

    def expect(self, count: int) -> None:
        """Each subscriber is to receive this many messages from now on."""
        self.expected, self._left = count, self._subscribers
        self._all_done.clear()

    def count_down(self) -> None:
        self._left -= 1
        if not self._left:
            self._all_done.set()

    def fail(self, problem: str) -> None:
        self._problem = self._problem or problem
        self._all_done.set()

    async def wait(self) -> None:
        await self._all_done.wait()
        if self._problem:
            raise Refused(self._problem)

    async def wait_for_the_last(self, received: Callable[[], int]) -> None:
        """`received` is called if messages are missing."""
        try:
            async with asyncio.timeout(DELIVERY_S_MAX):
                await self.wait()
        except TimeoutError:
            total = self.expected * self._subscribers
            missing = total - received()
            raise Refused(f"{missing} of {total} messages were not delivered in {DELIVERY_S_MAX} s") from None

    def percentiles(self) -> tuple[float, ...]:
        found: list[float] = np.percentile(np.array(self.latencies), PERCENTILES).tolist()
        return tuple(found)


async def discard(reader: asyncio.StreamReader) -> None:
    while await reader.read(1 << 16):
        pass


# ---------------------------------------------------------------------------------------------------------------- jobs


def run_jobs(kind: Any, run: Callable[[Any], Outcome]) -> None:
    """Runs the jobs of this type that the input has, one to a line."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    gc.disable()
    decoder = msgspec.json.Decoder(kind)
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(msgspec.json.encode(run(decoder.decode(line))) + b"\n")
        sys.stdout.buffer.flush()
