"""Which server a command works on, and as whom; secrets never come from arguments."""

from __future__ import annotations

import io
import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.app.cli.remote.support.commands import PASSWORD, USER, Whippet
from whippet.app.cli.remote import contexts, destination
from whippet.app.cli.remote.destination import Found, Given, find, split
from whippet.app.cli.remote.failures import Failure, UsageFailure

SECRET = "pass:w@rd/?#"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("iggy://host:1", Found("iggy://host:1")),
        ("host:1", Found("iggy://host:1")),
        ("host", Found("iggy://host")),
        (f"iggy+tcp://ann:{SECRET}@host:1?tls=true", Found("iggy+tcp://host:1?tls=true", "ann", SECRET)),
        ("iggy://abc/+=@host", Found("iggy://host", token="abc/+=")),
    ],
)
def test_a_connection_string_is_split_and_put_together_again(text: str, found: Found) -> None:
    assert split(text) == found
    assert found.address == (text if "://" in text else f"iggy://{text}")
    assert SECRET not in repr(found)


@pytest.mark.parametrize("text", [f"iggy://ann:{SECRET}@host", "iggy://token@host"])
def test_a_secret_in_an_argument_is_refused_and_not_repeated(text: str, whippet: Whippet) -> None:
    for words in (["ping", "--server", text], ["context", "create", "new", "--server", text]):
        refused = whippet(*words, code=2).err
        assert "must not have a password or a token" in refused
        assert SECRET not in refused
        assert "token@" not in refused


@pytest.mark.parametrize("text", ["", "iggy://", "iggy://ann:pw@"])
def test_a_connection_string_without_a_host_is_refused(text: str) -> None:
    with pytest.raises(UsageFailure, match="no host"):
        split(text)


def test_credentials_come_from_options_then_what_was_named_then_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("from a file\n")
    with contexts.changing() as known:
        contexts.put(known, "prod", contexts.Context("iggy://prod", "root", token="T"))
        known.current = "prod"

    def found(**given: Any) -> tuple[str, str | None, str | None, str | None]:
        one = find(Given(**given))
        return one.server, one.username, one.password, one.token

    assert found() == ("iggy://prod", "root", None, "T")
    monkeypatch.setenv("IGGY_USERNAME", "i")
    monkeypatch.setenv("IGGY_PASSWORD", "ip")
    assert found() == ("iggy://prod", "i", "ip", None)
    monkeypatch.setenv("WHIPPET_USERNAME", "w")
    monkeypatch.setenv("WHIPPET_PASSWORD", "wp")
    assert found() == ("iggy://prod", "w", "wp", None)
    assert found(context="prod") == ("iggy://prod", "root", None, "T")
    assert found(server="other:1") == ("iggy://other:1", "w", "wp", None)
    monkeypatch.setenv("WHIPPET_SERVER", "iggy://s:sp@third")
    assert found() == ("iggy://third", "s", "sp", None)
    assert found(context="prod") == ("iggy://prod", "root", None, "T")
    assert found(username="x", password_file="secret") == ("iggy://third", "x", "from a file", None)
    assert found(token_file="secret") == ("iggy://third", None, None, "from a file")
    monkeypatch.setenv("WHIPPET_SERVER", "iggy://third")
    monkeypatch.setenv("WHIPPET_TOKEN", "wt")
    assert found() == ("iggy://third", None, None, "wt")
    for wrong in ({"server": "a", "context": "b"}, {"token_file": "secret", "username": "x"}):
        with pytest.raises(UsageFailure, match="exclude"):
            find(Given(**wrong))


def test_the_password_of_another_user_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    monkeypatch.setenv("WHIPPET_PASSWORD", "for anybody")
    assert find(Given(username="ann")).password == "for anybody"
    monkeypatch.setenv("WHIPPET_USERNAME", "bob")
    with pytest.raises(Failure, match="no password of ann"):
        find(Given(username="ann"))


