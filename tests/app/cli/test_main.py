"""The command line: its table is correct, usage errors exit with 2, and only the chosen subcommand is loaded."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys

import pytest

from whippet.app.cli.main import SUBCOMMANDS, Subcommand, main
from whippet.app.version import version


@pytest.mark.parametrize("subcommand", SUBCOMMANDS, ids=lambda subcommand: " ".join(subcommand.words))
def test_every_subcommand_has_the_functions_that_the_table_promises(
    subcommand: Subcommand, capsys: pytest.CaptureFixture[str]
) -> None:
    assert callable(importlib.import_module(subcommand.module).run)
    with pytest.raises(SystemExit) as ended:
        main([*subcommand.words, "--help"])
    assert ended.value.code == 0
    assert f"usage: whippet {' '.join(subcommand.words)}" in capsys.readouterr().out


def test_help_lists_every_first_word_of_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    assert all(re.search(rf"\n    {subcommand.words[0]}\s", shown) for subcommand in SUBCOMMANDS)


@pytest.mark.parametrize("arguments", [[], ["bench"], ["nonsense"], ["version", "--nonsense"], ["--", "version"]])
def test_a_usage_error_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: whippet" in capsys.readouterr().err


def test_the_version_is_shown_as_a_subcommand_and_as_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    for option in ("--version", "-V"):
        with pytest.raises(SystemExit) as ended:
            main([option])
        assert ended.value.code == 0
    assert capsys.readouterr().out == f"whippet {version()}\n" * 3


def test_a_small_subcommand_loads_neither_server_nor_store() -> None:
    shown = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from whippet.app.cli.main import main; main(['version']); print(*sys.modules)",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert not {"whippet.app.server", "whippet.storage", "whippet.transports", "uvicorn", "numpy"}.intersection(shown)
