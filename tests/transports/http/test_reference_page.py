"""`/docs`: the API as a page that loads nothing, with examples that the server accepts."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.transports.http.support.calling import calling
from whippet.transports.http import openapi
from whippet.transports.http.handlers import reference_page
from whippet.transports.http.operation import Operation
from whippet.transports.http.routes import OPERATIONS

DOCUMENT = msgspec.json.decode(msgspec.json.encode(openapi.document()))
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]
PAGE = reference_page.render(DOCUMENT)
MEASURES = re.compile(r"_at$|timestamp|(?<!p)time$|(?:^|_)(?:bytes|size|seconds|usage|expiry)(?:_|$)|memory|space")


async def test_anybody_gets_the_page_which_may_load_nothing(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        response = await world.stranger.ask("GET", "/docs")
        assert response.status_code == 200
        assert response.headers["content-type"] == "text/html; charset=utf-8"
        policy = response.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; style-src 'sha256-")
        assert "unsafe" not in policy
        (style,) = re.findall(r"<style>(.*?)</style>", response.text, re.DOTALL)
        assert base64.b64encode(hashlib.sha256(style.encode()).digest()).decode() in policy
        again = await world.stranger.ask("GET", "/docs", if_none_match=response.headers["etag"])
        assert again.status_code == 304


def test_the_page_has_every_operation_and_nothing_from_elsewhere() -> None:
    ids = re.findall(r'<details id="([^"]+)">', PAGE)
    assert sorted(ids) == sorted(operation.name for operation in OPERATIONS)
    assert not re.search(r"<script|<link|<img|\bsrc=|\bstyle=|\bon\w+=|@import|url\(", PAGE)
    assert set(re.findall(r'href="([^"]+)"', PAGE)) <= {"openapi.json"} | {
        f"#{subject.replace(' ', '-')}" for operation in OPERATIONS for subject in [operation.subject]
    }


def test_texts_are_escaped() -> None:
    hostile = msgspec.json.decode(msgspec.json.encode(DOCUMENT).replace(b"Create a topic", b"<b>`&amp;"))
    assert "<b>`&amp;</summary>" not in reference_page.render(hostile)
    assert "&lt;b&gt;`&amp;amp;" in reference_page.render(hostile)


@pytest.mark.parametrize(
    "operation", [each for each in OPERATIONS if each.body is not None], ids=lambda operation: operation.name
)
def test_the_example_of_every_request_is_accepted(operation: Operation) -> None:
    described = DOCUMENT["paths"][operation.path][operation.method.lower()]
    schema = described["requestBody"]["content"]["application/json"]["schema"]
    text = msgspec.json.encode(reference_page.example(schema, SCHEMAS))
    decoder = msgspec.json.Decoder(operation.body)
    if operation.decode is None:
        decoder.decode(text)
    else:
        operation.decode(decoder, text)


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_the_example_of_every_schema_has_what_is_required(name: str) -> None:
    found = reference_page.example(SCHEMAS[name], SCHEMAS)
    if SCHEMAS[name].get("type") == "object":
        assert set(SCHEMAS[name].get("required", ())) <= set(found)


def test_everything_that_measures_has_a_unit() -> None:
    missing = [
        f"{name}.{field}"
        for name, schema in SCHEMAS.items()
        for field, described in schema.get("properties", {}).items()
        if MEASURES.search(field) and not reference_page._sentence(described, SCHEMAS)
    ]
    missing += [
        f"{operation['operationId']}?{parameter['name']}"
        for operations in DOCUMENT["paths"].values()
        for operation in operations.values()
        for parameter in operation.get("parameters", ())
        if MEASURES.search(parameter["name"])
        and not (parameter.get("description") or reference_page._sentence(parameter["schema"], SCHEMAS))
    ]
    assert missing == []
