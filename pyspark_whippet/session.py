"""HTTP requests to the gateway, repeated where that can help. This is the only module that opens a socket.

A process has one connection per `Access` and thread, kept between tasks and calls. No other module retries: a failed
call on the driver ends the query, so all calls go through here.

1. Requests are repeated, with growing pauses or as `Retry-After` says, if there is no response or one with 408, 429 or
   5xx: for two minutes unless the options say otherwise, so that a gateway can be restarted, or its machine. If a
   gateway cannot be reached, the next address of `url` is tried.
2. After a 401 the session logs in again, once per call. Access tokens expire after an hour; a personal access token
   that is not accepted directly is exchanged for an access token.
3. Any other 4xx is a response, and an error unless the caller expects it.
"""

from __future__ import annotations

import http.client
import json
import logging
import os
import random
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from pyspark_whippet.errors import GatewayError
from pyspark_whippet.settings import Access

BATCH = "application/vnd.iggy.batch"
JSON = "application/json"
FIRST_PAUSE_S = 0.2
PAUSE_S_MAX = 10.0
DOUBLINGS_MAX = 6
RETRY_AFTER_S_MAX = 60.0
REASON_CHARACTERS_MAX = 300
NO_CREDENTIALS = "use .option('token', ...), or 'username' and 'password'"

Body = bytes | bytearray | memoryview
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    """Keyed by lowercase name."""
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def has_batches(self) -> bool:
        return self.headers.get("content-type", "").startswith(BATCH)