def test_a_person_at_a_terminal_is_asked(nobody: Whippet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("getpass.getpass", lambda prompt: PASSWORD)
    terminal = io.StringIO(f"{USER}\n")
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", terminal)
    assert "127.0.0.1" in nobody("me").out
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert "whippet login" in nobody("me", code=1).err


def test_a_login_keeps_a_token_and_no_password(whippet: Whippet, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whippet("login", "1h")
    for name in ("WHIPPET_SERVER", "WHIPPET_USERNAME", "WHIPPET_PASSWORD"):
        monkeypatch.delenv(name)
    file = Path(contexts.path())
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert PASSWORD not in file.read_text()
    kept = json.loads(file.read_text())["contexts"]["default"]
    assert kept["server"] == f"iggy://{address}"
    assert [each["name"] for each in whippet("pat", "list", "--output", "json").json] == [kept["token_name"]]
    row = whippet("context", "show", "--output", "json").json
    assert row == {"name": "default", "server": kept["server"], "user": USER, "secret": "file", "in_use": True}
    whippet("logout")
    assert kept["token"] not in file.read_text()
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    whippet("pat", "list", code=1)
    monkeypatch.setenv("WHIPPET_TOKEN", kept["token"])
    whippet("pat", "list", code=4)


def test_a_new_login_ends_the_earlier_session_and_a_refused_one_leaves_no_token(
    whippet: Whippet, monkeypatch: pytest.MonkeyPatch
) -> None:
    whippet("login")
    first = contexts.read().contexts["default"].token_name
    whippet("login")
    (kept,) = whippet("pat", "list", "--output", "json").json
    assert kept["name"] == contexts.read().contexts["default"].token_name != first
    with contexts.changing() as known:
        known.contexts["default"] = contexts.Context("iggy://another")
    assert "is for iggy://another" in whippet("login", code=1).err
    assert whippet("pat", "list", "--output", "json").json == [kept]
    whippet("pat", "delete", kept["name"])


def test_a_logout_forgets_the_secret_even_if_the_server_is_gone(whippet: Whippet) -> None:
    with contexts.changing() as known:
        contexts.put(known, "gone", contexts.Context("iggy://127.0.0.1:1", token="T", token_name="t"))
    whippet("logout", "--context", "gone", code=5)
    assert contexts.read().contexts["gone"].token is None


def test_contexts_are_created_used_and_deleted(whippet: Whippet, monkeypatch: pytest.MonkeyPatch) -> None:
    for words in (["use", "nothing"], ["show"], ["show", "nothing"], ["delete", "nothing"]):
        whippet("context", *words, code=3)
    whippet("context", "create", "one", "--server", "iggy://one:1?tls=true", "-u", "ann")
    whippet("context", "create", "two")
    whippet("context", "create", "two", code=1)
    assert contexts.read().current == "one"
    whippet("context", "use", "two")
    assert [row["in_use"] for row in whippet("context", "list", "--output", "json").json] == [False, True]
    whippet("context", "delete", "two")
    assert contexts.read().current is None
    whippet("ping", "--context", "two", code=3)
    whippet("context", "create", "x", "--password-file", "secret", code=2)


def test_a_damaged_file_of_contexts_is_reported_and_kept(whippet: Whippet) -> None:
    whippet("context", "create", "one")
    Path(contexts.path()).write_text("{")
    assert contexts.path() in whippet("context", "list", code=1).err
    whippet("context", "create", "two", code=1)
    assert Path(contexts.path()).read_text() == "{"


def test_a_failed_change_leaves_the_file_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    with contexts.changing() as known:
        known.contexts["one"] = contexts.Context("iggy://one")
    before = Path(contexts.path()).read_bytes()

    def crash(*_: object) -> None:
        raise OSError("the machine is gone")

    monkeypatch.setattr(os, "rename", crash)
    with pytest.raises(OSError, match="gone"), contexts.changing() as known:
        known.contexts.clear()
    assert Path(contexts.path()).read_bytes() == before


class Ring:
    """A keyring in memory."""

    priority = 5

    def __init__(self) -> None:
        self.secrets: dict[tuple[str, str], str] = {}
        self.fails = False

    def get_password(self, service: str, name: str) -> str | None:
        return self.secrets.get((service, name))

    def set_password(self, service: str, name: str, secret: str) -> None:
        if self.fails:
            raise RuntimeError("it is locked")
        self.secrets[service, name] = secret

    def delete_password(self, service: str, name: str) -> None:
        del self.secrets[service, name]


@pytest.fixture
def ring(monkeypatch: pytest.MonkeyPatch) -> Ring:
    keyring = pytest.importorskip("keyring", reason="keyring is not installed: install whippet-gateway[keyring]")
    found = Ring()
    monkeypatch.delenv("WHIPPET_KEYRING")
    monkeypatch.setattr(keyring, "get_keyring", lambda: found)
    return found


def test_secrets_are_in_the_keyring_where_there_is_one(whippet: Whippet, ring: Ring) -> None:
    whippet("login")
    assert "token" not in json.loads(Path(contexts.path()).read_text())["contexts"]["default"]
    assert list(ring.secrets) == [("whippet", "default")]
    assert find(Given(context="default")).token is not None
    ring.fails = True
    with contexts.changing() as known:
        contexts.put(known, "other", contexts.Context("iggy://other", token="T"))
    assert contexts.read().contexts["other"].token == "T"
    whippet("logout")
    assert ring.secrets == {}
    assert destination.find(Given(context="default"), asks=False).token is None


def test_a_keyring_behind_which_nothing_stands_is_not_used(ring: Ring, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ring, "priority", 0)
    with contexts.changing() as known:
        contexts.put(known, "one", contexts.Context("iggy://one", token="T"))
    assert contexts.read().contexts["one"].token == "T"
    assert ring.secrets == {}
