"""The pages for people keep their word: the commands they show exist, and their links lead somewhere."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.app.support.process import starting
from whippet.app.cli.main import SUBCOMMANDS

ROOT = Path(__file__).parents[1]
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "certs/README.md",
    "deploy/README.md",
    "deploy/spark/README.md",
    "docs/install.md",
    "docs/python.md",
    "docs/spark.md",
)
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
WORDS = {subcommand.words for subcommand in SUBCOMMANDS}


def commands(page: str) -> list[list[str]]:
    """The command lines of the fenced bash blocks, without comments and without variables set before them."""
    blocks = re.findall(r"^```bash\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    lines = [shlex.split(line, comments=True) for block in blocks for line in block.splitlines()]
    return [words for words in map(without_variables, lines) if words]


def without_variables(words: list[str]) -> list[str]:
    return words[1:] and without_variables(words[1:]) if re.match(r"[A-Z_]+=", words[0]) else words


@pytest.mark.parametrize("page", PAGES)
def test_every_make_target_and_subcommand_that_a_page_shows_exists(page: str) -> None:
    for program, *arguments in commands(page):
        plain = [argument for argument in arguments if not argument.startswith("-") and "=" not in argument]
        if program == "make":
            assert plain
            assert set(plain) <= TARGETS, f"make {plain}"
        elif Path(program).name == "whippet":
            assert any(tuple(plain[: len(words)]) == words for words in WORDS), f"whippet {plain}"


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl on this machine")
def test_every_line_with_curl_in_the_readme_does_what_it_says(tmp_path: Path) -> None:
    page = (ROOT / "README.md").read_text()
    sections = re.search(r"^## Send and poll with curl\n(.*?)^## Send and read plain data", page, re.M | re.S)
    assert sections
    script = "\n".join(re.findall(r"^```bash\n(.*?)^```", sections[1], re.M | re.S))
    with starting(tmp_path / "data") as start:
        gateway = start(IGGY_ROOT_USERNAME="iggy", IGGY_ROOT_PASSWORD="iggy")
        script = script.replace("localhost:3000", gateway.address()).replace("curl -s ", "curl -sS --fail ")
        done = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    said = re.sub(r"(?<=[}\]])(?=[{\[#])", "\n", done.stdout).splitlines()
    polled = [line for line in said if '"payload":"aGVsbG8="' in line]
    assert len(polled) == 2, "by a consumer, and with a lease"
    assert any(line.startswith('{"token":') for line in said)
    assert any(line.startswith('{"lease_id":') for line in said)
    assert '{"status":"live"}' in said
    assert "messages 1" in said
    assert said[-1].startswith('[{"key":"http.max_request_size",')


def test_data_as_it_is_goes_in_and_comes_out_as_the_readme_says(tmp_path: Path) -> None:
    page = (ROOT / "README.md").read_text()
    first = re.search(r"^## Send and poll with curl\n.*?^```bash\n(.*?)^```", page, re.M | re.S)
    section = re.search(r"^## Send and read plain data\n(.*?)^## Configure it", page, re.M | re.S)
    assert first
    assert section
    script = first[1] + "\n".join(re.findall(r"^```bash\n(.*?)^```", section[1], re.M | re.S))
    with starting(tmp_path / "data") as start:
        gateway = start(IGGY_ROOT_USERNAME="iggy", IGGY_ROOT_PASSWORD="iggy")
        script = script.replace("localhost:3000", gateway.address()).replace("curl -s ", "curl -sS --fail ")
        done = subprocess.run(
            ["bash", "-euc", script], capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path
        )
    assert done.returncode == 0, done.stderr
    offsets = re.findall(r'"base_offset":(\d+)', done.stdout)
    assert offsets == ["0", "0", "2", "4", "4"]
    assert '{"n":1}\n{"n":2}\nthree\nfour\nonce\n' in done.stdout
    assert done.stdout.count('"payload":"dGhyZWU="') == 1
    events = [f"id: 0:{i}\ndata: {text}\n" for i, text in enumerate(('{"n":1}', '{"n":2}', "three", "four", "once"), 1)]
    assert "\n".join(events) in done.stdout


def test_the_readme_shows_how_to_run_and_how_to_test() -> None:
    assert {("make", "run"), ("make", "test")} <= {tuple(command) for command in commands("README.md")}


@pytest.mark.parametrize("page", PAGES)
def test_every_link_within_the_project_leads_to_a_file(page: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", (ROOT / page).read_text()):
        if "://" not in target:
            assert (ROOT / page).parent.joinpath(target).exists(), target
