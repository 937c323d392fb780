"""The client without `await`: every method, producers, consumers, and how it ends."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.app.client.support.server import Server, serving
from whippet.app.client import AutoCommit, Client, sync_types
from whippet.app.client.blocking import public_methods
from whippet.app.client.commands import FIRST, Commands, to_partition
from whippet.app.client.sync import SyncClient, connect_sync
from whippet.app.errors import Code, CommandError

STUB = Path(__file__).parents[3] / "app" / "client" / "sync.pyi"


async def in_thread(program: Callable[[str], None], path: Path) -> None:
    """Runs a program as one that has no event loop, against a server that has one."""
    async with serving(path) as server:
        await asyncio.to_thread(program, server.address)


def test_there_is_every_method_of_the_client_and_the_types_are_up_to_date() -> None:
    assert public_methods(Commands).keys() <= public_methods(SyncClient).keys()
    assert inspect.signature(SyncClient.create_topic) == inspect.signature(Client.create_topic)
    assert STUB.read_text() == sync_types.stub(), "run `make docs`"


@pytest.mark.parametrize("over", ["classic", "quic", "ws", "http"], indirect=True)
async def test_commands_producers_and_consumers_wait_for_their_results(tmp_path: Path) -> None:
    def program(address: str) -> None:
        with connect_sync(address) as client:
            client.create_stream("s")
            assert client.create_topic("s", "t", 2).info.name == "t"
            with pytest.raises(CommandError) as refused:
                client.create_stream("s")
            assert refused.value.code is Code.STREAM_NAME_ALREADY_EXISTS
            with client.producer("s", "t", linger_ms=0, partitioning=to_partition(1), numbered=True) as producer:
                producer.send(b"a").wait()
                sent = producer.send_all([b"b", b"c"])
                producer.flush()
                assert sent.done
            with pytest.raises(CommandError):
                producer.send(b"d")
            with client.consumer("s", "t", "c", partition_id=1, strategy=FIRST, follow=False) as consumer:
                assert [message.payload for message in consumer] == [b"a", b"b", b"c"]
            with client.consumer("s", "t", "c", partition_id=1, follow=False) as consumer:
                assert list(consumer) == []
            with client.consumer("s", "t", "g", group=True, follow=False, auto_commit=AutoCommit.off()) as member:
                assert next(member).payload == b"a"
                member.commit()
                assert next(member).payload == b"b"
            with client.consumer("s", "t", "g", group=True, follow=False) as member:
                assert [message.payload for message in member] == [b"a", b"b", b"c"]
        client.close()
        assert not client.is_connected
        with pytest.raises(RuntimeError, match="is closed"):
            client.ping()

    threads = threading.active_count()
    await in_thread(program, tmp_path)
    assert threading.active_count() <= threads + 1, "the thread of the client has ended"


async def test_a_failed_login_leaves_no_thread(tmp_path: Path) -> None:
    def program(address: str) -> None:
        with pytest.raises(CommandError):
            connect_sync(address.replace("root:", "nobody:"))
        assert not [each for each in threading.enumerate() if each.name == "whippet client"]

    await in_thread(program, tmp_path)


async def test_each_message_is_committed_in_the_mode_for_that(tmp_path: Path) -> None:
    def program(address: str) -> None:
        with connect_sync(address) as client:
            client.create_stream("s")
            client.create_topic("s", "t")
            client.send_messages("s", "t", [b"a", b"b", b"c"])
            with client.consumer("s", "t", "c", auto_commit=AutoCommit.each_message()) as consumer:
                assert [next(consumer).payload, next(consumer).payload] == [b"a", b"b"]
                # As if it had crashed: what was returned last is not processed.
                consumer.close(processed=False)
            with client.consumer("s", "t", "c", follow=False) as again:
                assert [message.payload for message in again] == [b"b", b"c"]

    assert Server.transport == "tcp"
    await in_thread(program, tmp_path)
