"""The file of the signing key: whole, readable for its owner only, and never left open."""

from __future__ import annotations

import base64
import os
import stat
from pathlib import Path

import pytest

from tests.support.open_files import count_open_files
from whippet.app.access.signing_key import NAME, read_or_create
from whippet.app.config import ConfigError
from whippet.app.config.formats import Secret
from whippet.app.config.listeners import HttpJwt


def key(folder: Path) -> bytes:
    (found,) = read_or_create(HttpJwt(), str(folder))
    return found


def test_a_key_is_created_whole_and_read_back(tmp_path: Path) -> None:
    folder = tmp_path / "access"
    made = key(folder)
    assert len(made) == 64
    assert os.listdir(folder) == [NAME]
    assert (folder / NAME).read_bytes() == made
    assert stat.S_IMODE((folder / NAME).stat().st_mode) == 0o600
    assert key(folder) == made
    assert key(tmp_path / "another") != made


def test_reading_and_creating_a_key_leaves_no_file_open(tmp_path: Path) -> None:
    before = count_open_files()
    for _ in range(3):
        key(tmp_path)
    assert count_open_files() <= before


@pytest.mark.parametrize("mode", [0o640, 0o620, 0o610, 0o604, 0o602, 0o601])
def test_a_key_that_others_could_use_is_closed_to_them_with_a_warning(
    tmp_path: Path, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    made = key(tmp_path)
    os.chmod(tmp_path / NAME, mode)
    assert key(tmp_path) == made
    assert stat.S_IMODE((tmp_path / NAME).stat().st_mode) == 0o600
    assert "was readable for others" in caplog.text


def test_a_key_for_its_owner_only_is_left_as_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = key(tmp_path)
    os.chmod(tmp_path / NAME, 0o700)
    assert key(tmp_path) == made
    assert stat.S_IMODE((tmp_path / NAME).stat().st_mode) == 0o700
    assert caplog.text == ""


def test_half_a_key_left_by_a_crash_is_not_used(tmp_path: Path) -> None:
    (tmp_path / f"{NAME}.new").write_bytes(b"x" * 100)
    os.chmod(tmp_path / f"{NAME}.new", 0o644)
    made = key(tmp_path)
    assert len(made) == 64
    assert os.listdir(tmp_path) == [NAME]
    assert stat.S_IMODE((tmp_path / NAME).stat().st_mode) == 0o600


@pytest.mark.parametrize(("size", "used"), [(0, False), (63, False), (64, True), (65, True)])
def test_a_key_has_at_least_64_bytes(tmp_path: Path, size: int, used: bool) -> None:
    (tmp_path / NAME).write_bytes(b"k" * size)
    if used:
        assert key(tmp_path) == b"k" * size
    else:
        with pytest.raises(ConfigError, match="is not a key as Whippet creates it"):
            key(tmp_path)


def test_only_the_first_4096_bytes_of_a_long_key_are_used(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b"k" * 4096 + b"ignored")
    assert key(tmp_path) == b"k" * 4096


def test_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"k" * 64)
    (tmp_path / NAME).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="cannot be used"):
        key(tmp_path)


@pytest.mark.parametrize(
    ("encoding", "decoding", "expected"),
    [("a", None, [b"a"]), (None, "b", [b"b"]), ("a", "b", [b"a", b"b"]), ("a", "a", [b"a", b"a"])],
)
@pytest.mark.parametrize("in_base64", [False, True])
def test_the_configured_secrets_keep_their_order(
    tmp_path: Path,
    encoding: str | None,
    decoding: str | None,
    expected: list[bytes],
    in_base64: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def secret(text: str | None) -> Secret:
        return Secret("" if text is None else base64.b64encode(text.encode()).decode() if in_base64 else text)

    config = HttpJwt(encoding_secret=secret(encoding), decoding_secret=secret(decoding), use_base64_secret=in_base64)
    assert read_or_create(config, str(tmp_path)) == expected
    assert os.listdir(tmp_path) == []
    assert ("differ" in caplog.text) is (len(set(expected)) > 1)


def test_a_secret_that_is_not_valid_base64_is_refused_and_not_truncated(tmp_path: Path) -> None:
    config = HttpJwt(encoding_secret=Secret("QUJD%QUJD"), use_base64_secret=True)
    with pytest.raises(ValueError, match="base64"):
        read_or_create(config, str(tmp_path))
