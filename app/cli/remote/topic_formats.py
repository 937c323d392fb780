"""The formats of files with messages, and which of them a file has."""

from __future__ import annotations

import os
from typing import Annotated, Literal

import typer

from whippet.app.cli.remote.failures import UsageFailure

SUFFIXES = {
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".feather": "arrow",
}

Form = Annotated[
    Literal["ndjson", "parquet", "arrow"] | None,
    typer.Option("--format", help="ndjson, parquet or arrow (default: by the suffix of FILE, ndjson for `-`)"),
]


def form_of(chosen: str | None, file: str) -> str:
    if chosen is not None:
        return chosen
    if file == "-":
        return "ndjson"
    suffix = os.path.splitext(file)[1].lower()
    if suffix not in SUFFIXES:
        raise UsageFailure(f"the name {file} tells no format: end it with {', '.join(SUFFIXES)}, or use --format")
    return SUFFIXES[suffix]
