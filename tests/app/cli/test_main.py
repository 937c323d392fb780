"""The command line: its table is correct, usage errors exit with 2, and only the chosen subcommand is loaded."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys

import pytest

from whippet.app.cli.main import GROUPS, SUBCOMMANDS, Subcommand, main
from whippet.app.version import version

HEAVY = {
    "numpy",
    "uvicorn",
    "cryptography",
    "httpx",
    "rich",
    "whippet.app.server",
    "whippet.storage",
    "whippet.transports",
}


def modules(*arguments: str) -> set[str]:
    """Returns what an interpreter has imported after it has executed a command."""
    code = f"import sys; from whippet.app.cli.main import main; main({list(arguments)!r}); print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(ran.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("subcommand", SUBCOMMANDS, ids=lambda subcommand: " ".join(subcommand.words))
def test_every_subcommand_has_the_function_that_the_table_promises(
    subcommand: Subcommand, capsys: pytest.CaptureFixture[str]
) -> None:
    assert callable(getattr(importlib.import_module(subcommand.module), subcommand.function))
    assert main([*subcommand.words, "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"Usage: whippet {' '.join(subcommand.words)}" in shown
    assert f"{subcommand.summary[1:]}." in shown


def test_help_lists_every_first_word_of_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(re.search(rf"\n  {subcommand.words[0]}\s", shown) for subcommand in SUBCOMMANDS)


def test_every_group_of_the_table_is_described_and_no_alias_has_two_meanings() -> None:
    firsts = {subcommand.words[0] for subcommand in SUBCOMMANDS if len(subcommand.words) > 1}
    assert firsts == GROUPS.keys()
    alone = {subcommand.words[0]: subcommand.aliases for subcommand in SUBCOMMANDS if len(subcommand.words) == 1}
    names = [*alone, *GROUPS, *(alias for aliases in alone.values() for alias in aliases)]
    names += [alias for group in GROUPS.values() for alias in group.aliases]
    assert len(set(names)) == len(names)
    for first in firsts:
        verbs = [word for each in SUBCOMMANDS if each.words[0] == first for word in (each.words[1], *each.aliases)]
        assert len(set(verbs)) == len(verbs)


@pytest.mark.parametrize("arguments", [[], ["bench"], ["nonsense"], ["version", "--nonsense"], ["bench", "nonsense"]])
def test_a_usage_error_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert "Usage: whippet" in capsys.readouterr().err


def test_the_version_is_shown_as_a_subcommand_and_as_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == main(["--version"]) == main(["-V"]) == 0
    assert capsys.readouterr().out == f"whippet {version()}\n" * 3


@pytest.mark.parametrize("arguments", [["version"], ["--help"], ["bench", "--help"]])
def test_a_small_subcommand_loads_neither_server_nor_store(arguments: list[str]) -> None:
    assert not (HEAVY | {"asyncio", "msgspec"}) & modules(*arguments)


def test_output_that_nobody_reads_ends_the_command_quietly() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    code = "import sys; from whippet.app.cli.main import main; sys.exit(main(['config', '--docs']))"
    ran = subprocess.run([sys.executable, "-c", code], stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (ran.returncode, ran.stderr) == (141, b"")
