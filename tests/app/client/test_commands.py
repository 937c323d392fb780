"""Every command once, over a real connection: requests are executed and responses decoded."""

from __future__ import annotations

import asyncio
import inspect
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.app.access.support.world import refusal
from tests.app.client.support.server import Server, connected, serving
from tests.storage.support.world import texts
from whippet.app.access.permissions import GlobalPermissions, Permissions
from whippet.app.client.commands import FIRST, LAST, Commands, by_key, from_offset, from_time, to_partition
from whippet.app.commands.registry import COMMANDS
from whippet.app.commands.requests import Consumer, ConsumerKind, UserStatus
from whippet.app.errors import Code, CommandError
from whippet.app.model.options import Option, OptionScope, ValueKind
from whippet.storage import batch as batches
from whippet.storage.batch import Message

ME = Consumer(ConsumerKind.CONSUMER, "me")


def test_there_is_a_method_for_every_command_but_those_that_a_cluster_needs() -> None:
    methods = {name for name, _ in inspect.getmembers(Commands, inspect.isfunction)} - {"call"}
    of_clusters = {"attach_session", "get_poll_routing", "get_offset_routing"}
    of_0_12 = {"get_partition_route", "poll_messages_deferred", "await_messages", "fetch_messages"}
    assert methods == {command.name for command in COMMANDS} - of_clusters - of_0_12


async def test_system_commands(tmp_path: Path) -> None:
    async with connected(tmp_path) as (_, client):
        await client.ping()
        stats = await client.get_stats()
        assert (stats.streams_count, stats.topics_count) == (1, 1)
        assert (await client.get_snapshot(types=(2,))).content.startswith(b"PK")
        assert len((await client.get_cluster_metadata()).nodes) == 1
        if Server.transport == "http":
            # Its requests belong to no connection.
            assert (stats.clients_count, await client.get_clients()) == (0, ())
            assert await client.get_client(1) is None
            return
        assert stats.clients_count == 1
        me = await client.get_me()
        assert me.address.startswith("127.0.0.1:")
        assert await client.get_client(me.client_id) == me
        assert await client.get_client(me.client_id + 1) is None
        assert [one.client_id for one in await client.get_clients()] == [me.client_id]


async def test_what_http_does_not_have_is_refused_by_its_name(tmp_path: Path) -> None:
    async with connected(tmp_path) as (_, client):
        if Server.transport != "http":
            assert (await client.get_me()).user_id == 0
            return
        with pytest.raises(CommandError, match="GetMe is not in the HTTP API") as refused:
            await client.get_me()
        assert refused.value.code is Code.FEATURE_UNAVAILABLE
        assert await refusal(client.get_stream("5")) == Code.INVALID_IDENTIFIER
        assert await refusal(client.send_messages("s", "t", [b"x"], by_key(b"\xff"))) == Code.INVALID_KEY_VALUE_LENGTH


async def test_commands_that_the_classic_protocol_does_not_have(tmp_path: Path) -> None:
    async with connected(tmp_path) as (_, client):
        await client.create_consumer_group("s", "t", "g")
        if Server.wire == "classic" and Server.transport != "http":
            assert await refusal(client.describe_options(OptionScope.TOPIC)) == Code.FEATURE_UNAVAILABLE
            return
        assert "durability" in {option.key for option in await client.describe_options(OptionScope.TOPIC)}
        assert await client.describe_options(OptionScope.STREAM) == ()
        option = Option("durability", ValueKind.STRING, b"persisted")
        made = await client.create_topic("s", "safe", options=[option])
        assert made.info.explicit == (option,)
        assert await client.sync_consumer_group("s", "t", "g") is None
        await client.join_consumer_group("s", "t", "g")
        assigned = await client.sync_consumer_group("s", "t", "g")
        assert assigned is not None
        assert assigned.partitions == (0,)


