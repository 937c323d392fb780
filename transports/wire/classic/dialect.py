"""Detects which message header a connection uses: 56 bytes (0.6) or 64 (0.7 and 0.8). No frame reveals it directly.

Messages that a client sends show the size, and take precedence. Until it sends some, the names in its login decide as
far as they can. For a name that two SDKs share, an early ping decides: the Rust client 0.8.x (and with it the Python
wheel 0.6) pings as soon as it is connected or logged in, the Go client only after its first interval of 5 s. When the
Rust client reconnects by itself, for example after a restart of the server, it only logs in, and its pings keep their
old rhythm. The Go client never does that, so a client of that name from the address of one that was recognised is
assumed to be the same, until it sends messages that show otherwise. A client that remains unknown gets 64.

This is the state of one connection, driven by its transport; the time is passed in.
"""

from __future__ import annotations

from typing import Protocol

from whippet.app.commands.requests import LoginUser, LoginWithPersonalAccessToken, Ping, Request

SHORT = 56
LONG = 64
EARLY_PING_US = 2_000_000
"""A ping this soon after connecting or logging in is not one of an interval, which is 5 s in every client."""


class Returning(Protocol):
    """Clients of the shared name that were recognised as using the short header (app/returning_clients.py)."""

    def expects(self, who: str) -> bool: ...
    def arrived(self, who: str) -> None: ...
    def left(self, who: str) -> None: ...


TELLING = frozenset({Ping, LoginUser, LoginWithPersonalAccessToken})
"""Requests that tell something about the client."""


class Dialect:
    __slots__ = (
        "_expected",
        "_forced",
        "_from_login",
        "_from_send",
        "_host",
        "_pings_early",
        "_quiet_since",
        "_recognised",
        "_returning",
        "_shared_name",
        "_who",
    )

    def __init__(
        self, opened_us: int = 0, forced: int | None = None, returning: Returning | None = None, host: str = ""
    ) -> None:
        """`forced` is the configured size, which applies to every client.

        `host` is the address of the client. With `returning`, `close` has to be called.
        """
        assert forced in (None, SHORT, LONG)
        self._returning = returning
        self._host = host
        self._who = ""
        self._expected = False
        self._recognised: str | None = None
        self._forced = forced
        self._from_send: int | None = None
        self._from_login: int | None = None
        self._shared_name = False
        self._pings_early = False
        self._quiet_since = opened_us

    @property
    def header_size(self) -> int:
        """The size of the headers of messages that are sent to this client."""
        if self._forced is not None:
            return self._forced
        if self._from_send is not None:
            return self._from_send
        if self._shared_name:
            return SHORT if self._pings_early or self._expected else LONG
        return self._from_login or LONG

    def on_send(self, header_size: int) -> None:
        """The client has sent messages with headers of this size."""
        if header_size != self._from_send:
            self._from_send = header_size
            self._recognise()

    def on_request(self, request: Request, now_us: int) -> None:
        """Has to be called for every request of a kind in `TELLING`; sends are noticed where they are decoded."""
        if isinstance(request, Ping):
            self.on_ping(now_us)
        elif isinstance(request, LoginUser):
            self._who = f"{self._host} {request.username}"
            self.on_login(request.version, request.context, now_us)
        elif isinstance(request, LoginWithPersonalAccessToken):
            self._quiet_since = now_us

    def on_login(self, version: str, context: str, now_us: int) -> None:
        """The client has given these names in its login; "" stands for none."""
        self._quiet_since = now_us
        self._shared_name = not context and version.startswith("0.8.")
        is_short = context == "java-sdk" and version == "0.6.30"
        self._from_login = SHORT if is_short else None
        self._expected = self._returning is not None and self._returning.expects(self._who)
        self._recognise()

    def on_ping(self, now_us: int) -> None:
        if 0 <= now_us - self._quiet_since <= EARLY_PING_US:
            self._pings_early = True
            self._recognise()

    def close(self) -> None:
        """The connection is gone."""
        if self._returning is not None and self._recognised is not None:
            self._returning.left(self._recognised)
        # A command that was in progress may still finish.
        self._returning = self._recognised = None

    def _recognise(self) -> None:
        """Remembers the client if it is one that cannot be recognised when it reconnects."""
        short = self._from_send == SHORT if self._from_send is not None else self._pings_early
        if short and self._shared_name and self._returning is not None and self._recognised is None:
            self._recognised = self._who
            self._returning.arrived(self._who)
