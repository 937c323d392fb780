"""The destination of a send, with which both protocols begin: what is remembered of it, and how much."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from whippet.app.commands.requests import Partitioning, PartitioningKind, SendMessages
from whippet.transports.wire import destination

BALANCED = Partitioning(PartitioningKind.BALANCED)
BY_KEY = Partitioning(PartitioningKind.MESSAGES_KEY, key=b"key")
REMEMBERED_MAX = 1024


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    destination._known.clear()
    yield
    destination._known.clear()


def send(topic: int | str, to: Partitioning = BALANCED, count: int = 3) -> bytes:
    return destination.write(SendMessages("stream", topic, to, ()), count)


@pytest.mark.parametrize("topic", [1, 2**32 - 1, "t", "t" * 255])
@pytest.mark.parametrize(
    "to",
    [BALANCED, Partitioning(PartitioningKind.PARTITION_ID, 7), BY_KEY],
)
def test_a_destination_is_read_the_same_when_it_comes_again(topic: int | str, to: Partitioning) -> None:
    payload = send(topic, to)
    for count in (3, 4):
        payload = payload[:-4] + count.to_bytes(4, "little")
        assert destination.read(memoryview(payload + b"batch")) == ("stream", topic, to, count, len(payload))


def test_as_many_destinations_are_remembered_as_there_is_room_for() -> None:
    for topic in range(REMEMBERED_MAX):
        destination.read(memoryview(send(topic)))
    assert len(destination._known) == REMEMBERED_MAX
    destination.read(memoryview(send(REMEMBERED_MAX)))
    assert len(destination._known) == 1
    assert destination.read(memoryview(send(0)))[1] == 0


def test_keys_are_not_remembered_because_each_message_may_have_another() -> None:
    destination.read(memoryview(send(1, BY_KEY)))
    assert not destination._known
