"""The channel for browsers: signing in, commands in their order, and whatever else a client may say."""

from __future__ import annotations

import asyncio
import base64
from collections import deque
from pathlib import Path
from typing import Any

import msgspec
import pytest
import websockets

from tests.support.clocks import Seconds
from tests.transports.support import raw
from tests.transports.support.crowded import crowded, waiting
from tests.transports.websocket.support.browsing import refusal, root, sending, stranger, with_topic
from tests.transports.websocket.support.talking import frame, handshake, talking
from whippet.app import housekeeping
from whippet.app.commands import registry
from whippet.app.commands import requests as commands
from whippet.app.config.listeners import Http, Websocket, WebsocketChannel
from whippet.transports import connections
from whippet.transports.admission.frame_intake import QUEUE_MAX
from whippet.transports.http import routes
from whippet.transports.websocket import text_connection
from whippet.transports.websocket.commands import ALIASES, NOT_HERE, OWN, Command
from whippet.transports.wire.classic import requests

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


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Seconds:
    stopped = Seconds()
    monkeypatch.setattr(text_connection, "time", stopped)
    monkeypatch.setattr(connections, "time", stopped)
    return stopped


# ------------------------------------------------------------------------------------------------- the table


def test_every_command_of_the_binary_protocols_has_its_place_here() -> None:
    here = {operation.name for operation in (*routes.OPERATIONS, *OWN)} - NOT_HERE | ALIASES.keys()
    missing = {command.name for command in registry.COMMANDS} - here - ELSEWHERE.keys()
    assert not missing


def test_no_two_members_of_a_command_have_one_name() -> None:
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
        # What is no JSON there is a text here.
        assert await browser.ask("ping") == "pong"
        assert "# TYPE" in await browser.ask("get_metrics")
        snapshot = await browser.ask("make_snapshot", compression="Stored", snapshot_types=["Test"])
        assert snapshot.startswith("UEsD")


async def test_a_refusal_has_the_body_that_it_has_over_http(tmp_path: Path) -> None:
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


async def test_members_may_be_numbers_texts_or_truths_where_a_url_has_texts(tmp_path: Path) -> None:
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


async def test_who_has_not_signed_in_may_log_in_and_little_else(tmp_path: Path) -> None:
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


async def test_a_token_signs_in_whatever_kind_it_is(tmp_path: Path) -> None:
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


