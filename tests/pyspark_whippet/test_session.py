"""Requests to a gateway that fails in every possible way, and recovers."""

from __future__ import annotations

import json
import pickle
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pyspark_whippet.errors import GatewayError, OptionError
from pyspark_whippet.options import decode
from pyspark_whippet.session import Session
from pyspark_whippet.settings import Access, Secret
from whippet.transports import certificates

Answer = tuple[int, dict[str, str], Any]


class Scripted:
    """A server that sends these responses in order; None closes the connection. Logins are answered separately."""

    def __init__(self) -> None:
        self.answers: list[Answer | None] = []
        self.asked: list[tuple[str, str, str | None]] = []
        self.logins = 0
        self.token_taken = ""
        scripted = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                if self.path.endswith("/login"):
                    scripted.logins += 1
                    said = json.loads(body)
                    good = said.get("password") == "right" or said.get("token") == "personal"
                    token = f"token-{scripted.logins}"
                    scripted.token_taken = token
                    return self.say(
                        (200, {}, {"access_token": {"token": token}}) if good else (400, {}, {"reason": "no"})
                    )
                scripted.asked.append((self.command, self.path, self.headers.get("authorization")))
                found = scripted.answers.pop(0) if scripted.answers else (200, {}, {"fine": True})
                if found is None:
                    self.close_connection = True
                    return None
                return self.say(found)

            def say(self, answer: Answer) -> None:
                status, headers, said = answer
                body = json.dumps(said).encode()
                self.send_response(status)
                for name, value in {**headers, "content-length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_PUT = answer  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def gateway() -> Iterator[Scripted]:
    found = Scripted()
    thread = threading.Thread(target=found.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield found
    found.server.shutdown()
    thread.join()
    found.server.server_close()


Open = Callable[..., tuple[Session, list[float]]]


@pytest.fixture
def opened(gateway: Scripted) -> Iterator[Open]:
    sessions: list[Session] = []

    def make(**more: Any) -> tuple[Session, list[float]]:
        pauses: list[float] = []
        session = Session(Access(**{"urls": (gateway.url,), **more}), pauses.append)
        sessions.append(session)
        return session, pauses

    yield make
    for session in sessions:
        session.close()


def test_transient_failures_are_retried_with_growing_pauses_and_logged(
    gateway: Scripted, opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    session, pauses = opened()
    gateway.answers = [(503, {}, {"reason": "recovering"}), None, (429, {"retry-after": "7"}, {}), (500, {}, {})]
    assert session.get("/x").json == {"fine": True}
    assert len(gateway.asked) == 5
    # The lost connection had answered before, so the request is repeated at once.
    assert [round(pause) for pause in pauses] == [0, 7, 1]
    assert caplog.messages[0].startswith(f"GET {gateway.url}/x: 503 recovering; retrying in 0.")
    assert len(caplog.messages) == 3


def test_other_failures_and_the_last_attempt_are_errors(gateway: Scripted, opened: Open) -> None:
    session, pauses = opened(retries=2)
    gateway.answers = [(404, {}, {"reason": "no such thing"})]
    with pytest.raises(GatewayError, match=r"GET http://\S+/x failed: 404 no such thing"):
        session.get("/x")
    assert pauses == []
    gateway.answers = [(503, {}, {"reason": "busy"})] * 3
    with pytest.raises(GatewayError, match=r"failed after 3 attempt\(s\): 503 busy"):
        session.get("/x")
    assert session.find("/x") is not None


def test_retries_are_bounded_by_time(gateway: Scripted) -> None:
    now, pauses = [0.0], list[float]()

    def pause(seconds: float) -> None:
        now[0] += seconds
        pauses.append(seconds)

    session = Session(Access(urls=("http://127.0.0.1:1",)), pause, lambda: now[0])
    with pytest.raises(GatewayError, match=r"failed after \d\d attempt\(s\): ConnectionRefusedError"):
        session.get("/x")
    assert round(now[0]) == 120
    assert max(pauses) <= 12.5
    gateway.answers = [(503, {"retry-after": "60"}, {})] * 3
    brief = Session(Access(urls=(gateway.url,), retry_for_ms=90_000), pause, lambda: now[0])
    with pytest.raises(GatewayError, match=r"failed after 3 attempt"):
        brief.get("/x")
    assert [round(each) for each in pauses[-2:]] == [60, 30]
    brief.close()


def test_find_returns_none_for_a_404(gateway: Scripted, opened: Open) -> None:
    session, _ = opened()
    gateway.answers = [(404, {}, {})]
    assert session.find("/x") is None


@pytest.mark.parametrize(
    "who", [{"username": "u", "password": Secret("right")}, {"token": Secret("personal")}], ids=["password", "token"]
)
def test_an_expired_token_is_renewed(gateway: Scripted, opened: Open, who: dict[str, Any]) -> None:
    session, _ = opened(**who)
    session.get("/x")
    gateway.answers = [(401, {}, {})]
    assert session.get("/y").status == 200
    assert gateway.asked[-1][2] == f"Bearer {gateway.token_taken}"


def test_a_wrong_password_is_reported_but_not_shown(gateway: Scripted, opened: Open) -> None:
    session, _ = opened(username="u", password=Secret("a-wrong-one"))
    with pytest.raises(GatewayError, match="the login was refused: 400 no") as refused:
        session.get("/x")
    assert "a-wrong-one" not in str(refused.value) + repr(refused.value)
    assert gateway.logins == 1
    nobody, _ = opened()
    gateway.answers = [(401, {}, {"reason": "who?"})]
    with pytest.raises(GatewayError, match=r"not logged in: use \.option\('token', \.\.\.\)"):
        nobody.get("/x")


def test_another_address_is_tried_when_one_does_not_respond(gateway: Scripted, opened: Open) -> None:
    session, pauses = opened(urls=("http://127.0.0.1:1", gateway.url))
    assert session.get("/x").status == 200
    assert len(pauses) == 1
    alone, _ = opened(urls=("http://127.0.0.1:1",), retries=1)
    with pytest.raises(GatewayError, match=r"failed after 2 attempt\(s\): ConnectionRefusedError"):
        alone.get("/x")


def test_https_trusts_the_configured_authority_or_anyone_without_verification(
    gateway: Scripted, opened: Open, tmp_path: Path
) -> None:
    certificate, key = certificates.self_signed()
    (tmp_path / "cert.pem").write_bytes(certificate)
    (tmp_path / "key.pem").write_bytes(key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    gateway.server.socket = context.wrap_socket(gateway.server.socket, server_side=True)
    url = gateway.url.replace("http:", "https:")
    for settings in ({"ca_file": str(tmp_path / "cert.pem")}, {"verify": False}):
        session, _ = opened(urls=(url,), **settings)
        assert session.get("/x").status == 200
    strict, _ = opened(urls=(url,), retries=0)
    with pytest.raises(GatewayError, match="SSLCertVerificationError"):
        strict.get("/x")


def test_an_abandoned_response_is_not_taken_for_the_next_one(gateway: Scripted, opened: Open) -> None:
    session, _ = opened()
    gateway.answers = [(200, {}, {"for": "nobody"})]
    session.begin("GET", "/abandoned")
    while gateway.answers:
        time.sleep(0.001)
    assert session.get("/x").json == {"fine": True}


def test_a_token_from_a_file_works_and_an_invalid_one_is_refused_without_being_shown(
    gateway: Scripted, opened: Open
) -> None:
    said = decode({"url": gateway.url, "token": "out-of-a-file\r\n"}, {}).access
    session, _ = opened(token=said.token)
    session.get("/streams")
    assert gateway.asked == [("GET", "/streams", "Bearer out-of-a-file")]
    for token in ("two\nlines", "with blanks", "\u20ac", "\n"):
        with pytest.raises(OptionError) as refused:
            decode({"token": token}, {})
        assert str(refused.value) == "option 'token': it is empty, or has characters that are not allowed in a token"


def test_secrets_are_not_shown_and_survive_pickling() -> None:
    access = Access(urls=("http://a:1",), token=Secret("a-token"))
    assert "a-token" not in repr(access)
    assert pickle.loads(pickle.dumps(access)) == access
