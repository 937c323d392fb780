"""The OpenAPI document and the application know the same routes, and the committed file is the generated one."""

from __future__ import annotations

import json
from pathlib import Path

from starlette.routing import Route

from transports.http import application, openapi

COMMITTED = Path(__file__).parents[3] / "openapi" / "openapi.json"


def test_the_committed_document_is_the_generated_one() -> None:
    assert COMMITTED.read_text() == openapi.render(), "run `make openapi` and commit what it writes"


def test_every_route_is_in_the_document_and_every_path_of_the_document_is_routed() -> None:
    served = set()
    for route in application.create().routes:
        assert isinstance(route, Route), "a mount hides routes from the document"
        methods = set(route.methods or ())
        # Starlette adds HEAD to every GET; it is the same operation without its body.
        served |= {(method.lower(), route.path) for method in methods - ({"HEAD"} if "GET" in methods else set())}
    documented = {
        (method, path)
        for path, operations in json.loads(COMMITTED.read_text())["paths"].items()
        for method in operations
    }
    assert served == documented


def test_operation_ids_are_unique() -> None:
    identifiers = [
        operation["operationId"]
        for operations in openapi.document()["paths"].values()
        for operation in operations.values()
    ]
    assert len(identifiers) == len(set(identifiers))
