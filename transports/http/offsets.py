"""Stored offsets of consumers. Groups have theirs through the connections of their members."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from whippet.app.commands import requests as ask
from whippet.app.commands.requests import Consumer, ConsumerKind
from whippet.transports.http import absence, parameters
from whippet.transports.http.numbers import U32, U64, check_u64
from whippet.transports.http.operation import Call


class ConsumerOffset(msgspec.Struct, frozen=True):
    partition_id: int
    current_offset: int
    stored_offset: int


class PartitionQuery(msgspec.Struct, frozen=True):
    partition_id: U32 | UnsetType = UNSET
    """Partition 0 if absent."""
    partition: U32 | UnsetType = UNSET
    """Another spelling of `partition_id`."""

    def __post_init__(self) -> None:
        parameters.one_spelling("partition_id", self.partition_id, "partition", self.partition)

    @property
    def number(self) -> int:
        given = self.partition if self.partition_id is UNSET else self.partition_id
        return 0 if given is UNSET else given


class OffsetQuery(PartitionQuery, frozen=True):
    consumer_id: str = "1"


class NewOffset(msgspec.Struct, frozen=True, kw_only=True):
    consumer_id: U32 | str | None = 1
    partition_id: U32 | None = None
    offset: U64

    def __post_init__(self) -> None:
        check_u64(self.offset)


async def get_offset(call: Call) -> ConsumerOffset | None:
    query: OffsetQuery = call.query
    consumer = _consumer(query.consumer_id)
    found = await call.ask(ask.GetConsumerOffset(consumer, call.stream, call.topic, query.number))
    if found is None:
        absence.refuse_topic(call)
        return None
    return ConsumerOffset(found.partition_id, found.current_offset, found.stored_offset)


async def store_offset(call: Call) -> None:
    body: NewOffset = call.body
    given = 1 if body.consumer_id is None else body.consumer_id
    await call.ask(
        ask.StoreConsumerOffset(_consumer(given), call.stream, call.topic, body.partition_id or 0, body.offset)
    )


async def delete_offset(call: Call) -> None:
    query: PartitionQuery = call.query
    consumer = Consumer(ConsumerKind.CONSUMER, call.parameters["consumer"])
    await call.ask(ask.DeleteConsumerOffset(consumer, call.stream, call.topic, query.number))


def _consumer(given: int | str) -> Consumer:
    return Consumer(ConsumerKind.CONSUMER, given if isinstance(given, int) else parameters.identifier(given))
