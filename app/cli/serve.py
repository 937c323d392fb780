"""`whippet serve`: runs the gateway in the foreground until it is told to stop.

Only the process is the command line's business; everything about the server is in app/server.py.
"""

from __future__ import annotations

import argparse
import os

from app import server


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-c",
        "--config-provider",
        choices=["file"],
        default="file",
        help="where the configuration comes from; there is only 'file', as with Iggy's server",
    )


def run(arguments: argparse.Namespace) -> int:
    return server.run(os.environ, os.getcwd())
