"""`whippet version`: prints the version."""

from __future__ import annotations

import argparse

from whippet.app.version import version


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """It has no arguments."""


def run(arguments: argparse.Namespace) -> int:
    print(f"whippet {version()}")
    return 0
