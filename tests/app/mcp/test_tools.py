"""The tools, on a gateway in this process: what they do, what they refuse, and how their responses are bounded."""

from __future__ import annotations

import base64
import logging
from pathlib import Path
from typing import Any

import pytest

from tests.app.access.support.world import ROOT, world
from tests.app.mcp.support.working import Desk
from whippet.app.access.permissions import Permissions, StreamPermissions
from whippet.app.mcp import parameters, tools
from whippet.app.mcp.work import READ_ONLY, Group, Limits

REFERENCE = {
    "read": "ping get_cluster_metadata get_stream get_streams get_topics get_topic poll_messages get_stats get_me "
    "get_clients get_client snapshot get_consumer_groups get_consumer_group get_consumer_offset "
    "get_personal_access_tokens get_users get_user",
    "create": "create_stream create_topic create_partitions send_messages create_consumer_group create_user "
    "create_personal_access_token",
    "update": "update_stream update_topic store_consumer_offset update_user update_permissions change_password",
    "delete": "delete_stream purge_stream delete_topic purge_topic delete_partitions delete_segments "
    "delete_consumer_group delete_consumer_offset delete_personal_access_token delete_user",
}
PLACE = {"stream_id": "orders", "topic_id": "eu"}


async def with_topic(desk: Desk, partitions: int = 2) -> None:
    await desk("create_stream", name="orders")
    await desk("create_topic", stream_id="orders", name="eu", partitions_count=partitions)


def test_the_tools_are_those_of_the_reference() -> None:
    found: dict[str, set[str]] = {}
    for tool in tools.TABLE:
        found.setdefault(tool.group, set()).add(tool.name)
    assert found == {group: set(names.split()) for group, names in REFERENCE.items()}
    assert len(tools.TABLE) == len(tools.BY_NAME) == 41


@pytest.mark.parametrize("tool", tools.TABLE, ids=lambda tool: tool.name)
def test_the_arguments_of_a_tool_have_a_schema(tool: tools.Tool) -> None:
    schema = parameters.schema(tool.parameters)
    assert schema["type"] == "object"
    assert schema["additionalProperties"] is False
    assert not {"title", "description", "$ref"} & schema.keys()


