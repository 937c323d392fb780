"""A small async client, used by the command line, the benchmark, Spark and tests.

    async with await Client.connect("iggy://user:password@localhost:8090") as client:
        await client.create_stream("orders")

Every command is a method that returns a future: requests that are not awaited one by one travel together, and their
responses arrive in order. A refusal is a CommandError with the server's number; a lost connection is a Disconnected.
`Producer`, `Consumer` and `GroupConsumer` use only these commands.

A program that sends megabytes starts with `memory_tuning.keep_freed_memory()`: encoding 1 MB then takes a seventh of
the time.
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
