"""The manual page is up to date, correct, and has every command."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from whippet.app.cli import manual
from whippet.app.cli.subcommands import SUBCOMMANDS

PAGE = Path(__file__).parents[3] / "docs" / "man" / "whippet.1"


def test_the_manual_page_is_up_to_date() -> None:
    assert PAGE.read_text() == manual.page(), "run `make docs`"


def test_the_manual_page_has_every_command_and_no_markdown() -> None:
    text = PAGE.read_text().replace("\\-", "-")
    for subcommand in SUBCOMMANDS:
        assert f'.SS "whippet {" ".join(subcommand.words)}"' in text
    assert "`" not in text.partition("\n")[2]
    assert not re.search(r"^#|\]\(", text, re.MULTILINE)


@pytest.mark.skipif(shutil.which("mandoc") is None, reason="mandoc is not on this machine: apt-get install mandoc")
def test_mandoc_finds_no_mistake() -> None:
    found = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", PAGE], capture_output=True, text=True, check=False)
    # It has no date, because it is made from what it describes.
    lines = [line for line in found.stdout.splitlines() if "missing date" not in line]
    assert lines == []


@pytest.mark.skipif(shutil.which("man") is None, reason="man is not on this machine: apt-get install man-db")
def test_man_shows_it() -> None:
    shown = subprocess.run(["man", "--warnings", "-l", PAGE], capture_output=True, text=True, check=True)
    assert "whippet - persistent message streaming" in shown.stdout
    assert shown.stderr == ""
