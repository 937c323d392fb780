"""The `_bulk` API, shared by Elasticsearch and Quickwit. Tasks send documents as pairs of lines and read a result for
each.

1. Requests without a response or with status 408, 429, 502, 503 or 504 are repeated, with pauses that double or as
   `Retry-After` says. Of other requests, the documents with such a status are sent again.
2. A request that is too large (413) is sent again in two halves.
3. A document that is refused because of its content becomes a bad record. Any other failure is an error, and so is a
   response without results.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from pyspark_whippet import ids
from pyspark_whippet.settings import Secret
from whippet.pipelines.bad_records import COLUMNS, origin
from whippet.pipelines.errors import SinkError
from whippet.pipelines.record_columns import Batch, row_id

TRANSIENT = frozenset({408, 429, 502, 503, 504})
TOO_LARGE = 413
INDEX_ERRORS = frozenset({401, 403, 404})
"""Statuses that are not the document's fault: writing is not allowed, or the index is closed or gone. All other
documents would get the same."""
PAUSE_S_MAX, RETRY_AFTER_S_MAX = 30.0, 300.0
REQUEST_BYTES_MAX = 5_000_000
REASON_CHARACTERS_MAX = 500


@dataclass(frozen=True)
class Target:
    """Where documents are sent; pickled to tasks."""

    url: str
    path: str
    action: str
    index: str
    username: str | None = None
    password: Secret | None = None
    timeout_s: int = 30
    documents_max: int = 1000
    retries: int = 5
    delay_ms: int = 1000


class Response(NamedTuple):
    status: int
    retry_after_s: float | None
    body: bytes

    @property
    def reason(self) -> str:
        text = self.body.decode(errors="replace")
        try:
            content = json.loads(text)
            error = content.get("error", content) if isinstance(content, dict) else content
            text = _reason(error) if isinstance(error, dict) else str(error)
        except ValueError:
            pass
        return " ".join(text.split())[:REASON_CHARACTERS_MAX]


class Client:
    """Sends requests one after the other over one connection."""

    def __init__(self, target: Target, pause: Callable[[float], None] = time.sleep) -> None:
        self._target = target
        self._pause = pause
        self._connection: http.client.HTTPConnection | None = None

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, method: str, path: str, body: bytes | None, media: str, also: tuple[int, ...] = ()) -> Response:
        """Returns the response if its status is 2xx or in `also`. Otherwise it raises SinkError, after retries where
        they can help."""
        attempt = 0
        while True:
            response, why = self._once(method, path, body, media)
            if response is not None and (200 <= response.status < 300 or response.status in also):
                return response
            may_pass = response is None or response.status in TRANSIENT
            if attempt >= self._target.retries or not may_pass:
                problem = why if response is None else f"{response.status} {response.reason}"
                tries = f" after {attempt + 1} attempts" if attempt else ""
                raise SinkError(f"{method} {self._target.url}{path} failed{tries}: {problem}")
            self.wait(attempt, response)
            attempt += 1

    def wait(self, attempt: int, response: Response | None) -> None:
        after = response.retry_after_s if response is not None else None
        if after is None:
            after = min(self._target.delay_ms / 1000 * 2**attempt, PAUSE_S_MAX)
        self._pause(min(after, RETRY_AFTER_S_MAX))

    def _once(self, method: str, path: str, body: bytes | None, media: str) -> tuple[Response | None, str]:
        headers = {"Content-Type": media, "Accept": "application/json"}
        if self._target.username is not None and self._target.password is not None:
            pair = f"{self._target.username}:{self._target.password.text}"
            headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
        try:
            if self._connection is None:
                self._connection = self._connected()
            self._connection.request(method, urlsplit(self._target.url).path.rstrip("/") + path, body, headers)
            found = self._connection.getresponse()
            after = found.getheader("retry-after") or ""
            response = Response(found.status, float(after) if after.isdecimal() else None, found.read())
        except (OSError, http.client.HTTPException) as error:
            self.close()
            return None, f"{type(error).__name__}: {error}"
        if found.will_close:
            self.close()
        return response, ""

    def _connected(self) -> http.client.HTTPConnection:
        parts = urlsplit(self._target.url)
        assert parts.hostname is not None
        if parts.scheme == "https":
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(
                parts.hostname, parts.port, timeout=self._target.timeout_s, context=context
            )
        return http.client.HTTPConnection(parts.hostname, parts.port, timeout=self._target.timeout_s)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


# ---------------------------------------------------------------------------------------------------------- documents


class Document(NamedTuple):
    place: int
    """The place among the task's documents."""
    lines: bytes


class Refused(NamedTuple):
    place: int
    reason: str


def once(target: Target, method: str, path: str, body: bytes | None, media: str, also: tuple[int, ...]) -> Response:
    """Sends a single request."""
    with Client(target) as client:
        return client.call(method, path, body, media, also)


