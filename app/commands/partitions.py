"""Partitions of a topic, and the segments of a partition."""

from __future__ import annotations

from typing import TYPE_CHECKING

from whippet.app.audit.notes import note
from whippet.app.commands import groups, requests
from whippet.app.commands.target import Target
from whippet.app.commands.topics import PARTITIONS_MAX, check_partitions_count, check_reserved
from whippet.app.errors import Code, CommandError
from whippet.app.model.topic_options import FIXED
from whippet.storage.engine import Partition
from whippet.storage.options import settings_of

if TYPE_CHECKING:
    from whippet.app.gateway import Gateway
    from whippet.app.model.sessions import Session


async def create_partitions(
    gateway: Gateway, session: Session, request: requests.CreatePartitions, target: Target
) -> None:
    _check_count(request.count)
    _refuse_fixed(target)
    document = target.topic.document
    check_partitions_count(gateway, document.partitions_count, request.count)
    check_reserved(settings_of(document.options, gateway.store.options), document.partitions_count + request.count)
    incarnation = await gateway.unique_numbers.next()
    await gateway.store.create_partitions(target.stream.id, target.topic.id, request.count, incarnation)
    _reload(gateway, target)


async def delete_partitions(
    gateway: Gateway, session: Session, request: requests.DeletePartitions, target: Target
) -> None:
    _check_count(request.count)
    _refuse_fixed(target)
    have = len(target.topic.partitions)
    if request.count > have:
        raise CommandError(
            Code.INVALID_PARTITIONS_COUNT, f"a topic of {have} partitions cannot lose {request.count} of them"
        )
    gateway.forget_ids(target.topic.partitions[have - request.count :])
    await gateway.store.remove_partitions(target.stream.id, target.topic.id, request.count)
    _reload(gateway, target)


async def delete_segments(gateway: Gateway, session: Session, request: requests.DeleteSegments, target: Target) -> None:
    partition = find_partition(target, request.partition_id)
    before = _contents(partition)
    await gateway.store.delete_segments(partition.place, request.count)
    name = f"{target.stream.name}/{target.topic.name}, partition {request.partition_id}"
    note("segments", name, before, _contents(partition))


def _contents(partition: Partition) -> dict[str, int]:
    return {"first_offset": partition.first_offset, "segments_count": partition.segments_count}


def find_partition(target: Target, partition_id: int) -> Partition:
    partition = target.topic.partition(partition_id)
    if partition is None:
        raise CommandError(Code.PARTITION_NOT_FOUND, about=(partition_id, target.topic.name, target.stream.name))
    return partition


def _reload(gateway: Gateway, target: Target) -> None:
    """Takes over what the store has created or removed, and reassigns the partitions of all groups."""
    stream_id, topic = target.stream.id, target.topic
    topic.document = gateway.store.streams[stream_id].topics[topic.id].document
    topic.partitions = [
        gateway.store.partition(stream_id, topic.id, number) for number in range(topic.document.partitions_count)
    ]
    if topic.turn >= len(topic.partitions):
        topic.turn = 0
    groups.partitions_changed(topic)


def _refuse_fixed(target: Target) -> None:
    if target.topic.document.options.partition_resize_policy == FIXED:
        raise CommandError(Code.PARTITION_RESIZE_DISABLED)


def _check_count(count: int) -> None:
    if not 1 <= count <= PARTITIONS_MAX:
        raise CommandError(Code.TOO_MANY_PARTITIONS, f"1 to {PARTITIONS_MAX} partitions at a time, not {count}")
