"""Consumer groups: creating, reading and deleting them. Clients join on connections, or with leases."""

from __future__ import annotations

import msgspec

from whippet.app.commands import requests, responses
from whippet.app.errors import Code, CommandError
from whippet.transports.http.forms.field_types import Name
from whippet.transports.http.forms.parameters import NAME_BYTES
from whippet.transports.http.operation import Call, require_topic


class ConsumerGroup(msgspec.Struct, frozen=True):
    id: int
    name: str
    partitions_count: int
    members_count: int


class GroupMember(msgspec.Struct, frozen=True):
    id: int
    partitions_count: int
    partitions: list[int]


class ConsumerGroupDetails(ConsumerGroup, frozen=True):
    members: list[GroupMember]


class NewConsumerGroup(msgspec.Struct, frozen=True):
    name: Name


async def get_groups(call: Call) -> list[ConsumerGroup]:
    found = await call.execute(requests.GetConsumerGroups(call.stream, call.topic))
    if found is None:
        require_topic(call)
    return [ConsumerGroup(*_members(info)) for info in found or ()]


async def get_group(call: Call) -> ConsumerGroupDetails:
    found = await call.execute(requests.GetConsumerGroup(call.stream, call.topic, call.parameters["group"]))
    if found is None:
        require_topic(call)
        raise CommandError(Code.CONSUMER_GROUP_ID_NOT_FOUND, about=(call.parameters["group"], call.topic))
    return _details(found)


async def create_group(call: Call) -> ConsumerGroupDetails:
    body: NewConsumerGroup = call.body
    if len(body.name.encode()) not in NAME_BYTES:
        raise CommandError(Code.INVALID_CONSUMER_GROUP_NAME)
    return _details(await call.execute(requests.CreateConsumerGroup(call.stream, call.topic, body.name)))


async def delete_group(call: Call) -> None:
    await call.execute(requests.DeleteConsumerGroup(call.stream, call.topic, call.parameters["group"]))


def _details(found: responses.GroupDetails) -> ConsumerGroupDetails:
    members = [GroupMember(each.id, len(each.partitions), list(each.partitions)) for each in found.members]
    return ConsumerGroupDetails(*_members(found.info), members=members)


def _members(info: responses.GroupInfo) -> tuple[int, str, int, int]:
    return info.id, info.name, info.partitions_count, info.members_count
