"""Snapshots of servers with and without a log file."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

from whippet.app import snapshot

LOGS = 5


def server_logs(log_folder: Path | None) -> str:
    log = None if log_folder is None else str(log_folder)
    content = snapshot.make([LOGS], snapshot.zip_method(2), snapshot.Server("/nowhere", log, "config"))
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return archive.read("server_logs.txt").decode()


def test_the_snapshot_contains_the_log_file(tmp_path: Path) -> None:
    (tmp_path / "iggy-server.log").write_bytes(b"first\nsecond \xff\n")
    assert server_logs(tmp_path) == "first\nsecond \N{REPLACEMENT CHARACTER}\n"


def test_a_long_log_is_cut_to_its_last_whole_lines(tmp_path: Path) -> None:
    line = b"x" * 99 + b"\n"
    (tmp_path / "iggy-server.log").write_bytes(
        b"first\n" + line * (snapshot.LOG_BYTES_MAX // len(line) + 1) + b"last\n"
    )
    found = server_logs(tmp_path)
    assert found.endswith("x\nlast\n")
    assert set(found[:-5].splitlines()) == {"x" * 99}
    assert snapshot.LOG_BYTES_MAX - 2 * len(line) < len(found) <= snapshot.LOG_BYTES_MAX


def test_a_snapshot_without_a_log_file_gives_the_reason() -> None:
    assert "system.logging.file_enabled" in server_logs(None)
