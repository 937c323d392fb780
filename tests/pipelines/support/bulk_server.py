"""A small, strict server with the `_bulk` of Elasticsearch and Quickwit: it refuses what they refuse, and fails on
request."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

Document = dict[str, Any]


class Failure(NamedTuple):
    """The response to a whole request, which is then not executed."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b"{}"


class BulkServer:
    """What is stored, and how the next requests fail. One lock guards everything: each handler has its own thread."""

    def __init__(self) -> None:
        self.indexes: dict[str, bytes] = {}
        self.documents: dict[str, Document] = {}
        """Elasticsearch's documents by id: a second one with the same id replaces the first."""
        self.appended: list[Document] = []
        """Quickwit's documents."""
        self.failures: deque[Failure] = deque()
        self.judge: Callable[[Document], tuple[int, str] | None] = lambda document: None
        """Returns status and reason for a document that is not stored."""
        self.requests: list[int] = []
        """The number of documents in each request to `_bulk`."""
        self.errors: list[str] = []
        """Reasons for which a strict server would have refused a whole request."""
        self.lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> BulkServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def take(self, body: bytes, media: str, index: str | None) -> dict[str, Any]:
        """Returns the response to `_bulk`, or raises ValueError for an invalid request. `index` is that of the path,
        for Quickwit."""
        if media != "application/x-ndjson":
            raise ValueError(f"content type {media}")
        if not body.endswith(b"\n"):
            raise ValueError("the last line has no end")
        lines = body[:-1].split(b"\n")
        if len(lines) % 2:
            raise ValueError("an action without a document")
        items = [self._item(json.loads(a), json.loads(d), index) for a, d in zip(lines[::2], lines[1::2], strict=True)]
        self.requests.append(len(items))
        return {"errors": any("error" in next(iter(item.values())) for item in items), "items": items}

    def _item(self, action: dict[str, Any], document: Document, index: str | None) -> dict[str, Any]:
        ((name, said),) = action.items()
        if name != ("index" if index is None else "create") or set(said) - {"_index", "_id"}:
            raise ValueError(f"action {action}")
        if said["_index"] not in self.indexes or (index is not None and said["_index"] != index):
            raise ValueError(f"no index {said['_index']}")
        refused = self.judge(document)
        if refused is not None:
            error = {"type": "document_parsing_exception", "reason": refused[1]}
            return {name: {"_index": said["_index"], "status": refused[0], "error": error}}
        if index is not None:
            self.appended.append(document)
        else:
            self.documents[said["_id"]] = document
        return {name: {"_index": said["_index"], "status": 201}}


def _handler(server: BulkServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            with server.lock:
                failure = server.failures.popleft() if server.failures and "_bulk" in self.path else self._answer(body)
            self.send_response(failure.status)
            for name, value in failure.headers:
                self.send_header(name, value)
            self.send_header("content-length", str(len(failure.body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(failure.body)

        do_GET = do_HEAD = do_PUT = do_POST = handle_one  # noqa: N815

        def _answer(self, body: bytes) -> Failure:
            try:
                return self._carried_out(body)
            except (ValueError, KeyError) as error:
                server.errors.append(str(error))
                return Failure(400, body=json.dumps({"error": {"reason": str(error)}}).encode())

        def _carried_out(self, body: bytes) -> Failure:
            media, path = self.headers.get("content-type") or "", self.path
            if path == "/_bulk":
                return Failure(200, body=json.dumps(server.take(body, media, None)).encode())
            if path.startswith("/api/v1/_elastic/"):
                index = path.split("/")[4]
                return Failure(200, body=json.dumps(server.take(body, media, index)).encode())
            if path == "/api/v1/indexes" and self.command == "POST":
                server.indexes[body.decode().split("index_id:")[1].split()[0]] = body
                return Failure(200)
            name = path.removeprefix("/api/v1/indexes").removeprefix("/")
            if self.command == "PUT":
                server.indexes[name] = body
                return Failure(200)
            return Failure(200 if name in server.indexes else 404)

        def log_message(self, *_: object) -> None:
            """The log is not needed."""

    return Handler
