"""Real shells complete on real terminals: commands, options, files, and the names that there are on the server."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.app.cli.remote.support.commands import Whippet
from tests.app.cli.remote.support.terminal import Terminal, terminal

SHELLS = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
    "fish": ["fish", "--no-config", "--interactive"],
}
LOAD = {
    "bash": 'eval "$(whippet completion bash)"',
    "zsh": 'autoload -U compinit; compinit -u -D; eval "$(whippet completion zsh)"',
    "fish": "whippet completion fish | source",
}
EVIL = "order\x1b]0;x\x07"


@pytest.fixture(scope="module", params=SHELLS)
def shell(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not on this machine: apt-get install {name}")
    return name


@pytest.fixture
def orders(whippet: Whippet) -> Iterator[None]:
    names = ("orders", "a stream", "with:colon", EVIL)
    for name in names:
        whippet("stream", "create", name)
    for topic in ("eu", "us"):
        whippet("topic", "create", "orders", topic)
    whippet("consumer-group", "create", "orders", "eu", "billing")
    yield
    for name in names:
        whippet("stream", "delete", name, "--yes")


@pytest.fixture
def prompt(shell: str, orders: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """A shell that has loaded the script, and finds `whippet`."""
    program = tmp_path / "bin" / "whippet"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m whippet.app.cli.main "$@"\n')
    program.chmod(0o755)
    (tmp_path / "a file").touch()
    monkeypatch.setenv("PATH", f"{program.parent}:{Path('/usr/bin')}:/bin")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with terminal(program=SHELLS[shell], columns=200, PS1="$ ") as shown:
        shown.type(f"{LOAD[shell]}; echo load''ed\n")
        shown.expect("loaded")
        yield shown


def completed(shown: Terminal, *steps: str) -> str:
    """Types, and returns what is on the line in the end: the shell prints it as an argument. What follows an arrow is
    waited for: a shell completes nothing while more is typed."""
    before = len(shown.text)
    for step in steps:
        typed, _, wanted = step.partition(" => ")
        at = len(shown.text)
        shown.type(typed)
        shown.expect(wanted or typed, after=at)
    shown.type("\x01echo '<'\x05'>'\n")
    shown.expect(r"[\r\n]<.*>", after=before)
    *_, last = re.finditer(r"[\r\n]<(.*)>", shown.text)
    return last[1].rstrip()


def test_words_names_and_files_are_completed(prompt: Terminal) -> None:
    line = completed(prompt, "whippet str\t => stream", "pur\t => purge", "or\t => orders")
    assert line == "whippet stream purge orders"
    # No space follows the slash.
    line = completed(prompt, "whippet tail or\t => orders/", "e\t => eu", "--fr\t => from", "first")
    assert line == "whippet tail orders/eu --from first"
    assert completed(prompt, "whippet topic get orders u\t => us") == "whippet topic get orders us"
    assert completed(prompt, "whippet send orders/eu a\\ f\t => ile") == "whippet send orders/eu a file"
    assert completed(prompt, "whippet stream get a\t => stream") == "whippet stream get a stream"
    assert "\x1b]0;x" not in prompt.shown


def test_words_with_colons_are_one_word(prompt: Terminal, address: str) -> None:
    assert completed(prompt, "whippet stream get with\t => colon") == "whippet stream get with:colon"
    assert completed(prompt, "whippet stream get with:c\t => colon") == "whippet stream get with:colon"
    command = f"whippet stream get --server iggy://{address}"
    assert completed(prompt, f"{command} wi\t => colon") == f"{command} with:colon"
