"""`send`, `tail`, `cat` and `groups`: the commands of every day."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.app.cli.remote.support.commands import PASSWORD, USER, Whippet
from tests.app.support.process import starting
from whippet.app.cli.main import main
from whippet.app.cli.remote import filters, reading, sending, starts
from whippet.app.cli.remote.failures import UsageFailure
from whippet.app.client import Received

DEADLINE_S = 60
PROGRAM = [sys.executable, "-m", "whippet.app.cli.main"]


@pytest.fixture
def topic(whippet: Whippet) -> Iterator[str]:
    whippet("stream", "create", "every")
    whippet("topic", "create", "every", "day", "2")
    yield "every/day"
    whippet("stream", "delete", "every", "--yes")


def typed(monkeypatch: pytest.MonkeyPatch, octets: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(octets)))


def lines(ran: str) -> list[str]:
    return ran.splitlines()


def test_lines_are_sent_and_printed_again(whippet: Whippet, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    typed(monkeypatch, b"".join(b"line %d\r\n" % i for i in range(3000)) + b"\nthe last")
    sent = whippet("send", topic, "-", "-p", "1", "--output", "json").json
    assert sent["messages_count"] == 3001
    assert lines(whippet("cat", topic).out) == [*(f"line {i}" for i in range(3000)), "the last"]
    assert lines(whippet("cat", topic, "--from", "2999").out) == ["line 2999", "the last"]
    assert lines(whippet("cat", topic, "--from", "-1").out) == ["the last"]
    assert lines(whippet("cat", topic, "-n", "2").out) == ["line 0", "line 1"]
    assert lines(whippet("cat", topic, "--from", "1h-ago", "-n", "1").out) == ["line 0"]
    assert whippet("cat", topic, "-p", "0").out == whippet("cat", topic, "--from", "end").out == ""


def test_files_are_sent_by_lines_or_as_a_whole(whippet: Whippet, topic: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1\n2\n")
    (tmp_path / "b").write_text("3\n4\n")
    whippet("send", topic, "a", "b", "-p", "0", "-H", "n:uint8:7")
    whippet("send", topic, "a", "--whole", "-p", "0")
    rows = [json.loads(line) for line in lines(whippet("cat", topic, "--output", "ndjson").out)]
    assert [row["payload"] for row in rows] == ["1", "2", "3", "4", "1\n2\n"]
    assert [row["headers"] for row in rows] == [{"n": 7}] * 4 + [{}]
    assert "no-such-file" in whippet("send", topic, "no-such-file", code=1).err


def test_a_whole_file_is_sent_as_it_is_and_an_empty_one_is_refused(
    whippet: Whippet, topic: str, tmp_path: Path
) -> None:
    (tmp_path / "dos").write_bytes(b"1\r\n2\r")
    (tmp_path / "empty").touch()
    whippet("send", topic, "dos", "--whole", "-p", "0")
    (row,) = [json.loads(line) for line in lines(whippet("cat", topic, "--output", "ndjson").out)]
    assert row["payload"] == "1\r\n2\r"
    assert "empty is empty" in whippet("send", topic, "empty", "--whole", code=2).err


def test_a_line_may_come_in_any_pieces_and_has_a_limit(
    whippet: Whippet, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "CHUNK_BYTES", 7)
    (tmp_path / "file").write_bytes(b"short\r\r\n\na line in several pieces\nthe last\r")
    whippet("send", topic, "file", "-p", "0")
    assert whippet("cat", topic).out.split("\n") == ["short\r", "a line in several pieces", "the last", ""]
    monkeypatch.setattr(sending, "LINE_BYTES_MAX", 23)
    assert "a line is longer than 23 bytes" in whippet("send", topic, "file", "-p", "0", code=2).err


@pytest.mark.parametrize("key", ["k" * 256, ""])
def test_a_key_that_is_too_long_or_empty_is_refused(
    key: str, whippet: Whippet, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed(monkeypatch, b"text")
    reason = "1 to 255 bytes" if key else "key is empty"
    assert reason in whippet("send", topic, "--key", key, code=2).err
    assert reason in whippet("message", "send", "every", "day", "text", "--message-key", key, code=2).err


def test_messages_with_the_same_key_share_a_partition(
    whippet: Whippet, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed(monkeypatch, b"".join(b'{"c":{"id":%d},"n":%d}\n' % (i % 20, i) for i in range(200)))
    whippet("send", topic, "--key", "$.c.id")
    rows = [json.loads(line) for line in lines(whippet("cat", topic, "--output", "ndjson").out)]
    partitions: dict[int, set[int]] = {}
    for row in rows:
        partitions.setdefault(json.loads(row["payload"])["c"]["id"], set()).add(row["partition_id"])
    assert len(rows) == 200
    assert all(len(own) == 1 for own in partitions.values())
    assert len(set.union(*partitions.values())) == 2
    shown = lines(whippet("cat", topic, "--filter", "$.n >= 198").out)
    assert sorted(json.loads(line)["n"] for line in shown) == [198, 199]


def test_tail_follows_the_topic_until_it_is_interrupted(whippet: Whippet, topic: str, tmp_path: Path) -> None:
    (tmp_path / "before").write_text("before\n")
    (tmp_path / "after").write_text("after\n")
    whippet("send", topic, "before")
    tail = subprocess.Popen(
        [*PROGRAM, "tail", topic, "--from", "first"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert tail.stdout
        assert tail.stdout.readline() == "before\n"
        whippet("send", topic, "after")
        assert tail.stdout.readline() == "after\n"
        tail.send_signal(signal.SIGINT)
        out, err = tail.communicate(timeout=DEADLINE_S)
    finally:
        tail.kill()
        tail.wait()
    assert (tail.returncode, out, err) == (130, "", "")


@pytest.mark.parametrize("command", ["send every/day", "message send every day", "import topic every/day -"])
def test_ctrl_c_ends_a_command_that_waits_for_input_at_once(command: str, whippet: Whippet, topic: str) -> None:
    sending = subprocess.Popen(
        [*PROGRAM, *command.split(), *(["-p", "0"])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert sending.stdin
        if command.startswith("send"):
            sending.stdin.write(b"at once\n")
            sending.stdin.flush()
            # What was typed is sent without waiting for more; now the command waits again.
            assert whippet("tail", topic, "--from", "first", "-n", "1").out == "at once\n"
        else:
            until_connected(whippet, sending)
        sending.send_signal(signal.SIGINT)
        assert sending.wait(DEADLINE_S) == 130
        assert sending.stderr
        assert b"Traceback" not in sending.stderr.read()
    finally:
        sending.kill()
        sending.communicate()


def until_connected(whippet: Whippet, process: subprocess.Popen[bytes]) -> None:
    """Returns when there is a client beside the one that asks."""
    while len(whippet("client", "list", "--output", "json").json) < 2:
        assert process.poll() is None


def test_a_reader_that_has_seen_enough_ends_the_command_quietly(whippet: Whippet, topic: str, tmp_path: Path) -> None:
    (tmp_path / "many").write_text("x" * 100 + "\n")
    whippet("send", topic, *["many"] * 9, "-p", "0")
    reading, writing = os.pipe()
    os.close(reading)
    ran = subprocess.run([*PROGRAM, "cat", topic], stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (ran.returncode, ran.stderr) == (141, b"")


def test_a_member_of_a_group_stores_what_it_has_printed(whippet: Whippet, topic: str, tmp_path: Path) -> None:
    (tmp_path / "six").write_text("1\n2\n3\n4\n5\n6\n")
    whippet("send", topic, "six", "-p", "0")
    assert lines(whippet("tail", topic, "--group", "billing", "-n", "4").out) == ["1", "2", "3", "4"]
    (first, _) = whippet("groups", "lag", topic, "billing", "--output", "json").json
    assert first["next_offset"] == 6
    # The last message counts as processed when another one is requested.
    assert (first["stored_offset"], first["lag"]) in ((2, 3), (3, 2))
    whippet("tail", topic, "--group", "billing", "--from", "first", code=2)


@pytest.mark.parametrize(("to", "lag"), [("first", 6), ("end", 0), ("-2", 2), ("4", 2), ("1h-ago", 6), ("6", 0)])
def test_a_group_is_set_back_and_forth(to: str, lag: int, whippet: Whippet, topic: str, tmp_path: Path) -> None:
    (tmp_path / "six").write_text("1\n2\n3\n4\n5\n6\n")
    whippet("send", topic, "six", "-p", "1")
    whippet("consumer-group", "create", "every", "day", "billing")
    assert [row["lag"] for row in whippet("groups", "lag", topic, "billing", "--output", "json").json] == [0, 6]
    whippet("consumer-offset", "set", "billing", "every", "day", "1", "2", "-k", "consumer-group")
    whippet("groups", "reset", topic, "billing", "--to", to, "--yes")
    assert [row["lag"] for row in whippet("groups", "lag", topic, "billing", "--output", "json").json] == [0, lag]
    assert whippet("consumer-group", "get", "every", "day", "billing", "--output", "json").json["members"] == []


def test_places_that_do_not_exist_are_reported(whippet: Whippet, topic: str) -> None:
    for words in (["cat", "no/topic"], ["tail", "no/topic"], ["cat", topic, "-p", "9"], ["groups", "lag", topic, "x"]):
        whippet(*words, code=3)
    for words in (["cat", "nothing"], ["cat", topic, "--from", "soon"], ["cat", topic, "--filter", "amount > 1"]):
        whippet(*words, code=2)
    whippet("send", topic, "--key", "k", "-p", "0", code=2)


def on_a_terminal(*words: str, **variables: str) -> str:
    """Returns what a command prints if its output is a terminal."""
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "100"} | variables
    environment.pop("NO_COLOR", None) if "NO_COLOR" not in variables else None
    process = subprocess.Popen([*PROGRAM, *words], stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 65536):
            shown += chunk
    except OSError:
        # The terminal is gone with the last process that used it.
        pass
    os.close(ours)
    assert process.wait(DEADLINE_S) == 0, shown
    return shown.decode()


def test_colours_are_for_terminals_and_no_color_turns_them_off(whippet: Whippet, topic: str) -> None:
    shown = on_a_terminal("topic", "list", "every")
    assert "\x1b[" in shown
    assert "day" in shown
    plain = on_a_terminal("topic", "list", "every", NO_COLOR="1")
    assert "\x1b" not in plain
    assert "day" in plain


def test_a_payload_does_not_command_the_terminal(whippet: Whippet, topic: str, tmp_path: Path) -> None:
    (tmp_path / "evil").write_bytes(b"\x1b]0;title\x07 \x1b[2J\n" + '{"a": "\x9b\u202e"}\n'.encode())
    whippet("send", topic, "evil", "-p", "0")
    shown = on_a_terminal("cat", topic, NO_COLOR="1")
    assert shown.splitlines() == ["\\x1b]0;title\\x07 \\x1b[2J", '{"a": "\\u009b\\u202e"}']
    for words in (("cat", topic, "--output", "ndjson"), ("message", "poll", "every", "day", "0", "-f", "-m", "2")):
        assert not set("\x1b\x07\x9b\u202e") & set(on_a_terminal(*words, NO_COLOR="1"))
    assert whippet("cat", topic).out.splitlines()[0] == "\x1b]0;title\x07 \x1b[2J"


def test_json_has_colours_on_a_terminal_only(whippet: Whippet, topic: str, tmp_path: Path) -> None:
    (tmp_path / "one").write_text('{"amount": 3, "paid": true}\nplain\n')
    whippet("send", topic, "one", "-p", "0")
    coloured = '{\x1b[1;34m"amount"\x1b[0m: \x1b[36m3\x1b[0m, \x1b[1;34m"paid"\x1b[0m: \x1b[35mtrue\x1b[0m}'
    for words in (("cat", topic), ("tail", topic, "--from", "first", "-n", "2")):
        assert on_a_terminal(*words).splitlines() == [coloured, "plain"]
        assert on_a_terminal(*words, NO_COLOR="1").splitlines() == ['{"amount": 3, "paid": true}', "plain"]
        assert whippet(*words).out == '{"amount": 3, "paid": true}\nplain\n'
    poll = ("message", "poll", "every", "day", "0", "-f")
    assert re.search(r'\x1b\[1;34m"amount"', on_a_terminal(*poll))
    assert re.search(r'\x1b\[1;34m"payload"', on_a_terminal(*poll, "--output", "json"))
    assert "\x1b" not in whippet(*poll, "--output", "json").out


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("$.a > 1", True),
        ("$.a >= 2", True),
        ("$.a < 2", False),
        ("$.a != 2", False),
        ("$.b[1] == x", True),
        ('$.b[1] == "x"', True),
        ("$.b contains y", False),
        ("$.b contains x", True),
        ("$.a > x", False),
        ("$.nothing == null", False),
        ("$.c.d", True),
        ("$.c.e", False),
        ("$.b[9]", False),
        ("$", True),
    ],
)
def test_filters_compare_what_is_at_a_path(text: str, holds: bool) -> None:
    assert filters.parse(text)(b'{"a": 2, "b": [1, "x"], "c": {"d": 1, "e": 0}}') is holds
    assert filters.parse("$.a > 1")(b"no json") is False


def test_an_invalid_filter_or_start_is_refused() -> None:
    for text in ("a > 1", "$.a ~ 1", "$.a ==", ""):
        with pytest.raises(UsageFailure, match="examples"):
            filters.parse(text)
    for text in ("-0", "-x", "5 parsecs-ago", ""):
        with pytest.raises(UsageFailure, match="no place to begin"):
            starts.parse(text)


def test_a_tail_goes_on_after_a_purge_and_in_new_partitions(whippet: Whippet, topic: str) -> None:
    code = (
        "from whippet.app.cli.remote import reading; reading.REFRESH_S = 0; import whippet.app.cli.main as m; m.main()"
    )
    whippet("message", "send", "every", "day", *(["before"] * 3), "-p", "0")
    tail = subprocess.Popen(
        [sys.executable, "-c", code, "tail", topic, "--from", "first"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert tail.stdout
        assert [tail.stdout.readline() for _ in range(3)] == ["before\n"] * 3
        whippet("topic", "purge", "every", "day", "--yes")
        whippet("partition", "create", "every", "day", "1")
        whippet("message", "send", "every", "day", "new", "-p", "2")
        assert tail.stdout.readline() == "new\n"
        # It has seen by then that partition 0 was purged: it polls all at once.
        whippet("message", "send", "every", "day", "after", "-p", "0")
        assert tail.stdout.readline() == "after\n"
    finally:
        tail.kill()
        tail.communicate()


def test_a_cat_ends_although_more_arrives(whippet: Whippet, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whippet("message", "send", "every", "day", "one", "two", "-p", "0")
    show = reading._Printer.show

    def show_and_send(printer: reading._Printer, messages: Iterator[Received]) -> None:
        show(printer, messages)
        subprocess.run(
            [*PROGRAM, "message", "send", "every", "day", "more", "-p", "0"], check=True, capture_output=True
        )

    monkeypatch.setattr(reading._Printer, "show", show_and_send)
    monkeypatch.setattr(reading, "MANY", 1)
    assert whippet("cat", topic, "--from", "0").out == "one\ntwo\n"


def test_a_member_goes_on_after_a_restart_of_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHIPPET_USERNAME", USER)
    monkeypatch.setenv("WHIPPET_PASSWORD", PASSWORD)
    root = {"IGGY_ROOT_USERNAME": USER, "IGGY_ROOT_PASSWORD": PASSWORD}
    with starting(tmp_path / "data") as start:
        first = start(**root)
        address = first.line(r"tcp://(\S+)").group(1)
        monkeypatch.setenv("WHIPPET_SERVER", f"iggy://{address}")

        def call(*words: str) -> None:
            assert main(list(words)) == 0

        call("stream", "create", "s")
        call("topic", "create", "s", "t")
        call("message", "send", "s", "t", "one")
        tail = subprocess.Popen([*PROGRAM, "tail", "s/t", "-g", "g"], stdout=subprocess.PIPE, text=True)
        try:
            assert tail.stdout
            assert tail.stdout.readline() == "one\n"
            first.process.kill()
            first.end()
            start(**root, IGGY_TCP_ADDRESS=address).line(r"tcp://(\S+)")
            call("message", "send", "s", "t", "two")
            # The last message counts as processed only when the next one is requested.
            assert tail.stdout.readline() in ("one\n", "two\n")
        finally:
            tail.kill()
            tail.communicate()
