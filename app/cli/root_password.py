"""`whippet root-password`: sets a new password for the root user of a data folder that no server has open.

The password is IGGY_ROOT_PASSWORD if that is set, else it is read twice from the terminal, or else it is the first line
of standard input. It is never an argument, which every user of the machine could see.
"""

from __future__ import annotations

import getpass
import os
import sys
from typing import Annotated

import msgspec
import typer

from whippet.app.access import root_password
from whippet.app.access.users import random_password
from whippet.app.config import ConfigError, load
from whippet.app.config.store import store_options
from whippet.app.encryption_keys import with_keys
from whippet.app.errors import CommandError
from whippet.storage.errors import StorageError

CHANGED = 0
REFUSED = 2


class _NoPassword(Exception):
    """Raised when there is no password to set; its text says why."""


def run(
    path: Annotated[
        str | None, typer.Argument(help="the data folder (default: system.path of the configuration)")
    ] = None,
    generate: Annotated[bool, typer.Option("--generate", help="generate a password and print it")] = False,
    end_tokens: Annotated[
        bool,
        typer.Option(
            "--end-personal-access-tokens",
            help="end the root user's personal access tokens as well; sessions and access tokens end in any case",
        ),
    ] = False,
) -> int:
    try:
        loaded = load(os.environ, os.getcwd())
        options = with_keys(store_options(loaded.config), loaded.config)
        if path:
            options = msgspec.structs.replace(options, path=path)
        password = random_password() if generate else _read_password(loaded.environment.get("IGGY_ROOT_PASSWORD"))
        name = root_password.reset(options, password, end_tokens=end_tokens)
    except (CommandError, ConfigError, StorageError, _NoPassword) as error:
        return _refuse(str(error))
    except OSError as error:
        return _refuse(f"{error.filename}: {error.strerror}")
    print(f"The root user {name!r} has a new password and is active; all its sessions have ended.")
    if generate:
        print(f"password  {password}")
    return CHANGED


def _read_password(given: str | None) -> str:
    if given is not None:
        return str(given)
    if sys.stdin.isatty():
        password = getpass.getpass("New password of the root user: ")
        if getpass.getpass("Once more: ") != password:
            raise _NoPassword("the two passwords differ")
        return password
    line = sys.stdin.readline().rstrip("\r\n")
    if not line:
        raise _NoPassword("no password: type it, pass it on standard input or in IGGY_ROOT_PASSWORD, or use --generate")
    return line


def _refuse(sentence: str) -> int:
    print(f"whippet: {sentence}", file=sys.stderr)
    return REFUSED
