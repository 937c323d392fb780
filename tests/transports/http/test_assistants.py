"""`/mcp` of the gateway: the official client on a real server, and hostile ones; the settings of `mcp`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client

from tests.app.client.support.server import until
from tests.app.mcp.support.assistants import Assistant
from tests.app.support.process import Gateway, starting
from tests.transports.http.support.calling import Caller, Calling, calling
from tests.transports.http.support.serving import serving
from whippet.app.config.listeners import Http, HttpCors, Mcp, McpPermissions
from whippet.app.mcp import tools
from whippet.app.mcp.work import Group
from whippet.transports.http import routes
from whippet.transports.http.serving.assistants import Assistants

ROOT = {"IGGY_ROOT_USERNAME": "iggy", "IGGY_ROOT_PASSWORD": "the root's password"}
WRITES = Mcp(read_only=False)
ACCEPT = "application/json, text/event-stream"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with starting(tmp_path_factory.mktemp("server") / "data") as start:
        yield start(**ROOT, IGGY_MCP_ENABLED="true", IGGY_MCP_READ_ONLY="false")


@contextlib.asynccontextmanager
async def assistant(address: str, token: str, mode: str = "auto") -> AsyncIterator[Assistant]:
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        httpx2.AsyncClient(headers=headers, trust_env=False) as http,
        Client(streamable_http_client(f"http://{address}/mcp", http_client=http), mode=mode) as client,
    ):
        yield Assistant(client)


async def log_in(address: str, username: str = "iggy", password: str = ROOT["IGGY_ROOT_PASSWORD"]) -> str:
    async with httpx2.AsyncClient(trust_env=False) as http:
        given = {"username": username, "password": password}
        response = await http.post(f"http://{address}/users/login", json=given)
        return str(response.raise_for_status().json()["access_token"]["token"])


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_an_assistant_works_with_the_rights_of_its_token(gateway: Gateway, mode: str) -> None:
    address = gateway.address()
    name = f"orders-{mode}"
    place = {"stream_id": name, "topic_id": "eu"}
    async with assistant(address, await log_in(address), mode) as root:
        assert await root.tools() == set(tools.BY_NAME)
        await root("create_stream", name=name)
        await root("create_topic", stream_id=name, name="eu", partitions_count=1)
        await root("send_messages", **place, messages=[{"payload": "hello"}])
        assert [each["payload"] for each in (await root("poll_messages", **place))["messages"]] == ["hello"]
        (content,) = (await root.client.read_resource(f"whippet://streams/{name}/topics/eu")).contents
        assert '"messages_count":1' in content.text  # type: ignore[union-attr]
        assert len((await root.client.list_prompts()).prompts) == 2
        given = {"global": {"read_streams": True}}
        await root("create_user", username=name, password="a password", active=True, permissions=given)
        async with assistant(address, await log_in(address, name, "a password"), mode) as reader:
            personal = (await reader("create_personal_access_token", name="a-token"))["token"]
        async with assistant(address, personal, mode) as reader:
            assert (await reader("get_stream", stream_id=name))["name"] == name
            assert await reader.refused("delete_stream", stream_id=name) == "unauthorized"
            await root("delete_user", user_id=name)
            with pytest.raises(MCPError):
                await reader("get_streams")
    gateway.line(rf"changes: 127.0.0.1:\d+, user '{name}': mcp delete_stream .*: unauthorized")


async def test_a_stop_does_not_wait_for_assistants(tmp_path: Path) -> None:
    with starting(tmp_path / "data") as start:
        gateway: Gateway = await asyncio.to_thread(start, **ROOT, IGGY_MCP_ENABLED="true")
        address = await asyncio.to_thread(gateway.address)
        codes = []
        # The official client ends with the failure to connect that it meets.
        with pytest.raises(ExceptionGroup) as ended:
            async with assistant(address, await log_in(address)) as reader:
                await reader("get_streams")
                gateway.signal(signal.SIGTERM)
                codes.append(await asyncio.to_thread(gateway.end))
                await reader("get_streams")
        assert ended.group_contains(httpx2.ConnectError)
        assert codes == [0]
    assert not any("ERROR" in line for line in gateway.err)


def test_without_the_extra_the_start_is_refused_with_one_line(tmp_path: Path) -> None:
    with starting(tmp_path / "data") as start:
        gateway = start("import sys; sys.modules['mcp'] = None; ", IGGY_MCP_ENABLED="true")
        assert gateway.end() == 2
        assert gateway.refusal().endswith(
            "mcp.enabled needs the extra mcp: install it with pip install 'whippet-gateway[mcp]'"
        )


def test_a_server_without_assistants_does_not_import_the_package(tmp_path: Path) -> None:
    with starting(tmp_path / "data") as start:
        gateway = start("import sys; sys.modules['mcp'] = None; ")
        assert gateway.get("/mcp").status_code == 404
        gateway.signal(signal.SIGTERM)
        assert gateway.end() == 0


# ------------------------------------------------------------------------------------------------ without a client


class Desk:
    """Sends messages of the protocol as they are."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller

    async def post(self, body: bytes, **headers: str) -> Any:
        return await self.caller.ask("POST", "/mcp", body, accept=ACCEPT, **headers)

    async def ask(self, method: str, **params: Any) -> Any:
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        response = await self.post(msgspec.json.encode(message))
        assert response.status_code == 200, response.text
        return response.json()

    async def call(self, tool: str, /, **arguments: Any) -> Any:
        result = (await self.ask("tools/call", name=tool, arguments=arguments))["result"]
        return json.loads(result["content"][0]["text"])

    async def tools(self) -> set[str]:
        return {tool["name"] for tool in (await self.ask("tools/list"))["result"]["tools"]}