async def test_a_token_may_come_as_a_protocol_that_is_offered(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        offered = ["whippet", f"bearer.{world.serves.token}"]
        browser = await stranger(world, subprotocols=offered)
        assert browser.link.subprotocol == "whippet"
        assert await browser.ask("get_streams") == []


async def test_a_token_may_come_as_a_header(tmp_path: Path) -> None:
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


async def test_a_connection_whose_token_is_no_good_is_told_and_closed(tmp_path: Path) -> None:
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
async def test_what_is_wrong_with_a_send_is_nothing_to_those_who_may_not_send(tmp_path: Path, messages: object) -> None:
    async with talking(tmp_path) as world:
        browser = await with_topic(world)
        assert (await browser.refused("send_messages", stream="s", topic="t", messages=messages))[0] == 422
        await browser.ask("create_user", username="alice", password="alicealice", status="active", permissions=None)
        await browser.ask("log_in", username="alice", password="alicealice")
        assert (await browser.refused("send_messages", stream="s", topic="t", messages=messages))[0] == 41


async def test_a_logout_ends_the_token_and_what_was_subscribed(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        browser = await with_topic(world)
        token = (await browser.ask("log_in", username="root", password="root's password"))["access_token"]["token"]
        sub = (await browser.ask("subscribe", to="topic", stream="s", topic="t"))["sub"]
        await browser.ask("log_out")
        assert (await browser.push(sub))["end"]["code"] == "unauthenticated"
        assert (await browser.refused("get_streams"))[0] == 40
        assert (await browser.refused("sign_in", token=token))[0] == 40


async def test_a_token_that_ends_elsewhere_ends_what_was_subscribed_and_a_new_one_begins_anew(tmp_path: Path) -> None:
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


async def test_a_user_who_is_deleted_is_let_go(tmp_path: Path) -> None:
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


async def test_commands_are_answered_in_their_order_with_their_ids(tmp_path: Path) -> None:
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


async def test_a_poll_that_waits_holds_nothing_up(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        browser = await with_topic(world)
        waiting = [
            await browser.say(cmd="poll_messages", stream="s", topic="t", kind="next", wait="20s") for _ in range(3)
        ]
        assert await browser.ask("ping") == "pong"
        await browser.ask("send_messages", **sending("AAAA"))
        for number in waiting:
            assert (await browser.answer(number))["ok"]["count"] == 1


async def test_who_goes_while_a_poll_waits_leaves_nothing_behind(tmp_path: Path) -> None:
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
async def test_what_makes_no_sense_is_refused_and_the_connection_goes_on(
    tmp_path: Path, said: str, field: str | None
) -> None:
    async with talking(tmp_path) as world:
        browser = await root(world)
        await browser.link.send(said)
        found = refusal(await browser.hear())
        assert found[0] in (400, 404, 422)
        assert found[2] == field
        assert await browser.ask("ping") == "pong"


# ------------------------------------------------------------------------------------------------- messages and frames


@pytest.mark.parametrize(
    ("name", "octets", "code"),
    [
        ("binary", frame(2, b"{}"), 1003),
        ("not UTF-8", frame(1, b'{"id":"\xff"}'), 1007),
        ("a surrogate", frame(1, b'{"id":"\xed\xa0\x80"}'), 1007),
        ("cut in a character", frame(1, "ä".encode()[:1]), 1007),
        ("too large", frame(1, b" " * 70_000), 1009),
        ("announced too large", frame(1, b" " * 70_000)[:20], 1009),
        ("announced too large and not begun", frame(1, b" " * 70_000)[:14], 1009),
        ("announced too large together", frame(1, b" " * 60_000, fin=False) + frame(0, b" " * 60_000)[:8], 1009),
        ("too large in pieces", frame(1, b" " * 60_000, fin=False) + frame(0, b" " * 60_000), 1009),
        ("no mask", frame(1, b"{}", masked=False), 1002),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_who_breaks_the_rules_of_websocket_is_closed(tmp_path: Path, name: str, octets: bytes, code: int) -> None:
    async with talking(tmp_path) as world:
        witness = await root(world)
        raw = await world.raw("/ws")
        await raw.send(octets)
        assert await raw.closed() == code
        assert await witness.ask("ping") == "pong"


async def test_a_command_may_come_in_pieces_with_pings_between(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        raw = await world.raw("/ws")
        said = '{"id":"ä","cmd":"ping"}'.encode()
        # In the middle of a character, too.
        await raw.send(frame(1, said[:8], fin=False) + frame(9, b"x"))
        assert await raw.frame() == (10, b"x")
        await raw.send(frame(0, said[8:], fin=False) + frame(0))
        assert await raw.frame() == (1, '{"id":"ä","ok":"pong"}'.encode())
        for at in range(len(octets := frame(1, said))):
            await raw.send(octets[at : at + 1])
        assert await raw.frame() == (1, '{"id":"ä","ok":"pong"}'.encode())


async def test_a_message_has_the_size_that_a_body_over_http_may_have(tmp_path: Path) -> None:
    async with talking(tmp_path, http=Http(max_request_size=200_000)) as world:
        browser = await with_topic(world)
        await browser.ask("send_messages", **sending("A" * 190_000))
        await browser.link.send(" " * 200_001)
        assert (await browser.closed())[0] == 1009


async def test_large_messages_take_room_and_wait_for_it(tmp_path: Path) -> None:
    async with talking(tmp_path, http=Http(max_request_size=200_000), frames_bytes=250_000) as world:
        witness = await with_topic(world)
        raws = [await world.raw("/ws", f"Authorization: Bearer {world.serves.token}") for _ in range(3)]
        for raw in raws:
            await raw.send(frame(1, b'{"id":0,"cmd":"ping"}'))
            await raw.frame()
        said = frame(1, msgspec.json.encode({"id": 1, "cmd": "send_messages", **sending("A" * 150_000)}))
        room = world.websockets.budgets.frames
        with crowded(room):
            for raw in raws:
                await raw.send(said[:100_000])
            while waiting(room) < len(raws):
                await witness.ask("ping")
        for raw in raws:
            await raw.send(said[100_000:])
        for raw in raws:
            assert b'"ok"' in (await raw.frame())[1]
        assert world.websockets.budgets.frames.used == 0


class Watched(deque[Any]):
    most = 0

    def append(self, item: Any) -> None:
        super().append(item)
        self.most = max(self.most, len(self))


async def test_commands_by_the_thousand_are_taken_apart_a_few_at_a_time(tmp_path: Path) -> None:
    """However they lie in what is read, none is lost, and control frames keep their places among them."""

    async with talking(tmp_path) as world:
        raw = await world.raw("/ws")
        (connection,) = world.websockets._connections
        ahead = connection._intake.queue = Watched()  # type: ignore[attr-defined]
        ping, junk = frame(1, b'{"id":1,"cmd":"ping"}'), frame(1, b"{}")
        large = frame(1, b'{"id":2,"cmd":"ping"' + b" " * 30_000 + b"}")
        octets = (ping * 500 + frame(9, b"a") + junk * 500) * 3 + large + ping[:10]
        await raw.send(octets)
        answers: list[tuple[int, bytes]] = []
        while len(answers) < 3004:
            answers.append(await raw.frame())
        said = [content for opcode, content in answers if opcode == 1]
        refused = b'{"id":null,"error":'
        expected = ([b'{"id":1,"ok":"pong"}'] * 500 + [refused] * 500) * 3 + [b'{"id":2,"ok":"pong"}']
        assert [each[: len(refused)] if each.startswith(refused) else each for each in said] == expected
        assert sum(answer == (10, b"a") for answer in answers) == 3
        assert 0 < ahead.most <= QUEUE_MAX
        assert world.websockets.budgets.frames.used == 0
        await raw.send(ping[10:] + frame(8, (1000).to_bytes(2, "big")))
        assert await raw.frame() == (1, b'{"id":1,"ok":"pong"}')
        assert await raw.closed() == 1000


async def test_who_goes_with_thousands_of_commands_still_to_be_taken_apart_leaves_nothing(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        witness = await root(world)
        for ending in (b"", frame(1, b"\xff"), frame(3)):
            raw = await world.raw("/ws", receive_bytes=4096)
            await raw.send(frame(1, b'{"id":1,"cmd":"ping"}') * 2000 + ending)
            await witness.ask("ping")
            raw.link.reset()
            while world.connections > 1:  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert world.websockets.budgets.frames.used == 0


async def test_a_close_is_answered(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        raw = await world.raw("/ws")
        await raw.send(frame(1, b'{"id":1,"cmd":"ping"}') + frame(8, (4001).to_bytes(2, "big")))
        assert await raw.frame() == (1, b'{"id":1,"ok":"pong"}')
        assert await raw.closed() == 4001


# ------------------------------------------------------------------------------------------------- deadlines


async def test_who_does_not_sign_in_is_closed(tmp_path: Path, time: Seconds) -> None:
    async with talking(tmp_path) as world:
        witness, quiet = await root(world), await stranger(world)
        await quiet.ask("ping")
        await time.passes(59, world.websockets, witness)
        assert world.connections == 2
        await time.passes(2, world.websockets, witness)
        assert (await quiet.closed())[0] is None


async def test_who_is_silent_is_pinged_and_who_answers_stays(tmp_path: Path, time: Seconds) -> None:
    async with talking(tmp_path, websocket=Websocket(channel=WebsocketChannel(ping_time=10, silence_time=35))) as world:
        witness, answering = await root(world), await root(world)
        raw = await world.raw("/ws", f"Authorization: Bearer {world.serves.token}")
        await raw.send(frame(1, b'{"id":0,"cmd":"ping"}'))
        await raw.frame()
        for _ in range(3):
            await time.passes(11, world.websockets, witness)
            assert await raw.frame() == (9, b"")
        await time.passes(11, world.websockets, witness)
        assert await raw.link.rest() == b""
        assert await answering.ask("ping") == "pong"


async def test_a_stop_is_said(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        browser = await with_topic(world)
        await browser.ask("send_messages", **sending("AAAA"))
        sub = (await browser.ask("subscribe", to="topic", stream="s", topic="t", last=1))["sub"]
        assert await browser.offsets(sub, 1) == [(0, 0)]
        await world.websockets.stop(5)
        end: Any = (await browser.push(sub))["end"]
        assert (end["code"], end["cursor"]) == ("stopping", "0:1")
        assert (await browser.closed())[0] == 1001


async def test_a_stop_answers_a_poll_that_waits_for_messages(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        browser = await with_topic(world)
        asked = await browser.say(cmd="poll_messages", stream="s", topic="t", kind="next", wait="20s")
        while not len(world.serves.api.waiting):
            assert await browser.ask("ping") == "pong"
        world.serves.api.drain()
        await world.websockets.stop(5)
        assert (await browser.answer(asked))["ok"]["count"] == 0
        assert (await browser.closed())[0] == 1001


async def test_a_client_that_has_closed_is_not_waited_for_by_its_polls(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        browser = await with_topic(world)
        await browser.say(cmd="poll_messages", stream="s", topic="t", kind="next", wait="20s")
        while not len(world.serves.api.waiting):
            assert await browser.ask("ping") == "pong"
        await browser.link.close()
        while world.connections or len(world.serves.api.waiting):  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_the_port_of_http_refuses_who_asks_for_the_channel_wrongly(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        for octets, status in (
            (handshake("/ws", version="12"), 400),
            (handshake("/ws?ticket=%FF"), 400),
            (handshake("/ws").replace(b"Upgrade: websocket\r\n", b""), 404),
        ):
            assert (await (await world.serves.link()).ask(octets)).status == status


async def test_the_limit_of_waiting_polls_apart_is_not_the_end_of_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whippet.transports.websocket.channel.WAITING_POLLS_MAX", 1)

    async with talking(tmp_path) as world:
        browser = await with_topic(world)
        poll = {"cmd": "poll_messages", "stream": "s", "topic": "t", "kind": "next"}
        first = await browser.say(**poll, wait="20s")
        second = await browser.say(**poll, wait="50ms")
        third = await browser.say(cmd="ping")
        assert (await browser.answer(third))["ok"] == "pong"
        assert (await browser.answer(second))["ok"]["count"] == 0
        await browser.ask("send_messages", **sending("AAAA"))
        assert (await browser.answer(first))["ok"]["count"] == 1


async def test_a_send_to_a_full_topic_is_refused(tmp_path: Path) -> None:
    async with talking(tmp_path, store={"segment_bytes": 1024, "delete_oldest_segments": False}) as world:
        browser = await with_topic(world)
        await browser.ask("update_topic", stream="s", topic="t", name="t", message_expiry=0, max_topic_size=1024)
        payload = base64.b64encode(b"x" * 500).decode()
        await browser.ask("send_messages", **sending(payload))
        assert await browser.refused("send_messages", **sending(payload)) == (3009, "topic_full", None)


async def test_with_heartbeats_on_a_channel_that_sends_no_pings_is_not_evicted(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        browser, silent = await with_topic(world), await world.root()
        await browser.ask("create_consumer_group", stream="s", topic="t", name="g")
        await browser.ask("join_consumer_group", stream="s", topic="t", group="g")
        joining = requests.encode_request(commands.JoinConsumerGroup("s", "t", "g"))
        await silent.send(raw.frame(604, bytes(joining)))
        assert await silent.answer() == raw.OK
        assert len(world.gateway.sessions) == 2
        world.serves.world.clock.now += 3600 * 1_000_000
        await housekeeping.evict_silent_clients(world.gateway)
        (left,) = world.gateway.sessions
        assert left.is_watched
        assert await browser.ask("get_streams")
