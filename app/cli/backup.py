"""`whippet backup`: copies a data folder, also while a server has it open."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import msgspec
import typer

from whippet.app.config import ConfigError, load
from whippet.app.config.store import store_options
from whippet.storage.backup import Backup
from whippet.storage.errors import StorageError
from whippet.storage.files import Files
from whippet.storage.layout import Layout
from whippet.storage.options import MIB

COPIED = 0
REFUSED = 2


def run(
    path: Annotated[str, typer.Argument(help="the folder to create, or an empty one")],
    source: Annotated[
        str | None, typer.Option(help="the data folder (default: system.path of the configuration)")
    ] = None,
) -> int:
    try:
        options = store_options(load(os.environ, os.getcwd()).config)
        if source:
            options = msgspec.structs.replace(options, path=source)
        target = Layout(msgspec.structs.replace(options, path=path))
        copied = Backup(Layout(options), target, Files()).run()
    except (ConfigError, StorageError) as error:
        print(f"whippet: {error}", file=sys.stderr)
        return REFUSED
    except OSError as error:
        print(f"whippet: {error.filename}: {error.strerror}", file=sys.stderr)
        return REFUSED
    print(f"copied {copied.partitions} partitions, {copied.size_bytes / MIB:.1f} MiB, to {path}")
    return COPIED
