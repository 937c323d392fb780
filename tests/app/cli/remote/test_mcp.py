"""`whippet mcp` as an assistant starts it: a program, with the official client of the protocol at its pipes."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from mcp import MCPError

from tests.app.cli.remote.support.commands import PASSWORD, USER, Whippet
from tests.app.cli.remote.support.terminal import INTERRUPT, PROGRAM, terminal
from tests.app.mcp.support.assistants import over_stdio
from tests.app.support.process import Gateway, starting
from whippet.app.mcp import tools

PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n'
ROOT = {"WHIPPET_USERNAME": USER, "WHIPPET_PASSWORD": PASSWORD}


@pytest.fixture
def server(address: str) -> str:
    return f"iggy://{address}"


@pytest.mark.parametrize(("mode", "transport"), [("auto", "tcp"), ("legacy", "ws")])
async def test_an_assistant_sends_and_finds_a_message(
    addresses: dict[str, str], tmp_path: Path, mode: str, transport: str
) -> None:
    log = tmp_path / "log"
    name = f"found-{mode}-{transport}"
    words = ("--server", addresses[transport], "--allow-writes")
    async with over_stdio(*words, log=log, mode=mode, **ROOT) as assistant:
        assert await assistant.tools() == set(tools.BY_NAME)
        await assistant("create_stream", name=name)
        await assistant("create_topic", stream_id=name, name="eu", partitions_count=1)
        place = {"stream_id": name, "topic_id": "eu"}
        await assistant("send_messages", **place, messages=[{"payload": "hello"}, {"payload": "world", "id": 7}])
        polled = await assistant("poll_messages", **place, strategy="next")
        assert [(each["offset"], each["payload"]) for each in polled["messages"]] == [(0, "hello"), (1, "world")]
        assert (await assistant("get_consumer_offset", **place))["stored_offset"] == 1
        await assistant("update_topic", **place, name="europe")
        client = assistant.client
        uris = {each.uri for each in (await client.list_resources()).resources}
        assert f"whippet://streams/{name}/topics/europe" in uris
        templates = (await client.list_resource_templates()).resource_templates
        assert [each.uri_template for each in templates][1] == "whippet://streams/{stream}/topics/{topic}"
        (content,) = (await client.read_resource(f"whippet://streams/{name}/topics/europe")).contents
        assert '"messages_count":2' in content.text  # type: ignore[union-attr]
        with pytest.raises(MCPError, match="does not exist"):
            await client.read_resource("whippet://streams/none")
        assert [each.name for each in (await client.list_prompts()).prompts] == ["find_message", "messages_at"]
        (message,) = (await client.get_prompt("find_message", {"what": "hello", "stream": name})).messages
        assert f"a topic of the stream {name}" in message.content.text  # type: ignore[union-attr]
        with pytest.raises(MCPError, match="needs the argument what"):
            await client.get_prompt("find_message", {})
        with pytest.raises(MCPError, match="there is no tool"):
            await client.call_tool("drop_table", {})
    lines = [line.partition(": ")[2] for line in log.read_text().splitlines()]
    assert lines[0] == f'stdio to {addresses[transport]}, user \'{USER}\': mcp create_stream {{"name":"{name}"}}: done'
    assert len(lines) == 5


async def test_without_leave_there_are_only_tools_that_read(server: str, tmp_path: Path) -> None:
    async with over_stdio("--server", server, log=tmp_path / "log", **ROOT) as assistant:
        assert await assistant.tools() == {tool.name for tool in tools.TABLE if tool.group == "read"}
        assert await assistant.refused("create_stream", name="never") == "read_only"
        assert "never" not in str(await assistant("get_streams"))
    assert "mcp create_stream" in (tmp_path / "log").read_text()
    words = ("--server", server, "--allow", "create", "--consumer", "other", "--max-items", "1")
    async with over_stdio(*words, log=tmp_path / "log", **ROOT) as assistant:
        await assistant("create_stream", name="leave-1")
        await assistant("create_stream", name="leave-2")
        assert await assistant.refused("delete_stream", stream_id="leave-1") == "not_allowed"
        assert len((await assistant("get_streams"))["streams"]) == 1


async def test_the_rights_are_those_of_the_user_of_the_token(server: str, whippet: Whippet, tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with over_stdio("--server", server, "--allow-writes", log=log, **ROOT) as root:
        await root("create_stream", name="rights")
        user = {"username": "reader", "password": "the reader's", "active": True}
        await root("create_user", **user, permissions={"global": {"read_streams": True}})
        as_reader = {"WHIPPET_USERNAME": "reader", "WHIPPET_PASSWORD": "the reader's"}
        async with over_stdio("--server", server, "--allow-writes", log=tmp_path / "log2", **as_reader) as assistant:
            token = (await assistant("create_personal_access_token", name="a-token"))["token"]
        async with over_stdio("--server", server, "--allow-writes", log=log, WHIPPET_TOKEN=token) as assistant:
            assert "rights" in str(await assistant("get_streams"))
            assert await assistant.refused("delete_stream", stream_id="rights") == "unauthorized"
            await root("delete_user", user_id="reader")
            # The server has ended the connection with the user, and refuses the token from now on.
            assert (await assistant.refused("get_streams")) in ("disconnected", "unauthenticated", "resource_not_found")
    assert "user 'reader': mcp delete_stream" in log.read_text()


async def test_it_goes_on_after_a_restart_of_the_server(tmp_path: Path) -> None:
    with starting(tmp_path / "data") as start:
        root = {"IGGY_ROOT_USERNAME": USER, "IGGY_ROOT_PASSWORD": PASSWORD}
        gateway: Gateway = await asyncio.to_thread(start, **root)
        address = (await asyncio.to_thread(gateway.line, r"tcp://(\S+)")).group(1)
        words = ("--server", f"iggy://{address}", "--allow-writes")
        async with over_stdio(*words, log=tmp_path / "log", **ROOT) as assistant:
            await assistant("create_stream", name="kept")
            gateway.signal(signal.SIGTERM)
            await asyncio.to_thread(gateway.end)
            failure = await assistant.failure("get_streams")
            assert failure["error"] in ("cannot_establish_connection", "disconnected")
            again: Gateway = await asyncio.to_thread(start, **root, IGGY_TCP_ADDRESS=address)
            await asyncio.to_thread(again.line, r"tcp://(\S+)")
            assert [each["name"] for each in (await assistant("get_streams"))["streams"]] == ["kept"]
        again.signal(signal.SIGTERM)
        await asyncio.to_thread(again.end)


def test_what_is_wrong_is_one_line_and_an_exit_code(
    nobody: Whippet, whippet: Whippet, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "put the secret into a file" in nobody("mcp", "--password-file", "-", "--username", USER, code=2).err
    assert "at least 4096" in whippet("mcp", "--max-response-size", "1KB", code=2).err
    assert "is no size" in whippet("mcp", "--max-response-size", "much", code=2).err
    assert "is the server running" in whippet("mcp", "--server", "iggy://127.0.0.1:1", code=5).err
    monkeypatch.setenv("WHIPPET_PASSWORD", "another")
    assert "refused the login" in whippet("mcp", code=4).err
    monkeypatch.setitem(sys.modules, "mcp", None)
    assert "pip install 'whippet-gateway[mcp]'" in whippet("mcp", code=1).err


def test_ctrl_c_ends_it_at_once_at_a_terminal(whippet: Whippet) -> None:
    with terminal("mcp") as shown:
        shown.expect("this speaks JSON with an assistant")
        shown.type(INTERRUPT)
        assert shown.end() == 130


def test_it_ends_quietly_with_the_assistant(whippet: Whippet) -> None:
    with subprocess.Popen(
        [*PROGRAM, "mcp"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(b"\xff\xfe\nno JSON\n[]\n" + b"[" * 100_000 + b"\n" + PING)
        process.stdin.flush()
        assert process.stdout.readline() == b'{"jsonrpc":"2.0","id":1,"result":{}}\n'
        process.stdout.close()
        process.stdin.write(PING)
        process.stdin.close()
        # The end of the input may be noticed first.
        assert process.wait(30) in (0, 141)
        assert process.stderr.read() == b""
    ended = subprocess.run([*PROGRAM, "mcp"], stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=30)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")
