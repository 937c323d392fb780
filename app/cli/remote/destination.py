"""Which server a command works on, and as whom.

The server is `--server`, `--context`, WHIPPET_SERVER, WHIPPET_CONTEXT, the context in use, or 127.0.0.1:8090,
whichever comes first. The credentials are those of the options; of the connection string or the context, if one was
named; of the environment (WHIPPET_TOKEN, or WHIPPET_USERNAME and WHIPPET_PASSWORD; Iggy's IGGY_USERNAME and
IGGY_PASSWORD as well); or of the context in use. If there are none and a person sits at the terminal, they are asked
for.
"""

from __future__ import annotations

import os
import sys

import msgspec

from whippet.app.cli.remote import contexts, secret_input
from whippet.app.cli.remote.failures import Failure, UsageFailure
from whippet.app.cli.remote.output import printable
from whippet.app.cli.remote.waiting import interruptible

DEFAULT = "iggy://127.0.0.1:8090"


class Given(msgspec.Struct, frozen=True):
    """The options of the command line."""

    server: str | None = None
    context: str | None = None
    username: str | None = None
    password_file: str | None = None
    token_file: str | None = None


class Found(msgspec.Struct, frozen=True):
    server: str
    """The connection string without credentials."""
    username: str | None = None
    password: str | None = None
    token: str | None = None
    context: str | None = None
    """The name of the context that the server is from."""

    def __repr__(self) -> str:
        return f"Found({self.server!r}, {self.username!r})"

    @property
    def has_credentials(self) -> bool:
        return self.token is not None or (self.username is not None and self.password is not None)

    @property
    def address(self) -> str:
        """The connection string for the client, with credentials."""
        scheme, _, place = self.server.partition("://")
        credentials = self.token if self.token is not None else f"{self.username}:{self.password}"
        return f"{scheme}://{credentials}@{place}" if self.has_credentials else self.server


def split(text: str) -> Found:
    """Takes the credentials out of a connection string. A server may also be given as `host:port` or `host`."""
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = "iggy", text
    credentials, _, place = rest.rpartition("@")
    if not place:
        raise UsageFailure("the connection string names no host; an example is iggy://127.0.0.1:8090")
    user, colon, password = credentials.partition(":")
    server = f"{scheme}://{place}"
    if not credentials:
        return Found(server)
    return Found(server, username=user, password=password) if colon else Found(server, token=user)


def without_secrets(text: str, where: str) -> Found:
    """For a connection string from the command line."""
    found = split(text)
    if found.has_credentials:
        raise UsageFailure(
            f"{where} must not have a password or a token: other users of this machine could see it. "
            "Run `whippet login`, or set WHIPPET_SERVER, or WHIPPET_USERNAME and WHIPPET_PASSWORD"
        )
    return found


def find(given: Given, *, asks: bool = True) -> Found:
    found = _server(given)
    chosen = _from_options(given)
    if chosen is None and not (found.has_credentials and _is_named(given)):
        chosen = _from_environment()
    if chosen is not None:
        # What the command line or the environment names is never mixed with another user's secret.
        found = msgspec.structs.replace(found, username=chosen.username, password=chosen.password, token=chosen.token)
    return complete(found) if asks else found


def complete(found: Found) -> Found:
    """Returns the server with credentials; asks for what is missing."""
    return found if found.has_credentials else _asked(found)


def _server(given: Given) -> Found:
    if given.server and given.context:
        raise UsageFailure("--server and --context exclude each other")
    if given.server:
        return without_secrets(given.server, "--server")
    if not given.context and (from_environment := os.environ.get("WHIPPET_SERVER")):
        return split(from_environment)
    named = contexts.named(given.context or os.environ.get("WHIPPET_CONTEXT"))
    if named is None:
        return Found(DEFAULT)
    name, context = named
    return Found(context.server, context.username, context.password, context.token, context=name)


def _is_named(given: Given) -> bool:
    """Returns True if the server was named for this command or this shell, and so were the credentials with it."""
    return any((given.context, os.environ.get("WHIPPET_SERVER"), os.environ.get("WHIPPET_CONTEXT")))


def _from_options(given: Given) -> Found | None:
    if given.token_file:
        if given.username or given.password_file:
            raise UsageFailure("--token-file excludes --username and --password-file")
        return Found("", token=secret_input.read_file(given.token_file))
    if not given.username and not given.password_file:
        return None
    username = given.username or os.environ.get("WHIPPET_USERNAME")
    if not username:
        raise UsageFailure("--password-file needs --username")
    password = secret_input.read_file(given.password_file) if given.password_file else _password_of(username)
    return Found("", username=username, password=password)


def _from_environment() -> Found | None:
    if token := os.environ.get("WHIPPET_TOKEN"):
        return Found("", token=token)
    for prefix in ("WHIPPET", "IGGY"):
        username, password = os.environ.get(f"{prefix}_USERNAME"), os.environ.get(f"{prefix}_PASSWORD")
        if username and password:
            return Found("", username=username, password=password)
    return None


def _password_of(username: str) -> str | None:
    """The variable is the password of the user in the other variable, or of any user if that is not set."""
    if os.environ.get("WHIPPET_USERNAME", username) == username:
        return os.environ.get("WHIPPET_PASSWORD")
    return None


def _asked(found: Found) -> Found:
    username = found.username
    if not sys.stdin.isatty():
        if username is not None:
            raise Failure(f"no password of {username}: use --password-file, or set WHIPPET_PASSWORD")
        raise Failure(
            "no credentials: run `whippet login`, or set WHIPPET_USERNAME and WHIPPET_PASSWORD, or WHIPPET_TOKEN"
        )
    if username is None:
        print(f"User of {printable(found.server)}: ", end="", file=sys.stderr, flush=True)
        with interruptible():
            username = sys.stdin.readline().strip()
    password = secret_input.ask(f"Password of {username}")
    if not username or not password:
        raise UsageFailure("a user name and a password are needed")
    return msgspec.structs.replace(found, username=username, password=password)
