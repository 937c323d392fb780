"""Paths and conditions over the JSON of a message, as options of the command line (app/json_paths.py)."""

from __future__ import annotations

from whippet.app import json_paths
from whippet.app.cli.remote.failures import UsageFailure

Condition = json_paths.Condition
path_of = json_paths.path_of


def parse(text: str) -> Condition:
    try:
        return json_paths.parse(text)
    except ValueError as error:
        raise UsageFailure(str(error)) from None
