"""GET /docs: the OpenAPI document as a page for people, with examples.

The page is one file without scripts, and loads nothing: its policy allows no more than its own style. Everything in it
comes from the code, and is escaped all the same.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from html import escape
from http import HTTPStatus
from typing import Any

import msgspec

from whippet.transports.http.forms.responses import Headers, HttpResponse, compress, with_etag
from whippet.transports.http.handlers import reference
from whippet.transports.http.operation import Call

STYLE = """\
body{font:15px/1.5 system-ui,sans-serif;margin:0 auto;max-width:62rem;padding:1rem;color:#1c2330;background:#fff}
h1{font-size:1.6rem}h2{border-bottom:1px solid #ccd3df;margin-top:2.5rem;text-transform:capitalize}
code,pre{font:13px/1.45 ui-monospace,monospace}pre{background:#f3f5f9;padding:.7rem;overflow:auto}
details{border:1px solid #ccd3df;border-radius:6px;margin:.5rem 0;padding:.4rem .8rem}
summary{cursor:pointer}summary b{display:inline-block;min-width:4.2rem}
table{border-collapse:collapse;width:100%}td,th{text-align:left;vertical-align:top;padding:.2rem .6rem .2rem 0}
td:first-child{white-space:nowrap}nav a{margin-right:1rem}.muted{color:#5c6577}
@media(prefers-color-scheme:dark){body{background:#12161d;color:#e3e8f0}pre{background:#1b212b}
a{color:#8ab4ff}details,h2{border-color:#333c4a}.muted{color:#9aa5b6}}
"""
_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
POLICY = f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
HEADERS: Headers = (
    (b"content-type", b"text/html; charset=utf-8"),
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)
EXAMPLES: Mapping[str, Any] = {
    "name": "orders",
    "username": "alice",
    "password": "a-long-password",
    "current_password": "a-long-password",
    "new_password": "a-longer-password",
    "payload": base64.b64encode(b'{"n":1}').decode(),
    "stream": "shop",
    "topic": "orders",
    "group": "billing",
    "consumer": "billing",
    "created_at": 1_795_188_447_046_338,
    "timestamp": 1_795_188_447_046_338,
    "partitions_count": 3,
    "message_expiry": 604_800_000_000,
    "expiry": "30 days",
    "value": "",
}
"""Better than what follows from a schema alone, where the schema allows it."""
DEPTH_MAX = 8
Schema = Mapping[str, Any]


async def get_page(call: Call) -> HttpResponse:
    octets = await asyncio.to_thread(_page, (await reference.get_document_bytes(call)))
    response = with_etag(HttpResponse(HTTPStatus.OK, octets, HEADERS), call.headers.get(b"if-none-match"))
    return await compress(response, call.headers.get(b"accept-encoding"))


@lru_cache(maxsize=1)
def _page(document: bytes) -> bytes:
    return render(msgspec.json.decode(document)).encode()


def render(document: Mapping[str, Any]) -> str:
    schemas = document["components"]["schemas"]
    by_subject: dict[str, list[str]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            for subject in operation["tags"]:
                by_subject.setdefault(subject, []).append("".join(_operation(path, method, operation, schemas)))
    links = "".join(f'<a href="#{_anchor(subject)}">{escape(subject)}</a> ' for subject in by_subject)
    sections = "".join(
        f'<h2 id="{_anchor(subject)}">{escape(subject)}</h2>{"".join(shown)}' for subject, shown in by_subject.items()
    )
    info = document["info"]
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(info["title"])} HTTP API</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style>'
        f"<h1>{escape(info['title'])} HTTP API</h1>"
        f"<p>{escape(info['description'])} Version {escape(info['version'])}. "
        'The same for programs: <a href="openapi.json">openapi.json</a>.</p>'
        "<p>Requests need <code>Authorization: Bearer</code> with the token of a login or a personal access token, "
        f"unless they are marked as public. Errors are JSON with a number, a name and a sentence.</p><nav>{links}</nav>"
        f"{sections}</html>\n"
    )


def _operation(path: str, method: str, operation: Schema, schemas: Mapping[str, Schema]) -> Iterator[str]:
    name = escape(operation["operationId"])
    public = " <span class=muted>public</span>" if operation.get("security") == [] else ""
    yield f'<details id="{name}"><summary><b>{method.upper()}</b> <code>{escape(path)}</code> '
    yield f"{escape(operation['summary'])}{public}</summary>"
    if "description" in operation:
        yield f"<p>{_marked(operation['description'])}</p>"
    if parameters := operation.get("parameters"):
        rows = [
            (each["name"], each["in"], each.get("description") or _sentence(each["schema"], schemas))
            for each in parameters
        ]
        yield _table(("Parameter", "In", "Meaning"), rows)
    for media, content in operation.get("requestBody", {}).get("content", {}).items():
        yield f"<h4>Body: <code>{escape(media)}</code></h4>"
        yield from _content(media, content["schema"], schemas)
    for status, response in operation["responses"].items():
        if not status.startswith("2"):
            continue
        yield f"<h4>Response {status}: {escape(response['description'])}</h4>"
        for media, content in response.get("content", {}).items():
            yield f"<p><code>{escape(media)}</code></p>"
            yield from _content(media, content.get("schema", {}), schemas)
    others = [status for status in operation["responses"] if not status.startswith("2")]
    yield f"<p class=muted>Errors: {escape(', '.join(others))}</p></details>"


def _content(media: str, schema: Schema, schemas: Mapping[str, Schema]) -> Iterator[str]:
    found = _resolved(schema, schemas)
    if "json" not in media:
        yield f"<p>{_marked(found.get('description', ''))}</p>"
        return
    if "description" in found:
        yield f"<p>{_marked(found['description'])}</p>"
    shown = msgspec.json.format(msgspec.json.encode(example(schema, schemas)), indent=2).decode()
    yield f"<pre>{escape(shown)}</pre>"
    rows = list(_fields(found, schemas, ""))
    if rows:
        yield _table(("Field", "", "Meaning"), rows)


def _fields(
    schema: Schema, schemas: Mapping[str, Schema], prefix: str, depth: int = 0
) -> Iterator[tuple[str, str, str]]:
    """Nested fields have the names of those that contain them before theirs."""
    if schema.get("type") == "array":
        yield from _fields(_resolved(schema.get("items", {}), schemas), schemas, f"{prefix}[]", depth)
        return
    for name, described in schema.get("properties", {}).items():
        path = f"{prefix}.{name}".removeprefix(".")
        needed = "required" if name in schema.get("required", ()) else ""
        yield path, needed, _sentence(described, schemas)
        if depth < 3:
            for each in _variants(described, schemas):
                yield from _fields(each, schemas, path, depth + 1)


def _variants(schema: Schema, schemas: Mapping[str, Schema]) -> list[Schema]:
    found = _resolved(schema, schemas)
    nested = [each for key in ("anyOf", "allOf", "oneOf") for each in found.get(key, ())]
    if not nested:
        return [found]
    return [variant for each in nested for variant in _variants(each, schemas)]


def _sentence(schema: Schema, schemas: Mapping[str, Schema]) -> str:
    variants = _variants(schema, schemas)
    sentences = dict.fromkeys(
        each["description"].removesuffix(".") for each in (schema, *variants) if "description" in each
    )
    words = [json_text for each in variants for json_text in map(_json, each.get("enum", ()))]
    text = ". ".join(sentences)
    return f"{text}{'. ' if text else ''}{'One of ' + ', '.join(words) + '.' if words else ''}"


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _resolved(schema: Schema, schemas: Mapping[str, Schema]) -> Schema:
    while "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    return schema


def example(schema: Schema, schemas: Mapping[str, Schema], name: str = "", depth: int = 0) -> Any:
    """A value that the schema allows."""
    schema = _resolved(schema, schemas)
    nested = [each for key in ("anyOf", "allOf", "oneOf") for each in schema.get(key, ())]
    if nested and "type" not in schema:
        nested = [each for each in nested if _resolved(each, schemas).get("type") != "null"] or nested
        # Durations and the like as texts, which people understand.
        texts = [each for each in nested if _resolved(each, schemas).get("type") == "string"]
        return example((texts if isinstance(EXAMPLES.get(name), str) and texts else nested)[0], schemas, name, depth)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type")
    known = EXAMPLES.get(name)
    if kind == "object":
        return _object(schema, schemas, depth)
    if kind == "array":
        several = depth < DEPTH_MAX and schema.get("maxItems") != 0
        return [example(schema.get("items", {}), schemas, name.removesuffix("s"), depth + 1)] if several else []
    if kind == "integer":
        return (
            known
            if isinstance(known, int) and known <= schema.get("maximum", known)
            else max(schema.get("minimum", 0), 1)
        )
    if kind == "number":
        return 0.5
    if kind == "boolean":
        return True
    if kind == "string":
        return known if isinstance(known, str) else "text" if "pattern" not in schema else "1"
    return None


def _object(schema: Schema, schemas: Mapping[str, Schema], depth: int) -> dict[str, Any]:
    properties = schema.get("properties", {})
    # A request that names nothing is of no use as an example.
    required = schema.get("required") or (list(properties)[:2] if not depth else ())
    if depth >= DEPTH_MAX:
        return {}
    return {name: example(each, schemas, name, depth + 1) for name, each in properties.items() if name in required}


def _table(head: Iterable[str], rows: Iterable[tuple[str, str, str]]) -> str:
    top = "".join(f"<th>{escape(each)}" for each in head)
    lines = "".join(
        f"<tr><td><code>{escape(first)}</code><td class=muted>{escape(second)}<td>{_marked(third)}"
        for first, second, third in rows
    )
    return f"<table><tr>{top}{lines}</table>"


def _marked(text: str) -> str:
    """Escapes a text, and shows what is between backticks as code."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if number % 2 else part for number, part in enumerate(parts))


def _anchor(subject: str) -> str:
    return escape(subject.replace(" ", "-"))
