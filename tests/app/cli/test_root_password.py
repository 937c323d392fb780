"""`whippet root-password` on a data folder that no server has open."""

from __future__ import annotations

import base64
import io
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.app.access.support.world import HOME, ROOT, refusal, world
from tests.storage.support.ways import KEY
from tests.storage.support.world import opened
from tests.support.running import run
from whippet.app.access.users import Users
from whippet.app.cli.main import main
from whippet.app.commands.requests import UserStatus
from whippet.app.errors import Code
from whippet.storage.encryption import Keyring
from whippet.storage.files import Files

INACTIVE = UserStatus.INACTIVE


class Typed:
    """A terminal at which passwords are typed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
        self._lines = list(lines)
        monkeypatch.setattr(sys, "stdin", self)
        monkeypatch.setattr("getpass.getpass", lambda prompt: self._lines.pop(0))

    def isatty(self) -> bool:
        return True


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data folder of a stopped server."""
    for name in ("IGGY_ROOT_PASSWORD", "IGGY_ROOT_USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)

    async def make() -> None:
        async with opened(tmp_path / "data") as store:
            users = await Users.open(store, ROOT, False, store.clock)
            await users.save_root()
            users.close()

    run(make())
    return tmp_path / "data"


def log_in(folder: Path, password: str) -> Any:
    async def try_it() -> Any:
        async with opened(folder) as store:
            users = await Users.open(store, ROOT, False, store.clock)
            try:
                return await refusal(users.log_in("root", password, HOME))
            finally:
                users.close()

    return run(try_it())


def reset(monkeypatch: pytest.MonkeyPatch, folder: Path, *more: str, given: str = "") -> int:
    if given:
        monkeypatch.setattr(sys, "stdin", io.StringIO(given))
    return main(["root-password", str(folder), *more])


def test_the_first_line_of_standard_input_is_the_new_password(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reset(monkeypatch, folder, given="the new one\nnot this\n") == 0
    said = capsys.readouterr().out
    assert "The root user 'root' has a new password" in said
    assert "the new one" not in said
    assert log_in(folder, "the new one") is None
    assert log_in(folder, ROOT["IGGY_ROOT_PASSWORD"]) == Code.INVALID_CREDENTIALS


def test_at_a_terminal_the_password_is_typed_twice(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Typed(monkeypatch, "the new one", "a typo")
    assert reset(monkeypatch, folder) == 2
    assert "differ" in capsys.readouterr().err
    assert log_in(folder, ROOT["IGGY_ROOT_PASSWORD"]) is None
    Typed(monkeypatch, "the new one", "the new one")
    assert reset(monkeypatch, folder) == 0
    assert log_in(folder, "the new one") is None


def test_the_password_comes_from_the_environment_or_is_generated_and_printed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("IGGY_ROOT_PASSWORD", "from outside")
    assert reset(monkeypatch, folder) == 0
    assert log_in(folder, "from outside") is None
    capsys.readouterr()
    assert reset(monkeypatch, folder, "--generate") == 0
    made_up = capsys.readouterr().out.rpartition("password  ")[2].strip()
    assert log_in(folder, made_up) is None


@pytest.mark.parametrize(("given", "sentence"), [("\n", "no password"), ("ab\n", "3 to 100 bytes")])
def test_an_invalid_password_changes_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], given: str, sentence: str
) -> None:
    before = (folder / "users" / "0.json").read_bytes()
    assert reset(monkeypatch, folder, given=given) == 2
    assert sentence in capsys.readouterr().err
    assert (folder / "users" / "0.json").read_bytes() == before


def test_root_is_active_again_and_earlier_sessions_and_tokens_are_void(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def prepare() -> tuple[str, Any]:
        async with world(folder) as made:
            users = made.gateway.users
            text = await made.gateway.personal_tokens.create(users.root, "build", 0)
            login = users.root.login
            await users.update(0, None, INACTIVE)
            return text, login

    text, login = run(prepare())
    assert reset(monkeypatch, folder, given="the new one\n") == 0

    async def look() -> None:
        async with world(folder) as made:
            assert await made.person().log_in("root", "the new one") == 0
            assert made.gateway.users.by_login(login) is None
            with pytest.raises(Exception, match="no such personal access token"):
                made.gateway.personal_tokens.owner(text, made.gateway.users)

    run(look())


@pytest.mark.parametrize("ends_tokens", [False, True])
def test_personal_access_tokens_of_an_active_root_end_on_request(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, ends_tokens: bool
) -> None:
    async def prepare() -> str:
        async with world(folder) as made:
            return await made.gateway.personal_tokens.create(made.gateway.users.root, "build", 0)

    text = run(prepare())
    more = ["--end-personal-access-tokens"] if ends_tokens else []
    assert reset(monkeypatch, folder, *more, given="the new one\n") == 0

    async def look() -> None:
        async with world(folder) as made:
            assert len(made.gateway.personal_tokens.of(made.gateway.users.root)) == (0 if ends_tokens else 1)
            assert not ends_tokens or text

    run(look())


def test_a_folder_that_a_server_has_open_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (folder / "users" / "0.json").read_bytes()

    async def while_it_is_open() -> None:
        async with opened(folder):
            assert reset(monkeypatch, folder, "--generate") == 2

    run(while_it_is_open())
    said = capsys.readouterr()
    assert "another process has this data folder open; stop it first" in said.err
    assert said.out == ""
    assert (folder / "users" / "0.json").read_bytes() == before


@pytest.mark.parametrize(
    ("content", "sentence"), [(None, "is missing"), (b"{}", "cannot be understood"), (b"\xff", "cannot be understood")]
)
def test_a_missing_or_damaged_root_user_is_reported(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    content: bytes | None,
    sentence: str,
) -> None:
    path = folder / "users" / "0.json"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    assert reset(monkeypatch, folder, "--generate") == 2
    assert sentence in capsys.readouterr().err


def test_a_folder_that_is_not_a_data_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reset(monkeypatch, tmp_path / "nothing", "--generate") == 2
    assert "this is not a data folder of Whippet" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")
def test_the_document_keeps_its_owner(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "users" / "0.json"
    os.chown(path, 12345, 12345)
    assert reset(monkeypatch, folder, given="the new one\n") == 0
    assert (path.stat().st_uid, path.stat().st_gid) == (12345, 12345)


def test_the_new_document_is_synced_in_its_place(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    rename, sync_folder = Files.rename, Files.sync_folder

    def renamed(files: Files, old: str, new: str) -> None:
        rename(files, old, new)
        done.append(f"renamed to {Path(new).name}")

    def synced(files: Files, path: str) -> None:
        sync_folder(files, path)
        done.append(f"synced {Path(path).name}")

    monkeypatch.setattr(Files, "rename", renamed)
    monkeypatch.setattr(Files, "sync_folder", synced)
    assert reset(monkeypatch, folder, given="the new one\n") == 0
    assert done == ["renamed to 0.json", "synced users"]


def test_the_root_user_of_an_encrypted_folder_stays_encrypted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def make() -> None:
        async with opened(tmp_path / "data", keyring=Keyring([], KEY)) as store:
            users = await Users.open(store, ROOT, False, store.clock)
            await users.save_root()
            users.close()

    run(make())
    path = tmp_path / "data/users/0.json"
    assert reset(monkeypatch, tmp_path / "data", given="the new one\n") == 2
    assert "is encrypted with the key" in capsys.readouterr().err
    monkeypatch.setenv("IGGY_SYSTEM_ENCRYPTION_ENABLED", "true")
    monkeypatch.setenv("IGGY_SYSTEM_ENCRYPTION_KEY", base64.b64encode(KEY).decode())
    before = path.read_bytes()
    assert reset(monkeypatch, tmp_path / "data", given="the new one\n") == 0
    assert path.read_bytes() != before
    assert b"argon2" not in path.read_bytes()

    async def log_in_again() -> Any:
        async with opened(tmp_path / "data", keyring=Keyring([], KEY)) as store:
            users = await Users.open(store, ROOT, False, store.clock)
            try:
                return await refusal(users.log_in("root", "the new one", HOME))
            finally:
                users.close()

    assert run(log_in_again()) is None