@contextlib.asynccontextmanager
async def opened(path: Path, config: Mcp, http: Http | None = None) -> AsyncIterator[tuple[Desk, Calling]]:
    assistants = await Assistants.open(config, http or Http())
    async with calling(path, http, operations=(*routes.OPERATIONS, assistants.operation)) as world:
        yield Desk(world.root), world
        await assistants.close()


async def test_tools_are_described_with_hints_about_what_they_do(tmp_path: Path) -> None:
    async with opened(tmp_path, WRITES) as (desk, _):
        listed = (await desk.ask("tools/list"))["result"]["tools"]
        for tool in listed:
            group = tools.BY_NAME[tool["name"]].group
            assert tool["annotations"] == {
                "readOnlyHint": group is Group.READ,
                "destructiveHint": group in (Group.UPDATE, Group.DELETE),
            }
            assert tool["description"].endswith(".")


async def test_a_request_needs_a_token_that_is_valid(tmp_path: Path) -> None:
    async with opened(tmp_path, Mcp()) as (desk, world):
        stranger = await Desk(world.stranger).post(b"{}")
        assert (stranger.status_code, stranger.json()["code"]) == (401, "access_token_missing")
        assert stranger.headers["www-authenticate"] == "Bearer"
        assert (await desk.call("get_streams"))["total"] == 0
        given = {"name": "an-hour", "expiry": 3_600_000_000}
        personal = Desk(Caller(world.client, (await world.root.post("/personal-access-tokens", given))["token"]))
        assert (await personal.call("get_streams"))["total"] == 0
        wrong = Caller(world.client, "a.b.c")
        assert (await Desk(wrong).post(b"{}")).status_code == 401
        world.clock.now += 7200 * 1_000_000
        for each in (desk, personal):
            ended = await each.post(b"{}")
            assert (ended.status_code, ended.json()["code"]) == (401, "unauthenticated")


