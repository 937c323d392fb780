"""The channel for browsers: its commands, signing in, and invalid commands."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
import websockets

from tests.transports.websocket.support.browsing import refusal, root, sending, stranger, with_topic
from tests.transports.websocket.support.talking import talking
from whippet.app.commands import registry
from whippet.transports.http import routes
from whippet.transports.websocket.commands import ALIASES, NOT_HERE, OWN, Command

ELSEWHERE = {
    "get_me": "get_session; `get_me` is the user, as over HTTP",
    "attach_session": "of sessions that 0.9 clients register",
    "get_poll_routing": "for clients that look for the node of a partition",
    "get_offset_routing": "for clients that look for the node of a partition",
    "join_consumer_group": "join_consumer_group",
    "get_partition_route": "for clients that ask where a partition is before they send to it",
    "await_messages": "`wait` of poll_messages, and subscriptions",
    "fetch_messages": "subscriptions to several partitions",
}


# ---------------------------------------------------------------------------------------------- the commands


def test_every_command_of_the_binary_protocols_exists_in_the_channel() -> None:
    here = {operation.name for operation in (*routes.OPERATIONS, *OWN)} - NOT_HERE | ALIASES.keys()
    missing = {command.name for command in registry.COMMANDS} - here - ELSEWHERE.keys()
    assert not missing


def test_members_of_a_command_have_unique_names() -> None:
    for operation in (*routes.OPERATIONS, *OWN):
        command = Command(operation)
        body = getattr(operation.body, "__struct_encode_fields__", ())
        names = [*command.in_path, *command.in_query, *body]
        assert len(set(names)) == len(names), operation.name
        assert not {"id", "cmd", "sub"} & set(names), operation.name


async def test_a_command_is_answered_as_over_http(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        browser = await with_topic(world)
        await browser.ask("send_messages", **sending("AAAA", "BBBB", "CCCC"))
        await browser.ask("create_consumer_group", stream="s", topic="t", name="g")
        await browser.ask("store_consumer_offset", stream="s", topic="t", consumer_id=1, partition_id=0, offset=1)
        link = await world.serves.link()
        for cmd, members, path in (
            ("get_streams", {}, "/streams"),
            ("get_stream", {"stream": 0}, "/streams/0"),
            ("get_stream", {"stream": "s"}, "/streams/s"),
            ("get_topics", {"stream": "s"}, "/streams/s/topics"),
            ("get_topic", {"stream": "s", "topic": "t"}, "/streams/s/topics/t"),
            ("get_consumer_groups", {"stream": "s", "topic": "t"}, "/streams/s/topics/t/consumer-groups"),
            ("get_users", {}, "/users"),
            ("get_me", {}, "/users/me"),
            ("get_cluster_metadata", {}, "/cluster/metadata"),
            ("get_limits", {}, "/limits"),
            ("describe_options", {"scope": "topic"}, "/options/topic"),
            (
                "poll_messages",
                {"stream": "s", "topic": "t", "kind": "first", "count": 2, "consumer_id": 1},
                "/streams/s/topics/t/messages?kind=first&count=2&consumer_id=1",
            ),
            (
                "get_consumer_offset",
                {"stream": "s", "topic": "t", "consumer_id": 1, "partition_id": 0},
                "/streams/s/topics/t/consumer-offsets?consumer_id=1&partition_id=0",
            ),
        ):
            over_http = await link.ask(world.serves.request("GET", path))
            assert over_http.status == 200, path
            assert await browser.ask(cmd, **members) == over_http.json(), cmd
        # What is not JSON there is a text here.
        assert await browser.ask("ping") == "pong"
        assert "# TYPE" in await browser.ask("get_metrics")
        snapshot = await browser.ask("make_snapshot", compression="Stored", snapshot_types=["Test"])
        assert snapshot.startswith("UEsD")


async def test_an_error_has_the_same_body_as_over_http(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        browser = await root(world)
        link = await world.serves.link()
        for cmd, members, method, path, body in (
            ("get_stream", {"stream": "none"}, "GET", "/streams/none", None),
            ("delete_topic", {"stream": "none", "topic": 1}, "DELETE", "/streams/none/topics/1", None),
            ("create_stream", {"name": ""}, "POST", "/streams", {"name": ""}),
            ("create_stream", {"name": 3}, "POST", "/streams", {"name": 3}),
            ("create_stream", {}, "POST", "/streams", {}),
            (
                "poll_messages",
                {"stream": 1, "topic": 1, "count": "x"},
                "GET",
                "/streams/1/topics/1/messages?count=x",
                None,
            ),
            ("get_client", {"client": "x"}, "GET", "/clients/x", None),
        ):
            over_http = (await link.ask(world.serves.request(method, path, body))).json()
            answer = await browser.answer(await browser.say(cmd=cmd, **members))
            assert answer["error"] == over_http, cmd


async def test_members_may_be_numbers_texts_or_booleans_where_a_url_has_texts(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        browser = await with_topic(world)
        await browser.ask("send_messages", **sending("AAAA"))
        for count in (1, "1"):
            for commit in (True, "true", False):
                polled = await browser.ask("poll_messages", stream="s", topic="t", count=count, auto_commit=commit)
                assert polled["count"] == 1
        assert await browser.ask("flush", stream="s", topic="t", partition=0, fsync=True) is None
        assert await browser.refused("get_stream", stream=None) == (400, "bad_request", "stream")
        assert await browser.refused("get_stream", stream=1.5) == (400, "bad_request", "stream")
        assert await browser.refused("get_stream") == (400, "bad_request", "stream")
        # A name is a name, whatever it would be in a URL.
        await browser.ask("create_stream", name="a/b?c=%41 d")
        assert (await browser.ask("get_stream", stream="a/b?c=%41 d"))["name"] == "a/b?c=%41 d"


# ------------------------------------------------------------------------------------------------- signing in


async def test_before_signing_in_only_public_commands_work(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        browser = await stranger(world)
        assert await browser.ask("ping") == "pong"
        for cmd, members in (
            ("get_streams", {}),
            ("get_session", {}),
            ("subscribe", {"to": "events"}),
            ("make_ticket", {}),
            ("join_consumer_group", {"stream": 1, "topic": 1, "group": 1}),
        ):
            assert await browser.refused(cmd, **members) == (40, "unauthenticated", None), cmd
        assert await browser.refused("log_in", username="root", password="wrong") == (
            42,
            "invalid_credentials",
            None,
        )
        assert await browser.refused("get_streams") == (40, "unauthenticated", None)
        said = await browser.ask("log_in", username="root", password="root's password")
        assert said["user_id"] == 0
        assert await browser.ask("get_streams") == []
        assert (await browser.ask("get_session"))["user_id"] == 0


async def test_tokens_of_both_kinds_sign_in(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        first = await root(world)
        personal = (await first.ask("create_personal_access_token", name="mine", expiry=0))["token"]
        for token in (world.serves.token, personal):
            browser = await stranger(world)
            assert await browser.ask("sign_in", token=token) == {"user_id": 0, "username": "root"}
            assert await browser.ask("get_streams") == []
        browser = await stranger(world)
        for token in ("", "x", "a.b.c", world.serves.token[:-2]):
            assert (await browser.refused("sign_in", token=token))[0] == 40
        assert await browser.refused("sign_in") == (422, "unprocessable_entity", "token")
        assert await browser.ask("log_in_with_personal_access_token", token=personal)
        assert await browser.ask("get_streams") == []


async def test_a_token_may_be_sent_as_an_offered_protocol(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        offered = ["whippet", f"bearer.{world.serves.token}"]
        browser = await stranger(world, subprotocols=offered)
        assert browser.link.subprotocol == "whippet"
        assert await browser.ask("get_streams") == []


async def test_a_token_may_be_sent_as_a_header(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        headers = {"authorization": f"Bearer {world.serves.token}"}
        browser = await stranger(world, additional_headers=headers)
        assert await browser.ask("get_streams") == []


async def test_a_ticket_signs_in_once(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        ticket = (await (await root(world)).ask("make_ticket"))["ticket"]
        browser = await stranger(world, f"/ws?ticket={ticket}")
        assert await browser.ask("get_streams") == []
        for used in (ticket, "x" * 32):
            with pytest.raises(websockets.InvalidStatus) as refused:
                await stranger(world, f"/ws?ticket={used}")
            assert refused.value.response.status_code == 401


@pytest.mark.parametrize("name", ["token", "access_token", "authorization"])
async def test_a_token_in_the_url_is_refused(tmp_path: Path, name: str) -> None:
    """URLs end up in logs and histories; `ticket` is for clients that cannot send a header."""
    async with talking(tmp_path) as world:
        with pytest.raises(websockets.InvalidStatus) as refused:
            await stranger(world, f"/ws?{name}={world.serves.token}")
        assert refused.value.response.status_code == 400
        assert f"unknown parameter `{name}`" in refused.value.response.body.decode()


async def test_an_invalid_token_is_reported_and_closes_the_connection(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        for options in (
            {"subprotocols": ["whippet", "bearer.x.y.z"]},
            {"additional_headers": {"authorization": "Bearer nonsense"}},
            {"additional_headers": {"authorization": "Basic eDp5"}},
        ):
            browser = await stranger(world, **options)
            assert refusal(await browser.answer(None))[0] in (40, 77)
            assert (await browser.closed())[0] == 3000


async def test_another_user_may_sign_in_on_the_same_connection(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        browser = await with_topic(world)
        await browser.ask("create_user", username="alice", password="alicealice", status="active", permissions=None)
        await browser.ask("create_consumer_group", stream="s", topic="t", name="g")
        await browser.ask("join_consumer_group", stream="s", topic="t", group="g")
        sub = (await browser.ask("subscribe", to="topic", stream="s", topic="t"))["sub"]
        await browser.ask("log_in", username="alice", password="alicealice")
        assert (await browser.push(sub, "end"))["end"]["code"] == "unauthenticated"
        assert (await browser.refused("get_streams"))[0] == 41
        session = await browser.ask("get_session")
        assert (session["user_id"], session["consumer_groups_count"]) == (1, 0)


@pytest.mark.parametrize("messages", [1, "x" * 20_000], ids=["small", "large"])
async def test_an_invalid_send_over_the_channel_is_not_described_without_permission(
    tmp_path: Path, messages: object
) -> None:
    async with talking(tmp_path) as world:
        browser = await with_topic(world)
        assert (await browser.refused("send_messages", stream="s", topic="t", messages=messages))[0] == 422
        await browser.ask("create_user", username="alice", password="alicealice", status="active", permissions=None)
        await browser.ask("log_in", username="alice", password="alicealice")
        assert (await browser.refused("send_messages", stream="s", topic="t", messages=messages))[0] == 41


async def test_a_logout_ends_the_token_and_the_subscriptions(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        browser = await with_topic(world)
        token = (await browser.ask("log_in", username="root", password="root's password"))["access_token"]["token"]
        sub = (await browser.ask("subscribe", to="topic", stream="s", topic="t"))["sub"]
        await browser.ask("log_out")
        assert (await browser.push(sub))["end"]["code"] == "unauthenticated"
        assert (await browser.refused("get_streams"))[0] == 40
        assert (await browser.refused("sign_in", token=token))[0] == 40


async def test_a_token_that_ends_ends_the_subscriptions_and_another_may_sign_in(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        browser = await with_topic(world)
        token = (await browser.ask("log_in", username="root", password="root's password"))["access_token"]["token"]
        sub = (await browser.ask("subscribe", to="topic", stream="s", topic="t"))["sub"]
        link = await world.serves.link()
        world.serves.token = token
        assert (await link.ask(world.serves.request("DELETE", "/users/logout"))).status == 204
        assert (await browser.push(sub))["end"]["code"] == "unauthenticated"
        assert (await browser.refused("get_streams"))[0] == 40
        await browser.log_in()
        assert (await browser.ask("subscribe", to="topic", stream="s", topic="t"))["sub"] == sub + 1


async def test_a_deleted_user_is_disconnected(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        first = await root(world)
        for what in ("delete", "deactivate"):
            await first.ask("create_user", username=what, password="alicealice", status="active", permissions=None)
            browser = await (await stranger(world)).log_in(what, "alicealice")
            if what == "delete":
                await first.ask("delete_user", user=what)
            else:
                await first.ask("update_user", user=what, status="inactive")
            assert (await browser.closed())[0] == 3000


# ------------------------------------------------------------------------------------------------- commands


async def test_commands_are_answered_in_order_with_their_ids(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        browser = await root(world)
        for number in range(300):
            await browser.link.send(
                msgspec.json.encode({"id": f"c{number}", "cmd": "create_stream", "name": f"s{number}"}).decode()
            )
        for number in range(300):
            answer = await browser.hear()
            assert answer["id"] == f"c{number}"
            assert answer["ok"]["id"] == number


async def test_a_waiting_poll_blocks_no_other_command(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        browser = await with_topic(world)
        waiting = [
            await browser.say(cmd="poll_messages", stream="s", topic="t", kind="next", wait="20s") for _ in range(3)
        ]
        assert await browser.ask("ping") == "pong"
        await browser.ask("send_messages", **sending("AAAA"))
        for number in waiting:
            assert (await browser.answer(number))["ok"]["count"] == 1


async def test_a_browser_that_leaves_during_a_waiting_poll_leaves_nothing_behind(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        browser = await with_topic(world)
        await browser.say(cmd="poll_messages", stream="s", topic="t", kind="next", wait="20s")
        await browser.ask("ping")
        assert len(world.serves.api.waiting) == 1
        await browser.link.close()
        while len(world.serves.api.waiting):  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_a_member_of_a_group_polls_commits_and_leaves(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        browser = await with_topic(world, 2)
        group = {"stream": "s", "topic": "t", "group": "g"}
        await browser.ask("create_consumer_group", stream="s", topic="t", name="g")
        assert (await browser.refused("sync_consumer_group", **group))[0] == 404
        await browser.ask("join_consumer_group", **group)
        assert (await browser.ask("sync_consumer_group", **group))["partitions"] == [0, 1]
        await browser.ask("send_messages", **sending("AAAA", "BBBB", partition=1))
        polled = await browser.ask("poll_consumer_group", **group, partition_id=1, count=1)
        assert (polled["partition_id"], polled["count"]) == (1, 1)
        await browser.ask("commit_consumer_group", **group, partition_id=1, offset=0)
        polled = await browser.ask("poll_consumer_group", **group, partition_id=1)
        assert [each["header"]["offset"] for each in polled["messages"]] == [1]
        assert (await browser.ask("get_consumer_group", **group))["members_count"] == 1
        await browser.ask("leave_consumer_group", **group)
        assert (await browser.ask("get_consumer_group", **group))["members_count"] == 0


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ("", None),
        ("nonsense", None),
        ("[]", None),
        ("3", None),
        ("{", None),
        ('{"cmd":"ping"}', "id"),
        ('{"id":null,"cmd":"ping"}', "id"),
        ('{"id":{},"cmd":"ping"}', "id"),
        ('{"id":1.5,"cmd":"ping"}', "id"),
        ('{"id":"' + "x" * 200 + '","cmd":"ping"}', "id"),
        ('{"id":1}', "cmd"),
        ('{"id":1,"cmd":2}', "cmd"),
        ('{"id":1,"cmd":"nonsense"}', "cmd"),
        ('{"id":1,"cmd":"tail_messages"}', "cmd"),
        ('{"id":1,"cmd":"grant","sub":1}', "credit"),
        ('{"id":1,"cmd":"grant","sub":1,"credit":1}', "sub"),
        ('{"id":1,"cmd":"grant","sub":1,"credit":-1}', "credit"),
        ('{"id":1,"cmd":"unsubscribe"}', "sub"),
        ('{"id":1,"cmd":"ack"}', "sub"),
        ('{"id":1,"cmd":"subscribe"}', "to"),
        ('{"id":1,"cmd":"subscribe","to":"nothing"}', "to"),
        ('{"id":1,"cmd":"subscribe","to":"topic"}', "stream"),
        ("[" * 5000, None),
        ('{"id":1,"cmd":"create_stream","name":' + "[" * 5000, None),
    ],
)
async def test_invalid_commands_are_refused_and_the_connection_continues(
    tmp_path: Path, said: str, field: str | None
) -> None:
    async with talking(tmp_path) as world:
        browser = await root(world)
        await browser.link.send(said)
        found = refusal(await browser.hear())
        assert found[0] in (400, 404, 422)
        assert found[2] == field
        assert await browser.ask("ping") == "pong"
