"""The OpenAPI document and the application have the same routes, and the committed file is the generated one."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.transports.http.support.calling import calling
from whippet.app.config.listeners import Http, HttpMetrics
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


async def test_the_server_has_its_own_document(tmp_path: Path) -> None:
    async with calling(tmp_path, Http(metrics=HttpMetrics(endpoint="/numbers", require_token=True))) as world:
        response = await world.stranger.ask("GET", "/openapi.json")
        assert response.headers["content-type"] == "application/json"
        found, committed = response.json(), json.loads(COMMITTED.read_text())
        assert found.pop("servers") == [{"url": "/", "description": "This server"}]
        metrics = found["paths"].pop("/numbers")["get"]
        assert "security" not in metrics
        assert committed["paths"].pop("/metrics")["get"]["security"] == []
        committed.pop("servers")
        assert found == committed
        tag = response.headers["etag"]
        assert (await world.stranger.ask("GET", "/openapi.json", if_none_match=tag)).status_code == 304
