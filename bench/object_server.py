"""A bare server of the files in a folder over HTTP, with ranges: what an object store is at least.

`python -m whippet.bench.object_server FOLDER` prints its port, and serves until its standard input ends.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    folder = ""

    def do_HEAD(self) -> None:
        self._answer(with_content=False)

    def do_GET(self) -> None:
        self._answer(with_content=True)

    def _answer(self, *, with_content: bool) -> None:
        try:
            handle = os.open(f"{self.folder}{self.path}", os.O_RDONLY)
        except OSError:
            self.send_response(404)
            self.send_header("content-length", "0")
            self.end_headers()
            return
        try:
            size = os.fstat(handle).st_size
            wanted = _RANGE.fullmatch(self.headers.get("range", ""))
            start, end = (int(wanted[1]), min(int(wanted[2]) + 1, size)) if wanted else (0, size)
            self.send_response(206 if wanted else 200)
            if wanted:
                self.send_header("content-range", f"bytes {start}-{end - 1}/{size}")
            self.send_header("content-length", str(end - start))
            self.send_header("last-modified", formatdate(os.fstat(handle).st_mtime, usegmt=True))
            self.end_headers()
            while with_content and start < end:
                start += os.sendfile(self.connection.fileno(), handle, start, end - start)
        finally:
            os.close(handle)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the name is the base class's
        """Says nothing."""


@contextlib.contextmanager
def served(folder: str) -> Iterator[str]:
    """The URL of a server of a folder, in a process of its own."""
    command = [sys.executable, "-m", "whippet.bench.object_server", folder]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    with process, process.stdin, process.stdout:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"


def main() -> None:
    Handler.folder = sys.argv[1]
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    print(server.server_address[1], flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main()
