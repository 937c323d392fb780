"""The body of a 0.12 send: that of a 0.9 send, whose batch may name its producer and the number of its first message in
its header. These are removed before the batch goes to the log: see transports/send_checks.py.
"""

from __future__ import annotations

import msgspec

from whippet.app.commands.requests import PartitioningKind, SendMessages
from whippet.app.errors import Code, CommandError, of_storage
from whippet.storage.batch_producer import producer_of
from whippet.storage.errors import InvalidBatch
from whippet.storage.producers import Producer
from whippet.transports.wire.modern import sends as modern

_KIND = b"\0"
"""Before the id: no id that is sent as a text can begin like this."""


def decode(body: memoryview) -> SendMessages:
    request = modern.decode(body)
    try:
        found = producer_of(request.batches[0])
    except InvalidBatch as error:
        raise of_storage(error) from error
    if found is None:
        return request
    if request.partitioning.kind is not PartitioningKind.PARTITION_ID:
        raise CommandError(Code.PRODUCER_WITHOUT_PARTITION)
    identity = _KIND + found.producer_id.to_bytes(8, "little")
    producer = Producer(identity, found.epoch, found.sequence, counts_messages=True)
    return msgspec.structs.replace(request, producer=producer)
