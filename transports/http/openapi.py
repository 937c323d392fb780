"""The OpenAPI document, written from the table of routes. `make openapi` puts it into openapi/openapi.json.

A test compares the file with what this writes, so that a change of the API shows in review as a change of the document.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from app.version import version
from transports.http.errors import ErrorBody
from transports.http.routes import OPERATIONS, Operation

SCHEMA_PATH = "#/components/schemas/{name}"


def document(operations: Sequence[Operation] = OPERATIONS) -> dict[str, Any]:
    _, schemas = msgspec.json.schema_components([ErrorBody], ref_template=SCHEMA_PATH)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Whippet",
            "description": "The HTTP API of Whippet, a persistent message-streaming gateway: that of Apache Iggy.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            "version": version(),
        },
        "servers": [{"url": "http://127.0.0.1:3000", "description": "The default listen address"}],
        "paths": _paths(operations),
        "components": {"schemas": dict(schemas)},
    }


def render() -> str:
    return msgspec.json.format(msgspec.json.encode(document()), indent=2).decode() + "\n"


def _paths(operations: Sequence[Operation]) -> Mapping[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    return paths


def _operation(operation: Operation) -> Mapping[str, Any]:
    return {
        "operationId": operation.name,
        "summary": operation.summary,
        "responses": {
            "200": {
                "description": "Success",
                "content": {"text/plain": {"schema": {"type": "string", "const": operation.text}}},
            },
            "default": {
                "description": "Any failure",
                "content": {"application/json": {"schema": {"$ref": SCHEMA_PATH.format(name=ErrorBody.__name__)}}},
            },
        },
    }


if __name__ == "__main__":
    sys.stdout.write(render())
