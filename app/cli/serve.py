"""`whippet serve`: runs the gateway in the foreground until a signal stops it.

This module only adjusts the process; everything about the server is in app/server.py.
"""

from __future__ import annotations

import argparse
import os

from whippet.app import server
from whippet.app.memory_tuning import keep_freed_memory


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-c",
        "--config-provider",
        choices=["file"],
        default="file",
        help="source of the configuration; only 'file' exists, as in Iggy's server",
    )
    parser.add_argument(
        "--with-default-root-credentials",
        action="store_true",
        help="on the first start, create root user iggy with password iggy, unless IGGY_ROOT_* variables are set",
    )
    parser.add_argument(
        "--from-archive",
        action="store_true",
        help="if the data folder is empty, continue from the archive, which this server then owns",
    )
    parser.add_argument(
        "--replica-id",
        type=int,
        choices=range(256),
        metavar="NUMBER",
        help="number of this node in cluster.nodes; used only while cluster.enabled is true",
    )


def run(arguments: argparse.Namespace) -> int:
    keep_freed_memory()
    return server.run(
        os.environ,
        os.getcwd(),
        default_root=arguments.with_default_root_credentials,
        replica_id=arguments.replica_id,
        restores=arguments.from_archive,
    )
