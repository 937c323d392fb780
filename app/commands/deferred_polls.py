"""Reading as 0.12 clients do: the incarnation of a partition, deferred polls, and fetches over many partitions.

None of these commands waits for messages: app/long_poll.py does that before, so that the caller is checked after the
wait.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from typing import TYPE_CHECKING

from whippet.app.commands import offsets, requests, responses
from whippet.app.commands.authorization import current_user
from whippet.app.commands.messages import ReadPositions, poll_messages, start_of
from whippet.app.commands.partitions import find_partition
from whippet.app.commands.requests import ConsumerKind, StrategyKind
from whippet.app.commands.target import Target
from whippet.app.errors import Code, CommandError
from whippet.app.model.catalogue import Topic
from whippet.storage.engine import Partition
from whippet.storage.errors import PartitionClosed

if TYPE_CHECKING:
    from whippet.app.gateway import Gateway
    from whippet.app.model.identity import Login
    from whippet.app.model.sessions import Session

WAIT_US_MAX = 600_000_000
TIMEOUT_US_MAX = 630_000_000
SPARE_US = 1_000_000
"""The client must wait at least this much longer than the server."""
BYTES_MIN = 344
"""One batch with one small message."""
POLL_HEAD_BYTES = 40
TARGETS_PER_ITERATION = 100
"""Partitions of a fetch that are read in one iteration of the event loop."""


async def get_partition_route(
    gateway: Gateway, session: Session, request: requests.GetPartitionRoute, target: Target
) -> responses.PartitionRoute:
    topic = target.topic
    find_partition(target, request.partition_id)
    incarnation = topic.incarnation(request.partition_id)
    return responses.PartitionRoute(incarnation, gateway.catalogue_version, len(topic.partitions))


def check_incarnation(
    gateway: Gateway,
    login: Login | None,
    request: requests.SendMessages
    | requests.PollMessages
    | requests.GetConsumerOffset
    | requests.StoreConsumerOffset
    | requests.Request,
    known: int,
) -> None:
    """Refuses a request for one partition whose client knows another incarnation of it. Call this in the same iteration
    of the event loop in which the request is executed; the execution refuses what does not exist."""
    current_user(gateway, login)
    if isinstance(request, requests.SendMessages):
        is_named = request.partitioning.kind is requests.PartitioningKind.PARTITION_ID
        partition_id = request.partitioning.partition_id if is_named else None
    else:
        partition_id = request.partition_id  # type: ignore[attr-defined]
    stream = gateway.streams.find(request.stream)  # type: ignore[union-attr]
    topic = None if stream is None else stream.topics.find(request.topic)  # type: ignore[union-attr]
    if topic is None or partition_id is None or topic.partition(partition_id) is None:
        return
    incarnation = topic.incarnation(partition_id)
    if incarnation != known:
        raise CommandError(
            Code.PARTITION_RECREATED, f"partition {partition_id} has incarnation {incarnation}, not {known}"
        )


# ------------------------------------------------------------------------------------------------------------- reading


def check_deferral(request: requests.PollMessagesDeferred | requests.FetchMessages | requests.AwaitMessages) -> None:
    """Refuses waits, timeouts and counts that the protocol does not allow."""
    wait, timeout, needed = request.wait_us, request.request_timeout_us, request.min_count
    is_poll = isinstance(request, requests.PollMessagesDeferred)
    if wait > WAIT_US_MAX:
        raise CommandError(Code.INVALID_COMMAND, f"a wait of {wait} us is longer than the maximum, {WAIT_US_MAX} us")
    if not 0 < timeout <= TIMEOUT_US_MAX:
        raise CommandError(
            Code.INVALID_COMMAND, f"a request timeout of {timeout} us: 1 to {TIMEOUT_US_MAX} are allowed"
        )
    if (wait or not is_poll) and timeout < wait + SPARE_US:
        raise CommandError(Code.INVALID_COMMAND, f"a request timeout of {timeout} us is too short to wait {wait} us")
    if isinstance(request, requests.AwaitMessages):
        _check_unique(partition_id for partition_id, _ in request.starts)
        return
    if not 1 <= needed <= request.count:
        raise CommandError(
            Code.INVALID_COMMAND, f"a wait for {needed} messages with at most {request.count} per response"
        )
    if request.max_bytes is None or request.max_bytes < BYTES_MIN:
        raise CommandError(
            Code.INVALID_COMMAND, f"a response of {request.max_bytes} bytes: at least {BYTES_MIN} are needed"
        )
    if isinstance(request, requests.FetchMessages):
        _check_targets(request)


def _check_targets(request: requests.FetchMessages) -> None:
    _check_unique(target.partition_id for target in request.targets)
    for target in request.targets:
        if target.strategy.kind not in (StrategyKind.OFFSET, StrategyKind.NEXT):
            raise CommandError(
                Code.INVALID_COMMAND, f"a fetch begins at an offset or the next one, not at {target.strategy.kind.name}"
            )
        if not BYTES_MIN <= target.max_bytes <= request.max_bytes:
            raise CommandError(
                Code.INVALID_COMMAND,
                f"{target.max_bytes} bytes of one partition: {BYTES_MIN} to {request.max_bytes} are allowed",
            )


def _check_unique(partitions: Iterable[int | None]) -> None:
    numbers = list(partitions)
    if len(set(numbers)) < len(numbers):
        raise CommandError(Code.INVALID_COMMAND, "a partition is named twice")


async def locate_messages(
    gateway: Gateway, session: Session, request: requests.LocateMessages, target: Target
) -> ReadPositions:
    """Leaves out partitions that do not exist, and those that the client knows in another incarnation: the read that
    follows reports them."""
    topic, consumer = target.topic, offsets.consumer_of(target.topic, request.consumer)
    partitions: list[Partition] = []
    starts: list[int] = []
    known = dict(zip((number for number, _ in request.starts), request.incarnations, strict=False))
    for partition_id, strategy in request.starts:
        numbers = range(len(topic.partitions)) if partition_id is None else (partition_id,)
        for number in numbers:
            partition = topic.partition(number)
            if partition is None or known.get(number, topic.incarnation(number)) != topic.incarnation(number):
                continue
            if strategy.kind is StrategyKind.NEXT:
                await partition.here(consumer)
            else:
                await gateway.store.catch_up((partition.place,))
            partitions.append(partition)
            starts.append(await start_of(partition, strategy, partition.offset_of(*consumer), strategy.value))
    return ReadPositions(tuple(partitions), tuple(starts))


async def await_messages(
    gateway: Gateway, session: Session, request: requests.AwaitMessages, target: Target
) -> tuple[int, ...]:
    located = requests.LocateMessages(request.consumer, request.stream, request.topic, request.starts)
    partitions, starts = await locate_messages(gateway, session, located, target)
    return tuple(
        partition.place.partition
        for partition, start in zip(partitions, starts, strict=True)
        if partition.readable > start
    )


async def poll_deferred(
    gateway: Gateway, session: Session, request: requests.PollMessagesDeferred, target: Target
) -> responses.PolledAt:
    """Returns the messages that are there by now."""
    polled = await poll_messages(gateway, session, request, target)
    incarnation = target.topic.incarnation(polled.partition_id) if polled.owned else 0
    return responses.PolledAt(polled, incarnation, gateway.catalogue_version)


async def fetch_messages(
    gateway: Gateway, session: Session, request: requests.FetchMessages, target: Target
) -> responses.Fetched:
    """Returns the messages that are there by now, within the limits of the request for all partitions together. Reading
    begins at a random partition, so that one that always fills the response does not keep the others from being
    read."""
    left, room = request.count, request.max_bytes if request.room is None else min(request.room, request.max_bytes)
    first = random.randrange(len(request.targets))
    sections = []
    for count, wanted in enumerate(request.targets[first:] + request.targets[:first], 1):
        if not count % TARGETS_PER_ITERATION:
            # Reading from memory does not wait, so other tasks get to run here.
            await asyncio.sleep(0)
        section = await _fetch(gateway, session, request, target.topic, wanted, left, room)
        left -= section.messages_count
        room -= sum(map(len, section.batches))
        sections.append(section)
    gateway.measurements.messages_polled += request.count - left
    return responses.Fetched(tuple(sections), gateway.catalogue_version)


async def _fetch(
    gateway: Gateway,
    session: Session,
    request: requests.FetchMessages,
    topic: Topic,
    wanted: requests.FetchTarget,
    left: int,
    room: int,
) -> responses.Section:
    number = wanted.partition_id
    start = wanted.strategy.value
    partition = topic.partition(number)
    if partition is None:
        return responses.Section(number, Code.PARTITION_NOT_FOUND, 0, 0, 0, start)
    incarnation = topic.incarnation(number)
    if wanted.incarnation != incarnation:
        return responses.Section(number, Code.PARTITION_RECREATED, 0, 0, incarnation, start)
    try:
        consumer = offsets.consumer_of(topic, request.consumer)
        owned = offsets.partition_to_poll(gateway, session, topic, consumer, number)
        if owned is None:
            return responses.Section(number, Code.CONSUMER_GROUP_PARTITION_NOT_OWNED, 0, 0, incarnation, start)
        if wanted.strategy.kind is StrategyKind.NEXT:
            await partition.here(consumer)
            start = await start_of(partition, wanted.strategy, partition.offset_of(*consumer), 0)
        nothing = responses.Section(number, 0, max(partition.readable - 1, 0), 0, incarnation, start)
        if not left or room <= 0:
            return nothing
        found = await partition.read(start, left, min(room, wanted.max_bytes))
        is_first = room >= request.max_bytes or left == request.count
        if not found.messages or (not is_first and sum(map(len, found.buffers)) > room):
            # A single message that is larger than the rest of the response has to have one of its own.
            return nothing
        if not await offsets.after_poll(
            gateway, session, topic, consumer, partition, found.next_offset - 1, _committing(request, wanted)
        ):
            is_group = request.consumer.kind is ConsumerKind.GROUP
            status = Code.CONSUMER_GROUP_PARTITION_NOT_OWNED if is_group else 0
            return responses.Section(number, status, 0, 0, incarnation, start)
    except PartitionClosed:
        return responses.Section(number, Code.PARTITION_NOT_FOUND, 0, 0, 0, start)
    return responses.Section(
        number,
        0,
        max(partition.readable - 1, 0),
        found.messages,
        incarnation,
        found.next_offset,
        tuple(found.buffers),
    )


def _committing(request: requests.FetchMessages, wanted: requests.FetchTarget) -> requests.PollMessages:
    """The part of a fetch that concerns one partition, as a poll."""
    return requests.PollMessages(
        request.consumer,
        request.stream,
        request.topic,
        wanted.partition_id,
        wanted.strategy,
        request.count,
        request.auto_commit,
    )
