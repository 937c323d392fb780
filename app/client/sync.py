"""The client without `await`: `connect_sync` returns a `SyncClient`, with every method of `Client`.

    with connect_sync("iggy://user:password@localhost:8090") as client:
        client.create_stream("orders")

The asynchronous client runs in a thread; each call waits until that has the result. So a program gains nothing from
several calls at once, except from several threads. `sync.pyi` has the types, and is made from the asynchronous classes
(sync_types.py), like the methods.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from whippet.app.client.address import Reconnect
from whippet.app.client.blocking import LoopThread, public_methods, waiting
from whippet.app.client.client import Client
from whippet.app.client.commands import Commands
from whippet.app.client.consumer import Consumer, GroupConsumer, Received
from whippet.app.client.producer import Delivery, Producer
from whippet.app.commands.requests import Identifier, Partitioning


def connect_sync(address: str, *, tls: ssl.SSLContext | None = None, reconnect: Reconnect | None = None) -> SyncClient:
    """Connects and logs in, like `connect`."""
    thread = LoopThread()
    try:
        client = thread.call(Client.connect, address, tls=tls, reconnect=reconnect)
    except BaseException:
        thread.stop()
        raise
    return SyncClient(thread, client)


class SyncClient:
    """Created by `connect_sync`; ended by `close`, or as a context manager."""

    def __init__(self, thread: LoopThread, client: Client) -> None:
        self._thread = thread
        self._client = client

    @property
    def is_connected(self) -> bool:
        return self._client.is_connected

    def producer(self, stream: Identifier, topic: Identifier, **options: Any) -> SyncProducer:
        """Returns a producer for one topic, with the options of `Producer`."""
        return SyncProducer(self._thread, self._thread.call(Producer, self._client, stream, topic, **options))

    def consumer(
        self, stream: Identifier, topic: Identifier, name: Identifier, *, group: bool = False, **options: Any
    ) -> SyncConsumer:
        """Returns a consumer of one partition, or a member of a group, with the options of `Consumer` or
        `GroupConsumer`."""
        kind = GroupConsumer if group else Consumer
        return SyncConsumer(self._thread, self._thread.call(kind, self._client, stream, topic, name, **options))

    def close(self) -> None:
        """Idempotent."""
        if self._thread.is_running:
            self._thread.call(self._client.close)
            self._thread.stop()

    def __enter__(self) -> SyncClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


for _name, _method in public_methods(Commands).items():
    setattr(SyncClient, _name, waiting(_method, "_client"))
SyncClient.call = waiting(Client.call, "_client")
SyncClient.reconnect = waiting(Client.reconnect, "_client")


class SyncDelivery:
    """What `send` returns: `wait` returns when the messages were accepted, and raises if they were not."""

    def __init__(self, thread: LoopThread, delivery: Delivery) -> None:
        self._thread = thread
        self._delivery = delivery

    def wait(self) -> None:
        self._thread.call(lambda: self._delivery)

    @property
    def done(self) -> bool:
        return self._delivery.done


class SyncProducer:
    """Created by `SyncClient.producer`; ended by `close`, or as a context manager."""

    def __init__(self, thread: LoopThread, producer: Producer) -> None:
        self._thread = thread
        self._producer = producer

    def send(self, message: Any, partitioning: Partitioning | None = None) -> SyncDelivery:
        """Accepts a message; waits only while the buffers are full."""
        return SyncDelivery(self._thread, self._thread.call(self._producer.send, message, partitioning))

    def send_all(self, messages: Any, partitioning: Partitioning | None = None) -> SyncDelivery:
        """Accepts messages as one batch: for many messages, much faster than one by one."""
        return SyncDelivery(self._thread, self._thread.call(self._producer.send_all, messages, partitioning))

    def __enter__(self) -> SyncProducer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


for _name in ("flush", "close"):
    setattr(SyncProducer, _name, waiting(getattr(Producer, _name), "_producer"))


class SyncConsumer:
    """Created by `SyncClient.consumer`. Joins its group when it is entered; a loop over it yields messages."""

    def __init__(self, thread: LoopThread, consumer: Consumer | GroupConsumer) -> None:
        self._thread = thread
        self._consumer = consumer

    def __iter__(self) -> Iterator[Received]:
        return self

    def __next__(self) -> Received:
        message = self._consumer.next_at_once()
        if message is not None:
            return message
        try:
            return self._thread.call(self._consumer.__anext__)
        except StopAsyncIteration:
            raise StopIteration from None

    def commit(self) -> None:
        """Commits everything that is processed."""
        self._thread.call(self._consumer.commit)

    def close(self, *, processed: bool = True) -> None:
        """Commits what was processed; `processed` tells whether the message returned last was."""
        self._thread.call(self._consumer.close, processed=processed)

    def __enter__(self) -> SyncConsumer:
        self._thread.call(self._consumer.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(processed=kind is None)
