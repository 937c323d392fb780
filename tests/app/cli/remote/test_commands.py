"""Every command runs on a live server, and its output has the promised form."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import jsonschema_rs
import pytest

from tests.app.cli.remote.support.commands import PASSWORD, Whippet
from whippet.app.cli import docs
from whippet.app.cli.main import REMOTE, SUBCOMMANDS, main

ROOT = Path(__file__).parents[4]
SCHEMAS = json.loads((ROOT / "docs" / "cli.schema.json").read_text())

NO_ROWS = {"cat", "tail", "mcp"}

SCENARIO = """
stream create S
stream list
stream update S S2
stream get S2
topic create S2 eu 2 gzip 7d --max-topic-size 10GB
topic list S2
topic update S2 eu europe none never
topic get S2 europe
partition create S2 europe 1
message send S2 europe hello world --partition-id 1 --headers a=b --headers n:uint32:7
message poll S2 europe 1 --first --message-count 10
message flush S2 europe 1 --fsync
segment delete S2 europe 1 1 --yes
consumer-group create S2 europe billing
consumer-group list S2 europe
consumer-group get S2 europe billing
consumer-offset set shipping S2 europe 1 1
consumer-offset get shipping S2 europe 1
consumer-offset set billing S2 europe 1 0 --kind consumer-group
consumer-offset get billing S2 europe 1 --kind consumer-group
copy S2/europe S2/copied --create
topic delete S2 copied --yes
top --interval 100ms --count 1
export topic S2/europe out.ndjson --yes
import topic S2/europe out.ndjson
groups lag S2/europe billing
groups reset S2/europe billing --to first --yes
consumer-group delete S2 europe billing --yes
send S2/europe lines --partition 0
user create ann --global-permissions read_streams,p_msg --stream-permissions 0:m_str#0:p_msg
user list
user get ann
user status ann inactive
user name ann anna
user permissions anna --yes
user password anna
user delete anna --yes
pat create build 1d
pat list
pat delete build
ping --count 2
stats
me
cluster metadata
client list
snapshot --compression stored
context create C --server iggy://ADDRESS
context list
context use C
context show
login
session login 1h
logout
session logout
context delete C
topic purge S2 europe --yes
stream purge S2 --yes
partition delete S2 europe 1 --yes
topic delete S2 europe --yes
stream delete S2 --yes
"""


@pytest.mark.parametrize("transport", ["tcp", "quic", "ws", "http"])
def test_every_command_runs_over_each_transport_and_its_json_follows_the_schema(
    transport: str, whippet: Whippet, addresses: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHIPPET_SERVER", addresses[transport])
    monkeypatch.setenv("WHIPPET_NEW_PASSWORD", "a password")
    monkeypatch.setenv("WHIPPET_CURRENT_PASSWORD", "a password")
    done = set()
    for line in SCENARIO.replace("iggy://ADDRESS", addresses[transport]).strip().splitlines():
        words = line.split()
        if (transport, line) == ("http", "me"):
            # Requests over HTTP belong to no connection.
            assert "GetMe is not in the HTTP API" in whippet("me", code=4).err
            done.add("me")
            continue
        ran = whippet(*words, "--output", "json")
        command = " ".join(words[:2]) if " ".join(words[:2]) in SCHEMAS else words[0]
        jsonschema_rs.validate(SCHEMAS[command], ran.json)
        done.add(command)
    clients = whippet("client", "list", "--output", "json").json
    assert len(clients) == (transport != "http")
    whippet("client", "get", str(clients[0]["id"] if clients else 1), code=3)
    everything = {" ".join(each.words) for each in SUBCOMMANDS if each.module.startswith(REMOTE)} - NO_ROWS
    assert done | {"client get"} == everything == SCHEMAS.keys()


@pytest.fixture(autouse=True)
def _lines(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("from a file")


@pytest.mark.parametrize("form", ["table", "ndjson", "quiet"])
def test_every_command_runs_with_each_form_of_output(
    form: str, whippet: Whippet, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHIPPET_NEW_PASSWORD", "a password")
    monkeypatch.setenv("WHIPPET_CURRENT_PASSWORD", "a password")
    for line in SCENARIO.replace("ADDRESS", address).strip().splitlines():
        ran = whippet(*line.split(), "--output", form)
        assert ran.err == ""
        if form == "ndjson":
            assert all(isinstance(json.loads(row), dict) for row in ran.out.splitlines())
        else:
            assert "\x1b" not in ran.out


def test_the_pages_about_the_commands_are_up_to_date() -> None:
    assert (ROOT / "docs" / "cli.md").read_text() == docs.page(), "run `make docs`"
    assert (ROOT / "docs" / "cli.schema.json").read_text() == docs.schemas(), "run `make docs`"


def test_tables_have_a_heading_and_quiet_output_has_only_names(whippet: Whippet) -> None:
    whippet("stream", "create", "quiet one")
    whippet("stream", "create", "another")
    heading, *lines = whippet("stream", "list").out.splitlines()
    assert heading.split() == ["id", "name", "topics", "messages", "size", "created", "at"]
    assert len(lines) == 2
    assert whippet("stream", "list", "--output", "quiet").out == "quiet one\nanother\n"
    for name in ("another", "quiet one"):
        whippet("stream", "delete", name, "--yes")
    assert whippet("stream", "list").out == "id  name  topics  messages  size  created at\n"
    assert whippet("stream", "list", "--output", "json").json == []


def test_ids_work_like_names_and_short_words_like_long_ones(whippet: Whippet) -> None:
    stream = str(whippet("s", "c", "by id", "--output", "json").json["id"])
    topic = str(whippet("t", "c", stream, "eu", "--output", "json").json["id"])
    whippet("m", "s", stream, topic, "hello")
    (message,) = whippet("m", "p", "by id", topic, "0", "-f", "--output", "json").json
    assert (message["payload"], message["encoding"], message["headers"]) == ("hello", "text", {})
    group = str(whippet("g", "c", stream, topic, "billing", "--output", "json").json["id"])
    assert whippet("g", "g", stream, "eu", group, "--output", "quiet").out == "billing\n"
    whippet("s", "d", stream, "-y")


def test_messages_come_from_arguments_lines_or_a_file(whippet: Whippet, monkeypatch: pytest.MonkeyPatch) -> None:
    whippet("stream", "create", "sent")
    whippet("topic", "create", "sent", "eu", "3")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\n\ntwo\r\n\xff\n")))
    sent = whippet("message", "send", "sent", "eu", "-p", "2", "--output", "json").json
    assert sent == {"messages_count": 3, "size_bytes": 7}
    whippet("message", "send", "sent", "eu", "-p", "2", "--input-file", "lines", "-H", "trace=1,2")
    found = whippet("message", "poll", "sent", "eu", "2", "-f", "-m", "9", "--output", "json").json
    assert [each["payload"] for each in found] == ["one", "two", "/w==", "from a file"]
    assert [each["encoding"] for each in found] == ["text", "text", "base64", "text"]
    assert found[3]["headers"] == {"trace": "1,2"}
    keyed = [whippet("message", "send", "sent", "eu", word, "-m", "a key") for word in ("x", "y")]
    assert len(keyed) == 2
    topic = whippet("topic", "get", "sent", "eu", "--output", "json").json
    assert sorted(each["messages_count"] for each in topic["partitions"])[-1] >= 4
    for words in (["hi", "-p", "1", "-m", "k"], ["hi", "--input-file", "lines"], ["hi", "-H", "nonsense"]):
        whippet("message", "send", "sent", "eu", *words, code=2)
    whippet("stream", "delete", "sent", "--yes")


def test_polls_begin_where_they_are_told_to(whippet: Whippet) -> None:
    whippet("stream", "create", "polled")
    whippet("topic", "create", "polled", "eu")
    whippet("message", "send", "polled", "eu", "a", "b", "c")

    def poll(*words: str) -> str:
        return "".join(whippet("message", "poll", "polled", "eu", "0", *words, "--output", "quiet").out.split())

    assert poll("--offset", "1", "-m", "5") == "bc"
    assert poll("--last", "-m", "2") == "bc"
    assert poll("--next", "--auto-commit", "--consumer", "reader") == "a"
    assert poll("--next", "--consumer", "reader", "-m", "5") == "bc"
    whippet("message", "poll", "polled", "eu", "0", code=2)
    whippet("message", "poll", "polled", "eu", "0", "--first", "--last", code=2)
    whippet("stream", "delete", "polled", "--yes")


def test_a_topic_that_may_be_compressed_with_zstd_is_not_changed_to_gzip_unasked(whippet: Whippet) -> None:
    """The protocol shows zstd as gzip."""
    whippet("stream", "create", "s")
    whippet("topic", "create", "s", "t", "1", "gzip")
    assert "may be compressed with zstd" in whippet("topic", "update", "s", "t", "u", code=2).err
    whippet("topic", "get", "s", "t")
    whippet("topic", "update", "s", "t", "u", "gzip")
    assert whippet("topic", "get", "s", "u", "--output", "json").json["compression_algorithm"] == "gzip"
    whippet("topic", "update", "s", "u", "v", "none")
    whippet("topic", "update", "s", "v", "w")


def test_what_does_not_exist_exits_with_3_and_what_is_refused_with_4(whippet: Whippet) -> None:
    assert "`whippet stream list` shows" in whippet("stream", "get", "nothing", code=3).err
    whippet("stream", "delete", "nothing", "--yes", code=3)
    whippet("topic", "list", "nothing", code=3)
    whippet("user", "get", "nobody", code=3)
    whippet("consumer-group", "list", "nothing", "eu", code=3)
    whippet("stream", "create", "twice")
    assert "name" in whippet("stream", "create", "twice", code=4).err
    whippet("stream", "delete", "twice", "--yes")


def test_a_server_that_is_not_there_exits_with_5(whippet: Whippet, address: str) -> None:
    for server in (
        "iggy://127.0.0.1:1",
        "iggy+ws://127.0.0.1:1",
        f"iggy+ws://{address}",
        "iggy+http://127.0.0.1:1",
        "iggy+quic://127.0.0.1:1",
    ):
        assert "is the server running" in whippet("ping", "--server", server, code=5).err


def test_a_command_that_deletes_needs_yes_where_nobody_can_answer(
    whippet: Whippet, monkeypatch: pytest.MonkeyPatch
) -> None:
    whippet("stream", "create", "precious")
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert "--yes" in whippet("stream", "delete", "precious", code=2).err
    for answer, code in (("no\n", 1), ("\n", 1), ("y\n", 0)):
        terminal = io.StringIO(answer)
        monkeypatch.setattr(terminal, "isatty", lambda: True)
        monkeypatch.setattr(sys, "stdin", terminal)
        assert main(["stream", "delete", "precious"]) == code
    whippet("stream", "get", "precious", code=3)


def test_new_users_can_log_in_and_do_only_what_they_may(
    whippet: Whippet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("ann's password\n")
    whippet("user", "create", "ann", "--new-password-file", "secret", "-g", "read_streams")
    whippet("stream", "list", "--username", "ann", "--password-file", "secret")
    refused = whippet("stream", "create", "no", "--username", "ann", "--password-file", "secret", code=4)
    assert "permission" in refused.err
    whippet("user", "permissions", "ann", "-g", "manage_streams,manage_users")
    granted = whippet("user", "get", "ann", "--output", "json").json["global_permissions"]
    assert granted == ["manage_users", "manage_streams"]
    monkeypatch.setenv("WHIPPET_CURRENT_PASSWORD", "ann's password")
    monkeypatch.setenv("WHIPPET_NEW_PASSWORD", "another password")
    whippet("user", "password", "ann")
    whippet("ping", "--username", "ann", "--password-file", "secret", code=4)
    for wrong in ("nonsense", "poll"):
        assert "choose from" in whippet("user", "permissions", "ann", "-g", wrong, code=2).err
    whippet("user", "permissions", "ann", "-s", "orders:read_stream", code=2)
    monkeypatch.delenv("WHIPPET_NEW_PASSWORD")
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert "WHIPPET_NEW_PASSWORD" in whippet("user", "create", "bob", code=2).err
    whippet("user", "delete", "ann", "--yes")


@pytest.mark.parametrize(
    "words",
    [
        ["topic", "create", "s", "t", "1", "none", "nonsense"],
        ["topic", "create", "s", "t", "1", "none", "--max-topic-size", "large"],
        ["topic", "create", "s", "t", "1", "lz4"],
        ["partition", "create", "s", "t", "0"],
        ["snapshot", "--snapshot-types", "everything"],
        ["login", "never"],
        ["ping", "--server", "nonsense://127.0.0.1:1"],
        ["ping", "--server", "iggy://127.0.0.1:1?colour=red"],
        ["ping", "--output", "xml"],
    ],
)
def test_wrong_values_are_usage_errors(words: list[str], whippet: Whippet) -> None:
    assert PASSWORD not in whippet(*words, code=2).err


def test_a_command_loads_only_what_it_needs(address: str, whippet: Whippet) -> None:
    code = "import sys; from whippet.app.cli.main import main; assert main(['ping']) == 0; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(ran.stdout.splitlines()[-1].split())
    heavy = {"aioquic", "argon2", "httpx", "keyring", "numpy", "obstore", "rich", "starlette", "uvicorn", "uvloop"}
    heavy |= {"cryptography", "httptools", "websockets"}
    assert not heavy & loaded
    assert not {"whippet.app.server", "whippet.app.gateway", "whippet.storage.store", "whippet.bench"} & loaded
