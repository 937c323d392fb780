"""`whippet restore`: makes a data folder from the configured archive. It writes nothing to the archive."""

from __future__ import annotations

import datetime
import os
import sys
from typing import Annotated

import msgspec
import typer

from whippet.app import archiving
from whippet.app.config import ConfigError, load
from whippet.app.config.store import archive_options, store_options
from whippet.app.encryption_keys import keys_if_known
from whippet.storage.errors import StorageError
from whippet.storage.files import Files

RESTORED = 0
REFUSED = 2


def _time(text: str) -> int:
    try:
        at = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not a time such as 2026-07-31T12:00:00Z") from error
    if at.tzinfo is None:
        at = at.replace(tzinfo=datetime.UTC)
    return int(at.timestamp() * 1_000_000)


def run(
    path: Annotated[str, typer.Argument(help="the folder to create, or an empty one")],
    to: Annotated[
        int | None,
        typer.Option(
            metavar="TIME",
            parser=_time,
            help="leave out later messages; ISO 8601 such as 2026-07-31T12:00:00Z, or UTC without a zone",
        ),
    ] = None,
) -> int:
    try:
        config = load(os.environ, os.getcwd()).config
        options = msgspec.structs.replace(
            keys_if_known(store_options(config), config), path=path, archive=archive_options(config)
        )
        restored = archiving.restore(options, Files(), to=to, show=_show)
    except (ConfigError, StorageError) as error:
        print(f"whippet: {error}", file=sys.stderr)
        return REFUSED
    except OSError as error:
        print(f"whippet: {error.filename}: {error.strerror}", file=sys.stderr)
        return REFUSED
    print(archiving.sentence(restored))
    if to is not None:
        for sentence in archiving.sentences(restored, to):
            print(sentence)
    return RESTORED


def _show(line: str) -> None:
    print(line, file=sys.stderr)
