"""`whippet import iggy` reports what it has done, and its exit code tells whether that is everything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.app.importing.iggy.support import made
from whippet.app.cli.import_iggy import KEY_VARIABLE
from whippet.app.cli.main import main
from whippet.storage import placement
from whippet.storage.files import Files
from whippet.storage.layout import Layout
from whippet.storage.options import StoreOptions

COMPLETE, INCOMPLETE, REFUSED = 0, 1, 2


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return made.small_classic(tmp_path / "iggy").root


def test_a_complete_import_is_summarised(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "iggy", str(source), "--to", str(tmp_path / "data")]) == COMPLETE
    shown = capsys.readouterr().out
    assert "imported 1 stream, 1 topic, 2 partitions, 30 messages" in shown
    assert "1 group, 2 stored offsets, 2 users, 0 personal access tokens" in shown
    assert "everything was imported" in shown


def test_the_target_is_the_configured_folder(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("IGGY_SYSTEM_PATH", str(tmp_path / "configured"))
    assert main(["import", "iggy", str(source)]) == COMPLETE
    assert (tmp_path / "configured/streams/0/stream.json").exists()
    assert main(["check", str(tmp_path / "configured")]) == 0
    assert "2 partitions, 0 of them damaged" in capsys.readouterr().out


def test_losses_are_listed(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = source / f"streams/0/topics/0/partitions/0/{0:020}.log"
    log.write_bytes(log.read_bytes()[:-3])
    assert main(["import", "iggy", str(source), "--to", str(tmp_path / "data")]) == INCOMPLETE
    shown = capsys.readouterr().out
    assert f"not imported: {log}: " in shown
    assert "the message with offset 9 is lost" in shown
    assert "not imported: 1 thing, listed above" in shown


def test_the_report_can_be_json(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "iggy", str(source), "--to", str(tmp_path / "data"), "--json"]) == COMPLETE
    report = json.loads(capsys.readouterr().out)
    assert (report["messages"], report["users"], report["lost"]) == (30, 2, [])


def test_a_refusal_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "iggy", str(tmp_path / "nothing"), "--to", str(tmp_path / "data")]) == REFUSED
    assert capsys.readouterr().err == f"whippet: {tmp_path / 'nothing'}: there is no such folder\n"


@pytest.mark.parametrize("way", ["--key-file", "variable"])
def test_the_key_is_given_in_one_of_two_ways(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = made.small_classic(tmp_path / "iggy", encrypts=True).root
    (tmp_path / "key").write_text(f"{made.KEY_TEXT}\n")
    given = {"--key-file": ["--key-file", str(tmp_path / "key")]}.get(way, [])
    if not given:
        monkeypatch.setenv(KEY_VARIABLE, made.KEY_TEXT)
    assert main(["import", "iggy", str(source), "--to", str(tmp_path / "data"), *given]) == COMPLETE
    assert "30 messages" in capsys.readouterr().out


def test_a_key_on_the_command_line_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "iggy", "folder", "--to", str(tmp_path / "data"), "--key", made.KEY_TEXT]) == REFUSED
    said = capsys.readouterr().err
    assert "every user of this machine can see an argument" in said
    assert made.KEY_TEXT not in said


def test_a_missing_key_file_is_named(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "iggy", str(source), "--to", str(tmp_path / "data"), "--key-file", "no/such"]) == REFUSED
    assert capsys.readouterr().err.startswith("whippet: no/such: No such file or directory")


def test_an_import_that_was_interrupted_at_the_end_is_finished(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "data"
    assert main(["import", "iggy", str(source), "--to", str(target)]) == COMPLETE
    layout = Layout(StoreOptions(path=str(target)))
    (target / "staging/import/streams").mkdir(parents=True)
    (target / "streams/0").rename(target / "staging/import/streams/0")
    placement.decide(Files(), layout, [placement.Move("staging/import/streams/0", "streams/0")])
    capsys.readouterr()
    assert main(["import", "iggy", str(source), "--to", str(target)]) == COMPLETE
    assert "It is complete now, and nothing was imported again." in capsys.readouterr().out
    assert (target / "streams/0/stream.json").exists()
