"""The keys for encryption at rest: where they come from, and how they are made and added."""

from __future__ import annotations

import base64
from pathlib import Path

import msgspec
import pytest

from whippet.app import encryption_keys
from whippet.app.cli.main import main
from whippet.app.config import Config
from whippet.app.config.formats import Secret
from whippet.app.config.system import Encryption
from whippet.storage.encryption import id_of
from whippet.storage.errors import KeyMissing

KEY, OTHER = bytes(range(32)), bytes(32)


def text(key: bytes) -> str:
    return base64.b64encode(key).decode()


def config(*, enabled: bool = False, key: bytes | str = b"", key_file: object = "") -> Config:
    whole = Config()
    given = Secret(key if isinstance(key, str) else text(key) if key else "")
    encryption = Encryption(enabled=enabled, key=given, key_file=str(key_file))
    return msgspec.structs.replace(whole, system=msgspec.structs.replace(whole.system, encryption=encryption))


def test_without_keys_nothing_is_encrypted() -> None:
    assert encryption_keys.keyring(config()) is None


def test_the_key_is_in_use_only_if_encryption_is_enabled() -> None:
    for enabled in (True, False):
        found = encryption_keys.keyring(config(enabled=enabled, key=KEY))
        assert found is not None
        assert found.ids == [id_of(KEY).hex()]
        assert found.active_id == (id_of(KEY) if enabled else b"")


def test_the_last_key_of_the_file_is_in_use_and_the_others_are_known(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"# the first\n{text(KEY)}\n\n  {text(OTHER)}  \n")
    found = encryption_keys.keyring(config(enabled=True, key_file=path))
    assert found is not None
    assert (found.ids, found.active_id) == ([id_of(KEY).hex(), id_of(OTHER).hex()], id_of(OTHER))
    path.write_text(f"{text(OTHER)}\n")
    found = encryption_keys.keyring(config(enabled=True, key=KEY, key_file=path))
    assert found is not None
    assert (found.ids, found.active_id) == ([id_of(KEY).hex(), id_of(OTHER).hex()], id_of(OTHER))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"enabled": True}, "neither system.encryption.key nor key_file is set"),
        ({"key": "not base64!"}, "system.encryption.key: not a key; 32 bytes in base64 are needed"),
        ({"key": text(bytes(31))}, "system.encryption.key: not a key"),
        ({"key_file": "missing"}, "does not exist; `whippet keys new` creates it"),
        ({"key_file": "empty"}, "has no key"),
        ({"key_file": "wrong"}, "line 2: not a key"),
        ({"key_file": "."}, "cannot be read: "),
    ],
)
def test_a_missing_or_malformed_key_is_named_and_never_shown(
    tmp_path: Path, settings: dict[str, object], sentence: str
) -> None:
    (tmp_path / "empty").write_text("# nothing\n")
    (tmp_path / "wrong").write_text(f"{text(KEY)}\nnonsense\n")
    if "key_file" in settings:
        settings = settings | {"key_file": tmp_path / str(settings["key_file"])}
    with pytest.raises(KeyMissing, match=sentence.replace("(", r"\(")) as refused:
        encryption_keys.keyring(config(**settings))  # type: ignore[arg-type]
    assert "nonsense" not in str(refused.value)
    assert "not base64!" not in str(refused.value)


def test_the_commands_make_add_and_list_keys_without_showing_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "keys"
    assert main(["keys", "new", str(path)]) == 0
    (first,) = encryption_keys.keys_in(str(path))
    assert path.stat().st_mode & 0o777 == 0o600
    assert main(["keys", "new", str(path)]) == 1
    assert encryption_keys.keys_in(str(path)) == [first]
    assert main(["keys", "rotate", str(path)]) == 0
    kept, second = encryption_keys.keys_in(str(path))
    assert (kept, len({first, second})) == (first, 2)
    capsys.readouterr()
    assert main(["keys", "list", str(path)]) == 0
    assert capsys.readouterr().out == f"{id_of(first).hex()}\n{id_of(second).hex()}  in use\n"
    for key in (first, second):
        assert text(key) not in capsys.readouterr().out


@pytest.mark.parametrize("command", ["rotate", "list"])
def test_a_key_is_only_added_to_a_file_that_has_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert main(["keys", command, str(tmp_path / "keys")]) == 1
    assert "does not exist" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_without_a_path_the_configured_file_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["keys", "new"]) == 1
    assert "set system.encryption.key_file" in capsys.readouterr().err
    monkeypatch.setenv("IGGY_SYSTEM_ENCRYPTION_KEY_FILE", str(tmp_path / "keys"))
    assert main(["keys", "new"]) == 0
    assert len(encryption_keys.keys_in(str(tmp_path / "keys"))) == 1
