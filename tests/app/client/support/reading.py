"""Everything that a topic of a test has."""

from __future__ import annotations

from whippet.app.client import Client
from whippet.app.client.commands import FIRST, from_offset
from whippet.app.commands.requests import Consumer, ConsumerKind
from whippet.storage import batch as batches

ME = Consumer(ConsumerKind.CONSUMER, "me")


async def stored(client: Client, partition_id: int = 0) -> list[bytes]:
    found: list[bytes] = []
    start = FIRST
    while True:
        polled = await client.poll_messages("s", "t", ME, partition_id=partition_id, strategy=start)
        if not polled.messages_count:
            return found
        found += [message.payload for batch in polled.batches for message in batches.messages(batch)]
        start = from_offset(len(found))
