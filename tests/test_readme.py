"""The pages for users: every command on them exists, their snippets run as pasted, and their links lead somewhere."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.app.importing.iggy.support.made import small_classic
from tests.app.support.process import Gateway, starting
from tests.sdk.support import environments
from whippet.app.cli.main import SUBCOMMANDS

ROOT = Path(__file__).parents[1]
PAGES = (
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "certs/README.md",
    "deploy/README.md",
    "deploy/spark/README.md",
    "docs/archive.md",
    "docs/benchmarks.md",
    "docs/cli.md",
    "docs/compatibility.md",
    "docs/durability.md",
    "docs/encryption.md",
    "docs/engines/kafka.md",
    "docs/http.md",
    "docs/install.md",
    "docs/mcp.md",
    "docs/operating.md",
    "docs/python.md",
    "docs/python-api.md",
    "docs/spark.md",
    "docs/websocket.md",
)
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
WORDS = {subcommand.words for subcommand in SUBCOMMANDS}
README_LINES_MAX = 220
IMAGE_BYTES_MAX = 200_000
PASSWORD = "generatedbytheserver"

needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl on this machine")


def section(page: str, heading: str) -> str:
    found = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    assert found, f"{page} has no section {heading!r}"
    return found[1]


def blocks(text: str, language: str = "bash") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def commands(page: str) -> list[list[str]]:
    """Returns the command lines of the bash blocks, without comments and without the variables that precede them."""
    lines = [
        shlex.split(line, comments=True) for block in blocks((ROOT / page).read_text()) for line in block.splitlines()
    ]
    return [words for words in map(without_variables, lines) if words]


def without_variables(words: list[str]) -> list[str]:
    return words[1:] and without_variables(words[1:]) if re.match(r"[A-Z_]+=", words[0]) else words


def run_script(script: str, gateway: Gateway, folder: Path, *, flags: str = "-euc") -> str:
    """Runs snippets in the second terminal of the README, against a gateway on another port; every command must
    succeed."""
    environ = os.environ | {"WHIPPET_USERNAME": "iggy", "WHIPPET_PASSWORD": PASSWORD}
    script = re.sub(r"curl -s(w '\\n')? ", r"curl -sS\1 --fail ", script.replace("localhost:3000", gateway.address()))
    done = subprocess.run(
        ["bash", flags, script], capture_output=True, text=True, timeout=60, check=False, cwd=folder, env=environ
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


@pytest.mark.parametrize("page", PAGES)
def test_every_make_target_and_subcommand_that_a_page_shows_exists(page: str) -> None:
    for program, *arguments in commands(page):
        plain = [argument for argument in arguments if not argument.startswith("-") and "=" not in argument]
        if program == "make":
            assert plain
            assert set(plain) <= TARGETS, f"make {plain}"
        elif Path(program).name == "whippet":
            assert any(tuple(plain[: len(words)]) == words for words in WORDS), f"whippet {plain}"


@pytest.mark.parametrize("page", PAGES)
def test_every_link_within_the_project_leads_to_a_file(page: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", (ROOT / page).read_text()):
        if "://" not in target:
            assert (ROOT / page).parent.joinpath(target).exists(), target


@pytest.mark.parametrize("page", PAGES)
def test_every_link_to_a_heading_leads_to_one(page: str) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", (ROOT / page).read_text()):
        text = (ROOT / page).parent.joinpath(target).read_text() if target else (ROOT / page).read_text()
        headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
        anchors = {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
        assert anchor in anchors, f"{target}#{anchor}"


def test_the_readme_is_short_and_shows_how_to_run_and_to_test() -> None:
    assert {("make", "run"), ("make", "test")} <= {tuple(command) for command in commands("README.md")}
    assert len((ROOT / "README.md").read_text().splitlines()) <= README_LINES_MAX
    for image in (ROOT / "docs" / "images").iterdir():
        assert image.stat().st_size < IMAGE_BYTES_MAX, image.name


def test_the_readme_leads_to_messages_with_the_command_line(tmp_path: Path) -> None:
    (script,) = blocks(section("README.md", "From the command line"))
    with starting(tmp_path / "data") as start:
        gateway = start(IGGY_ROOT_USERNAME="iggy", IGGY_ROOT_PASSWORD=PASSWORD)
        server = gateway.line(r"tcp://(\S+)").group(1)
        said = run_script(f"export WHIPPET_SERVER=iggy://{server}\n{script}", gateway, ROOT)
        assert said.endswith('{"id": 2, "amount": 250}\n')


@needs_curl
def test_the_readme_leads_from_the_start_to_messages_with_curl_again_and_again(tmp_path: Path) -> None:
    shown = blocks(section("README.md", "From curl")) + blocks(section("README.md", "Operate it"))[:1]
    endless = "curl -sN "
    assert sum(endless in block for block in shown) == 1
    script = re.sub(f"^{endless}(.*)$", r"timeout 2 curl -sN \1 ||:", "\n".join(shown), flags=re.MULTILINE)
    with starting(tmp_path / "data") as start:
        gateway = start(IGGY_ROOT_USERNAME="iggy", IGGY_ROOT_PASSWORD=PASSWORD)
        said = run_script(script, gateway, tmp_path)
        assert "\nhello\nworld\n" in said
        assert "data: hello\n" in said
        assert "data: world\n" in said
        assert '"status":"ready"' in said
        assert "\nmessages 2\n" in said
        # A second time, stream and topic are there already; the rest works as before.
        again = run_script(script, gateway, tmp_path, flags="-uc")
        assert "\nhello\nworld\nhello\nworld\n" in again


def test_the_program_of_the_readme_works_again_and_again(tmp_path: Path) -> None:
    (program,) = blocks(section("README.md", "From Python"), "python")
    assert f"apache-iggy=={environments.NEWEST}" in section("README.md", "From Python")
    with starting(tmp_path / "data") as start:
        gateway = start(IGGY_ROOT_USERNAME="iggy", IGGY_ROOT_PASSWORD=PASSWORD)
        tcp = gateway.line(r"tcp://(\S+)").group(1)
        (tmp_path / "first.py").write_text(program.replace("127.0.0.1:8090", tcp))
        for offset in range(2):
            done = subprocess.run(
                [environments.interpreter(environments.NEWEST), tmp_path / "first.py"],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
                env=os.environ | {"WHIPPET_PASSWORD": PASSWORD},
            )
            assert done.stdout == f"{offset} b'an order'\n", done.stderr


@needs_curl
def test_the_commands_on_the_page_about_http_work_as_described(tmp_path: Path) -> None:
    script = "\n".join(blocks((ROOT / "docs" / "http.md").read_text()))
    with starting(tmp_path / "data") as start:
        gateway = start(IGGY_ROOT_USERNAME="iggy", IGGY_ROOT_PASSWORD=PASSWORD)
        said = run_script(script, gateway, tmp_path)
    assert re.findall(r'"base_offset":(\d+)', said) == ["0", "0", "2", "4", "4"]
    lines = re.sub(r"(?<=[}\]])(?=[{\[#])", "\n", said).splitlines()
    assert len([line for line in lines if '"payload":"aGVsbG8="' in line]) == 2, "by a consumer, and with a lease"
    assert any(line.startswith('{"token":') for line in lines)
    assert '{"n":1}\n{"n":2}\nthree\nfour\nonce\n' in said
    assert said.count('"payload":"dGhyZWU="') == 1
    events = [f"id: 0:{i}\ndata: {text}\n" for i, text in enumerate(('{"n":1}', '{"n":2}', "three", "four", "once"), 1)]
    # Without the epochs, which differ in every run.
    assert "\n".join(events) in re.sub(r"(?m)^(id: \d+:\d+):\d+$", r"\1", said)
    assert lines[-1].startswith('[{"key":"http.max_request_size",')


@needs_curl
def test_the_commands_on_the_page_about_operating_work_as_described(tmp_path: Path) -> None:
    page = "docs/operating.md"
    with starting(tmp_path / "local_data") as start:
        gateway = start(IGGY_ROOT_USERNAME="iggy", IGGY_ROOT_PASSWORD=PASSWORD)
        said = run_script("\n".join(blocks(section(page, "Health and metrics"))), gateway, tmp_path)
        assert '{"status":"live"}' in said
    # The server has stopped. The commands are those of the interpreter that runs this test.
    whippet = f"{shlex.quote(sys.executable)} -m whippet.app.cli.main"
    # What `whippet doctor` finds depends on the machine.
    own = re.compile(r"\.venv/bin/whippet (?!bench|doctor)")
    stopped = [block for block in blocks((ROOT / page).read_text()) if own.match(block)]
    assert len(stopped) == 5
    script = "\n".join(stopped).replace(".venv/bin/whippet", whippet)
    script = script.replace("/var/lib/iggy/local_data", str(small_classic(tmp_path / "iggy").root))
    done = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^password  \w{20,}$", done.stdout, re.MULTILINE)
    assert "everything was imported" in done.stdout
