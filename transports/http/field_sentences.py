"""Sentences about the fields of requests and responses, for the OpenAPI document: what a number means, and its unit.

They are the docstrings below the fields in the code. Fields without one, whose name says what they are, get their unit
from a table.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.abc import InspectLoader
from typing import Any

import msgspec

SINCE_1970, MICROSECONDS, BYTES = "In us since 1970.", "In us.", "In bytes."
SIZE = "A size such as `1 KiB` or `1.025 KB`."
UNITS: Mapping[str, str] = {
    "created_at": SINCE_1970,
    "expires_at": SINCE_1970,
    "expiry_at": "In us since 1970; null: never.",
    "timestamp": SINCE_1970,
    "origin_timestamp": SINCE_1970,
    "start_time": SINCE_1970,
    "run_time": MICROSECONDS,
    "wait_us": MICROSECONDS,
    "request_timeout_us": MICROSECONDS,
    **dict.fromkeys(("size", "memory_usage", "total_memory", "available_memory"), SIZE),
    **dict.fromkeys(("read_bytes", "written_bytes", "messages_size_bytes"), SIZE),
    **dict.fromkeys(("free_disk_space", "total_disk_space"), SIZE),
    "cpu_usage": "In percent of one core.",
    "total_cpu_usage": "In percent of all cores.",
    "message_expiry": "In us; 2**64 - 1: never.",
    "max_topic_size": "In bytes; 2**64 - 1: unlimited.",
    "payload_length": BYTES,
    "user_headers_length": BYTES,
    "disk_bytes": BYTES,
    "bytes": BYTES,
    "max_bytes": BYTES,
    "examined_bytes": BYTES,
    "bytes_in": "Per second.",
    "seconds": "In seconds.",
    "p50": "In seconds.",
    "p99": "In seconds.",
    "payload": "In base64.",
}
"""By the name of the field."""


def describe(schemas: dict[str, Any]) -> None:
    """Adds the sentences to schemas, by name, as `msgspec.json.schema_components` makes them."""
    types = {each.__name__: each for each in _structs(msgspec.Struct)}
    for name, schema in schemas.items():
        known = types.get(name)
        documented = {} if known is None else sentences(known)
        for field, described in schema.get("properties", {}).items():
            sentence = documented.get(field) or UNITS.get(field)
            if sentence is not None and "description" not in described:
                if "$ref" in described:
                    schema["properties"][field] = {"allOf": [described], "description": sentence}
                else:
                    described["description"] = sentence


def sentences(kind: type[msgspec.Struct]) -> dict[str, str]:
    """The docstrings of the fields of a struct and its bases, by the names of the fields in JSON."""
    names = dict(zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True))
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        if issubclass(each, msgspec.Struct) and each is not msgspec.Struct:
            own = _of_module(each.__module__).get(each.__qualname__, {})
            found |= {names[field]: sentence for field, sentence in own.items() if field in names}
    return found


def _structs(kind: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    for each in kind.__subclasses__():
        if each.__module__.startswith(("whippet.transports.http", "whippet.app.telemetry")):
            yield each
        yield from _structs(each)


@cache
def _of_module(module: str) -> Mapping[str, Mapping[str, str]]:
    loader = getattr(sys.modules[module], "__loader__", None)
    try:
        # Not by `inspect`, whose cache of sources is not safe in several threads.
        source = loader.get_source(module) if isinstance(loader, InspectLoader) else None
    except OSError:
        source = None
    # Somebody may have installed no sources.
    tree = ast.parse(source or "")
    return {node.name: dict(_fields(node)) for node in tree.body if isinstance(node, ast.ClassDef)}


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, after in zip(node.body, node.body[1:], strict=False):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
            yield field.target.id, " ".join(after.value.value.split())
