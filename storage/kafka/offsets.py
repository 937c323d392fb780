"""Stored offsets as offsets of Kafka's groups. Kafka stores the offset after the last message that was consumed."""

from __future__ import annotations

from typing import Any, TypeAlias

from aiokafka import errors
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.commit import OffsetCommitRequest, OffsetFetchRequest
from aiokafka.protocol.types import Array, Int16, Int32, Schema, String

from whippet.storage.kafka.cluster import GROUP, Cluster, Coordinated, Refused


class OffsetDeleteResponse(Response):  # type: ignore[misc]
    API_KEY = 47
    API_VERSION = 0
    SCHEMA = Schema(
        ("error_code", Int16),
        ("throttle_time_ms", Int32),
        (
            "topics",
            Array(("topic", String("utf-8")), ("partitions", Array(("partition", Int32), ("error_code", Int16)))),
        ),
    )


class OffsetDeleteStruct(RequestStruct):  # type: ignore[misc]
    API_KEY = 47
    API_VERSION = 0
    RESPONSE_TYPE = OffsetDeleteResponse
    SCHEMA = Schema(
        ("group", String("utf-8")),
        ("topics", Array(("topic", String("utf-8")), ("partitions", Array(Int32)))),
    )


Struct: TypeAlias = OffsetDeleteStruct


class OffsetDeleteRequest(Request[Struct]):  # type: ignore[misc]
    API_KEY = 47

    def __init__(self, group: str, topic: str, partition: int) -> None:
        self._values = group, [(topic, [partition])]

    def build(self, request_struct_class: type[Struct]) -> Struct:
        return request_struct_class(*self._values)


def _of_partition(response: Any) -> int:
    return int(response.topics[0][1][0][-1])


async def stored(cluster: Cluster, group: str, topic: str, partition: int) -> int | None:
    """Returns the offset of the last message that was consumed; None if there is none."""
    response = await cluster.at_coordinator(
        Coordinated(GROUP, group),
        lambda: OffsetFetchRequest(group, [(topic, [partition])]),
        lambda found: int(found.error_code) or _of_partition(found),
    )
    after = int(response.topics[0][1][0][1])
    return after - 1 if after > 0 else None


async def store(cluster: Cluster, group: str, topic: str, partition: int, offset: int) -> None:
    await cluster.at_coordinator(
        Coordinated(GROUP, group),
        lambda: OffsetCommitRequest(group, -1, "", -1, [(topic, [(partition, offset + 1, "")])]),
        _of_partition,
    )


async def delete(cluster: Cluster, group: str, topic: str, partition: int) -> None:
    """Deletes a stored offset, if there is one."""
    try:
        await cluster.at_coordinator(
            Coordinated(GROUP, group),
            lambda: OffsetDeleteRequest(group, topic, partition),
            lambda found: int(found.error_code) or _of_partition(found),
        )
    except Refused as refusal:
        if not isinstance(refusal.reason, errors.GroupIdNotFound):
            raise
