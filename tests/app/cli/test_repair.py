"""`whippet repair` as operators use it: what it prints, and its exit codes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.storage.support.repairs import PARTITION, Mirrored, flipped, mirrored
from whippet.app.cli.main import main
from whippet.app.cli.repair import LEFT, REFUSED, SOUND


@pytest.fixture
def folder(tmp_path: Path) -> Mirrored:
    """Its first log has a changed byte."""
    made = asyncio.run(mirrored(tmp_path))
    log = made.logs()[0]
    log.write_bytes(flipped(log.read_bytes(), 300, 1))
    return made


def repair(folder: Mirrored, *arguments: str) -> int:
    return main(["repair", str(folder.data), *arguments])


def test_what_was_repaired_is_named_with_stream_topic_and_offsets(
    folder: Mirrored, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = str(folder.root / "archive")
    spoilt = folder.logs()[0].read_bytes()
    assert repair(folder, "--archive", archive, "--dry-run") == SOUND
    shown = capsys.readouterr().out
    assert "stream 0 (orders), topic 0 (eu), partition 0:\n  would be repaired: " in shown
    assert "2 messages from offset 0" in shown
    assert folder.logs()[0].read_bytes() == spoilt
    assert repair(folder, "--archive", archive) == SOUND
    shown = capsys.readouterr().out
    kept = folder.partition / "damaged" / f"{folder.logs()[0].name}@0"
    assert f"    taken from the archive\n    what it was is kept in {kept}\n1 repaired, 0 not\n" in shown
    assert kept.read_bytes() == spoilt[: kept.stat().st_size]
    assert repair(folder, "--archive", archive) == SOUND
    assert capsys.readouterr().out == f"from the archive {archive}\nnothing is damaged\n"


def test_without_an_archive_it_says_what_the_server_would_do(
    folder: Mirrored, capsys: pytest.CaptureFixture[str]
) -> None:
    assert repair(folder) == LEFT
    shown = capsys.readouterr().out
    assert shown.startswith("without an archive: only indexes are repaired")
    assert "the server reports it at its start and does not deliver these messages" in shown
    assert shown.endswith("0 repaired, 1 not\n")


def test_the_archive_of_the_configuration_is_the_default(
    folder: Mirrored, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("IGGY_DATA_MAINTENANCE_ARCHIVER_ENABLED", "true")
    monkeypatch.setenv("IGGY_DATA_MAINTENANCE_ARCHIVER_KIND", "disk")
    monkeypatch.setenv("IGGY_DATA_MAINTENANCE_ARCHIVER_DISK_PATH", str(folder.root / "archive"))
    assert repair(folder, "--no-archive") == LEFT
    assert repair(folder) == SOUND
    assert "1 repaired, 0 not" in capsys.readouterr().out
    assert folder.files() == folder.before


def test_it_is_also_printed_as_json(folder: Mirrored, capsys: pytest.CaptureFixture[str]) -> None:
    assert repair(folder, "--archive", str(folder.root / "archive"), "--json") == SOUND
    (partition, others) = json.loads(capsys.readouterr().out)
    assert partition["place"] == {"stream": 0, "topic": 0, "partition": 0}
    assert (partition["stream_name"], partition["topic_name"]) == ("orders", "eu")
    (finding,) = partition["findings"]
    assert (finding["part"], finding["repaired"], finding["damage"]["next_offset"]) == ("log", True, 2)
    assert (others["place"], others["findings"]) == (None, [])


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--archive", "."], "is not the folder of an archive: it has no archive.json"),
        (["--archive", ".", "--no-archive"], "give either an archive or --no-archive"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line(
    folder: Mirrored, capsys: pytest.CaptureFixture[str], arguments: list[str], reason: str
) -> None:
    assert repair(folder, *arguments) == REFUSED
    error = capsys.readouterr().err
    assert error.startswith("whippet: ")
    assert error.endswith(f"{reason}\n")


def test_a_folder_that_is_no_data_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["repair", str(tmp_path)]) == REFUSED
    assert "this is not a data folder of Whippet" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_the_disk_is_one_line(folder: Mirrored, capsys: pytest.CaptureFixture[str]) -> None:
    (folder.data / PARTITION / "damaged").write_text("a file in the place of the folder")
    assert repair(folder, "--archive", str(folder.root / "archive")) == REFUSED
    assert capsys.readouterr().err.startswith("whippet: ")