async def test_users_and_their_tokens(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, await server.client() as client:
        reader = Permissions(GlobalPermissions(read_streams=True))
        alice = (await client.create_user("alice", "secret", reader)).info.id
        assert [user.username for user in await client.get_users()] == ["root", "alice"]
        await client.update_user(alice, username="bob")
        await client.update_permissions("bob", None)
        await client.change_password("bob", "secret", "another")
        bob = await client.get_user("bob")
        assert bob is not None
        assert (bob.info.id, bob.permissions) == (alice, None)
        assert await client.get_user("alice") is None

        async with await server.client() as other:
            await other.login_user("bob", "another")
            token = (await other.create_personal_access_token("build")).token
            assert [one.name for one in await other.get_personal_access_tokens()] == ["build"]
            await other.logout_user()
            assert await refusal(other.get_streams()) == Code.UNAUTHENTICATED
            assert (await other.login_with_personal_access_token(token)).user_id == alice
            await other.delete_personal_access_token("build")
            assert await refusal(other.get_stats()) == Code.UNAUTHORIZED

        await client.update_user("bob", status=UserStatus.INACTIVE)
        await client.delete_user("bob")
        assert await client.get_user(alice) is None


async def test_streams_topics_and_partitions(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, await server.client() as client:
        stream = await client.create_stream("orders")
        assert await client.get_stream("orders") == stream
        assert await client.get_streams() == (stream.info,)
        await client.update_stream("orders", "sales")
        topic = await client.create_topic("sales", "created", 2, message_expiry=1_000_000)
        assert await client.get_topic(stream.info.id, "created") == topic
        assert await client.get_topics("sales") == (topic.info,)
        assert topic.info.message_expiry == 1_000_000
        await client.update_topic("sales", "created", "made")
        await client.create_partitions("sales", "made", 3)
        await client.delete_partitions("sales", "made", 1)
        made = await client.get_topic("sales", "made")
        assert made is not None
        assert len(made.partitions) == 4
        await client.delete_segments("sales", "made", 0, 1)
        await client.purge_topic("sales", "made")
        await client.purge_stream("sales")
        await client.delete_topic("sales", "made")
        assert await client.get_topic("sales", "made") is None
        await client.delete_stream("sales")
        assert await client.get_stream("sales") is None
        assert await client.get_streams() == ()
        assert await client.get_topics("sales") == ()


async def test_messages_and_offsets(tmp_path: Path) -> None:
    async with connected(tmp_path, partitions=2) as (_, client):
        await client.send_messages("s", "t", [b"a", b"b"], to_partition(1))
        await client.send_messages("s", "t", [Message(b"c", id=7, user_headers=b"h"), b"d"], to_partition(1))
        await client.send_messages("s", "t", texts("e"), to_partition(1))
        await client.flush_unsaved_buffer("s", "t", 1, fsync=True)

        async def poll(**options: object) -> list[batches.StoredMessage]:
            polled = await client.poll_messages("s", "t", ME, partition_id=1, **options)  # type: ignore[arg-type]
            found = [message for batch in polled.batches for message in batches.messages(batch)]
            assert len(found) == polled.messages_count
            assert (polled.partition_id, polled.current_offset) == (1, 4)
            return found

        everything = await poll(strategy=FIRST)
        assert [message.payload for message in everything] == [b"a", b"b", b"c", b"d", b"e"]
        assert (everything[2].id, everything[2].user_headers) == (7, b"h")
        assert len({message.id for message in everything} - {0}) == 5
        assert await poll(strategy=LAST, count=2) == everything[-2:]
        assert await poll(strategy=from_offset(3)) == everything[3:]
        assert await poll(strategy=from_time(everything[-1].timestamp + 1)) == []
        assert await poll(count=1, auto_commit=True) == everything[:1]
        assert await poll(count=1) == everything[1:2]

        stored = await client.get_consumer_offset("s", "t", ME, 1)
        assert stored is not None
        assert (stored.current_offset, stored.stored_offset) == (4, 0)
        await client.store_consumer_offset("s", "t", ME, 4, 1)
        assert await poll() == []
        await client.delete_consumer_offset("s", "t", ME, 1)
        assert await client.get_consumer_offset("s", "t", ME, 1) is None
        assert await refusal(client.delete_consumer_offset("s", "t", ME, 1)) == Code.CONSUMER_OFFSET_NOT_FOUND

        await client.send_messages("s", "t", [b"f"], by_key(b"key"))
        await client.send_messages("s", "t", [b"g"])
        topic = await client.get_topic("s", "t")
        assert topic is not None
        assert topic.info.messages_count == 7


async def test_consumer_groups(tmp_path: Path) -> None:
    async with connected(tmp_path, partitions=2) as (_, client):
        group = await client.create_consumer_group("s", "t", "g")
        assert await client.get_consumer_groups("s", "t") == (group.info,)
        await client.join_consumer_group("s", "t", "g")
        joined = await client.get_consumer_group("s", "t", group.info.id)
        assert joined is not None
        assert [member.partitions for member in joined.members] == [(0, 1)]
        await client.leave_consumer_group("s", "t", "g")
        await client.delete_consumer_group("s", "t", "g")
        assert await client.get_consumer_group("s", "t", "g") is None


async def test_concurrent_requests_travel_together_and_get_responses_in_order(tmp_path: Path) -> None:
    async with connected(tmp_path) as (_, client):
        answered: list[int] = []

        def note(number: int, _: asyncio.Future[Any]) -> None:
            answered.append(number)

        requests: list[asyncio.Future[Any]] = []
        for number in range(300):
            match number % 3:
                case 0:
                    requests.append(client.send_messages("s", "t", [b"x" * number * 100 or b"x"]))
                case 1:
                    requests.append(client.get_topic("s", "t"))
                case _:
                    requests.append(client.get_stream("no such stream"))
            requests[-1].add_done_callback(partial(note, number))
        answers = await asyncio.gather(*requests)
        assert answered == list(range(300))
        assert [answer.info.messages_count for answer in answers[1::3]] == list(range(1, 101))
        assert answers[2::3] == [None] * 100


async def test_a_refusal_has_its_number_and_affects_no_other_request(tmp_path: Path) -> None:
    async with connected(tmp_path) as (_, client):
        refused = client.create_stream("s"), client.delete_stream("none"), client.create_stream("x" * 300)
        good = client.get_stream("s")
        assert await refusal(refused[0]) == Code.STREAM_NAME_ALREADY_EXISTS
        assert await refusal(refused[1]) == Code.STREAM_ID_NOT_FOUND
        assert await refusal(refused[2]) == Code.INVALID_FORMAT
        assert await good is not None
        assert await refusal(client.get_client(0)) == Code.INVALID_CLIENT_ID


async def test_a_cancelled_request_does_not_shift_the_responses(tmp_path: Path) -> None:
    async with connected(tmp_path) as (_, client):
        client.get_streams().cancel()
        streams = client.get_streams()
        client.get_users().cancel()
        assert (await client.get_stats()).topics_count == 1
        assert [stream.name for stream in await streams] == ["s"]


async def test_responses_are_assembled_from_pieces_of_any_size(tmp_path: Path) -> None:
    async with connected(tmp_path) as (_, client):
        sizes = [1, 65_000, 3, 1_000_000, 60_000, 65_528, 65_536, 200_000]
        for size in sizes:
            await client.send_messages("s", "t", [b"x" * size])
        polls = [
            client.poll_messages("s", "t", ME, partition_id=0, strategy=from_offset(offset), count=count)
            for offset, count in ((0, 1), (0, 8), (3, 1), (4, 2), (0, 1), (5, 3))
        ]
        found = [
            [len(message.payload) for batch in (await polled).batches for message in batches.messages(batch)]
            for polled in polls
        ]
        assert found == [sizes[:1], sizes, sizes[3:4], sizes[4:6], sizes[:1], sizes[5:]]


async def test_a_send_to_a_topic_that_is_full_and_deletes_nothing_is_refused(tmp_path: Path) -> None:
    async with connected(tmp_path, segment_bytes=1024, delete_oldest_segments=False) as (_, client):
        await client.create_topic("s", "small", max_topic_size=1024)
        await client.send_messages("s", "small", [b"x" * 500])
        assert await refusal(client.send_messages("s", "small", [b"x" * 500])) == Code.TOPIC_FULL
        await client.purge_topic("s", "small")
        await client.send_messages("s", "small", [b"x" * 500])
