"""`whippet keys`: makes, adds and lists the keys for encryption at rest in a key file. It never prints a key."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable

from whippet.app import encryption_keys
from whippet.app.config import ConfigError, load
from whippet.storage.encryption import id_of
from whippet.storage.errors import KeyMissing

DONE = 0
REFUSED = 1


class _NoFile(Exception):
    """There is nothing that the command could work on."""


def new(arguments: argparse.Namespace) -> int:
    """Creates a key file with one key."""
    return _guarded(_new, arguments)


def rotate(arguments: argparse.Namespace) -> int:
    """Adds a key, which the server encrypts with after its next start."""
    return _guarded(_rotate, arguments)


def show(arguments: argparse.Namespace) -> int:
    """Lists the ids of the keys."""
    return _guarded(_show, arguments)


def _guarded(act: Callable[[str], None], arguments: argparse.Namespace) -> int:
    try:
        act(arguments.path or _configured())
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