def send(client: Client, target: Target, documents: Sequence[Document]) -> list[Refused]:
    """Sends all documents, and returns those that were refused because of their content."""
    refused, attempt = list[Refused](), 0
    while documents:
        response = client.call(
            "POST", target.path, b"".join(each.lines for each in documents), NDJSON, also=(TOO_LARGE,)
        )
        if response.status == TOO_LARGE:
            if len(documents) == 1:
                return [*refused, Refused(documents[0].place, "413 the document is too large")]
            half = len(documents) // 2
            return refused + send(client, target, documents[:half]) + send(client, target, documents[half:])
        waiting, found = _sort_results(documents, response)
        refused += found
        if waiting and attempt >= target.retries:
            raise SinkError(
                f"{target.url}{target.path}: {len(waiting)} documents were rejected temporarily {attempt + 1} times"
            )
        if waiting:
            client.wait(attempt, response)
        documents, attempt = waiting, attempt + 1
    return refused


NDJSON = "application/x-ndjson"


def _sort_results(documents: Sequence[Document], response: Response) -> tuple[list[Document], list[Refused]]:
    """Returns the documents to send again, and those that were refused."""
    content = _parse_response(response)
    items = content.get("items")
    if not content["errors"] and (items is None or len(items) == len(documents)):
        return [], []
    if items is None:
        raise SinkError(f"_bulk failed, and did not report for which documents: {response.reason}")
    if len(items) != len(documents):
        raise SinkError(f"_bulk returned results for {len(items)} documents instead of {len(documents)}")
    waiting, refused = list[Document](), list[Refused]()
    for document, item in zip(documents, items, strict=True):
        ((_, result),) = item.items()
        status = int(result.get("status", 200))
        if status in TRANSIENT or status >= 500:
            waiting.append(document)
        elif status >= 300:
            why = f"{status} {_reason(result.get('error') or {})}"[:REASON_CHARACTERS_MAX]
            if status in INDEX_ERRORS:
                raise SinkError(f"_bulk accepts no documents: {why}")
            refused.append(Refused(document.place, why))
    return waiting, refused


def _parse_response(response: Response) -> dict[str, Any]:
    """Anything else comes from a proxy or another service, and nothing was stored."""
    try:
        content = json.loads(response.body)
    except ValueError:
        content = None
    if not isinstance(content, dict) or "errors" not in content:
        raise SinkError(f"this is not a response of _bulk: {response.status} {response.reason or '(empty)'}")
    return content


def _reason(error: Any) -> str:
    if not isinstance(error, dict):
        return str(error)
    cause = error.get("caused_by")
    parts = [error.get("type"), error.get("reason") or error.get("message"), cause and cause.get("reason")]
    return ": ".join(str(part) for part in parts if part)


# -------------------------------------------------------------------------------------------------------------- tasks


def write(batch: Batch, target: Target, document: Column, id_columns: tuple[str, ...], *, with_ids: bool) -> DataFrame:
    """Sends a batch from its tasks, and returns the refused documents as bad records."""
    own = row_id(batch, id_columns) if with_ids else None
    columns = [document.alias("document"), origin(batch.frame).alias("origin")]
    columns.append((own if own is not None else F.lit(None).cast("binary")).alias("id"))
    scope = (batch.writer, str(batch.number)) if with_ids else None
    found = batch.frame.select(*columns).mapInArrow(_task(target, scope), COLUMNS).persist()
    found.count()
    return found


def _task(target: Target, scope: tuple[str, str] | None) -> Callable[[Iterable[Any]], Iterator[Any]]:
    def post(batches: Iterable[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        assert context is not None
        derived = ids.DerivedIds(ids.scope(*scope, str(context.partitionId()))) if scope is not None else None
        with Client(target) as client:
            for batch in batches:
                texts = batch.column("document")
                heads = _heads(target, batch, texts, derived)
                lines = [head + text.encode() + b"\n" for head, text in zip(heads, texts.to_pylist(), strict=True)]
                refused = [each for part in _requests(target, lines) for each in send(client, target, part)]
                if refused:
                    yield _bad(batch, refused)

    return post


def _heads(target: Target, batch: Any, texts: Any, derived: ids.DerivedIds | None) -> list[bytes]:
    """Returns the action lines, with ids that are the same on a replay."""
    if derived is None:
        return [json.dumps({target.action: {"_index": target.index}}).encode() + b"\n"] * len(texts)
    given = batch.column("id").to_pylist()
    if len(texts) and given[0] is None:
        made = derived.for_rows([text.encode() for text in texts.to_pylist()], None, None)
        given = [row.tobytes() for row in made]
    pairs = ({"_index": target.index, "_id": each.hex()} for each in given)
    return [json.dumps({target.action: pair}).encode() + b"\n" for pair in pairs]


def _requests(target: Target, lines: Sequence[bytes]) -> Iterator[list[Document]]:
    gathered, size = list[Document](), 0
    for place, line in enumerate(lines):
        if gathered and (len(gathered) >= target.documents_max or size + len(line) > REQUEST_BYTES_MAX):
            yield gathered
            gathered, size = [], 0
        gathered.append(Document(place, line))
        size += len(line)
    if gathered:
        yield gathered


def _bad(batch: Any, refused: Sequence[Refused]) -> Any:
    places = pa.array([each.place for each in refused], pa.int64())
    columns = [
        batch.column("document").cast(pa.binary()).take(places),
        pa.array([each.reason for each in refused], pa.string()),
        batch.column("origin").take(places),
    ]
    return pa.RecordBatch.from_arrays(columns, names=["payload", "reason", "origin"])
