"""HTTP/3 with a client that shares no code with the server: libcurl, with ngtcp2 for QUIC and nghttp3 for HTTP/3.

It trusts only the authority that `whippet certs` created, and speaks only HTTP/3.
"""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from curl_cffi.const import CurlHttpVersion
from curl_cffi.requests import Response, Session

from tests.app.support.process import DEADLINE_S, Gateway, starting
from whippet.app.cli.main import main as whippet

MESSAGES = "/streams/s/topics/t/messages"
OVER_HTTP_3 = int(CurlHttpVersion.V3)


class Curl:
    """A session, which reuses its connections."""

    def __init__(self, port: int, authority: Path) -> None:
        self.url = f"https://localhost:{port}"
        # `verify` also accepts a file of authorities, which the types omit.
        self._session: Any = Session(http_version=CurlHttpVersion.V3ONLY, verify=str(authority), timeout=DEADLINE_S)  # type: ignore[arg-type]
        self.headers: dict[str, str] = {}

    def ask(self, method: str, path: str, **more: Any) -> Response:
        headers = self.headers | more.pop("headers", {})
        answer: Response = self._session.request(method, self.url + path, headers=headers, **more)
        assert answer.http_version == OVER_HTTP_3
        return answer

    def send(self, body: bytes, kind: str = "text/plain") -> Response:
        return self.ask("POST", f"{MESSAGES}?partition=0", data=body, headers={"content-type": kind})

    def metrics(self) -> str:
        return self.ask("GET", "/metrics").text

    def log_in(self) -> None:
        answer = self.ask("POST", "/users/login", json={"username": "root", "password": "root's password"})
        self.headers["authorization"] = f"Bearer {answer.json()['access_token']['token']}"

    def close(self) -> None:
        self._session.close()


class Place(NamedTuple):
    """The address of a server, and the file of its authority."""

    gateway: Gateway
    authority: Path

    def curl(self, headers: dict[str, str] | None = None) -> Curl:
        found = Curl(int(self.gateway.line(r"quic://\S+:(\d+)").group(1)), self.authority)
        found.headers = headers or {}
        return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("http3")
    whippet(["certs", "--folder", str(folder)])
    with starting(folder / "data") as start:
        gateway = start(
            IGGY_ROOT_USERNAME="root",
            IGGY_ROOT_PASSWORD="root's password",
            IGGY_QUIC_CERTIFICATE_SELF_SIGNED="false",
            IGGY_QUIC_CERTIFICATE_CERT_FILE=str(folder / "server.pem"),
            IGGY_QUIC_CERTIFICATE_KEY_FILE=str(folder / "server.key"),
        )
        yield Place(gateway, folder / "authority.pem")


@pytest.fixture
def curl(place: Place) -> Iterator[Curl]:
    """Returns a client that is logged in, with new stream s and topic t."""
    client = place.curl()
    client.log_in()
    client.ask("DELETE", "/streams/s")
    assert client.ask("POST", "/streams", json={"name": "s"}).status_code == 200
    assert client.ask("POST", "/streams/s/topics", json={"name": "t", "partitions_count": 1}).status_code == 200
    yield client
    client.close()


def test_requests_of_every_kind_are_served(curl: Curl) -> None:
    assert curl.ask("GET", "/ping").text == "pong"
    head = curl.ask("HEAD", "/ping")
    assert (head.status_code, head.content) == (200, b"")
    assert curl.ask("GET", "/streams/s").json()["name"] == "s"
    assert curl.ask("PUT", "/streams/s", json={"name": "r"}).status_code == 204
    assert curl.ask("DELETE", "/streams/r").status_code == 204
    refused = curl.ask("GET", "/streams/r")
    assert (refused.status_code, refused.json()["field"]) == (404, None)
    assert curl.ask("GET", "/streams", headers={"authorization": "Bearer nobody"}).status_code == 401


