"""Messages: send, poll, follow, flush."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple, cast

import msgspec
import xxhash

from whippet.app.commands import offsets, requests, responses, system
from whippet.app.commands.partitions import find_partition
from whippet.app.commands.requests import ConsumerKind, PartitioningKind, StrategyKind
from whippet.app.commands.target import Target
from whippet.app.errors import Code, CommandError, of_storage
from whippet.app.model.catalogue import Topic
from whippet.app.model.deduplication_window import Bounds
from whippet.app.model.sessions import NOT_REGISTERED
from whippet.storage.appended import Appended
from whippet.storage.batch import Readable
from whippet.storage.engine import Partition
from whippet.storage.errors import ProducerFenced
from whippet.storage.fetched import Fetched
from whippet.storage.options import Durability
from whippet.storage.producers import OWNER_BYTES, Producer

if TYPE_CHECKING:
    from whippet.app.gateway import Gateway
    from whippet.app.model.sessions import Session


FEW = 64
"""So many messages are rarely too much to be held in memory."""
BATCHES_PER_ITERATION = 64
"""After this many batches of one request, other tasks on the event loop get to run."""


class ReadPositions(NamedTuple):
    """The partitions that a reader follows while they exist, and the first offset to read in each."""

    partitions: tuple[Partition, ...]
    start: tuple[int, ...]


async def send_messages(
    gateway: Gateway, session: Session, request: requests.SendMessages, target: Target
) -> responses.Sent:
    """All batches of one request go to one partition, in order."""
    if request.producer is not None:
        return await _send_numbered(gateway, request, target, _with_owner(request.producer, session))
    topic = target.topic
    partition_id = choose_partition(topic, request.partitioning)
    partition = find_partition(target, partition_id)
    batches, wanted = request.batches, request.durability
    bounds = gateway.deduplication.bounds(topic.document.options)
    measurements = gateway.measurements
    if bounds is None and len(batches) == 1:
        (batch,) = batches
        size = len(batch)
        appended = await partition.append(batch, wanted, checked=request.checked[0] if request.checked else None)
        measurements.messages_sent += appended.messages
        measurements.bytes_sent += size
        first, count, level = appended.base_offset, appended.messages, appended.durability
        return responses.Sent(target.stream_id, topic.id, partition_id, first, count, level)
    if not batches:
        raise CommandError(Code.INVALID_MESSAGES_COUNT)
    first, count, level = await _send_several(gateway, request, partition, bounds)
    measurements.messages_sent += count
    measurements.bytes_sent += sum(map(len, batches))
    return responses.Sent(target.stream_id, topic.id, partition_id, first, count, level)


async def _send_several(
    gateway: Gateway, request: requests.SendMessages, partition: Partition, bounds: Bounds | None
) -> tuple[int, int, Durability]:
    """Appends several batches, or what is new in them. Returns the first offset, the number of messages and the
    durability that they have reached."""
    first = None
    count = 0
    level = partition.durability
    if len(request.batches) > 1 and bounds is None:
        # All or nothing: a request that was refused after some of its batches would be sent again as a whole.
        partition.check_room(sum(map(len, request.batches)))
    for number, batch in enumerate(request.batches):
        if number % BATCHES_PER_ITERATION == BATCHES_PER_ITERATION - 1:
            await asyncio.sleep(0)
        checked = request.checked[number] if request.checked else None
        if bounds is None:
            appended = await partition.append(batch, request.durability, checked=checked)
        else:
            now, wanted = gateway.clock(), request.durability
            new = await gateway.deduplication.append(partition, bounds, batch, now, wanted, checked=checked)
            if new is None:
                continue
            appended = new
        first = appended.base_offset if first is None else first
        count += appended.messages
        level = appended.durability
    if first is None:
        first, level = await _all_duplicates(partition, request.durability)
    return first, count, level


async def _all_duplicates(partition: Partition, durability: Durability | None) -> tuple[int, Durability]:
    """All messages were duplicates: returns the next offset, and the level that everything before it has reached."""
    first, level = partition.appended, partition.durability
    if durability is not None and durability > level:
        level = await partition.flush(sync=durability is Durability.SYNCED)
    return first, level


def _with_owner(producer: Producer, session: Session) -> Producer:
    """A producer id belongs to the user who sends under it: other users cannot fence that producer off or repeat its
    sends."""
    if session.login is None:
        raise CommandError(Code.UNAUTHENTICATED)
    owner = xxhash.xxh3_64_digest(session.login.mark.encode())[-OWNER_BYTES:]
    return msgspec.structs.replace(producer, owner=owner)


async def _send_numbered(
    gateway: Gateway, request: requests.SendMessages, target: Target, producer: Producer
) -> responses.Sent:
    if len(request.batches) != 1:
        raise CommandError(Code.INVALID_MESSAGES_COUNT, "a numbered send has exactly one batch")
    topic = target.topic
    (batch,) = request.batches
    size, wanted = len(batch), request.durability
    partition_id = _partition_of_numbered(topic, request.partitioning, producer)
    partition = find_partition(target, partition_id)
    appended: Appended | None
    checked = request.checked[0] if request.checked else None
    bounds = gateway.deduplication.bounds(topic.document.options)
    if bounds is None:
        appended = await partition.append_once(batch, producer, wanted, checked=checked)
    else:
        # The number is checked first: all messages of a repetition are duplicates, which does not tell where they are
        # stored.
        deduplicated = gateway.deduplication.append
        appended = (
            await partition.result_of(producer, wanted)
            or await deduplicated(partition, bounds, batch, gateway.clock(), wanted, producer, checked)
            or await partition.result_of(producer, wanted)
        )
    if appended is None:
        first, level = await _all_duplicates(partition, wanted)
        return responses.Sent(target.stream.id, topic.id, partition_id, first, 0, level)
    first, count, level = appended.base_offset, appended.messages, appended.durability
    if not appended.repeated:
        gateway.measurements.messages_sent += count
        gateway.measurements.bytes_sent += size
    return responses.Sent(target.stream.id, topic.id, partition_id, first, count, level, appended.repeated)


def _partition_of_numbered(topic: Topic, partitioning: requests.Partitioning, producer: Producer) -> int:
    """Routes a repetition to the partition of the original send, even if partitions were added since.

    A producer that names the partition may number its sends per partition; all others number them per topic.
    """
    served = topic.served
    newest = max((partition.epoch_of(producer) or 0 for partition in served), default=0)
    if newest > producer.epoch:
        raise of_storage(ProducerFenced(producer.name, producer.epoch, newest))
    if partitioning.kind is PartitioningKind.PARTITION_ID:
        return partitioning.partition_id
    for partition in served:
        if partition.remembers(producer):
            return partition.place.partition
    if partitioning.kind is PartitioningKind.BALANCED:
        partitioning = requests.Partitioning(PartitioningKind.MESSAGES_KEY, key=producer.id)
        home = choose_partition(topic, partitioning)
        for partition in served:
            if partition.place.partition != home and partition.has_passed(producer):
                # It was the producer's partition before partitions were added, and remembers older sends.
                return partition.place.partition
        return home
    return choose_partition(topic, partitioning)


def choose_partition(topic: Topic, partitioning: requests.Partitioning) -> int:
    count = len(topic.partitions)
    if partitioning.kind is PartitioningKind.PARTITION_ID:
        return partitioning.partition_id
    if not count:
        raise CommandError(Code.TOPIC_ID_NOT_FOUND, f"topic {topic.name!r} has no partitions to send to")
    if partitioning.kind is PartitioningKind.MESSAGES_KEY:
        return xxhash.xxh32_intdigest(partitioning.key) % count
    turn = topic.turn if topic.turn < count else 0
    topic.turn = (turn + 1) % count
    return turn


async def poll_messages(
    gateway: Gateway, session: Session, request: requests.PollMessages, target: Target
) -> responses.Polled:
    topic = target.topic
    consumer = offsets.consumer_of(topic, request.consumer)
    partition_id = offsets.partition_to_poll(gateway, session, topic, consumer, request.partition_id)
    if partition_id is None:
        return responses.Polled(request.partition_id or 0, 0, 0, (), owned=False)
    partition = find_partition(target, partition_id)
    await partition.here(consumer)
    while True:
        epoch = partition.epoch
        offsets.check_epoch(partition, request.epoch)
        start = await start_of(partition, request.strategy, partition.offset_of(*consumer), request.count)
        if request.long_room is None:
            found = await partition.read(start, request.count, request.room)
        else:
            found = await _read_held_or_long(partition, start, request, request.long_room)
        if partition.epoch == epoch:
            break
    if found.messages and not await offsets.after_poll(
        gateway, session, topic, consumer, partition, found.next_offset - 1, request
    ):
        return responses.Polled(partition_id, 0, 0, (), owned=request.consumer.kind is ConsumerKind.CONSUMER)
    gateway.measurements.messages_polled += found.messages
    return responses.Polled(
        partition_id,
        max(partition.readable - 1, 0),
        found.messages,
        tuple(found.buffers),
        next_offset=found.next_offset,
        epoch=epoch,
    )


def _probably_fits(partition: Partition, start: int, count: int, room: int) -> bool:
    """Returns whether this many messages of average size fit."""
    size = partition.size_bytes
    return size <= room or min(count, partition.readable - start) * size <= room * partition.messages_count


async def _read_held_or_long(
    partition: Partition, start: int, request: requests.PollMessages, long_room: int
) -> Fetched:
    """Holds what fits into `room`. More is read while it is sent: up to `long_room`."""
    count, room = request.count, request.room or 0
    found = None
    if count <= FEW or _probably_fits(partition, start, count, room):
        found = await partition.read(start, count, room)
        if found.messages >= count or found.next_offset >= partition.readable:
            return found
    long = await partition.read_long(start, count, long_room)
    if long is None or (found is not None and long.messages <= found.messages):
        return found or await partition.read(start, count, room)
    # It has a length, like the buffers that it stands for, and only the transport that asked for it looks into it.
    return Fetched([cast(Readable, long)], long.messages, long.next_offset)


async def follow_messages(
    gateway: Gateway, session: Session, request: requests.FollowMessages, target: Target
) -> ReadPositions:
    """Without a start, reading begins with the next message that is appended."""
    topic = target.topic
    if request.partition_id is None:
        partitions = tuple(find_partition(target, number) for number in range(len(topic.partitions)))
    else:
        partitions = (find_partition(target, request.partition_id),)
    start = request.start
    reader = None if request.consumer is None else offsets.consumer_of(topic, request.consumer)
    await gateway.store.catch_up([partition.place for partition in partitions])
    if reader is not None:
        await asyncio.gather(*(partition.here(reader) for partition in partitions))
    stored = [None if reader is None else partition.offset_of(*reader) for partition in partitions]
    if start is None:
        return ReadPositions(partitions, tuple(partition.readable for partition in partitions))
    return ReadPositions(
        partitions,
        tuple([await start_of(one, start, found, start.value) for one, found in zip(partitions, stored, strict=True)]),
    )


async def start_of(partition: Partition, strategy: requests.Strategy, stored: int | None, last: int) -> int:
    """Returns the first offset to read; `last` is how many messages LAST goes back."""
    match strategy.kind:
        case StrategyKind.OFFSET:
            return strategy.value
        case StrategyKind.TIMESTAMP:
            return await partition.offset_at(strategy.value)
        case StrategyKind.FIRST:
            return partition.first_offset
        case StrategyKind.LAST:
            return max(partition.readable - last, partition.first_offset)
        case StrategyKind.NEXT:
            return partition.first_offset if stored is None else stored + 1


async def get_routing(
    gateway: Gateway, session: Session, request: requests.GetPollRouting | requests.GetOffsetRouting, target: Target
) -> responses.Routing:
    """Every request is routed to this node, which is the only one."""
    client, number = session.registration or NOT_REGISTERED
    return responses.Routing(client, number, 0, system.own_node(gateway, session))


async def flush_unsaved_buffer(
    gateway: Gateway, session: Session, request: requests.FlushUnsavedBuffer, target: Target
) -> None:
    await find_partition(target, request.partition_id).flush(sync=request.fsync)
