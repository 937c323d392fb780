"""Generates docs/bench.schema.json, the JSON schemas of what the benchmark prints and writes: `make docs`."""

from __future__ import annotations

import json
import sys
from typing import Any

import msgspec

from whippet.bench.run.compare import Compared
from whippet.bench.run.result import BenchResult

PRINTED: dict[str, Any] = {"bench run": BenchResult, "bench compare": list[Compared]}


def schemas() -> str:
    found = {}
    for command, kind in PRINTED.items():
        (schema,), components = msgspec.json.schema_components([kind])
        found[command] = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "$defs": components}
    return json.dumps(found, indent=2) + "\n"


if __name__ == "__main__":
    sys.stdout.write(schemas())
