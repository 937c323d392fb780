"""`whippet keys list`: lists the ids of the keys in a key file."""

from __future__ import annotations

import argparse

from whippet.app.cli import keys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", nargs="?", help="the key file (default: system.encryption.key_file)")


def run(arguments: argparse.Namespace) -> int:
    return keys.show(arguments)