class Session:
    """The requests of one thread, one at a time."""

    def __init__(
        self,
        access: Access,
        pause: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._access = access
        self._pause = pause
        self._clock = clock
        self._url_index = 0
        self._connection: http.client.HTTPConnection | None = None
        self._was_used = False
        self._token = access.token.text if access.token is not None else None
        self._user_id: int | None = None
        self._pending: Pending | None = None

    def get(self, path: str) -> Reply:
        return self.call("GET", path)

    def find(self, path: str) -> Reply | None:
        """Returns None for a 404."""
        reply = self.call("GET", path, also=(404,))
        return None if reply.status == 404 else reply

    def call(
        self, method: str, path: str, body: Body | None = None, media: str = JSON, also: tuple[int, ...] = ()
    ) -> Reply:
        """Returns the response if its status is 2xx or in `also`, and raises GatewayError otherwise."""
        return self.begin(method, path, body, media, also).finish()

    def begin(
        self, method: str, path: str, body: Body | None = None, media: str = JSON, also: tuple[int, ...] = ()
    ) -> Pending:
        """Sends a request without waiting for the response, which `finish` returns. Only one request can be in
        flight."""
        if self._pending is not None:
            # Its caller has gone away, such as a reader from which Spark wanted no more rows.
            self.close()
        self._pending = Pending(self, method, path, body, media, also)
        self._send(self._pending)
        return self._pending

    def finish(self, pending: Pending) -> Reply:
        """Called by `Pending` only."""
        attempt, logged_in = 0, False
        first_failed_at: float | None = None
        try:
            while True:
                reply, why = self._receive(pending)
                if reply is not None:
                    if 200 <= reply.status < 300 or reply.status in pending.also:
                        return reply
                    if reply.status == 401 and not logged_in and self._can_log_in:
                        self._token, logged_in = None, True
                        self._send(pending)
                        continue
                elif self._drop_connection():
                    # The connection was idle for too long, or the gateway was restarted: there is no reason to wait.
                    self._send(pending)
                    continue
                now = self._clock()
                first_failed_at = now if first_failed_at is None else first_failed_at
                left_s = first_failed_at + self._access.retry_for_ms / 1000 - now
                is_last = left_s <= 0 or attempt == self._access.retries
                if is_last or not (reply is None or _is_transient(reply.status)):
                    raise self._error(pending, reply, why, attempt + 1)
                problem = f"{pending.method} {self.url}{pending.path}: {_problem_text(reply, why)}"
                self._wait(attempt, left_s, reply, problem)
                attempt += 1
                self._send(pending)
        finally:
            self._pending = None

    @property
    def user_id(self) -> int | None:
        """The user who is logged in; None with an access token from elsewhere."""
        if self._user_id is None and self._can_log_in:
            # A personal access token was accepted as it is. Exchanging it tells whose it is.
            self._token = None
            self.call("GET", "/ping")
        return self._user_id

    @property
    def url(self) -> str:
        return self._access.urls[self._url_index % len(self._access.urls)]

    def _send(self, pending: Pending) -> None:
        """A failure is kept for `finish`, which retries."""
        pending.failure = None
        try:
            headers = {"Accept": pending.accept}
            if pending.body is not None:
                headers["Content-Type"] = pending.media
            if self._token is None and self._can_log_in:
                self._log_in()
            if self._token is not None:
                headers["Authorization"] = f"Bearer {self._token}"
            self._connected().request(pending.method, pending.path, pending.body, headers)
        except (OSError, http.client.HTTPException, LoginFailed) as error:
            pending.failure = error

    def _receive(self, pending: Pending) -> tuple[Reply | None, str]:
        """Returns the response, or the reason why there is none."""
        try:
            if pending.failure is not None:
                raise pending.failure
            return self._answer(), ""
        except LoginFailed as refusal:
            return refusal.reply, ""
        except (OSError, http.client.HTTPException) as error:
            return None, f"{type(error).__name__}: {error}"

    def _answer(self) -> Reply:
        connection = self._connected()
        answer = connection.getresponse()
        reply = Reply(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        self._was_used = True
        if answer.will_close:
            self.close()
        return reply

    # ---------------------------------------------------------------------------------------------------- logging in

    @property
    def _can_log_in(self) -> bool:
        """A token with two dots is an access token from elsewhere; when it has expired, the session cannot get
        another."""
        access = self._access
        return access.password is not None or (access.token is not None and access.token.text.count(".") != 2)

    def _log_in(self) -> None:
        access = self._access
        if access.password is not None:
            path, credentials = "/users/login", {"username": access.username, "password": access.password.text}
        else:
            assert access.token is not None
            path, credentials = "/personal-access-tokens/login", {"token": access.token.text}
        headers = {"Content-Type": JSON, "Accept": JSON}
        self._connected().request("POST", path, json.dumps(credentials).encode(), headers)
        reply = self._answer()
        if reply.status == 200:
            self._token, self._user_id = reply.json["access_token"]["token"], reply.json.get("user_id")
        elif _is_transient(reply.status):
            raise LoginFailed(reply)
        else:
            raise GatewayError(f"{self.url}: the login was refused: {reply.status} {reason(reply)}", reply.status)

    # ---------------------------------------------------------------------------------------------------- connections

    def _connected(self) -> http.client.HTTPConnection:
        if self._connection is None:
            self._connection, self._was_used = self._connect(), False
        return self._connection

    def _connect(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        timeout = self._access.timeout_ms / 1000
        if parts.scheme == "http":
            return http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)
        context = ssl.create_default_context(cafile=self._access.ca_file)
        if not self._access.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return http.client.HTTPSConnection(parts.hostname, parts.port, timeout=timeout, context=context)

    def _drop_connection(self) -> bool:
        """Drops the connection and returns whether it had ever answered. If not, the next address is tried next."""
        was_used = self._was_used
        self.close()
        self._was_used = False
        if not was_used:
            self._url_index += 1
        return was_used

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _wait(self, attempt: int, left_s: float, reply: Reply | None, problem: str) -> None:
        pause = min(FIRST_PAUSE_S * 2.0 ** min(attempt, DOUBLINGS_MAX), PAUSE_S_MAX) * random.uniform(0.75, 1.25)
        retry_after = reply.headers.get("retry-after", "") if reply is not None else ""
        if retry_after.isascii() and retry_after.isdigit():
            pause = max(pause, min(float(retry_after), RETRY_AFTER_S_MAX))
        # The last attempt is made when the time is over.
        pause = min(pause, left_s)
        _log.warning("%s; retrying in %.1f s", problem, pause)
        self._pause(pause)

    def _error(self, pending: Pending, reply: Reply | None, why: str, attempts: int) -> GatewayError:
        what = f"{pending.method} {self.url}{pending.path}"
        if reply is None:
            return GatewayError(f"{what} failed after {attempts} attempt(s): {why}")
        if reply.status == 401:
            hint = "the token is invalid or has expired" if self._access.token else NO_CREDENTIALS
            return GatewayError(f"{what}: not logged in: {hint} ({reason(reply)})", 401)
        after = f" after {attempts} attempt(s)" if attempts > 1 else ""
        return GatewayError(f"{what} failed{after}: {reply.status} {reason(reply)}", reply.status)


class LoginFailed(Exception):
    """The response to a login that may be retried."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.status)
        self.reply = reply


class Pending:
    """A request that has been sent."""

    def __init__(
        self, session: Session, method: str, path: str, body: Body | None, media: str, also: tuple[int, ...]
    ) -> None:
        self._session = session
        self.method, self.path, self.body, self.media, self.also = method, path, body, media, also
        self.failure: Exception | None = None

    @property
    def accept(self) -> str:
        return f"{BATCH}, {JSON};q=0.5" if self.method == "GET" and "/messages?" in self.path else JSON

    def finish(self) -> Reply:
        return self._session.finish(self)


def _is_transient(status: int) -> bool:
    """Returns True if the same request may succeed later."""
    return status in (408, 429) or status >= 500


def _problem_text(reply: Reply | None, why: str) -> str:
    return why if reply is None else f"{reply.status} {reason(reply)}"


def reason(reply: Reply) -> str:
    """Returns the gateway's reason for a refusal."""
    try:
        text = str(reply.json["reason"])
    except (ValueError, KeyError, TypeError):
        text = reply.body.decode(errors="replace")
    return text[:REASON_CHARACTERS_MAX]


def topic_path(topic: str) -> str:
    """`topic` is `stream/topic`."""
    stream, _, name = topic.partition("/")
    return f"/streams/{quote(stream, safe='')}/topics/{quote(name, safe='')}"


_kept = threading.local()


def session_of(access: Access, lane: int = 0) -> Session:
    """Returns a session of this thread. With several lanes, several requests can be in flight. A forked process does
    not share the sessions of its parent."""
    kept = _kept.__dict__
    if kept.get("process") != os.getpid():
        kept.clear()
        kept["process"], kept["sessions"] = os.getpid(), {}
    sessions: dict[tuple[Access, int], Session] = kept["sessions"]
    found = sessions.get((access, lane))
    if found is None:
        found = sessions[access, lane] = Session(access)
    return found
