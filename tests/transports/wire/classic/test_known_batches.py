"""What a decoded send knows of its batches equals what checking them would return: the log does not check again."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.storage.support.world import partition_in, sized
from tests.support.clocks import NOON
from tests.transports.wire.classic.support.plainly import same
from whippet.app.commands.requests import Partitioning, PartitioningKind, SendMessages
from whippet.storage import batch as batches
from whippet.storage.batch import Message
from whippet.storage.errors import BatchFault, InvalidBatch
from whippet.transports.wire.classic import sends
from whippet.transports.wire.classic.dialect import LONG, SHORT, Dialect

TO = Partitioning(PartitioningKind.PARTITION_ID, 0)
HEADERS = b"\2\1\0\0\0k\2\1\0\0\0v"


def decoded(messages: list[Message], header_size: int) -> SendMessages:
    """As clients send them; here all origin times fit one batch, which is not guaranteed for those of the server."""
    built = batches.build(messages, NOON, os.urandom)
    payload = sends.encode(SendMessages(1, 2, TO, (built,)), header_size)
    return sends.decode(memoryview(payload), Dialect(), os.urandom)


@pytest.mark.parametrize("header_size", [SHORT, LONG])
@pytest.mark.parametrize("headers", [b"", HEADERS])
@pytest.mark.parametrize("sizes", ["uniform", "mixed"])
@pytest.mark.parametrize("count", [1, 2, 12, 13, 14, 500])
def test_what_is_known_of_a_batch_is_what_the_check_returns(
    count: int, sizes: str, headers: bytes, header_size: int
) -> None:
    source = random.Random(count)
    messages = [
        Message(source.randbytes(40 if sizes == "uniform" else source.randint(1, 300)), user_headers=headers)
        for _ in range(count)
    ]
    found = decoded(messages, header_size)
    assert all(map(same, map(batches.check, found.batches), found.checked))
    assert sum(one.message_count for one in found.checked) == count


@pytest.mark.parametrize("count", [2, 40])
def test_messages_whose_times_are_far_apart_are_known_batch_by_batch(count: int) -> None:
    apart = batches.TIME_SPAN_MAX_US
    parts = [
        batches.build([Message(b"x", origin_timestamp=NOON + i * apart // 2)], NOON, os.urandom) for i in range(count)
    ]
    payload = sends.encode(SendMessages(1, 2, TO, tuple(parts)), LONG)
    found = sends.decode(memoryview(payload), Dialect(), os.urandom)
    assert len(found.batches) == len(found.checked) > count // 4
    assert all(map(same, map(batches.check, found.batches), found.checked))


async def test_a_known_batch_is_appended_unchanged_but_may_not_exceed_the_limit(tmp_path: Path) -> None:
    async with partition_in(tmp_path, batch_bytes_max=1000) as partition:
        known = decoded([Message(b"a"), Message(b"b" * 9)], LONG)
        appended = await partition.append(known.batches[0], checked=known.checked[0])
        assert (appended.base_offset, appended.messages) == (0, 2)
        found = await partition.read(0, 10)
        assert [message.payload for message in batches.messages(found.buffers[0])] == [b"a", b"b" * 9]
        assert same(batches.check(found.buffers[0]), known.checked[0])
        found = await partition.read(1, 10)
        assert found.messages == 1

        large = sized(2, 500)
        with pytest.raises(InvalidBatch) as raised:
            await partition.append(large, checked=batches.check(large))
        assert raised.value.fault is BatchFault.BATCH_LIMIT
        assert partition.appended == 2
