"""Consumer groups. The store keeps their names and numbers; only the group in memory knows its members.

A member is a session that joined, usually a connection. Whatever ends the session, or changes the topic or its
partitions, calls the functions at the end of this module, so that groups and sessions agree on the memberships.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from whippet.app.commands import requests, responses
from whippet.app.commands.target import Target
from whippet.app.errors import Code, CommandError
from whippet.app.model.catalogue import Topic, check_name
from whippet.app.model.groups import Group
from whippet.storage.documents import GroupDocument
from whippet.storage.offsets import Kind

if TYPE_CHECKING:
    from whippet.app.gateway import Gateway
    from whippet.app.model.sessions import Session

_log = logging.getLogger(__name__)


async def get_group(
    gateway: Gateway, session: Session, request: requests.GetConsumerGroup, target: Target
) -> responses.GroupDetails | None:
    group = target.topic.groups.find(request.group)
    return None if group is None else _details(target.topic, group)


async def get_groups(
    gateway: Gateway, session: Session, request: requests.GetConsumerGroups, target: Target
) -> tuple[responses.GroupInfo, ...]:
    return tuple(_info(target.topic, group) for group in target.topic.groups)


async def create_group(
    gateway: Gateway, session: Session, request: requests.CreateConsumerGroup, target: Target
) -> responses.GroupDetails:
    topic = target.topic
    check_name(request.name, "consumer group")
    if topic.groups.find(request.name) is not None:
        raise CommandError(Code.CONSUMER_GROUP_NAME_ALREADY_EXISTS, about=(request.name, topic.name))
    limit = gateway.config.system.limits.consumer_groups_per_topic
    if len(topic.groups) >= limit:
        raise CommandError(
            Code.TOO_MANY_CONSUMER_GROUPS,
            f"topic {topic.name!r} has {len(topic.groups)} consumer groups, as many as are allowed "
            f"(system.limits.consumer_groups_per_topic = {limit})",
        )
    document = GroupDocument(id=topic.groups.next_id(), name=request.name, created_at=gateway.clock())
    # Left over from a group that had this number, if its deletion was cut short.
    await _forget_offsets(topic, document.id)
    await gateway.store.write_group(target.stream.id, topic.id, document)
    group = Group(document, len(topic.partitions))
    topic.groups.add(group)
    return _details(topic, group)


async def delete_group(
    gateway: Gateway, session: Session, request: requests.DeleteConsumerGroup, target: Target
) -> None:
    """Nobody can join or commit while the group is being deleted. If the deletion fails, the group exists again,
    without members."""
    topic = target.topic
    group = find_group(topic, request.group)
    _remove_members(gateway, target.stream.id, topic, group)
    topic.groups.remove(group)
    try:
        # The offsets first: without the group nobody could free the segments that they hold back.
        await _forget_offsets(topic, group.id)
        await gateway.store.remove_group(target.stream.id, topic.id, group.id)
    except BaseException:
        topic.groups.add(group)
        raise


async def join_group(gateway: Gateway, session: Session, request: requests.JoinConsumerGroup, target: Target) -> None:
    topic = target.topic
    group = find_group(topic, request.group)
    if gateway.sessions.get(session.client_id) is not session:
        raise CommandError(Code.STALE_CLIENT)
    for member in group.members:
        if gateway.sessions.get(member.client_id) is None:
            group.leave(member.client_id)

    def committed(partition_id: int) -> int | None:
        partition = topic.partition(partition_id)
        return None if partition is None else partition.offset_of(Kind.GROUP, group.id)

    if group.join(session.client_id, gateway.clock(), committed):
        session.groups.add((target.stream.id, topic.id, group.id))


async def leave_group(gateway: Gateway, session: Session, request: requests.LeaveConsumerGroup, target: Target) -> None:
    group = find_group(target.topic, request.group)
    if not group.leave(session.client_id):
        raise CommandError(
            Code.CONSUMER_GROUP_MEMBER_NOT_FOUND, about=(session.client_id, group.name, target.topic.name)
        )
    session.groups.discard((target.stream.id, target.topic.id, group.id))


async def sync_group(
    gateway: Gateway, session: Session, request: requests.SyncConsumerGroup, target: Target
) -> responses.GroupAssignment | None:
    """Returns None if the caller is no member, and for a deleted group, too: then consumers create it and join again,
    while any other response makes them stop."""
    group = target.topic.groups.find(request.group)
    holder = session.member
    is_connected = group is not None and gateway.sessions.get(holder.client_id) is holder
    member = group.member(holder.client_id) if group is not None and is_connected else None
    if group is None or member is None:
        return None
    return responses.GroupAssignment(group.generation, member.offered, member.finishing)


def find_group(topic: Topic, group: requests.Identifier) -> Group:
    found = topic.groups.find(group)
    if found is None:
        raise CommandError(Code.CONSUMER_GROUP_ID_NOT_FOUND, about=(group, topic.name))
    return found


# ------------------------------------------------------------------------------------------------ events around a group


def leave_all(gateway: Gateway, session: Session) -> None:
    """Called for a session that has ended, logged out or was evicted."""
    for stream_id, topic_id, group_id in session.groups:
        stream = gateway.streams.find(stream_id)
        topic = None if stream is None else stream.topics.find(topic_id)
        group = None if topic is None else topic.groups.find(group_id)
        if group is not None:
            group.leave(session.client_id)
    session.groups.clear()


def disband_all(gateway: Gateway, stream_id: int, topic: Topic) -> None:
    """Called for a topic that is being deleted."""
    for group in topic.groups:
        _remove_members(gateway, stream_id, topic, group)


def partitions_changed(topic: Topic) -> None:
    """Called for a topic that has gained or lost partitions."""
    for group in topic.groups:
        group.repartition(len(topic.partitions))


def record_purge(topic: Topic) -> None:
    """Called for a topic that has lost all messages and stored offsets."""
    for group in topic.groups:
        group.record_purge()


def reassign_overdue(gateway: Gateway, now: int) -> None:
    """Reassigns partitions whose members did not commit in time what they had polled."""
    promised_before = now - int(gateway.config.consumer_group.rebalancing_timeout * 1_000_000)
    for stream in gateway.streams:
        for topic in stream.topics:
            for group in topic.groups:
                moved = group.reassign_overdue(promised_before)
                if moved:
                    _log.info(
                        "consumer group %r of %s/%s: reassigned partitions %s with uncommitted messages",
                        group.name,
                        stream.name,
                        topic.name,
                        moved,
                    )


def _remove_members(gateway: Gateway, stream_id: int, topic: Topic, group: Group) -> None:
    for client_id in group.disband():
        session = gateway.sessions.get(client_id)
        if session is not None:
            session.groups.discard((stream_id, topic.id, group.id))


async def _forget_offsets(topic: Topic, group_id: int) -> None:
    """Deletes in all partitions at once, so that the shards write together; raises the first failure after all were
    tried."""
    tried = await asyncio.gather(
        *(
            partition.delete_offset(kind, group_id)
            for partition in topic.served
            for kind in (Kind.GROUP, Kind.EXTERNAL_GROUP)
        ),
        return_exceptions=True,
    )
    for outcome in tried:
        if isinstance(outcome, BaseException):
            raise outcome


def _info(topic: Topic, group: Group) -> responses.GroupInfo:
    return responses.GroupInfo(group.id, len(topic.partitions), len(group.members), group.name)


def _details(topic: Topic, group: Group) -> responses.GroupDetails:
    members = tuple(responses.GroupMember(member.id, tuple(member.partitions)) for member in group.members)
    return responses.GroupDetails(_info(topic, group), members)
