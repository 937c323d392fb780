"""Generates the OpenAPI document from the table of routes. `make openapi` writes it to openapi/openapi.json.

A test compares the file with the generated document, so that a change of the API shows in review.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from whippet.app.version import version
from whippet.transports.http import field_sentences
from whippet.transports.http.errors import ErrorBody
from whippet.transports.http.forms.parameters import ALIAS, PARAMETER_TYPES
from whippet.transports.http.operation import Operation
from whippet.transports.http.routes import OPERATIONS

REFERENCE = "#/components/schemas/{name}"
SCHEME = "bearer"
REFUSALS = {
    "400": "The request is invalid",
    "401": "The token is missing or not valid",
    "403": "The user lacks the permission",
    "404": "Something that the path names does not exist",
    "413": "The body is too large",
    "415": "The content type of the body is not supported",
    "422": "The body is JSON, but does not match the schema",
    "default": "Any other failure",
}
NOT_EMPTY = r"[^\r\n]"
REFUSED = "#/components/responses/refused_{status}"


def document(operations: Sequence[Operation] = OPERATIONS) -> dict[str, Any]:
    types = [each for one in operations for each in (one.body, one.response, one.query) if each is not None]
    described, schemas = msgspec.json.schema_components([ErrorBody, *types], ref_template=REFERENCE)
    for schema in schemas.values():
        if "description" in schema:
            # Docstrings have the indentation of their source, except since Python 3.13.
            schema["description"] = inspect.cleandoc(schema["description"])
    field_sentences.describe(schemas)
    queries = {one.query.__name__ for one in operations if one.query is not None}
    by_type = dict(zip(map(_key, [ErrorBody, *types]), described, strict=True))
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Whippet",
            "description": "The HTTP API of Whippet, a message-streaming gateway compatible with Apache Iggy.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            "version": version(),
        },
        "servers": [{"url": "http://127.0.0.1:3000", "description": "The default listen address"}],
        "security": [{SCHEME: []}],
        "paths": _paths(operations, by_type, schemas),
        "components": {
            "schemas": {name: schema for name, schema in schemas.items() if name not in queries},
            "responses": {f"refused_{status}": _refusal(sentence, by_type) for status, sentence in REFUSALS.items()},
            "securitySchemes": {
                SCHEME: {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "An access token from a login, or a personal access token",
                }
            },
        },
    }


def render() -> str:
    return msgspec.json.format(msgspec.json.encode(document()), indent=2).decode() + "\n"


def _key(described: Any) -> str:
    return repr(described)


def _paths(
    operations: Sequence[Operation], by_type: Mapping[str, Any], schemas: Mapping[str, Any]
) -> Mapping[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, by_type, schemas)
    return paths


def _operation(operation: Operation, by_type: Mapping[str, Any], schemas: Mapping[str, Any]) -> Mapping[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "tags": [operation.subject],
    }
    if operation.public:
        described["security"] = []
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": PARAMETER_TYPES[name][1]}
        for name in re.findall(r"{(\w+)}", operation.path)
    ]
    if operation.query is not None:
        parameters += _query(schemas[operation.query.__name__])
    if operation.catalogue:
        consistency = {"type": "string", "enum": ["serializable", "linearizable"], "default": "serializable"}
        parameters.append({"name": "consistency", "in": "query", "required": False, "schema": consistency})
    parameters += [
        {"name": name, "in": "header", "required": False, "schema": {"type": "string"}, "description": sentence}
        for name, sentence in operation.headers
        if "{" not in name
    ]
    if patterned := [f"`{name}`: {sentence}" for name, sentence in operation.headers if "{" in name]:
        described["description"] = f"Headers: {'; '.join(patterned)}"
    if parameters:
        described["parameters"] = parameters
    if operation.body is not None:
        content: dict[str, Any] = {"application/json": {"schema": by_type[_key(operation.body)]}}
        content |= {
            form.media: {"schema": {"type": "string", "pattern": NOT_EMPTY, "description": form.description}}
            for form in operation.forms
        }
        described["requestBody"] = {"required": True, "content": content}
    described["responses"] = _responses(operation, by_type)
    return described


def _query(schema: Mapping[str, Any]) -> list[dict[str, Any]]:
    properties = schema["properties"]
    aliases = {each[ALIAS]: name for name, each in properties.items() if ALIAS in each}
    parameters = []
    for name, described in properties.items():
        if ALIAS in described:
            continue
        parameter = {"name": name, "in": "query", "required": name in schema.get("required", ()), "schema": described}
        if name in aliases:
            parameter["description"] = f"Alias: `{aliases[name]}`"
        parameters.append(parameter)
    return parameters


def _responses(operation: Operation, by_type: Mapping[str, Any]) -> Mapping[str, Any]:
    success: dict[str, Any] = {"description": "Success"}
    if operation.text is not None:
        success["content"] = {"text/plain": {"schema": {"type": "string", "const": operation.text}}}
    elif operation.media is not None:
        success["content"] = {operation.media: {"schema": {"type": "string", "format": "binary"}}}
    elif operation.response is not None:
        success["content"] = {"application/json": {"schema": by_type[_key(operation.response)]}}
        success["content"] |= {media: {"schema": {"type": "string"}} for media in operation.other_media}
    responses = {str(operation.status): success}
    if operation.catalogue:
        responses["304"] = {"description": "Not modified: the ETag of the client is current"}
    responses |= {str(status): {"description": sentence} for status, sentence in operation.other_statuses}
    responses |= {str(status): _refusal(sentence, by_type) for status, sentence in operation.refusals}
    responses |= {status: {"$ref": REFUSED.format(status=status)} for status in REFUSALS if _can(operation, status)}
    return responses


def _refusal(sentence: str, by_type: Mapping[str, Any]) -> dict[str, Any]:
    return {"description": sentence, "content": {"application/json": {"schema": by_type[_key(ErrorBody)]}}}


def _can(operation: Operation, status: str) -> bool:
    if status in ("413", "415", "422"):
        return operation.body is not None
    if operation.text is not None:
        return status == "default"
    return not operation.public or status in ("400", "401", "default")


if __name__ == "__main__":
    sys.stdout.write(render())
