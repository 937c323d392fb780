"""`whippet config`: shows the effective settings and where they come from, and generates the pages about them."""

from __future__ import annotations

import argparse
import os
import sys

from whippet.app.config import ConfigError, docs, load, render


def add_arguments(parser: argparse.ArgumentParser) -> None:
    forms = parser.add_mutually_exclusive_group()
    forms.add_argument("--json", action="store_true", help="print the effective configuration as JSON")
    forms.add_argument("--docs", action="store_true", help="print the documentation of all keys, in Markdown")
    forms.add_argument("--toml", action="store_true", help="print a commented server.toml with all defaults")


def run(arguments: argparse.Namespace) -> int:
    if arguments.docs or arguments.toml:
        print(docs.page() if arguments.docs else render.sample(), end="")
        return 0
    try:
        loaded = load(os.environ, os.getcwd())
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    for warning in (*loaded.warnings, *loaded.without_effect):
        print(f"warning: {warning}", file=sys.stderr)
    print(render.as_json(loaded) if arguments.json else render.toml(loaded), end="")
    return 0
