"""As much of Google Cloud Storage's XML API as an archive needs, in memory, with generations as conditions of writes.

fake-gcs-server, the usual stand-in, has no uploads over this API, which obstore uses.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET = "iggy"


class Stored:
    def __init__(self) -> None:
        self.objects: dict[str, tuple[int, bytes]] = {}
        """Each with its generation."""
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.generation = 0
        self.ignores_conditions = False
        self.lock = threading.Lock()


def handler(stored: Stored) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _route(self) -> None:
            content = self.rfile.read(int(self.headers.get("content-length") or 0))
            url = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
            bucket, _, name = unquote(url.path).lstrip("/").partition("/")
            with stored.lock:
                if bucket != BUCKET:
                    self._answer(404, b"<Error><Code>NoSuchBucket</Code></Error>")
                elif not name:
                    self._list(query)
                elif "uploads" in query or "uploadId" in query:
                    self._upload(name, query, content)
                elif self.command == "PUT":
                    self._put(name, content)
                elif self.command == "DELETE":
                    self._answer(204 if stored.objects.pop(name, None) else 404)
                else:
                    self._get(name)

        def _put(self, name: str, content: bytes) -> None:
            wanted = self.headers.get("x-goog-if-generation-match")
            current = stored.objects.get(name, (0, b""))[0]
            if wanted is not None and int(wanted) != current and not stored.ignores_conditions:
                self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
                return
            stored.generation += 1
            stored.objects[name] = stored.generation, content
            self._answer(200, generation=stored.generation)

        def _get(self, name: str) -> None:
            if name not in stored.objects:
                self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
                return
            generation, content = stored.objects[name]
            if wanted := self.headers.get("range"):
                start, _, end = wanted.removeprefix("bytes=").partition("-")
                part = content[int(start) : int(end) + 1]
                where = f"bytes {start}-{int(start) + len(part) - 1}/{len(content)}"
                self._answer(206, part, generation=generation, content_range=where)
            else:
                self._answer(200, content, generation=generation)

        def _upload(self, name: str, query: dict[str, str], content: bytes) -> None:
            if "uploads" in query:
                identity = str(len(stored.uploads))
                stored.uploads[identity] = {}
                self._answer(200, f"<R><UploadId>{identity}</UploadId></R>".encode())
            elif self.command == "PUT":
                stored.uploads[query["uploadId"]][int(query["partNumber"])] = content
                self._answer(200, generation=0)
            elif self.command == "DELETE":
                stored.uploads.pop(query["uploadId"])
                self._answer(204)
            else:
                parts = stored.uploads.pop(query["uploadId"])
                stored.generation += 1
                stored.objects[name] = stored.generation, b"".join(parts[number] for number in sorted(parts))
                self._answer(200, b"<R><ETag>x</ETag></R>", generation=stored.generation)

        def _list(self, query: dict[str, str]) -> None:
            found = "".join(
                f"<Contents><Key>{escape(name)}</Key><Size>{len(content)}</Size><ETag>x</ETag>"
                "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
                for name, (_, content) in sorted(stored.objects.items())
                if name.startswith(query.get("prefix", ""))
            )
            self._answer(200, f"<ListBucketResult>{found}</ListBucketResult>".encode())

        def _answer(
            self, status: int, content: bytes = b"", *, generation: int | None = None, content_range: str = ""
        ) -> None:
            self.send_response(status)
            if generation is not None:
                self.send_header("etag", f'"{generation}"')
                self.send_header("x-goog-generation", str(generation))
                self.send_header("last-modified", formatdate(usegmt=True))
            if content_range:
                self.send_header("content-range", content_range)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _route  # noqa: N815 -- the base class looks for these

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the name is the base class's
            pass

    return Handler


@contextlib.contextmanager
def google(folder: Path) -> Iterator[tuple[Path, Stored]]:
    """The file of a service account that leads to the service, and what the service has."""
    stored = Stored()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(stored))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    account = {
        "gcs_base_url": f"http://127.0.0.1:{server.server_address[1]}",
        "disable_oauth": True,
        "client_email": "",
        "private_key": "",
        "private_key_id": "",
    }
    path = folder / "service_account.json"
    path.write_text(json.dumps(account))
    try:
        yield path, stored
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