async def test_only_tools_that_read_are_offered_unless_the_configuration_says_otherwise(tmp_path: Path) -> None:
    async with opened(tmp_path / "a", Mcp()) as (desk, _):
        assert await desk.tools() == {tool.name for tool in tools.TABLE if tool.group is Group.READ}
        assert (await desk.call("create_stream", name="s"))["error"] == "read_only"
        assert (await desk.call("get_streams"))["total"] == 0
    async with opened(tmp_path / "b", Mcp(read_only=False)) as (desk, _):
        assert await desk.tools() == set(tools.BY_NAME)
    some = Mcp(read_only=False, permissions=McpPermissions(update=False, delete=False))
    async with opened(tmp_path / "c", some) as (desk, _):
        assert await desk.tools() == {tool.name for tool in tools.TABLE if tool.group in (Group.READ, Group.CREATE)}
        assert (await desk.call("create_stream", name="s"))["name"] == "s"
        assert (await desk.call("delete_stream", stream_id="s"))["error"] == "not_allowed"
        assert (await desk.call("update_stream", stream_id="s", name="t"))["error"] == "not_allowed"
    some = Mcp(read_only=False, permissions=McpPermissions(create=False))
    async with opened(tmp_path / "d", some) as (desk, _):
        assert (await desk.call("create_stream", name="s"))["error"] == "not_allowed"


async def test_requests_and_results_are_bounded(tmp_path: Path) -> None:
    config = Mcp(read_only=False, consumer="claude", max_request_size=8192, max_response_size=4096, max_items=2)
    async with opened(tmp_path, config) as (desk, world):
        for name in ("a", "b", "c"):
            await desk.call("create_stream", name=name)
        assert len((await desk.call("get_streams"))["streams"]) == 2
        await desk.call("create_topic", stream_id="a", name="t", partitions_count=1)
        place = {"stream_id": "a", "topic_id": "t"}
        await desk.call("send_messages", **place, messages=[{"payload": "x" * 5000}])
        (message,) = (await desk.call("poll_messages", **place, strategy="next"))["messages"]
        assert message["payload_bytes"] == 5000
        assert len(message["payload"]) < 4096
        url = "/streams/a/topics/t/consumer-offsets?consumer_id=claude"
        assert (await world.root.get(url))["stored_offset"] == 0
        response = await desk.post(b" " * 8193)
        assert (response.status_code, response.json()["code"]) == (413, "payload_too_large")
        assert "mcp.max_request_size = 8192" in response.json()["reason"]


async def test_pages_of_other_origins_may_not_send_requests(tmp_path: Path) -> None:
    http = Http(cors=HttpCors(allowed_origins=("https://friend.example",)))
    ping = msgspec.json.encode({"jsonrpc": "2.0", "id": 1, "method": "ping"})
    async with opened(tmp_path, Mcp(), http) as (desk, _):
        for origin, status in (
            ("https://evil.example", 403),
            ("null", 403),
            ("http://localhost", 200),
            ("https://friend.example", 200),
        ):
            assert (await desk.post(ping, origin=origin)).status_code == status, origin
        # A page whose name resolves to this server.
        assert (await desk.post(ping, host="evil.example")).status_code == 421


def _rpc(**members: Any) -> bytes:
    return msgspec.json.encode({"jsonrpc": "2.0", "id": 1, **members})


