"""Contexts: named servers with their credentials, in one file like kubectl's, of which one is in use.

The file is `$WHIPPET_CONFIG`, or `whippet/contexts.json` in `$XDG_CONFIG_HOME` or ~/.config. Only its owner may read
it, and it is replaced as a whole, under a lock: of two commands at once, neither loses the other's change. Secrets are
in the keyring of the system if the package `keyring` is installed and finds one, and otherwise in the file.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
from collections.abc import Iterator
from typing import Any

import msgspec

from whippet.app import secret_files
from whippet.app.cli.remote.failures import Failure, NotFound
from whippet.app.cli.remote.output import printable

SERVICE = "whippet"
"""Under this name the keyring shows our secrets."""
BYTES_MAX = 1 << 20


class Context(msgspec.Struct, frozen=True, omit_defaults=True):
    server: str
    """A connection string without credentials."""
    username: str | None = None
    password: str | None = None
    token: str | None = None
    token_name: str | None = None
    """The name of the token on the server, if `whippet login` has created it."""
    in_keyring: bool = False
    """The secret is in the keyring, and not here."""

    def __repr__(self) -> str:
        return f"Context({self.server!r}, {self.username!r})"


class Contexts(msgspec.Struct, omit_defaults=True):
    current: str | None = None
    contexts: dict[str, Context] = {}

    def __repr__(self) -> str:
        return f"Contexts({self.current!r}, {list(self.contexts)})"


def path() -> str:
    given = os.environ.get("WHIPPET_CONFIG")
    if given:
        return given
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(home, "whippet", "contexts.json")


def read() -> Contexts:
    content = secret_files.read(path(), BYTES_MAX)
    if content is None:
        return Contexts()
    try:
        return msgspec.json.decode(content, type=Contexts)
    except msgspec.MsgspecError as error:
        raise Failure(f"{path()}: {error}; repair it, or remove it and create the contexts again") from None


@contextlib.contextmanager
def changing() -> Iterator[Contexts]:
    """Yields all contexts, and writes them if nothing was raised."""
    file = path()
    os.makedirs(os.path.dirname(file) or ".", mode=0o700, exist_ok=True)
    lock = os.open(f"{file}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = read()
        yield found
        secret_files.write(file, msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")
    finally:
        os.close(lock)


def named(name: str | None) -> tuple[str, Context] | None:
    """Returns the context of this name, or without one the context in use, with its secret; None if none is in use."""
    all_of_them = read()
    wanted = name or all_of_them.current
    if wanted is None:
        return None
    context = all_of_them.contexts.get(wanted)
    if context is None:
        raise NotFound(f"there is no context {wanted!r}; `whippet context list` shows those that there are")
    return wanted, with_secret(wanted, context)


def with_secret(name: str, context: Context) -> Context:
    if not context.in_keyring:
        return context
    ring = _keyring()
    secret = ring.get_password(SERVICE, name) if ring else None
    if secret is None:
        raise Failure(f"the secret of context {name!r} is not in the keyring any more; run `whippet login`")
    return msgspec.json.decode(
        msgspec.json.encode({**msgspec.to_builtins(context), **msgspec.json.decode(secret)}), type=Context
    )


def put(contexts: Contexts, name: str, context: Context) -> None:
    """Adds or replaces a context; its secret goes to the keyring if there is one."""
    forget_secret(contexts, name)
    secrets = {key: value for key in ("password", "token") if (value := getattr(context, key)) is not None}
    ring = _keyring() if secrets else None
    if ring is not None:
        try:
            ring.set_password(SERVICE, name, msgspec.json.encode(secrets).decode())
        except Exception as error:  # noqa: BLE001 -- each keyring has errors of its own
            sentence = printable(f"the keyring refused the secret ({error}): it is in {path()}")
            print(f"whippet: {sentence}", file=sys.stderr)
        else:
            context = msgspec.structs.replace(context, password=None, token=None, in_keyring=True)
    contexts.contexts[name] = context


def forget_secret(contexts: Contexts, name: str) -> None:
    known = contexts.contexts.get(name)
    ring = _keyring() if known is not None and known.in_keyring else None
    if ring is not None and ring.get_password(SERVICE, name) is not None:
        ring.delete_password(SERVICE, name)


def _keyring() -> Any | None:
    """Returns the system's keyring, or None if the package is missing, nothing stands behind it, or WHIPPET_KEYRING is
    `off`."""
    if os.environ.get("WHIPPET_KEYRING") == "off":
        return None
    try:
        import keyring  # noqa: PLC0415 -- an extra, and slow to import
    except ModuleNotFoundError:
        return None
    found = keyring.get_keyring()
    # `fail` and `null` are what it finds where there is none; their priorities are 0 and -1.
    return found if found.priority >= 1 else None
