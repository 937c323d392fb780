"""`whippet keys new`: creates a key file for encryption at rest, with one key."""

from __future__ import annotations

import argparse

from whippet.app.cli import keys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", nargs="?", help="the key file (default: system.encryption.key_file)")


def run(arguments: argparse.Namespace) -> int:
    return keys.new(arguments)