HOSTILE = [
    b"",
    b"null",
    b"[]",
    b"\xff\xfe",
    b"[" * 100_000,
    b'{"a":' * 20_000,
    b"1" * 100_000,
    b'{"jsonrpc":"2.0","id":' + b"9" * 5000 + b',"method":"ping"}',
    b'{"jsonrpc":"2.0","id":1e400,"method":"ping"}',
    b'{"jsonrpc":"2.0","id":"\\ud800","method":"ping"}',
    b'{"jsonrpc":"2.0","id":{"a":1},"method":"ping"}',
    b"[" + b",".join([_rpc(method="ping")] * 500) + b"]",
    _rpc(method="x" * 200_000),
    _rpc(method="tools/call", params=[1]),
    _rpc(method="tools/call", params={"name": "x" * 100_000}),
    _rpc(method="tools/call", params={"name": "get_stream", "arguments": {"stream_id": "9" * 100_000}}),
    _rpc(method="tools/call", params={"name": "get_stream", "arguments": {str(n): n for n in range(5000)}}),
    _rpc(method="resources/list", params={"cursor": "9" * 100_000}),
    _rpc(method="resources/read", params={"uri": "whippet://streams/" + "/" * 100_000}),
    _rpc(method="resources/subscribe", params={"uri": "whippet://streams"}),
    _rpc(method="subscriptions/listen", params={}),
    _rpc(method="logging/setLevel", params={"level": "debug"}),
    _rpc(method="completion/complete", params={}),
    _rpc(method="initialize", params={}),
    _rpc(method="initialize", params={"protocolVersion": "x" * 10_000, "capabilities": {}, "clientInfo": {}}),
    _rpc(method="prompts/get", params={"name": "find_message", "arguments": {"what": "x" * 100_000}}),
    b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}',
    b'{"jsonrpc":"2.0","id":1,"result":{}}',
]


@pytest.mark.parametrize("version", ["", "2025-06-18", "2026-07-28", "x" * 1000])
async def test_hostile_messages_are_answered_and_harm_nobody(
    tmp_path: Path, version: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path, WRITES) as (desk, _):
        headers = {"mcp_protocol_version": version} if version else {}
        for body in HOSTILE:
            response = await desk.post(body, **headers)
            assert response.status_code in (200, 202, 400, 404, 406), (body[:100], response.text)
            assert len(response.content) < 250_000
            assert "Traceback" not in response.text
            assert (await desk.call("get_streams"))["total"] == 0
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.parametrize("session", ["", "x", "0" * 32])
async def test_there_are_no_sessions_that_a_client_could_leave_open(tmp_path: Path, session: str) -> None:
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "a", "version": "1"}}
    async with opened(tmp_path, Mcp()) as (desk, world):
        before = len(asyncio.all_tasks())
        for _ in range(100):
            response = await desk.post(_rpc(method="initialize", params=hello), mcp_session_id=session)
            assert response.status_code == 200
            assert "mcp-session-id" not in response.headers
        many = await asyncio.gather(*(desk.call("ping") for _ in range(200)))
        assert {each["number"] for each in many} == {1}
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) <= before
        for method in ("GET", "DELETE"):
            response = await world.root.ask(method, "/mcp", accept=ACCEPT, mcp_session_id=session)
            assert (response.status_code, response.headers["allow"]) == (405, "POST")


async def test_clients_that_go_without_reading_leave_nothing_behind(tmp_path: Path) -> None:
    assistants = await Assistants.open(WRITES, Http())
    async with serving(tmp_path, operations=(*routes.OPERATIONS, assistants.operation)) as live:
        body = _rpc(method="tools/list")
        request = live.request("POST", "/mcp", body, f"Accept: {ACCEPT}")
        patient = await live.link()
        assert (await patient.ask(request)).status == 200
        before = len(asyncio.all_tasks())
        for _ in range(30):
            link = await live.link(receive_bytes=1024)
            await link.send(request * 5)
            link.link.close()
        await until(lambda: live.connections == 1)
        assert (await patient.ask(request)).status == 200
        await until(lambda: len(asyncio.all_tasks()) <= before)
        assert live.api.budgets.used == 0
    await assistants.close()


async def test_a_defect_in_a_tool_is_logged_and_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(work: Any, given: Any) -> None:
        raise ZeroDivisionError("an inner secret")

    broken.__name__ = "ping"
    monkeypatch.setitem(tools.BY_NAME, "ping", tools.BY_NAME["ping"]._replace(function=broken))
    async with opened(tmp_path, Mcp()) as (desk, _):
        error = (await desk.ask("tools/call", name="ping", arguments={}))["error"]
        assert error["message"] == "the tool ping failed because of a defect"
        assert (await desk.call("get_streams"))["total"] == 0
    assert "an inner secret" in caplog.text
