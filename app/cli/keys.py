"""`whippet keys`: makes, adds and lists the keys for encryption at rest in a key file. It never prints a key."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Annotated

import typer

from whippet.app import encryption_keys
from whippet.app.config import ConfigError, load
from whippet.storage.encryption import id_of
from whippet.storage.errors import KeyMissing

DONE = 0
REFUSED = 1


class _NoFile(Exception):
    """There is nothing that the command could work on."""


Path = Annotated[str | None, typer.Argument(help="the key file (default: system.encryption.key_file)")]


def new(path: Path = None) -> int:
    return _guarded(_new, path)


def rotate(path: Path = None) -> int:
    """The server encrypts with the new key from its next start on."""
    return _guarded(_rotate, path)


def show(path: Path = None) -> int:
    return _guarded(_show, path)


def _guarded(act: Callable[[str], None], path: str | None) -> int:
    try:
        act(path or _configured())
    except (ConfigError, KeyMissing, _NoFile) as error:
        print(f"whippet: {error}", file=sys.stderr)
        return REFUSED
    except OSError as error:
        print(f"whippet: {error.filename or ''}: {error.strerror}", file=sys.stderr)
        return REFUSED
    return DONE


def _configured() -> str:
    path = load(os.environ, os.getcwd()).config.system.encryption.key_file
    if not path:
        raise _NoFile("name a key file, or set system.encryption.key_file")
    return path


def _new(path: str) -> None:
    if os.path.lexists(path):
        raise _NoFile(f"{path}: exists already; `whippet keys rotate` adds a key to it")
    print(f"{path}: created with the key {id_of(encryption_keys.add_key(path, _now())).hex()}")
    print("Keep a copy of this file apart from the data: without it, nobody can read what is encrypted.")


def _rotate(path: str) -> None:
    encryption_keys.keys_in(path)
    added = id_of(encryption_keys.add_key(path, _now())).hex()
    print(f"{path}: the key {added} was added; the server encrypts with it from its next start on")
    print("The older keys stay in the file, because older data is encrypted with them. Keep a new copy of the file.")


def _show(path: str) -> None:
    secrets = encryption_keys.keys_in(path)
    for secret in secrets:
        print(f"{id_of(secret).hex()}{'  in use' if secret is secrets[-1] else ''}")


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
