"""A bucket in an S3 service on this machine, behind a proxy that makes mistakes when a test wants them."""

from __future__ import annotations

import contextlib
import http.client
import logging
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import boto3
from moto.server import ThreadedMotoServer

from whippet.storage.options import ArchiveOptions

BUCKET = "iggy"
REGION = "eu-west-1"

Answer = tuple[int, bytes]


class Fault:
    """What the proxy does instead of forwarding a request; each may be changed by a test at any time."""

    def __init__(self) -> None:
        self.answer: Callable[[str, str], Answer | None] = lambda method, path: None
        """Returns a status and a body, without the service having got the request; None: forward it."""
        self.change: Callable[[str, str, bytes], bytes] = lambda method, path, body: body
        """Changes the body of a request."""
        self.lose: Callable[[str, str], bool] = lambda method, path: False
        """Whether the connection is cut after the service has done what was requested."""
        self.hold: Callable[[str, str], None] = lambda method, path: None
        """May wait before the request is forwarded."""
        self.authorizations: list[str] = []
        """How the requests were signed."""


class Bucket:
    """The bucket, and how to reach it through the proxy."""

    def __init__(self, endpoint: str, fault: Fault) -> None:
        self.endpoint = endpoint
        self.fault = fault

    def options(self, prefix: str, timeout_s: float = 30.0) -> ArchiveOptions:
        return ArchiveOptions(
            kind="s3",
            bucket=BUCKET,
            key_prefix=prefix,
            endpoint=self.endpoint,
            region=REGION,
            access_key_id="key",
            secret_access_key="secret",
            request_timeout_s=timeout_s,
        )


@contextlib.contextmanager
def bucket() -> Iterator[Bucket]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    service = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    service.start()
    host, port = service.get_host_and_port()
    client = boto3.client(
        "s3",
        endpoint_url=f"http://{host}:{port}",
        aws_access_key_id="key",
        aws_secret_access_key="secret",
        region_name=REGION,
    )
    # What moto stores is the process's, not the server's: the tests of another module may have created it.
    with contextlib.suppress(client.exceptions.BucketAlreadyOwnedByYou):
        client.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
    client.close()
    fault = Fault()
    proxy = ThreadingHTTPServer(("127.0.0.1", 0), _handler(fault, host, port))
    proxy.daemon_threads = True
    thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield Bucket(f"http://127.0.0.1:{proxy.server_address[1]}", fault)
    finally:
        proxy.shutdown()
        proxy.server_close()
        thread.join()
        service.stop()


def _handler(fault: Fault, host: str, port: int) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            fault.authorizations.append(self.headers.get("authorization", ""))
            answer = fault.answer(self.command, self.path)
            headers: list[tuple[str, str]] = []
            if answer is not None:
                status, content = answer
            else:
                fault.hold(self.command, self.path)
                status, content, headers = self._from_service(fault.change(self.command, self.path, body))
                if fault.lose(self.command, self.path):
                    self.close_connection = True
                    return
            self.send_response(status)
            for name, value in headers:
                if name.lower() not in {"content-length", "transfer-encoding", "connection", "date", "server"}:
                    self.send_header(name, value)
            length = next((v for n, v in headers if n.lower() == "content-length"), str(len(content)))
            self.send_header("content-length", length if self.command == "HEAD" else str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                # A client whose time is up has closed the connection.
                with contextlib.suppress(BrokenPipeError):
                    self.wfile.write(content)

        def _from_service(self, body: bytes) -> tuple[int, bytes, list[tuple[str, str]]]:
            connection = http.client.HTTPConnection(host, port)
            headers = {name: value for name, value in self.headers.items() if name.lower() != "content-length"}
            connection.request(self.command, self.path, body, headers | {"content-length": str(len(body))})
            response = connection.getresponse()
            try:
                return response.status, response.read(), response.getheaders()
            finally:
                connection.close()

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _forward  # noqa: N815 -- the base class looks for these

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the name is the base class's
            pass

    return Handler
