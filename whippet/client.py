"""An async client for Python programs: a connection, and producers and consumers on it.

    from whippet.client import connect, consumer, producer

    async with await connect("iggy://iggy:<password>@localhost:8090") as client:
        async with producer(client, "orders", "eu") as orders:
            await orders.send(b"the first order")
        async with consumer(client, "orders", "eu", "billing", follow=False) as received:
            async for message in received:
                print(message.offset, message.payload)

Every command of the server is a method of the client as well: `await client.create_stream("orders")`. The names in
`__all__` are public, and stay when the modules that define them change. docs/python.md describes them.
"""

from __future__ import annotations

from typing import Any, Literal, overload

from whippet.app.client import (
    AutoCommit,
    Client,
    Consumer,
    Disconnected,
    FailedSend,
    GroupConsumer,
    Producer,
    Received,
    Reconnect,
    SendsFailed,
)
from whippet.app.client.commands import FIRST, LAST, NEXT, by_key, from_offset, from_time, to_partition
from whippet.app.client.sync import SyncClient, SyncConsumer, SyncProducer, connect_sync
from whippet.app.commands.requests import Identifier
from whippet.app.errors import Code, CommandError
from whippet.storage.batch import Message

__all__ = [
    "FIRST",
    "LAST",
    "NEXT",
    "AutoCommit",
    "Client",
    "Code",
    "CommandError",
    "Consumer",
    "Disconnected",
    "FailedSend",
    "GroupConsumer",
    "Identifier",
    "Message",
    "Producer",
    "Received",
    "Reconnect",
    "SendsFailed",
    "SyncClient",
    "SyncConsumer",
    "SyncProducer",
    "by_key",
    "connect",
    "connect_sync",
    "consumer",
    "from_offset",
    "from_time",
    "producer",
    "to_partition",
]

connect = Client.connect


def producer(client: Client, stream: Identifier, topic: Identifier, **options: Any) -> Producer:
    """Returns a producer for one topic, given by id or name. `options` are those of `Producer`, such as `linger_ms`."""
    return Producer(client, stream, topic, **options)


@overload
def consumer(
    client: Client, stream: Identifier, topic: Identifier, name: Identifier, *, group: Literal[True], **options: Any
) -> GroupConsumer: ...


@overload
def consumer(
    client: Client,
    stream: Identifier,
    topic: Identifier,
    name: Identifier,
    *,
    group: Literal[False] = False,
    **options: Any,
) -> Consumer: ...


def consumer(
    client: Client, stream: Identifier, topic: Identifier, name: Identifier, *, group: bool = False, **options: Any
) -> Consumer | GroupConsumer:
    """Returns a consumer that reads one partition, or, with `group=True`, a member of the consumer group of that name,
    which reads the partitions assigned to it. `options` are those of `Consumer` or of `GroupConsumer`."""
    if group:
        return GroupConsumer(client, stream, topic, name, **options)
    return Consumer(client, stream, topic, name, **options)
