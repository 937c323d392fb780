"""The requests of Iggy's Web UI, releases 0.3 and 0.4, and what it needs from each response.

npm does not have the UI as a package, so its requests were recorded. It decodes responses with json-bigint, which reads
every number of more than 15 characters as an integer; a longer number with decimals leads to an error page, and so does
a status other than 2xx, 400, 401, 403 and 404.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tests.app.access.support.world import ROOT
from tests.transports.http.support.calling import Calling, permissions, with_topic
from whippet.app.config.listeners import Http, HttpCors

UI = "http://localhost:3050"
"""The origin of a UI that another server serves."""
CHARACTERS_MAX = 15
SIZE = re.compile(r"\d+(\.\d+)? ([KMGTPE]i?)?B")
GLOBAL = set(permissions()["global"])
TOPIC = "/streams/0/topics/0"
NEW_TOPIC = {
    "name": "new",
    "partitions_count": 1,
    "message_expiry": 0,
    "compression_algorithm": "none",
    "max_topic_size": 2_000_000_000,
}


def _number(text: str) -> int | float:
    if len(text) > CHARACTERS_MAX:
        return int(text)
    return float(text)


class WebUi:
    """Announces a JSON body with every request, even without one."""

    def __init__(self, world: Calling) -> None:
        self._client = world.client
        self._clock = world.gateway.clock
        self._headers = {"content-type": "application/json", "origin": UI}

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        content = None if body is None else json.dumps(body)
        response = await self._client.request(method, path, headers=self._headers, content=content)
        assert response.headers["access-control-allow-origin"] == "*"
        if not response.content:
            return response.status_code, None
        return response.status_code, json.loads(response.content, parse_float=_number)

    async def get(self, path: str) -> Any:
        status, body = await self.ask("GET", path)
        assert status == 200, body
        return body

    async def change(self, method: str, path: str, body: Any = None) -> None:
        status, reply = await self.ask(method, path, body)
        assert status in (200, 201, 204), reply

    async def sign_in(self, username: str, password: str) -> int:
        """Returns the id of the user, which the UI reads from the token."""
        status, reply = await self.ask("POST", "/users/login", {"username": username, "password": password})
        assert status == 200
        token, expiry = reply["access_token"]["token"], reply["access_token"]["expiry"]
        assert self._clock() < expiry * 1_000_000, "the cookie would have ended"
        self._headers["authorization"] = f"Bearer {token}"
        claims = token.split(".")[1]
        return int(json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))["sub"])


@contextlib.asynccontextmanager
async def signed_in(tmp_path: Path) -> AsyncIterator[tuple[Calling, WebUi]]:
    cors = HttpCors(enabled=True, allowed_origins=("*",), allowed_headers=("content-type", "authorization"))
    async with with_topic(tmp_path, Http(cors=cors)) as world:
        ui = WebUi(world)
        assert await ui.sign_in(ROOT["IGGY_ROOT_USERNAME"], ROOT["IGGY_ROOT_PASSWORD"]) == 0
        yield world, ui


async def test_the_ui_may_send_requests_from_another_origin(tmp_path: Path) -> None:
    async with signed_in(tmp_path) as (world, _):
        for method in ("GET", "POST", "PUT", "DELETE"):
            preflight = {
                "origin": UI,
                "access-control-request-method": method,
                "access-control-request-headers": "authorization,content-type",
            }
            response = await world.client.options("/streams", headers=preflight)
            assert (response.status_code, response.headers["access-control-allow-origin"]) == (200, "*")
            assert method in response.headers["access-control-allow-methods"].split(",")
            assert {"authorization", "content-type"} <= set(response.headers["access-control-allow-headers"].split(","))


async def test_a_wrong_password_does_not_lead_to_an_error_page(tmp_path: Path) -> None:
    async with signed_in(tmp_path) as (world, _):
        stranger = WebUi(world)
        status, reply = await stranger.ask("POST", "/users/login", {"username": "iggy", "password": "wrong"})
        assert (status, reply["code"]) == (400, "invalid_credentials")


async def test_the_overview_and_the_server_settings_show_the_stats(tmp_path: Path) -> None:
    async with signed_in(tmp_path) as (world, ui):
        stats = await ui.get("/stats")
        assert isinstance(stats["cpu_usage"], float), "the page rounds it"
        counts = ("streams", "topics", "partitions", "segments", "messages", "clients", "consumer_groups")
        assert all(isinstance(stats[f"{name}_count"], int) for name in counts)
        assert isinstance(stats["process_id"], int)
        sizes = (
            "memory_usage",
            "total_memory",
            "available_memory",
            "read_bytes",
            "written_bytes",
            "messages_size_bytes",
        )
        assert all(SIZE.fullmatch(stats[name]) for name in sizes), stats
        assert 0 < stats["start_time"] <= world.gateway.clock()
        assert 0 <= stats["run_time"] < 10**12
        for name in ("hostname", "os_name", "os_version", "kernel_version", "iggy_server_version"):
            assert isinstance(stats[name], str)


async def test_streams_are_listed_created_renamed_and_deleted(tmp_path: Path) -> None:
    async with signed_in(tmp_path) as (_, ui):
        await ui.change("POST", "/streams", {"name": "second"})
        assert [(each["name"], type(each["created_at"])) for each in await ui.get("/streams")] == [
            *(("s", int), ("second", int)),
        ]
        found = await ui.get("/streams/1")
        assert (found["id"], found["messages_count"], found["topics_count"], found["topics"]) == (1, 0, 0, [])
        assert SIZE.fullmatch(found["size"])
        status, refused = await ui.ask("POST", "/streams", {"name": "second"})
        # The form shows the reason at the field with that name.
        assert (status, refused["field"]) == (400, "name")
        assert refused["reason"] == "Stream with name: second already exists."
        await ui.change("PUT", "/streams/1", {"name": "renamed"})
        await ui.change("DELETE", "/streams/1")
        assert (await ui.ask("GET", "/streams/1"))[0] == 404


async def test_topics_are_listed_created_changed_and_deleted(tmp_path: Path) -> None:
    async with signed_in(tmp_path) as (_, ui):
        await ui.change("POST", "/streams/0/topics", NEW_TOPIC)
        for topic in (await ui.get("/streams/0"))["topics"] + await ui.get("/streams/0/topics"):
            assert isinstance(topic["created_at"], int)
            assert SIZE.fullmatch(topic["size"])
            assert topic["compression_algorithm"] == "none"
            assert isinstance(topic["message_expiry"], int)
        status, refused = await ui.ask("POST", "/streams/0/topics", NEW_TOPIC)
        assert (status, refused["field"]) == (400, "name")
        status, refused = await ui.ask(
            "POST", "/streams/0/topics", NEW_TOPIC | {"name": "x", "partitions_count": 2**32 - 1}
        )
        # Errors without a field are shown as a notice with these three.
        assert (status, refused["field"], refused["code"], refused["id"]) == (400, None, "too_many_partitions", 2015)
        changed = {
            "name": "renamed",
            "message_expiry": 3_600_000_000,
            "compression_algorithm": "none",
            "max_topic_size": 0,
        }
        await ui.change("PUT", "/streams/0/topics/1", changed)
        found = await ui.get("/streams/0/topics/1")
        assert (found["name"], found["message_expiry"]) == ("renamed", 3_600_000_000)
        await ui.change("DELETE", "/streams/0/topics/1")
        assert (await ui.ask("GET", "/streams/0/topics/1"))[0] == 404


async def test_partitions_are_listed_added_and_deleted(tmp_path: Path) -> None:
    async with signed_in(tmp_path) as (_, ui):
        await ui.change("POST", f"{TOPIC}/partitions", {"partitions_count": 2})
        await ui.change("DELETE", f"{TOPIC}/partitions?partitions_count=1")
        found = await ui.get(TOPIC)
        assert (found["partitions_count"], [each["id"] for each in found["partitions"]]) == (4, [0, 1, 2, 3])
        for partition in found["partitions"]:
            assert isinstance(partition["created_at"], int)
            assert (partition["segments_count"], partition["messages_count"], partition["current_offset"]) == (1, 0, 0)
            assert SIZE.fullmatch(partition["size"])
        status, refused = await ui.ask("DELETE", f"{TOPIC}/partitions?partitions_count=9")
        assert (status, refused["field"]) == (400, None)
        assert refused["reason"].startswith("Invalid partitions count")


async def test_messages_are_listed_in_pages(tmp_path: Path) -> None:
    async with signed_in(tmp_path) as (world, ui):
        header = {"key": {"kind": "string", "value": "Y29kZWM="}, "value": {"kind": "string", "value": "anNvbg=="}}
        await world.root.post(
            f"{TOPIC}/messages",
            {
                "partitioning": {"kind": "partition_id", "value": "AQAAAA=="},
                "messages": [{"payload": base64.b64encode(b"%d" % number).decode()} for number in range(44)]
                + [{"payload": "e30=", "user_headers": [header]}],
            },
        )
        page = f"{TOPIC}/messages?kind=offset&value={{value}}&count={{count}}&auto_commit=false&partition_id=1"
        first = await ui.get(page.format(value=0, count=1))
        assert (first["partition_id"], first["current_offset"]) == (1, 44)
        newest = await ui.get(page.format(value=25, count=20))
        assert [each["header"]["offset"] for each in newest["messages"]] == list(range(25, 45))
        last = newest["messages"][-1]
        assert base64.b64decode(last["payload"]) == b"{}"
        assert (last["user_headers"], newest["messages"][0]["user_headers"]) == ([header], [])
        reply = last["header"]
        assert all(isinstance(reply[name], int) for name in ("checksum", "id", "timestamp", "origin_timestamp"))
        assert (reply["payload_length"], reply["user_headers_length"] > 0) == (2, True)
        empty = await ui.get(page.format(value=0, count=20).replace("partition_id=1", "partition_id=0"))
        assert (empty["messages"], empty["current_offset"]) == ([], 0)


async def test_users_are_listed_and_created_and_may_sign_in(tmp_path: Path) -> None:
    async with signed_in(tmp_path) as (world, ui):
        of_topic = dict.fromkeys(("manage_topic", "read_topic", "poll_messages", "send_messages"), True)
        of_stream = dict.fromkeys(("manage_stream", "read_stream", "manage_topics", "read_topics"), False)
        of_stream |= dict.fromkeys(("poll_messages", "send_messages"), False)
        granted = permissions("read_servers", "read_streams", streams={"0": of_stream | {"topics": {"0": of_topic}}})
        bob = {"username": "bob", "password": "secret", "status": "active", "permissions": granted}
        await ui.change("POST", "/users", bob)
        users = await ui.get("/users")
        assert [(each["id"], each["username"], each["status"]) for each in users][1:] == [(1, "bob", "active")]
        assert all(isinstance(each["created_at"], int) for each in users)
        status, refused = await ui.ask("POST", "/users", bob)
        assert (status, refused["field"]) == (400, "username")

        theirs = WebUi(world)
        number = await theirs.sign_in("bob", "secret")
        assert set((await theirs.get(f"/users/{number}"))["permissions"]["global"]) == GLOBAL
        assert (await theirs.get("/stats"))["streams_count"] == 1
