"""What the conductor and its workers tell each other, a line of JSON at a time."""

from __future__ import annotations

import msgspec

from whippet.bench.run.series import Points
from whippet.bench.run.settings import Settings
from whippet.bench.run.verification import Findings, Tally

PRODUCERS, CONSUMERS = "producers", "consumers"
"""The roles of actors."""


class Produce(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    stream: str
    partition: int | None
    """None: the server chooses."""
    batches: int | None
    size: int | None
    """How many bytes to send, instead of a number of batches."""
    rate_bytes_s: float | None
    turn: float
    """The part of the time between two of its requests that passes before the first one."""


class Consume(msgspec.Struct, frozen=True, kw_only=True):
    scope: str
    """Consumers of one scope share its messages."""
    stream: str
    name: str
    """Of the consumer or the group."""
    partition: int | None
    """None: as a member of the group."""
    partitions: int
    """How many a member of a group reads, at most."""
    offset: int
    messages: int | None
    """Stop after so many; None: when the conductor says so."""
    size: int | None
    rate_bytes_s: float | None
    turn: float
    is_behind_producers: bool
    """Messages arrive during the run: the time since they were sent is measured."""


class Actor(msgspec.Struct, frozen=True):
    """A connection, and what happens on it."""

    name: str
    produce: Produce | None
    consume: Consume | None


class Job(msgspec.Struct, frozen=True, tag=True):
    """The first line that a worker gets."""

    address: str
    """With credentials: it is in no argument, where other users could see it."""
    run: int
    settings: Settings
    actors: list[Actor]


class Begin(msgspec.Struct, frozen=True, tag=True):
    """The second line: everybody is connected."""

    at_ns: int
    """On the monotonic clock, which all processes of a machine share."""


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Consumers have everything, or nothing comes any more."""


ToWorker = Job | Begin | Stop


class Ready(msgspec.Struct, frozen=True, tag=True):
    pass


class Progress(msgspec.Struct, frozen=True, tag=True):
    producing: int
    """Producers that are not finished."""
    sent: dict[str, int]
    """Messages that the server has acknowledged, by stream."""
    received: dict[str, int]
    """Messages of this run, by scope."""
    size: int
    """Bytes sent and received."""


class Latency(msgspec.Struct, frozen=True):
    histogram: str
    """As HdrHistogram encodes it: V2, compressed, base64; nanoseconds."""
    total_ns: int
    highest_ns: int


class Performance(msgspec.Struct, frozen=True):
    """What one actor did in one role, after the warm-up."""

    actor: str
    role: str
    messages: int
    size: int
    requests: int
    empty: int
    """Polls that returned nothing."""
    first_ns: int
    """When its first request began and its last one ended, from the begin of the measurement."""
    last_ns: int
    latency: Latency
    end_to_end: Latency | None


class Finished(msgspec.Struct, frozen=True, tag=True):
    performances: list[Performance]
    series: dict[str, Points]
    sent: dict[str, Tally]
    """By the number of the producer, with what was sent before the measurement."""
    findings: dict[str, Findings]
    """By scope."""
    cpu_s: float
    seconds: float


class Failed(msgspec.Struct, frozen=True, tag=True):
    sentence: str
    code: int


FromWorker = Ready | Progress | Finished | Failed
