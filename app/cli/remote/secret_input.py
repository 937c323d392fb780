"""Secrets come from a file, from the environment, from a prompt, or from standard input; never from an argument, which
every user of the machine can see, and which stays in the shell's history."""

from __future__ import annotations

import getpass
import os
import sys

from whippet.app.cli.remote.failures import UsageFailure
from whippet.app.cli.remote.output import printable
from whippet.app.cli.remote.waiting import interruptible


def read_file(path: str) -> str:
    """Returns the first line of a file; `-` is standard input."""
    try:
        if path == "-":
            with interruptible():
                line = sys.stdin.readline()
        else:
            with open(path, encoding="utf-8") as file:
                line = file.readline()
    except UnicodeDecodeError:
        raise UsageFailure(f"{'standard input' if path == '-' else path} is not UTF-8") from None
    secret = line.rstrip("\r\n")
    if not secret:
        raise UsageFailure(f"{'standard input' if path == '-' else path} has no secret in its first line")
    return secret


def ask(what: str, *, twice: bool = False) -> str | None:
    """Asks at the terminal, without showing what is typed; returns None if there is no terminal."""
    if not sys.stdin.isatty():
        return None
    with interruptible():
        secret = getpass.getpass(f"{printable(what)}: ")
        repeated = getpass.getpass("Once more: ") if twice else secret
    if repeated != secret:
        raise UsageFailure("the two passwords differ")
    return secret


def password_for(what: str, file: str | None, variable: str, *, twice: bool = False) -> str:
    """Returns a password that a command needs, from the first of these that has it."""
    if file:
        return read_file(file)
    if found := os.environ.get(variable):
        return found
    found = ask(what, twice=twice)
    if not found:
        raise UsageFailure(
            f"no {what.lower()}: type it at a terminal, set {variable}, or use a file (`-` is standard input)"
        )
    return found
