"""`whippet version`: prints which Whippet this is."""

from __future__ import annotations

import argparse

from whippet.app.version import version


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Takes none."""


def run(arguments: argparse.Namespace) -> int:
    print(f"whippet {version()}")
    return 0
