"""A gateway with its dashboard, as a process that can be killed and restarted, and an HTTP client signed in as root."""

from __future__ import annotations

import base64
import contextlib
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from tests.app.support.process import DEADLINE_S, Start, starting

USERNAME, PASSWORD = "iggy", "iggy's password"


def base64_of(content: str | bytes) -> str:
    return base64.b64encode(content if isinstance(content, bytes) else content.encode()).decode()


class Server:
    def __init__(self, start: Start, **settings: str) -> None:
        self._start = start
        self._settings = {
            "IGGY_HTTP_WEB_UI": "true",
            "IGGY_ROOT_USERNAME": USERNAME,
            "IGGY_ROOT_PASSWORD": PASSWORD,
        } | settings
        self._gateway = start(**self._settings)
        self.address = self._gateway.address()
        self.url = f"http://{self.address}"
        self.http = httpx.Client(base_url=self.url, trust_env=False, timeout=DEADLINE_S)
        self.token = ""
        self.sign_in()

    def sign_in(self) -> None:
        said = self.post("/users/login", {"username": USERNAME, "password": PASSWORD})
        self.token = said["access_token"]["token"]
        self.http.headers["authorization"] = f"Bearer {self.token}"

    def post(self, path: str, json: Any) -> Any:
        answer = self.http.post(path, json=json).raise_for_status()
        return answer.json() if answer.content else None

    def make(self, stream: str, *topics: str, partitions: int = 1) -> None:
        self.post("/streams", {"name": stream})
        for topic in topics:
            self.post(f"/streams/{quote(stream, safe='')}/topics", {"name": topic, "partitions_count": partitions})

    def send(self, stream: str, topic: str, *payloads: str | bytes, headers: Any = None) -> None:
        messages = [{"payload": base64_of(payload), "user_headers": headers or []} for payload in payloads]
        to = {"partitioning": {"kind": "balanced", "value": ""}, "messages": messages}
        self.post(f"/streams/{stream}/topics/{topic}/messages", to)

    def until_archived(self) -> None:
        """Asks again and again until everything is archived."""
        while not re.search(
            r"^whippet_archive_waiting_messages 0(\.0)?$", self.http.get("/metrics").text, re.MULTILINE
        ):
            pass

    def kill(self) -> None:
        self._gateway.signal(signal.SIGKILL)
        self._gateway.end()

    def come_back(self) -> None:
        """Restarts with the same data, at the same port."""
        self._gateway = self._start(**self._settings, IGGY_HTTP_ADDRESS=self.address)
        self._gateway.line("stop  ")

    def close(self) -> None:
        self.http.close()


@contextlib.contextmanager
def serving(path: Path, **settings: str) -> Iterator[Server]:
    with starting(path / "data") as start:
        server = Server(start, **settings)
        try:
            yield server
        finally:
            server.close()


class Producer(threading.Thread):
    """Sends numbers, a few at a time, while the server is killed and restarted: each send is repeated until it
    succeeds."""

    def __init__(self, server: Server, path: str) -> None:
        super().__init__()
        self.sent = 0
        self._server = server
        self._path = path
        self._changed = threading.Condition()
        self._is_over = False
        self.start()

    def run(self) -> None:
        headers = {"content-type": "text/plain", "authorization": f"Bearer {self._server.token}"}
        headers |= {"producer-id": "numbers", "producer-epoch": "1"}
        with httpx.Client(base_url=self._server.url, trust_env=False, timeout=DEADLINE_S, headers=headers) as http:
            while not self._is_over:
                numbers = range(self.sent, self.sent + 5)
                body = "".join(f"{number}\n" for number in numbers)
                while not self._is_stored(http, body):
                    pass
                with self._changed:
                    self.sent = numbers.stop
                    self._changed.notify_all()

    def _is_stored(self, http: httpx.Client, body: str) -> bool:
        try:
            answer = http.post(f"{self._path}?partition=0", content=body, headers={"producer-seq": str(self.sent + 1)})
        except httpx.TransportError:
            return False
        return answer.status_code == httpx.codes.CREATED

    def wait_for(self, more: int) -> None:
        with self._changed:
            wanted = self.sent + more
            assert self._changed.wait_for(lambda: self.sent >= wanted, DEADLINE_S), f"{self.sent} of {wanted} were sent"

    def stop(self) -> int:
        """Returns how many messages there are in total."""
        self._is_over = True
        self.join(DEADLINE_S)
        return self.sent
