"""Shells complete commands, options, and the names that there are on the server."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.app.cli.remote.support.commands import Whippet

CODE = "import sys; from whippet.app.cli.main import main; sys.exit(main(sys.argv[1:]))"


def completed(*words: str, **variables: str) -> list[str]:
    """Returns what bash would offer for the last word."""
    environment = {
        "_WHIPPET_COMPLETE": "bash_complete",
        "COMP_LINE": " ".join(["whippet", *words]),
    }
    ran = subprocess.run(
        [sys.executable, "-c", CODE],
        env=os.environ | environment | variables,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert ran.stderr == ""
    return [line.partition(",")[2] for line in ran.stdout.splitlines() if line]


def test_commands_and_options_are_completed() -> None:
    assert completed("str") == ["stream"]
    assert {"create", "list", "purge"} <= set(completed("stream", ""))
    assert completed("stream", "pur") == ["purge"]
    assert "--context" in completed("stream", "list", "--co")


def test_names_on_the_server_are_completed(whippet: Whippet) -> None:
    whippet("stream", "create", "orders")
    whippet("topic", "create", "orders", "eu")
    whippet("topic", "create", "orders", "us")
    whippet("consumer-group", "create", "orders", "eu", "billing")
    whippet("context", "create", "production")
    assert completed("stream", "get", "or") == ["orders"]
    assert completed("topic", "get", "orders", "") == ["eu", "us"]
    assert completed("consumer-group", "get", "orders", "eu", "b") == ["billing"]
    assert completed("user", "get", "ig") == ["iggy"]
    assert completed("tail", "or") == ["orders/"]
    assert completed("tail", "orders/") == ["orders/eu", "orders/us"]
    assert completed("ping", "--context", "pro") == ["production"]
    whippet("stream", "delete", "orders", "--yes")


@pytest.mark.parametrize("server", ["iggy://127.0.0.1:1", "nonsense://"])
def test_without_a_server_nothing_is_completed_and_nothing_is_printed(server: str) -> None:
    assert completed("stream", "get", "o", WHIPPET_SERVER=server, WHIPPET_TOKEN="t") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script(shell: str, whippet: Whippet) -> None:
    assert "_WHIPPET_COMPLETE" in whippet("completion", shell).out
    whippet("completion", "tcsh", code=2)
