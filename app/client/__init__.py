"""A small async client: the command line, the benchmark, Spark and tests are its users.

    async with await Client.connect("iggy://user:password@localhost:8090") as client:
        await client.create_stream("orders")

Every command is a method that gives a future: requests that are not awaited one by one travel together, and their
answers come in order. A refusal is a CommandError with the number that the server gave it; a connection that is gone
is a Disconnected. `Producer`, `Consumer` and `GroupConsumer` are built on these commands and nothing else.

A program that sends megabytes starts with `allocator.keep_freed_memory()`: encoding 1 MB then takes a seventh.
"""

from whippet.app.client.auto_commit import AutoCommit
from whippet.app.client.batching import pack
from whippet.app.client.client import Client, Reconnect
from whippet.app.client.connection import Connection, Disconnected
from whippet.app.client.consumer import Consumer, GroupConsumer, Received
from whippet.app.client.producer import FailedSend, Producer, SendsFailed

__all__ = [
    "AutoCommit",
    "Client",
    "Connection",
    "Consumer",
    "Disconnected",
    "FailedSend",
    "GroupConsumer",
    "Producer",
    "Received",
    "Reconnect",
    "SendsFailed",
    "pack",
]
