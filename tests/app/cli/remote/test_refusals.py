"""What makes no sense is refused in one line with the right exit code, and never left out silently."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.app.cli.remote.support.commands import Whippet

HUGE = str(2**70)
NO_UTF8 = "\udcff"


@pytest.fixture
def place(whippet: Whippet) -> Iterator[None]:
    whippet("stream", "create", "S")
    whippet("topic", "create", "S", "T")
    yield
    whippet("stream", "delete", "S", "--yes")


@pytest.mark.parametrize(
    "command",
    [
        "stream get {}",
        "topic get S {}",
        "consumer-group get S T {}",
        "consumer-offset get {} S T 0",
        "consumer-offset set a S T 0 {}",
        "user get {}",
        "client get {}",
        "segment delete S T {} 1 --yes",
        "message send S T x -p {}",
        "message poll S T {} -f",
        "message poll S T 0 -o {}",
        "message flush S T {}",
        "send S/T -p {} lines",
        "tail S/T --from {} -n 1",
        "cat S/T --from {}",
        "groups reset S/T {} --to first --yes",
    ],
)
def test_numbers_that_no_server_has_are_wrong_usage(
    command: str, whippet: Whippet, place: None, tmp_path: Path
) -> None:
    (tmp_path / "lines").write_text("x\n")
    said = whippet(*(word.replace("{}", HUGE) for word in command.split()), code=2).err
    assert "the largest is 4294967295" in said or "a number is too large" in said


@pytest.mark.parametrize(
    "command",
    [
        "stream get {}",
        "stream create {}",
        "message send S T x --headers k={}",
        "message send S T x -m {}",
        "cat S/{}",
        "groups lag S/T {}",
        "context create {}",
        "pat delete {}",
        "user create {}",
    ],
)
def test_texts_that_are_not_utf_8_are_refused(
    command: str, whippet: Whippet, place: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHIPPET_NEW_PASSWORD", "a password")
    said = whippet(*(word.replace("{}", NO_UTF8) for word in command.split()), code=2).err
    assert "UTF-8" in said or "cannot be the name" in said or "is no string" in said


def test_messages_in_arguments_may_have_any_bytes_but_are_not_empty(whippet: Whippet, place: None) -> None:
    whippet("message", "send", "S", "T", f"a{NO_UTF8}")
    (row,) = whippet("message", "poll", "S", "T", "0", "-f", "--output", "json").json
    assert (row["payload"], row["encoding"]) == ("Yf8=", "base64")
    assert "must not be empty" in whippet("message", "send", "S", "T", "x", "", code=2).err


@pytest.mark.parametrize("option", ["--server", "--context", "--username", "--password-file", "--token-file"])
def test_an_option_without_a_value_is_not_left_out(option: str, whippet: Whippet) -> None:
    """A variable of a script that is not set must not change who does something, or where."""
    assert whippet("stream", "list", option, "", code=2).err == f"whippet: {option} is empty\n"


def test_options_of_commands_are_not_left_out_either(whippet: Whippet, place: None) -> None:
    assert "--filter is empty" in whippet("cat", "S/T", "--filter", "", code=2).err
    assert "--metrics is empty" in whippet("top", "--metrics", "", code=2).err
    assert "--out-dir is empty" in whippet("snapshot", "--out-dir", "", code=2).err
    assert "--snapshot-types names no part" in whippet("snapshot", "-s", "", code=2).err
    assert "is empty" in whippet("stream", "get", "", code=2).err


def test_a_secret_file_that_is_no_text_is_named(
    whippet: Whippet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "latin").write_bytes(b"\xff\n")
    assert "latin is not UTF-8" in whippet("stream", "list", "--token-file", "latin", code=2).err
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\n"), "utf-8"))
    assert "standard input is not UTF-8" in whippet("stream", "list", "--token-file", "-", code=2).err


def test_a_user_without_a_password_is_named(nobody: Whippet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert "no password of ann: use --password-file" in nobody("stream", "list", "--username", "ann", code=1).err


@pytest.mark.parametrize(
    ("name", "server", "reason"),
    [
        ("", "iggy://h", "cannot be the name"),
        ("a/b", "iggy://h", "cannot be the name"),
        ("evil\x1b", "iggy://h", "cannot be the name"),
        ("c", "iggy+foo://h", "begins with"),
        ("c", "iggy://h:99999", "no host:port"),
        ("c", "iggy://h?what=1", "options that do not exist: what"),
        ("c", "iggy://u:secret@h", "must not have a password"),
    ],
)
def test_a_context_that_could_not_be_used_is_not_created(name: str, server: str, reason: str, nobody: Whippet) -> None:
    said = nobody("context", "create", name, "--server", server, code=2).err
    assert reason in said
    assert "secret" not in said
    assert nobody("context", "list", "--output", "json").json == []


def test_a_password_in_the_address_of_the_metrics_is_refused(whippet: Whippet) -> None:
    said = whippet("top", "--metrics", "http://u:secret@h/metrics", code=2).err
    assert "must not have a user or a password" in said
    assert "secret" not in said
