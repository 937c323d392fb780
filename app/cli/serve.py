"""`whippet serve`: runs the gateway in the foreground until a signal stops it.

This module only adjusts the process; everything about the server is in app/server.py.
"""

from __future__ import annotations

import os
from typing import Annotated, Literal

import typer

from whippet.app import server
from whippet.app.memory_tuning import keep_freed_memory


def run(
    config_provider: Annotated[
        Literal["file"],
        typer.Option(
            "-c",
            "--config-provider",
            help="source of the configuration; only 'file' exists, as in Iggy's server",
        ),
    ] = "file",
    default_root: Annotated[
        bool,
        typer.Option(
            "--with-default-root-credentials",
            help="on the first start, create root user iggy with password iggy, unless IGGY_ROOT_* variables are set",
        ),
    ] = False,
    from_archive: Annotated[
        bool,
        typer.Option(
            "--from-archive",
            help="if the data folder is empty, continue from the archive, which this server then owns",
        ),
    ] = False,
    replica_id: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=255,
            metavar="NUMBER",
            help="number of this node in cluster.nodes; used only while cluster.enabled is true",
        ),
    ] = None,
) -> int:
    keep_freed_memory()
    return server.run(
        os.environ,
        os.getcwd(),
        default_root=default_root,
        replica_id=replica_id,
        restores=from_archive,
    )
