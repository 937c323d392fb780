"""Numbered sends as bytes: what is written is read again, and anything shorter is refused."""

from __future__ import annotations

import pytest

from whippet.app.client.batching import pack
from whippet.app.commands.requests import Partitioning, PartitioningKind, SendMessages
from whippet.app.errors import Code, CommandError
from whippet.storage.producers import Producer
from whippet.transports.wire import numbered_sends
from whippet.transports.wire.modern import requests

TO = Partitioning(PartitioningKind.PARTITION_ID, 7)
PRODUCER = Producer("zähler".encode(), 2**32 - 1, 2**64 - 1)


def test_a_numbered_send_is_read_as_it_was_written_and_refused_if_it_is_cut_off() -> None:
    batch = pack([b"a", b"b"])
    request = SendMessages("s", 3, TO, (batch,), producer=PRODUCER)
    octets = b"".join(numbered_sends.encode(request))
    found = numbered_sends.decode(memoryview(octets))
    assert (found.stream, found.topic, found.partitioning, found.producer) == ("s", 3, TO, PRODUCER)
    assert bytes(found.batches[0]) == batch
    assert requests.decode(numbered_sends.CODE, memoryview(octets)) == found
    for length in range(len(octets) - len(batch) + 255):
        with pytest.raises(CommandError):
            numbered_sends.decode(memoryview(octets[:length]))


@pytest.mark.parametrize("identity", [b"", b"x" * 65])
def test_the_id_of_a_producer_has_its_limits(identity: bytes) -> None:
    octets = bytes([len(identity)]) + identity + bytes(12)
    with pytest.raises(CommandError) as refused:
        numbered_sends.decode(memoryview(octets))
    assert refused.value.code is Code.INVALID_PRODUCER
