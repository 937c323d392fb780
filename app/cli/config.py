"""`whippet config`: shows the effective settings and where they come from, and generates the pages about them."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import click
import typer

from whippet.app.config import ConfigError, docs, load, render


def run(
    as_json: Annotated[bool, typer.Option("--json", help="print the effective configuration as JSON")] = False,
    as_docs: Annotated[bool, typer.Option("--docs", help="print the documentation of all keys, in Markdown")] = False,
    as_toml: Annotated[bool, typer.Option("--toml", help="print a commented server.toml with all defaults")] = False,
) -> int:
    if as_json + as_docs + as_toml > 1:
        raise click.UsageError("--json, --docs and --toml exclude each other")
    if as_docs or as_toml:
        print(docs.page() if as_docs else render.sample(), end="")
        return 0
    try:
        loaded = load(os.environ, os.getcwd())
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    for warning in (*loaded.warnings, *loaded.without_effect):
        print(f"warning: {warning}", file=sys.stderr)
    print(render.as_json(loaded) if as_json else render.toml(loaded), end="")
    return 0