async def test_streams_and_topics_are_created_shown_changed_and_deleted(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        desk = Desk(await made.root())
        assert (await desk("create_stream", name="orders"))["name"] == "orders"
        topic = await desk(
            "create_topic",
            stream_id="orders",
            name="eu",
            partitions_count=2,
            compression_algorithm="gzip",
            message_expiry="7d",
            max_size="10GB",
        )
        assert (topic["compression_algorithm"], topic["message_expiry"]) == ("gzip", 7 * 86_400_000_000)
        assert topic["max_topic_size"] == 10_000_000_000
        assert [each["name"] for each in (await desk("get_streams"))["streams"]] == ["orders"]
        assert [each["name"] for each in (await desk("get_stream", stream_id=0))["topics"]] == ["eu"]
        assert [each["name"] for each in (await desk("get_topics", stream_id="0"))["topics"]] == ["eu"]
        await desk("create_partitions", **PLACE, partitions_count=3)
        await desk("delete_partitions", **PLACE, partitions_count=1)
        assert (await desk("get_topic", **PLACE))["total"] == 4
        await desk("update_topic", **PLACE, name="europe")
        changed = await desk("get_topic", stream_id="orders", topic_id="europe")
        assert (changed["compression_algorithm"], changed["message_expiry"]) == ("gzip", 7 * 86_400_000_000)
        await desk("update_stream", stream_id="orders", name="all")
        await desk("delete_segments", stream_id="all", topic_id="europe", partition_id=0, segments_count=1)
        await desk("purge_topic", stream_id="all", topic_id="europe")
        await desk("delete_topic", stream_id="all", topic_id="europe")
        await desk("purge_stream", stream_id="all")
        await desk("delete_stream", stream_id="all")
        assert await desk("get_streams") == {"streams": [], "total": 0}


async def test_a_purge_deletes_the_messages_and_keeps_the_rest(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        desk = Desk(await made.root())
        await with_topic(desk)
        for tool, place in (("purge_topic", PLACE), ("purge_stream", {"stream_id": "orders"})):
            await desk("send_messages", **PLACE, messages=[{"payload": "a"}])
            assert (await desk("get_topic", **PLACE))["messages_count"] == 1
            assert (await desk(tool, **place))["done"].startswith("purged ")
            assert (await desk("get_topic", **PLACE))["messages_count"] == 0


async def test_what_a_tool_has_done_is_a_sentence(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        desk = Desk(await made.root())
        await with_topic(desk)
        await desk("create_consumer_group", **PLACE, name="g")
        await desk("create_user", username="alice", password="alices")
        await desk("create_personal_access_token", name="build")
        for tool, given, done in (
            ("create_partitions", {**PLACE, "partitions_count": 2}, "added 2 partitions to the topic orders/eu"),
            (
                "delete_partitions",
                {**PLACE, "partitions_count": 1},
                "deleted the last 1 partitions of the topic orders/eu",
            ),
            (
                "delete_segments",
                {**PLACE, "partition_id": 0, "segments_count": 1},
                "deleted up to 1 segments of the topic orders/eu, partition 0",
            ),
            (
                "store_consumer_offset",
                {**PLACE, "offset": 0},
                "invalid_offset",
            ),
            ("delete_consumer_group", {**PLACE, "group_id": "g"}, "deleted the group g of the topic orders/eu"),
            ("update_topic", {**PLACE, "name": "us"}, "updated topic orders/us"),
            ("delete_topic", {"stream_id": "orders", "topic_id": "us"}, "deleted the topic orders/us"),
            ("update_stream", {"stream_id": "orders", "name": "all"}, "renamed stream orders to all"),
            ("delete_stream", {"stream_id": "all"}, "deleted stream all"),
            ("update_user", {"user_id": "alice", "active": True}, "updated user alice"),
            (
                "update_permissions",
                {"user_id": "alice", "permissions": {}},
                "replaced the permissions of user alice",
            ),
            ("update_permissions", {"user_id": "alice"}, "removed the permissions of user alice"),
            (
                "change_password",
                {"user_id": "alice", "current_password": "alices", "new_password": "another"},
                "changed the password of user alice",
            ),
            ("delete_user", {"user_id": "alice"}, "deleted user alice"),
            ("delete_personal_access_token", {"name": "build"}, "deleted token build"),
        ):
            result, is_error = await desk.call(tool, **given)
            assert (result.get("done") or result["error"]) == done
            assert is_error is ("error" in result)


async def test_a_topic_keeps_its_compression_where_the_protocol_has_to_repeat_it(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        desk = Desk(await made.root(), keeps_settings=False)
        await with_topic(desk)
        await desk("update_topic", **PLACE, name="europe")
        place = {"stream_id": "orders", "topic_id": "europe"}
        await desk("update_topic", **place, name="eu", compression_algorithm="gzip")
        assert await desk.refused("update_topic", **PLACE, name="europe") == "invalid_arguments"
        assert (await desk("get_topic", **PLACE))["compression_algorithm"] == "gzip"


async def test_messages_are_sent_and_polled(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        desk = Desk(await made.root())
        await with_topic(desk)
        messages = [
            {"payload": "hello", "id": str(2**128 - 1)},
            {"payload": "world", "id": 7},
            {"payload": base64.b64encode(b"\xff").decode(), "encoding": "base64"},
        ]
        to_first = {**PLACE, "partitioning": "partition", "partition_id": 0}
        assert await desk("send_messages", **to_first, messages=messages) == {"messages_count": 3, "size_bytes": 11}
        await desk("send_messages", **PLACE, partitioning="key", messages_key="7", messages=[{"payload": "by key"}])
        await desk("send_messages", **PLACE, messages=[{"payload": "anywhere"}])
        polled = (await desk("poll_messages", **PLACE, partition_id=0))["messages"][:3]
        assert [(each["payload"], each["encoding"]) for each in polled] == [
            ("hello", "text"),
            ("world", "text"),
            ("/w==", "base64"),
        ]
        assert [each["id"] for each in polled[:2]] == [str(2**128 - 1), "7"]
        after = await desk("poll_messages", **PLACE, strategy="offset", offset=1, count=1)
        assert [each["payload"] for each in after["messages"]] == ["world"]
        assert (await desk("poll_messages", **PLACE, strategy="first", count=1))["messages"][0]["offset"] == 0
        last = await desk("poll_messages", **PLACE, strategy="last", count=2)
        assert len(last["messages"]) == 2
        # As many as were asked for: nothing was left out.
        assert "left_out" not in after
        assert "left_out" not in last
        ids = [each["id"] for each in (await desk("poll_messages", **PLACE, offset=2))["messages"]]
        assert int(ids[0]) > 2**64
        assert len((await desk("poll_messages", **PLACE, strategy="timestamp", timestamp=0))["messages"]) >= 3


async def test_only_a_poll_that_says_so_stores_the_offset_of_what_was_shown(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        desk = Desk(await made.root(), limits=Limits(items=2, response_bytes=1 << 16))
        await with_topic(desk, partitions=1)
        await desk("send_messages", **PLACE, messages=[{"payload": str(number)} for number in range(5)])
        await desk("poll_messages", **PLACE)
        assert await desk.refused("get_consumer_offset", **PLACE) == "resource_not_found"
        for shown in (["0", "1"], ["2", "3"], ["4"], []):
            polled = await desk("poll_messages", **PLACE, strategy="next", count=1000)
            assert [each["payload"] for each in polled["messages"]] == shown
        assert (await desk("get_consumer_offset", **PLACE))["stored_offset"] == 4
        assert "stored offset 1" in (await desk("store_consumer_offset", **PLACE, offset=1))["done"]
        assert (await desk("get_consumer_offset", **PLACE))["stored_offset"] == 1
        polled = await desk("poll_messages", **PLACE, offset=2, count=1, auto_commit=True)
        assert (await desk("get_consumer_offset", **PLACE))["stored_offset"] == 2
        await desk("delete_consumer_offset", **PLACE)
        assert await desk.refused("get_consumer_offset", **PLACE) == "resource_not_found"


async def test_consumer_groups_are_created_shown_and_deleted(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        desk = Desk(await made.root())
        await with_topic(desk)
        await desk("create_consumer_group", **PLACE, name="billing")
        assert [each["name"] for each in (await desk("get_consumer_groups", **PLACE))["groups"]] == ["billing"]
        assert (await desk("get_consumer_group", **PLACE, group_id="billing"))["members"] == []
        await desk("delete_consumer_group", **PLACE, group_id="billing")
        assert await desk.refused("get_consumer_group", **PLACE, group_id="billing") == "resource_not_found"


async def test_users_and_tokens_are_created_changed_and_deleted(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        desk = Desk(await made.root())
        granted = {"global": {"read_streams": True}, "streams": {"3": {"topics": {"4": {"poll_messages": True}}}}}
        user = await desk("create_user", username="alice", password="alices", active=True, permissions=granted)
        assert (user["status"], user["global_permissions"]) == ("active", ["read_streams"])
        assert user["stream_permissions"] == ["3#4:poll_messages"]
        await desk("update_permissions", user_id="alice", permissions={"global": {"poll_messages": True}})
        await desk("update_user", user_id="alice", username="bob", active=False)
        shown = await desk("get_user", user_id="bob")
        assert (shown["status"], shown["global_permissions"]) == ("inactive", ["poll_messages"])
        await desk("update_permissions", user_id="bob")
        assert (await desk("get_user", user_id="bob"))["global_permissions"] == []
        await desk("change_password", user_id="bob", current_password="alices", new_password="another")
        assert [each["name"] for each in (await desk("get_users"))["users"]] == [ROOT["IGGY_ROOT_USERNAME"], "bob"]
        await desk("delete_user", user_id="bob")
        assert len((await desk("create_personal_access_token", name="build", expiry="1d"))["token"]) > 20
        (token,) = (await desk("get_personal_access_tokens"))["tokens"]
        assert token["name"] == "build"
        assert token["expires_at"] > 0
        await desk("delete_personal_access_token", name="build")


async def test_the_server_and_its_clients_are_shown(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        person = await made.root()
        desk = Desk(person)
        assert (await desk("ping"))["number"] == 1
        assert (await desk("get_stats"))["streams_count"] == 0
        assert (await desk("get_me"))["id"] == person.session.client_id
        assert person.session.client_id in [each["id"] for each in (await desk("get_clients"))["clients"]]
        assert (await desk("get_client", client_id=person.session.client_id))["transport"] == "tcp"
        assert (await desk("get_cluster_metadata"))["nodes"][0]["role"] == "leader"
        (file,) = (await desk("snapshot", types=["resource_usage"]))["files"]
        assert file["name"] == "resource_usage.txt"
        assert len(file["text"]) == file["size_bytes"]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("get_stream", {}),
        ("get_stream", {"stream_id": "orders", "topic": "eu"}),
        ("get_stream", {"stream_id": ""}),
        ("get_stream", {"stream_id": "x" * 256}),
        ("get_stream", {"stream_id": "9" * 5000}),
        ("get_stream", {"stream_id": 2**32}),
        ("get_stream", {"stream_id": -1}),
        ("send_messages", {**PLACE, "messages": [{"payload": "a", "id": "\u0661"}]}),
        ("send_messages", {**PLACE, "messages": [{"payload": "a"}], "partitioning": "key", "messages_key": ""}),
        ("store_consumer_offset", {**PLACE, "offset": 2**64}),
        ("get_stream", {"stream_id": 10**400}),
        ("get_stream", {"stream_id": "\ud800"}),
        ("get_stream", {"stream_id": None}),
        ("get_streams", {"skip": -1}),
        ("get_client", {"client_id": 2**32}),
        ("create_stream", {"name": ""}),
        ("create_topic", {"stream_id": 0, "name": "t", "partitions_count": 10**9}),
        ("create_topic", {"stream_id": 0, "name": "t", "partitions_count": 1, "message_expiry": "soon"}),
        ("create_topic", {"stream_id": 0, "name": "t", "partitions_count": 1, "max_size": "big"}),
        ("create_topic", {"stream_id": 0, "name": "t", "partitions_count": 1, "compression_algorithm": "zip"}),
        ("poll_messages", {**PLACE, "strategy": "timestamp", "timestamp": -1}),
        ("poll_messages", {**PLACE, "count": 0}),
        ("poll_messages", {**PLACE, "offset": 2**64}),
        ("send_messages", {**PLACE, "messages": []}),
        ("send_messages", {**PLACE, "messages": [{"payload": "?", "encoding": "base64"}]}),
        ("send_messages", {**PLACE, "messages": [{"payload": "a", "id": 2**128}]}),
        ("send_messages", {**PLACE, "messages": [{"payload": "a", "id": "one"}]}),
        ("send_messages", {**PLACE, "messages": [{"payload": "a"}], "partitioning": "key"}),
        ("send_messages", {**PLACE, "messages": [{"payload": "a"}], "partition_id": 0}),
        ("send_messages", {**PLACE, "messages": [{"payload": "a"}], "partitioning": "key", "messages_key": "k" * 256}),
        ("create_user", {"username": "a", "password": "abcd", "permissions": {"global": {"fly": True}}}),
        ("snapshot", {"types": ["everything"]}),
    ],
)
async def test_invalid_arguments_are_refused_before_the_server_is_asked(
    tmp_path: Path, name: str, arguments: dict[str, Any]
) -> None:
    async with world(tmp_path) as made:
        person = await made.root()
        await with_topic(Desk(person))
        person.session.stale = True
        assert await Desk(person).refused(name, **arguments) == "invalid_arguments"


async def test_refusals_have_the_name_of_the_error_of_the_server(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        desk = Desk(await made.root())
        await with_topic(desk)
        assert await desk.refused("create_stream", name="orders") == "stream_name_already_exists"
        assert await desk.refused("delete_topic", stream_id="orders", topic_id="us") == "topic_id_not_found"
        assert await desk.refused("get_topics", stream_id="none") == "resource_not_found"
        assert await desk.refused("get_stream", stream_id=2**32 - 1) == "resource_not_found"
        assert await desk.refused("get_client", client_id=2**32 - 1) == "resource_not_found"
        assert await desk.refused("get_stream", stream_id="x" * 255) == "resource_not_found"
        assert await desk.refused("send_messages", **PLACE, messages=[{"payload": ""}]) == "empty_message_payload"


async def test_the_permissions_of_the_user_count(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await with_topic(Desk(await made.root()))
        await made.user(permissions=Permissions(streams={0: StreamPermissions(read_stream=True)}))
        alice = Desk(await made.logged_in())
        assert (await alice("get_stream", stream_id="orders"))["name"] == "orders"
        assert await alice.refused("get_streams") == "unauthorized"
        assert await alice.refused("delete_stream", stream_id="orders") == "unauthorized"
        assert await alice.refused("get_users") == "unauthorized"


async def test_what_is_not_allowed_is_refused_before_anything_is_done(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        person = await made.root()
        await with_topic(Desk(person))
        await Desk(person)("send_messages", **PLACE, messages=[{"payload": "a"}])
        reader = Desk(person, allowed=READ_ONLY)
        for tool in tools.TABLE:
            if tool.group is not Group.READ:
                # Not even the arguments are looked at.
                assert await reader.refused(tool.name) == "read_only", tool.name
        assert await reader.refused("poll_messages", **PLACE, strategy="next") == "read_only"
        assert await reader.refused("poll_messages", **PLACE, auto_commit=True) == "read_only"
        assert await reader.refused("get_consumer_offset", **PLACE) == "resource_not_found"
        creator = Desk(person, allowed=READ_ONLY | {Group.CREATE})
        await creator("create_stream", name="another")
        assert await creator.refused("delete_stream", stream_id="another") == "not_allowed"


async def test_every_change_is_logged_without_secrets(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with world(tmp_path) as made:
        desk = Desk(await made.root())
        with caplog.at_level(logging.INFO, "whippet.app.mcp.changes"):
            await with_topic(desk)
            await desk("send_messages", **PLACE, messages=[{"payload": "a secret"}])
            await desk("create_user", username="alice", password="her secret")
            await desk("change_password", user_id=1, current_password="her secret", new_password="its secret")
            await desk.refused("delete_stream", stream_id="x" * 1000)
            await desk("poll_messages", **PLACE, strategy="next")
            await desk("get_streams")
        lines = [record.getMessage() for record in caplog.records if record.name == "whippet.app.mcp.changes"]
        assert [line.split(" mcp ")[1].split(" ")[0] for line in lines] == [
            *("create_stream", "create_topic", "send_messages", "create_user", "change_password"),
            *("delete_stream", "poll_messages"),
        ]
        assert lines[0] == 'somewhere, user \'root\': mcp create_stream {"name":"orders"}: done'
        assert '"messages":"1 messages"' in lines[2]
        assert lines[5].endswith(": invalid_arguments")
        assert len(lines[5]) < 400
        assert "secret" not in "".join(lines)


async def test_a_long_list_is_cut_and_says_how_to_get_the_rest(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        desk = Desk(await made.root(), limits=Limits(items=4, response_bytes=1 << 16))
        for number in range(10):
            await desk("create_stream", name=f"s{number}")
        found, skip = [], 0
        while True:
            page = await desk("get_streams", skip=skip)
            found += [each["name"] for each in page["streams"]]
            if "left_out" not in page:
                break
            assert page["left_out"] == {
                "count": 10 - len(found),
                "more": f"call the tool again with skip={len(found)}",
            }
            skip = len(found)
        assert found == [f"s{number}" for number in range(10)]
        assert page["total"] == 10
        topic = await desk("create_topic", stream_id="s0", name="t", partitions_count=6)
        assert len(topic["partitions"]) == 4
        assert topic["left_out"]["more"] == "call get_topic with stream_id=s0, topic_id=0 and skip=4"
        assert len((await desk("get_topic", stream_id="s0", topic_id="t", skip=4))["partitions"]) == 2
        assert (await desk("get_topic", stream_id="s0", topic_id="t", skip=99))["partitions"] == []


@pytest.mark.parametrize("payload", ["x", '"', "\x00", "ü", "😀"])
async def test_no_response_is_longer_than_its_limit(tmp_path: Path, payload: str) -> None:
    async with world(tmp_path) as made:
        desk = Desk(await made.root(), limits=Limits(items=100, response_bytes=4096))
        await with_topic(desk, partitions=1)
        await desk("send_messages", **PLACE, messages=[{"payload": payload * 900}] * 9)
        offsets: list[int] = []
        polled: Any = {"left_out": True}
        while "left_out" in polled:
            offset = offsets[-1] + 1 if offsets else 0
            polled = await desk("poll_messages", **PLACE, offset=offset, count=1000)
            if not polled["messages"]:
                break
            for message in polled["messages"]:
                assert payload * 900 == message["payload"] or "left_out" in message
                assert payload * 900 != message["payload"] or "left_out" not in message
                assert message.get("payload_bytes", len(payload.encode()) * 900) == len(payload.encode()) * 900
            offsets += [message["offset"] for message in polled["messages"]]
        assert offsets == list(range(9))
        assert desk.longest <= 4096
        await desk("snapshot")
        assert desk.longest <= 4096
        await desk.refused("get_stream", stream_id=payload * 127)
        assert desk.longest <= 4096


@pytest.mark.parametrize(
    ("payload", "encoding"),
    [
        (b"x" * 9000, "text"),
        ("ü😀".encode() * 2000, "text"),
        (b"\xff" * 9000, "base64"),
        (b"x" * 9000 + b"\xff", "text"),
    ],
)
async def test_a_message_that_is_too_long_is_cut_at_a_whole_character(
    tmp_path: Path, payload: bytes, encoding: str
) -> None:
    async with world(tmp_path) as made:
        desk = Desk(await made.root(), limits=Limits(items=100, response_bytes=4096))
        await with_topic(desk, partitions=1)
        encoded = [{"payload": base64.b64encode(payload).decode(), "encoding": "base64"}]
        await desk("send_messages", **PLACE, messages=encoded)
        (message,) = (await desk("poll_messages", **PLACE))["messages"]
        assert (message["payload_bytes"], message["encoding"]) == (len(payload), encoding)
        shown = message["payload"]
        beginning = shown.encode() if encoding == "text" else base64.b64decode(shown, validate=True)
        assert len(beginning) > 1000
        assert payload.startswith(beginning)
        assert desk.longest <= 4096
