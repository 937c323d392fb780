"""Who does what in a run: its actors, as jobs for the processes that run them."""

from __future__ import annotations

from whippet.bench.run.jobs import Actor, Consume, Produce
from whippet.bench.run.preparation import Prepared
from whippet.bench.run.settings import Settings


def actors_of(settings: Settings, prepared: Prepared) -> list[Actor]:
    producers = [_produce(settings, number) for number in range(settings.producers)]
    consumers = [_consume(settings, prepared, number) for number in range(_consumers(settings))]
    if not settings.described.is_joint:
        return [
            *(Actor(f"producer {job.number + 1}", job, None) for job in producers),
            *(Actor(f"consumer {number + 1}", None, job) for number, job in enumerate(consumers)),
        ]
    return [
        Actor(
            f"actor {number + 1}",
            producers[number] if number < len(producers) else None,
            consumers[number] if number < len(consumers) else None,
        )
        for number in range(max(len(producers), len(consumers)))
    ]


def divided(actors: list[Actor], processes: int) -> list[list[Actor]]:
    """Every process gets as many producers and as many consumers as the others, or one fewer."""
    return [actors[number::processes] for number in range(processes)]


def expected_by_scope(settings: Settings, actors: list[Actor], sent: dict[str, int]) -> dict[str, int]:
    """Returns how many messages the consumers of each scope should get, after `sent` have been sent to each stream."""
    found: dict[str, int] = {}
    for actor in actors:
        job = actor.consume
        if job is None:
            continue
        if job.is_behind_producers:
            found[job.scope] = sent.get(job.stream, 0)
        else:
            found[job.scope] = found.get(job.scope, 0) + _wanted_messages(settings)
    return found


def _wanted_messages(settings: Settings) -> int:
    """How many messages a consumer reads of what is there; 0 if an amount of data was chosen."""
    return settings.batches * settings.batch_messages.high if settings.batches is not None else 0


def _consumers(settings: Settings) -> int:
    """A producer that waits for its own messages is a consumer without having been counted as one."""
    kind = settings.described
    return settings.producers if kind.is_joint and not kind.is_grouped else settings.consumers


def _produce(settings: Settings, number: int) -> Produce:
    count = settings.producers
    return Produce(
        number=number,
        stream=settings.stream(number),
        partition=None if settings.described.is_grouped else 0,
        batches=settings.batches,
        size=None if settings.total_bytes is None else -(-settings.total_bytes // count),
        rate_bytes_s=None if settings.rate_bytes_s is None else settings.rate_bytes_s / count,
        turn=number / count,
    )


def _consume(settings: Settings, prepared: Prepared, number: int) -> Consume:
    kind, count = settings.described, _consumers(settings)
    groups = settings.consumer_groups
    shared = number % groups if groups else number
    stream = settings.stream(shared)
    return Consume(
        scope=f"group {shared + 1}" if groups else f"consumer {number + 1}",
        stream=stream,
        name=prepared.group(shared) if groups else f"bench-consumer-{number + 1}",
        partition=None if groups else 0,
        partitions=_partitions_each(settings, prepared.topics[stream].info.partitions_count) if groups else 1,
        offset=prepared.starts.get((stream, 0), 0),
        messages=None if kind.produces or groups else _wanted_messages(settings) or None,
        size=None if kind.produces or groups or settings.total_bytes is None else -(-settings.total_bytes // count),
        rate_bytes_s=_reading_rate(settings, count),
        turn=number / count,
        is_behind_producers=kind.produces,
    )


def _partitions_each(settings: Settings, partitions: int) -> int:
    return -(-partitions // max(settings.consumers // settings.consumer_groups, 1))


def _reading_rate(settings: Settings, consumers: int) -> float | None:
    """Actors that send and poll in turn are limited by what they send."""
    if settings.rate_bytes_s is None or settings.described.is_joint:
        return None
    return settings.rate_bytes_s * (settings.read_amplification or 1.0) / consumers
