"""The OpenAPI document and the application have the same routes, and the committed file is the generated one."""

from __future__ import annotations

import json
import re
from pathlib import Path

from whippet.transports.http import openapi, routes

COMMITTED = Path(__file__).parents[3] / "openapi" / "openapi.json"


def test_the_committed_document_is_the_generated_one() -> None:
    assert COMMITTED.read_text() == openapi.render(), "run `make openapi` and commit what it writes"


def test_the_document_and_the_router_have_the_same_routes() -> None:
    served = {(operation.method.lower(), operation.path) for operation in routes.OPERATIONS}
    documented = {
        (method, path)
        for path, operations in json.loads(COMMITTED.read_text())["paths"].items()
        for method in operations
    }
    assert served == documented


def test_every_reference_in_the_document_resolves() -> None:
    whole = json.loads(COMMITTED.read_text())
    for reference in set(re.findall(r'"\$ref": "#/([^"]+)"', COMMITTED.read_text())):
        found = whole
        for name in reference.split("/"):
            found = found[name]


def test_operation_ids_are_unique() -> None:
    identifiers = [
        operation["operationId"]
        for operations in openapi.document()["paths"].values()
        for operation in operations.values()
    ]
    assert len(identifiers) == len(set(identifiers))
