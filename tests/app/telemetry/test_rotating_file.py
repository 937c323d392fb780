"""A file of whole lines: nothing torn is left, and a file that cannot be replaced goes on."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from whippet.app.telemetry.rotating_file import Bounds, RotatingFile

UNBOUNDED = Bounds(0, 0, 1e9)


@pytest.fixture
def lines(tmp_path: Path) -> Iterator[RotatingFile]:
    file = RotatingFile(str(tmp_path), "lines", UNBOUNDED)
    yield file
    file.close()


def test_a_line_that_fits_only_in_part_leaves_nothing(
    lines: RotatingFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines.write(b"whole\n")
    write = os.write
    with monkeypatch.context() as patched, pytest.raises(OSError, match="No space"):
        patched.setattr(os, "write", lambda handle, data: write(handle, data[:3]))
        lines.write(b"torn\n")
    lines.write(b"next\n")
    assert (tmp_path / "lines").read_bytes() == b"whole\nnext\n"


def test_what_follows_half_a_line_begins_a_new_one(tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"whole\nhal")
    file = RotatingFile(str(tmp_path), "lines", UNBOUNDED)
    file.write(b"next\n")
    file.close()
    assert (tmp_path / "lines").read_bytes() == b"whole\nhal\nnext\n"


def test_a_rotation_that_fails_keeps_the_file_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = RotatingFile(str(tmp_path), "lines", Bounds(10, 0, 1e9))
    file.write(b"12345678\n")

    def refuse(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patched, pytest.raises(OSError, match="Too many"):
        patched.setattr(os, "open", refuse)
        file.write(b"second\n")
    file.write(b"third\n")
    file.close()
    found = sorted(path.read_bytes() for path in tmp_path.iterdir())
    assert b"".join(found).count(b"\n") == 2
    assert b"third\n" in found


def test_an_old_file_that_cannot_be_removed_loses_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[OSError] = []
    file = RotatingFile(str(tmp_path), "lines", Bounds(10, 10, 1e9), on_untidy=reported.append)

    def refuse(path: str) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr(os, "remove", refuse)
    file.write(b"12345678\n")
    file.write(b"second\n")
    file.close()
    assert (tmp_path / "lines").read_bytes() == b"second\n"
    assert len(reported) == 1


def test_a_link_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lines").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic"):
        RotatingFile(str(tmp_path), "lines", UNBOUNDED)
