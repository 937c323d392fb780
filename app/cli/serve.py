"""`whippet serve`: runs the gateway in the foreground until it is told to stop.

Only the process is the command line's business; everything about the server is in app/server.py.
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
        help="where the configuration comes from; there is only 'file', as with Iggy's server",
    )
    parser.add_argument(
        "--with-default-root-credentials",
        action="store_true",
        help="on the first start make the root user iggy with the password iggy, unless IGGY_ROOT_* variables say else",
    )
    parser.add_argument(
        "--replica-id",
        type=int,
        choices=range(256),
        metavar="NUMBER",
        help="the number of this node in cluster.nodes; it matters only while cluster.enabled is true",
    )


def run(arguments: argparse.Namespace) -> int:
    keep_freed_memory()
    return server.run(
        os.environ,
        os.getcwd(),
        default_root=arguments.with_default_root_credentials,
        replica_id=arguments.replica_id,
    )
