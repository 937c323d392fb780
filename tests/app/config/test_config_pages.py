"""The printed configuration has no secrets, and the generated pages are up to date."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest

from whippet.app.cli.main import main
from whippet.app.config import Config, docs, load, render
from whippet.app.config.aliases import ALIASES
from whippet.app.config.keys import KEYS, variable

ROOT = Path(__file__).parents[3]


def run(*arguments: str) -> int:
    return main(["config", *arguments])


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith("IGGY_") or name == "RUST_LOG":
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def test_the_documentation_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--docs") == 0
    page = capsys.readouterr().out
    assert (ROOT / "docs" / "configuration.md").read_text() == page, "run `make docs`"


def test_the_documentation_has_every_key_and_alias() -> None:
    page = docs.page()
    assert all(f"`{variable(name)}`" in page for name in KEYS)
    assert all(f"| `{old}` | `{new}` |" in page for old, new in ALIASES.items())


def test_the_sample_file_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--toml") == 0
    sample = capsys.readouterr().out
    assert (ROOT / "deploy" / "server.toml").read_text() == sample, "run `whippet config --toml > deploy/server.toml`"


def test_the_sample_file_contains_the_defaults() -> None:
    loaded = load({"IGGY_CONFIG_PATH": str(ROOT / "deploy" / "server.toml")}, "/")
    assert loaded.config == Config()
    assert loaded.warnings == ()
    assert "default" not in loaded.origins.values(), "every key is in the file"


def test_no_line_of_the_sample_is_too_long() -> None:
    assert max(map(len, render.sample().splitlines())) <= 120


def test_the_printed_configuration_is_a_file_with_the_same_meaning(start: Any, tmp_path: Path) -> None:
    loaded = start(
        '[[cluster.node.others]]\nname = "b\\u007f\\"é"\nip = "10.0.0.2"\nports.http = 3001\n'
        '[[cluster.node.others]]\nname = "c"\nip = "10.0.0.3"',
        IGGY_SYSTEM_SEGMENT_SIZE="512 MiB",
    )
    printed = tmp_path / "printed.toml"
    printed.write_text(render.toml(loaded))
    assert load({"IGGY_CONFIG_PATH": "printed.toml"}, str(tmp_path)).config == loaded.config


def test_each_printed_line_shows_the_origin_of_its_value(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "server.toml").write_text('[system]\npath = "data"')
    monkeypatch.setenv("IGGY_HTTP_WEB_UI", "true")
    monkeypatch.setenv("IGGY_ZZZ", "1")
    assert run() == 0
    output = capsys.readouterr()
    lines = [" ".join(line.split()) for line in output.out.splitlines()]
    assert lines[0] == "# file: server.toml"
    assert 'path = "data" # server.toml' in lines
    assert any(line.startswith('address = "127.0.0.1:8090" ') for line in output.out.splitlines())
    assert "web_ui = true # IGGY_HTTP_WEB_UI" in lines
    assert 'size = "1 GiB" # default' in lines
    assert output.err == "warning: IGGY_ZZZ: unknown variable; ignored\n"


def test_the_json_output_has_the_same_values(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IGGY_HTTP_WEB_UI", "true")
    assert run("--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["file"] is None
    assert printed["keys"]["http.web_ui"] == {"value": True, "origin": "IGGY_HTTP_WEB_UI"}
    assert set(printed["keys"]) == {name for name in KEYS if "[]" not in name}


def test_an_invalid_setting_ends_the_command_with_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IGGY_HTTP_WEB_UI", "perhaps")
    assert run() == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == "IGGY_HTTP_WEB_UI: 'perhaps': true or false is needed\n"


def test_no_output_shows_a_secret(start: Any) -> None:
    secrets = {
        "IGGY_HTTP_JWT_ENCODING_SECRET": "hush-1, which has the length that it needs",
        "IGGY_HTTP_JWT_DECODING_SECRET": "hush-1, which has the length that it needs",
        "IGGY_ARCHIVER_S3_SECRET_ACCESS_KEY": "hush-3",
        "IGGY_ROOT_PASSWORD": "hush-4",
    }
    loaded = start(**secrets)
    for printed in (render.toml(loaded), render.as_json(loaded), repr(loaded), str(loaded.config)):
        assert "hush" not in printed
        assert "******" in printed
    assert loaded.config.http.jwt.encoding_secret == "hush-1, which has the length that it needs"
    assert f"{loaded.environment['IGGY_ROOT_PASSWORD']}" == "hush-4"
    assert tomllib.loads(render.toml(loaded))["http"]["jwt"]["encoding_secret"] == "******"
