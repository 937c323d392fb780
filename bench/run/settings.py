"""What a run does: the options of the command line, checked and with their defaults."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import msgspec

from whippet.bench.run.kinds import BY_NAME, KINDS, Kind, broken_rule

MESSAGE_BYTES = 1000
BATCH_MESSAGES = 1000
BATCHES = 1000
SAMPLING_S = 0.01
MOVING_AVERAGE = 20
READ_AMPLIFICATION = 1.05
STREAM, TOPIC = "bench-stream-{}", "topic-1"
"""Names as Iggy's benchmark has them; streams are numbered from 1."""


class Wrong(ValueError):
    """An option, or a combination of options, is refused."""


class Range(msgspec.Struct, frozen=True):
    """A number, or one that is drawn anew each time; both ends are included."""

    low: int
    high: int

    @classmethod
    def parse(cls, text: str, option: str) -> Range:
        low, dots, high = text.partition("..")
        if not all(each.isascii() and each.isdecimal() for each in ((low, high) if dots else (low,))):
            raise Wrong(f"{option} is a number or a range such as 100..500, not {text!r}")
        found = cls(int(low), int(high or low))
        if not 1 <= found.low <= found.high < 2**31:
            raise Wrong(f"{option} has to be from 1 up, the smaller number first, not {text!r}")
        return found

    def draw(self, source: random.Random) -> int:
        return self.low if self.low == self.high else source.randint(self.low, self.high)

    @property
    def middle(self) -> float:
        return (self.low + self.high) / 2

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}..{self.high}"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of things that a kind does not have are 0."""

    kind: str
    streams: int
    partitions: int = 0
    """Of each topic; 0: what is there."""
    producers: int = 0
    consumers: int = 0
    consumer_groups: int = 0
    message_bytes: Range | None = None
    """None: nothing is sent."""
    batch_messages: Range
    batches: int | None = None
    """Per actor."""
    total_bytes: int | None = None
    """Of all actors, instead of a number of batches."""
    rate_bytes_s: int | None = None
    read_amplification: float | None = None
    """How much faster than producers consumers may read; only with a rate limit."""
    warmup_s: float = 0.0
    sampling_s: float = SAMPLING_S
    moving_average: int = MOVING_AVERAGE
    message_expiry_us: int = 0
    max_topic_bytes: int = 0
    high_level: bool = False
    processes: int = 1
    reuse_streams: bool = False
    keep: bool = False

    @property
    def described(self) -> Kind:
        return BY_NAME[self.kind]

    def stream(self, number: int) -> str:
        """The name of the stream of an actor or a group."""
        return STREAM.format(number % self.streams + 1)

    @property
    def actors(self) -> int:
        """How many connections have work."""
        return max(self.producers, self.consumers) if self.described.is_joint else self.producers + self.consumers


def kind_of(name: str) -> Kind:
    if name not in BY_NAME:
        known = ", ".join(f"{kind.name} ({kind.alias})" for kind in KINDS)
        raise Wrong(f"there is no kind {name!r}; there are {known}, and examples")
    return BY_NAME[name]


def settings_of(name: str, given: Mapping[str, Any], cores: int) -> Settings:
    """Makes settings from the options that were given; those that were not are None."""
    kind = kind_of(name)
    chosen = {option: value for option, value in given.items() if value is not None}
    for option in chosen:
        if option in OPTIONAL and option not in kind.applicable:
            raise Wrong(f"{_written(option)} does not apply to {kind.name}")
    counts = _counts(kind, chosen)
    wrong = broken_rule(kind, counts)
    if wrong is not None:
        raise Wrong(wrong)
    batch = Range.parse(chosen.get("messages_per_batch", str(BATCH_MESSAGES)), "--messages-per-batch")
    size = Range.parse(chosen.get("message_size", str(MESSAGE_BYTES)), "--message-size") if kind.produces else None
    rate, amplification = chosen.get("rate_limit"), chosen.get("read_amplification")
    if amplification is not None and rate is None:
        raise Wrong("--read-amplification is about how fast consumers may read: it needs --rate-limit")
    if rate is not None and "read_amplification" in kind.applicable:
        amplification = READ_AMPLIFICATION if amplification is None else amplification
    if chosen.get("high_level_api") and batch.low != batch.high:
        raise Wrong(f"--high-level-api needs a fixed number of messages in a batch, not {batch}")
    batches, total = _amount(chosen, size)
    found = Settings(
        kind=kind.name,
        **counts,
        message_bytes=size,
        batch_messages=batch,
        batches=batches,
        total_bytes=total,
        rate_bytes_s=rate,
        read_amplification=amplification,
        warmup_s=chosen.get("warmup_time", 0.0),
        sampling_s=chosen.get("sampling_time", SAMPLING_S),
        moving_average=chosen.get("moving_average_window", MOVING_AVERAGE),
        message_expiry_us=chosen.get("message_expiry", 0),
        max_topic_bytes=chosen.get("max_topic_size", 0),
        high_level=chosen.get("high_level_api", False),
        reuse_streams=chosen.get("reuse_streams", False),
        keep=chosen.get("keep", False),
    )
    return msgspec.structs.replace(found, processes=_processes(chosen.get("processes"), found.actors, cores))


OPTIONAL = frozenset().union(*(kind.applicable for kind in KINDS))
"""The options that not every kind has."""


def _counts(kind: Kind, chosen: Mapping[str, Any]) -> dict[str, int]:
    counts = {name: chosen.get(name, default) for name, default in kind.counts.items()}
    return {name: counts[value] if isinstance(value, str) else value for name, value in counts.items()}


def _amount(chosen: Mapping[str, Any], size: Range | None) -> tuple[int | None, int | None]:
    batches, total = chosen.get("message_batches"), chosen.get("total_data")
    if total is None:
        return (BATCHES if batches is None else batches), None
    if batches is not None:
        raise Wrong("--total-data and --message-batches exclude each other")
    if total < 2 * (size.high if size else 1):
        raise Wrong(f"--total-data has to be at least two messages, not {total} bytes")
    return None, total


def _processes(wanted: int | None, actors: int, cores: int) -> int:
    """By default the load leaves half of the cores to a server on the same machine."""
    if wanted is None:
        return max(1, min(actors, cores // 2))
    if wanted > actors:
        raise Wrong(f"--processes {wanted} is more than there are connections, {actors}")
    return wanted


def _written(option: str) -> str:
    return f"--{option.replace('_', '-')}"
