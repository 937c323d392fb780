"""Stored offsets of consumers and groups, and the rules about which partitions a session may poll and commit.

A consumer may read and commit everywhere; it is identified by its number, or by the hash of its name. Only members read
and commit for a group, each in its own partitions. The poll handler calls `consumer_of` and `partition_to_poll`, reads,
and calls `after_poll` with the last offset before it returns messages.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import xxhash

from whippet.app.audit.notes import note
from whippet.app.commands import audited, requests, responses
from whippet.app.commands.groups import find_group
from whippet.app.commands.partitions import find_partition
from whippet.app.commands.requests import ConsumerKind
from whippet.app.commands.target import Target
from whippet.app.errors import Code, CommandError
from whippet.app.model.catalogue import Topic
from whippet.app.model.groups import Group
from whippet.app.model.sessions import Transport
from whippet.storage.engine import Partition
from whippet.storage.errors import InvalidOffset
from whippet.storage.offsets import Key, Kind

if TYPE_CHECKING:
    from whippet.app.gateway import Gateway
    from whippet.app.model.sessions import Session

TOGETHER = 100
"""After this many partitions, the event loop gets to run something else."""


async def get_offset(
    gateway: Gateway, session: Session, request: requests.GetConsumerOffset, target: Target
) -> responses.ConsumerOffset | None:
    """Returns None if nothing is stored. Any user who may poll may read the offset of a group."""
    topic, consumer = target.topic, request.consumer
    if consumer.kind is not ConsumerKind.CONSUMER and topic.groups.find(consumer.id) is None:
        return None
    partition_id = request.partition_id or 0
    partition = find_partition(target, partition_id)
    reader = consumer_of(topic, consumer)
    await partition.here(reader)
    stored = partition.offset_of(*reader)
    if stored is None:
        return None
    return responses.ConsumerOffset(partition_id, max(partition.readable - 1, 0), stored)


async def get_readers(
    gateway: Gateway, session: Session, request: requests.GetTopicReaders, target: Target
) -> list[responses.Reader]:
    """Returns who has stored an offset in the topic. A consumer is shown by number until it commits by name."""
    topic = target.topic
    found: list[responses.Reader] = []
    for number, partition in enumerate(topic.served, 1):
        for kind in (Kind.GROUP, Kind.CONSUMER):
            for identity in partition.readers(kind):
                group = topic.groups.find(identity) if kind is Kind.GROUP else None
                known = partition.reader_name(kind, identity) if group is None else group.name
                stored = partition.offset_of(kind, identity)
                if stored is not None:
                    found.append(
                        responses.Reader(partition.place.partition, kind is Kind.GROUP, identity, known, stored)
                    )
        if number % TOGETHER == 0:
            await asyncio.sleep(0)
    return found


async def store_offset(
    gateway: Gateway, session: Session, request: requests.StoreConsumerOffset, target: Target
) -> None:
    """Sets the offset forwards or backwards. In a group this may complete the handover of a partition."""
    consumer = consumer_of(target.topic, request.consumer)
    group = _group_to_change(gateway, session, target.topic, consumer, request.partition_id)
    partition = _partition_to_change(session, target, group, request)
    await partition.here(consumer)
    partition_id, stored = partition.place.partition, partition.offset_of(*consumer)
    if group is not None and group.is_late(session.member.client_id, partition_id, request.offset, stored):
        raise CommandError(
            Code.NOT_RESOLVED_CONSUMER,
            f"{session.address} lost partition {partition_id} of group {group.name!r} and got it back; meanwhile "
            f"the group has committed beyond offset {request.offset}",
            about=(request.consumer.id,),
        )
    check_epoch(partition, request.epoch)
    await partition.store_offset(*consumer, request.offset, metrics_name(request.consumer))
    if group is not None:
        group.record_commit(partition.place.partition, request.offset)
    is_member = group is not None or consumer[0] is not Kind.GROUP
    audited.record_offset(gateway, session, request, partition_id, stored, is_member=is_member)


async def delete_offset(
    gateway: Gateway, session: Session, request: requests.DeleteConsumerOffset, target: Target
) -> None:
    consumer = consumer_of(target.topic, request.consumer)
    group = _group_to_change(gateway, session, target.topic, consumer, request.partition_id)
    partition = _partition_to_change(session, target, group, request)
    stored = partition.offset_of(*consumer)
    if not await partition.delete_offset(*consumer):
        raise CommandError(
            Code.CONSUMER_OFFSET_NOT_FOUND,
            f"no offset is stored in {partition.place}",
            about=(request.consumer.id,),
        )
    note("offset", f"{request.consumer.id}, partition {partition.place.partition}", {"offset": stored}, None)


# ------------------------------------------------------------------------------------------------- for the poll handler


def check_epoch(partition: Partition, known: int | None) -> None:
    """Refuses an offset from before a purge, or of a topic that was deleted: now it is that of another message."""
    if known is not None and known != partition.epoch:
        raise CommandError(
            Code.PARTITION_RECREATED,
            f"partition {partition.place.partition} was purged or created again: its epoch is {partition.epoch}, not "
            f"{known}; what it has now begins at offset {partition.first_offset}",
        )


def consumer_of(topic: Topic, consumer: requests.Consumer) -> Key:
    """Returns the kind and the number under which offsets are stored."""
    if consumer.kind is ConsumerKind.GROUP:
        return Kind.GROUP, find_group(topic, consumer.id).id
    if consumer.kind is ConsumerKind.EXTERNAL_GROUP:
        return Kind.EXTERNAL_GROUP, find_group(topic, consumer.id).id
    if isinstance(consumer.id, str):
        return Kind.CONSUMER, xxhash.xxh32_intdigest(consumer.id.encode())
    return Kind.CONSUMER, consumer.id


def metrics_name(consumer: requests.Consumer) -> str | None:
    """Returns the name for the metrics. A name of digits only is omitted: it could be the number of another
    consumer."""
    is_named = consumer.kind is ConsumerKind.CONSUMER and isinstance(consumer.id, str) and not consumer.id.isdigit()
    return str(consumer.id) if is_named else None


def partition_to_poll(
    gateway: Gateway, session: Session, topic: Topic, consumer: Key, partition_id: int | None
) -> int | None:
    """Returns the partition to read; None for a group member that does not own it, whose response is empty.

    The caller checks that a partition named by a consumer exists.
    """
    group = _group_of_member(gateway, session, topic, consumer)
    if group is None:
        return partition_id or 0
    return group.partition_to_poll(session.member.client_id, partition_id)


async def after_poll(
    gateway: Gateway,
    session: Session,
    topic: Topic,
    consumer: Key,
    partition: Partition,
    last_offset: int,
    request: requests.PollMessages,
) -> bool:
    """Called with the last offset that was read. Returns False if the messages must not be returned.

    Meanwhile the partition may have been reassigned to another member, which reads the same messages, or may have been
    purged; then the response is empty. An auto-commit never moves a stored offset back.
    """
    kind, identity = consumer
    group = topic.groups.find(identity) if kind is Kind.GROUP else None
    partition_id = partition.place.partition
    if kind is Kind.GROUP and (
        group is None or not group.record_poll(session.member.client_id, partition_id, last_offset)
    ):
        return False
    if not request.auto_commit:
        return True
    stored = partition.offset_of(kind, identity)
    if stored is None or stored < last_offset:
        try:
            await partition.store_offset(kind, identity, last_offset, metrics_name(request.consumer))
        except InvalidOffset:
            return False
        stored = last_offset
    if group is not None:
        group.record_commit(partition_id, stored)
    return True


# ---------------------------------------------------------------------------------------------------------------- rules


def _group_of_member(gateway: Gateway, session: Session, topic: Topic, consumer: Key) -> Group | None:
    """Returns the group, of which the session must be a member; None for a single consumer."""
    kind, identity = consumer
    if kind is not Kind.GROUP:
        return None
    group = find_group(topic, identity)
    member = session.member
    if gateway.sessions.get(member.client_id) is not member:
        raise CommandError(Code.STALE_CLIENT)
    if group.member(member.client_id) is None:
        raise CommandError(Code.CONSUMER_GROUP_MEMBER_NOT_FOUND, about=(member.client_id, group.name, topic.name))
    return group


def _group_to_change(
    gateway: Gateway, session: Session, topic: Topic, consumer: Key, wanted: int | None
) -> Group | None:
    """Returns the group of which the session is a member; None for a single consumer. Also None where a 0.9 client, or
    one over HTTP, names a partition of a group without members, to set the offset at which the next member begins."""
    kind, identity = consumer
    may_be_no_member = session.registration is not None or session.transport is Transport.HTTP
    if kind is Kind.GROUP and may_be_no_member and wanted is not None:
        group = find_group(topic, identity)
        if not group.members:
            return None
    return _group_of_member(gateway, session, topic, consumer)


def _partition_to_change(
    session: Session,
    target: Target,
    group: Group | None,
    request: requests.StoreConsumerOffset | requests.DeleteConsumerOffset,
) -> Partition:
    """Returns the partition whose offset to store or delete."""
    wanted = request.partition_id
    if group is None:
        return find_partition(target, wanted or 0)
    if wanted is not None:
        find_partition(target, wanted)
    owned = group.partition_to_commit(session.member.client_id, wanted)
    if owned is None:
        what = "no partition" if wanted is None else f"no partition {wanted}"
        raise CommandError(
            Code.NOT_RESOLVED_CONSUMER,
            f"{session.address} owns {what} in group {group.name!r}",
            about=(request.consumer.id,),
        )
    return find_partition(target, owned)