@pytest.mark.parametrize(
    ("method", "path", "status", "expected"),
    [
        ("GET", "/streams", 200, {"cache-control": "private, no-cache"}),
        ("GET", f"{MESSAGES}?count=1", 200, {"cache-control": "no-store", "vary": "accept"}),
        ("GET", "/clients", 200, {"cache-control": "no-store"}),
        ("PATCH", "/users/login", 405, {"allow": "POST"}),
        ("DELETE", "/streams/nowhere", 404, {}),
    ],
)
def test_responses_have_the_same_headers_as_over_http_1(
    curl: Curl, place: Place, method: str, path: str, status: int, expected: dict[str, str]
) -> None:
    port = place.gateway.line(r"http://\S+:(\d+)").group(1)
    token = curl.ask("POST", "/personal-access-tokens", json={"name": f"{time.time_ns()}", "expiry": 0}).json()["token"]
    bearer = {"authorization": f"Bearer {token}"}
    newer = curl.ask(method, path, headers=bearer)
    older = httpx.request(method, f"http://127.0.0.1:{port}{path}", headers=bearer)
    assert newer.status_code == older.status_code == status
    for headers in (newer.headers, older.headers):
        written = parsedate_to_datetime(str(headers["date"]))
        assert abs(time.time() - written.timestamp()) < DEADLINE_S
        assert str(headers["date"]).endswith(" GMT")
        assert expected.items() <= dict(headers).items()
    # HTTP/3 is announced to HTTP/1.1 clients. The two clients accept different compressions.
    names = [{name for name in headers if name not in OF_ONE} for headers in (newer.headers, older.headers)]
    assert names[0] == names[1]


OF_ONE = ("alt-svc", "content-encoding", "content-length")


def test_refusals_before_the_application_have_a_date(curl: Curl) -> None:
    refused = curl.ask("GET", "/ping", headers={f"a{number}": "b" for number in range(200)})
    assert (refused.status_code, bool(refused.headers["date"])) == (431, True)


def test_large_bodies_are_received_and_sent(curl: Curl) -> None:
    body = bytes(range(256)) * 7_000
    assert curl.send(body, "application/octet-stream").status_code == 201
    polled = curl.ask("GET", f"{MESSAGES}?value=0&count=1", headers={"accept": "application/octet-stream"})
    assert polled.content == body
    as_it_is = {"accept": "application/octet-stream", "accept-encoding": "identity"}
    assert curl.ask("GET", f"{MESSAGES}?value=0&count=1", headers=as_it_is).content == body


def test_a_body_that_is_too_large_is_refused_and_the_connection_stays_open(curl: Curl) -> None:
    for _ in range(3):
        refused = curl.send(bytes(5_000_000), "application/octet-stream")
        assert (refused.status_code, refused.json()["code"]) == (413, "payload_too_large")
        assert curl.ask("GET", "/ping").text == "pong"


def test_many_concurrent_requests_succeed(curl: Curl, place: Place) -> None:
    others = [place.curl(curl.headers) for _ in range(4)]

    def send(number: int) -> int:
        return others[number % 4].send(b"%d\n" % number * 50).status_code

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(send, range(40))) == {201}
    polled = curl.ask("GET", f"{MESSAGES}?value=0&count=5000", headers={"accept": "text/plain"})
    assert sorted(map(int, polled.text.split())) == sorted(list(range(40)) * 50)
    for other in others:
        other.close()


def polls(curl: Curl) -> str | None:
    found = re.search(r'command_seconds_count{command="poll_messages",transport="http"} (\d+)', curl.metrics())
    return found and found.group(1)


def test_a_poll_waits_for_the_next_message(curl: Curl, place: Place) -> None:
    other = place.curl(curl.headers)
    with ThreadPoolExecutor(1) as pool:
        path = f"{MESSAGES}?value=0&count=1&wait=20s"
        before = polls(other)
        waiting = pool.submit(curl.ask, "GET", path, headers={"accept": "text/plain"})
        while polls(other) == before:
            assert not waiting.done(), waiting.result().text
        assert other.send(b"at last").status_code == 201
        assert waiting.result().text == "at last\n"
    other.close()


def test_a_tail_sends_messages_and_its_end(curl: Curl, place: Place) -> None:
    """The last test here, because it stops the server."""
    other = place.curl(curl.headers)
    tail = curl.ask("GET", f"{MESSAGES}/tail?offset=0&form=text", stream=True)
    said = tail.iter_content()
    heard = b""
    for number in range(20):
        assert other.send(b"number %d" % number).status_code == 201
        while b"data: number %d\n" % number not in heard:
            heard += next(said)
    assert heard.count(b"data: number") == 20
    other.close()
    place.gateway.signal(signal.SIGTERM)
    heard += b"".join(said)
    last = heard.rpartition(b"event: end\ndata: ")[2]
    assert json.loads(last)["code"] == "stopping"
    assert place.gateway.end() == 0
    tail.close()
