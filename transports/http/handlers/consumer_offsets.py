"""Stored offsets of consumers, and of groups: members of groups store theirs on their connections, or with leases."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, UnsetType

from whippet.app.commands import requests, responses
from whippet.app.commands.requests import Consumer, ConsumerKind
from whippet.transports.http.forms import parameters, partition_context
from whippet.transports.http.forms.field_types import U32, U64, Name, check_u64
from whippet.transports.http.forms.parameters import alias_of
from whippet.transports.http.forms.partition_context import Context
from whippet.transports.http.operation import Call, require_topic


class ConsumerOffset(msgspec.Struct, frozen=True):
    partition_id: int
    current_offset: int
    stored_offset: int


class Reader(msgspec.Struct, frozen=True):
    partition_id: int
    kind: Literal["consumer", "group"]
    id: int
    name: str
    """Its number until it has committed by name since the start."""
    stored_offset: int


class PartitionQuery(msgspec.Struct, frozen=True):
    partition_id: U32 | UnsetType = UNSET
    """Partition 0 if absent."""
    partition: Annotated[U32, alias_of("partition_id")] | UnsetType = UNSET

    def __post_init__(self) -> None:
        parameters.refuse_both("partition_id", self.partition_id, "partition", self.partition)

    @property
    def number(self) -> int:
        given = self.partition if self.partition_id is UNSET else self.partition_id
        return 0 if given is UNSET else given


OwnerWord = Literal["consumer", "consumer_group"]
"""Whose offset it is; clients since 0.12 send `consumer`."""
KINDS = {"consumer": ConsumerKind.CONSUMER, "consumer_group": ConsumerKind.GROUP}


class ConsumerQuery(PartitionQuery, frozen=True):
    consumer_kind: OwnerWord = "consumer"


class OffsetQuery(ConsumerQuery, frozen=True):
    consumer_id: Name = "1"


class NewOffset(msgspec.Struct, frozen=True, kw_only=True):
    consumer_id: U32 | Name | None = 1
    partition_id: U32 | None = None
    offset: U64
    consumer_kind: OwnerWord = "consumer"
    context: Context | None = None
    """The context of the partition that the client knows."""
    epoch: U64 | None = None
    """The epoch of the partition in which the message was read. In another one the offset is refused with 409."""

    def __post_init__(self) -> None:
        check_u64(self.offset, self.epoch)


async def get_offset(call: Call) -> ConsumerOffset | None:
    query: OffsetQuery = call.query
    consumer = _consumer(query.consumer_kind, query.consumer_id)
    found = await call.execute(requests.GetConsumerOffset(consumer, call.stream, call.topic, query.number))
    if found is None:
        require_topic(call)
        return None
    return ConsumerOffset(found.partition_id, found.current_offset, found.stored_offset)


async def get_readers(call: Call) -> list[Reader]:
    found: list[responses.Reader] = await call.execute(requests.GetTopicReaders(call.stream, call.topic))
    return [
        Reader(
            each.partition_id,
            "group" if each.is_group else "consumer",
            each.id,
            each.name or str(each.id),
            each.stored_offset,
        )
        for each in found
    ]


async def store_offset(call: Call) -> None:
    body: NewOffset = call.body
    given = 1 if body.consumer_id is None else body.consumer_id
    request = requests.StoreConsumerOffset(
        _consumer(body.consumer_kind, given),
        call.stream,
        call.topic,
        body.partition_id or 0,
        body.offset,
        epoch=body.epoch,
    )
    partition_context.check(call, request, body.context)
    await call.execute(request)


async def delete_offset(call: Call) -> None:
    query: ConsumerQuery = call.query
    consumer = _consumer(query.consumer_kind, call.parameters["consumer"])
    await call.execute(requests.DeleteConsumerOffset(consumer, call.stream, call.topic, query.number))


def _consumer(kind: OwnerWord, given: int | str) -> Consumer:
    return Consumer(KINDS[kind], given if isinstance(given, int) else parameters.identifier(given))
