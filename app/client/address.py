"""Connection strings as in Iggy's SDKs: `iggy://user:password@host:port?key=value&...`, `iggy+tcp://token@host:port`,
`iggy+quic://...`, `iggy+ws://...` over WebSocket, `iggy+http://...` and `iggy+https://...`. User, password and token
are written literally, not encoded; a user has no colon.

    wire                      classic (default), or modern, the protocol of 0.9; HTTP has neither
    compression               gzip or zstd: how the bodies of sends over HTTP are compressed (default: not at all)
    tls                       true or false (default). QUIC is always encrypted: true verifies the certificate
    tls_ca_file               trust this certificate instead of those of the system
    tls_domain                the name that the certificate must have, if it is not the host
    heartbeat_interval        seconds between pings (`5s`, the default); 0 sends none
    reconnection_retries      how often to try again when the connection is lost, or `unlimited` (default: not at all)
    reconnection_interval     seconds before the second attempt (`1s`); before each further one, twice as many
    reconnection_interval_max the longest of these pauses (`30s`)

What has no effect is refused, like everything that is unknown.
"""

from __future__ import annotations

import ssl
from urllib.parse import parse_qsl, urlsplit

import msgspec

from whippet.app.client.wires import WIRES
from whippet.app.commands.requests import LoginUser, LoginWithPersonalAccessToken
from whippet.app.config.formats import Invalid, host_and_port, parse_duration
from whippet.app.version import version

PORTS = {"tcp": 8090, "quic": 8080, "ws": 8092, "http": 3000, "https": 3000}
"""The supported transports and their default ports."""
CODINGS = ("gzip", "zstd")
CONTEXT = "whippet"
"""The name of this client in its logins."""

DOUBLINGS_MAX = 60

Login = LoginUser | LoginWithPersonalAccessToken


class Reconnect(msgspec.Struct, frozen=True):
    """How often to try to reconnect (None: until it works), and how long to wait in between: each time twice as long,
    up to a limit."""

    retries: int | None = None
    interval_s: float = 1.0
    interval_max_s: float = 30.0

    def pause_s(self, failed: int) -> float:
        """Returns the pause after so many failed attempts."""
        longest = max(self.interval_s, self.interval_max_s)
        return float(min(self.interval_s * 2.0 ** min(failed - 1, DOUBLINGS_MAX), longest))


class Destination(msgspec.Struct, frozen=True):
    """The server to connect to. `login` is None for a client that does not log in."""

    transport: str
    host: str
    port: int
    login: Login | None
    tls: ssl.SSLContext | None = None
    tls_domain: str | None = None
    tls_ca_file: str | None = None
    heartbeat_s: float = 5.0
    reconnect: Reconnect | None = None
    wire: str = "classic"
    compression: str | None = None

    @property
    def address(self) -> str:
        return host_and_port(self.host, self.port)


def parse(text: str, tls: ssl.SSLContext | None = None) -> Destination:
    """Raises a ValueError, which contains no secrets. A context replaces the options `tls` and `tls_ca_file`."""
    scheme, _, rest = text.partition("://")
    transport = "tcp" if scheme == "iggy" else scheme.removeprefix("iggy+")
    if not scheme.startswith("iggy") or transport not in PORTS:
        known = " or ".join(("iggy://", *(f"iggy+{name}://" for name in PORTS)))
        raise ValueError(f"a connection string begins with {known}")
    # A password or a token may contain any character, even the ones that have a meaning after it.
    credentials, _, where = rest.rpartition("@")
    place, _, query = where.partition("?")
    host, port = _place(place, PORTS[transport])
    options = dict(parse_qsl(query, keep_blank_values=True))
    if transport == "https":
        transport = "http"
        if options.setdefault("tls", "true") == "false":
            raise ValueError("iggy+https:// is never without TLS: leave out tls=false, or use iggy+http://")
    if transport == "quic" and tls is not None:
        raise ValueError("QUIC does not use the context of a program: name the certificate with tls_ca_file")
    ca_file = options.get("tls_ca_file")
    context, domain = _tls(options, tls)
    heartbeat_s = _seconds(options, "heartbeat_interval", 5.0)
    wire, compression = _wire(options, transport), _compression(options, transport)
    login, reconnect = _login(credentials), _reconnect(options)
    found = Destination(
        transport, host, port, login, context, domain, ca_file, heartbeat_s, reconnect, wire, compression
    )
    if options:
        raise ValueError(f"the connection string has options that do not exist: {', '.join(sorted(options))}")
    return found


def _place(text: str, default: int) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ValueError("the connection string has no host:port after the credentials") from None
    if not host:
        raise ValueError("the connection string names no host")
    if parts.path not in ("", "/") or parts.fragment:
        raise ValueError("in a connection string nothing but ?key=value follows the port")
    return host, default if port is None else port


def _login(credentials: str) -> Login | None:
    if not credentials:
        return None
    user, colon, password = credentials.partition(":")
    return LoginUser(user, password, version(), CONTEXT) if colon else LoginWithPersonalAccessToken(user)


def _wire(options: dict[str, str], transport: str) -> str:
    wire = options.pop("wire", None)
    if wire is not None and transport == "http":
        raise ValueError("wire has no effect over HTTP, which has a protocol of its own")
    if wire not in (None, *WIRES):
        raise ValueError(f"wire is {' or '.join(WIRES)}, not {wire!r}")
    return wire or "classic"


def _compression(options: dict[str, str], transport: str) -> str | None:
    wanted = options.pop("compression", None)
    if wanted not in (None, *CODINGS):
        raise ValueError(f"compression is {' or '.join(CODINGS)}, not {wanted!r}")
    if wanted is not None and transport != "http":
        raise ValueError("compression has an effect over HTTP only: the other protocols have none")
    return wanted


def _tls(options: dict[str, str], given: ssl.SSLContext | None) -> tuple[ssl.SSLContext | None, str | None]:
    wanted, domain, ca_file = (options.pop(key, None) for key in ("tls", "tls_domain", "tls_ca_file"))
    if wanted not in (None, "true", "false"):
        raise ValueError(f"tls is true or false, not {wanted!r}")
    if given is not None:
        if wanted == "false" or ca_file is not None:
            raise ValueError("tls=false and tls_ca_file have no effect beside the context that the program passes")
        return given, domain
    if wanted != "true":
        for key, value in (("tls_domain", domain), ("tls_ca_file", ca_file)):
            if value is not None:
                raise ValueError(f"{key} has no effect without tls=true")
        return None, None
    try:
        return ssl.create_default_context(cafile=ca_file), domain
    except OSError as error:
        raise ValueError(f"tls_ca_file: {ca_file} cannot be used: {error.strerror or error}") from None


def _reconnect(options: dict[str, str]) -> Reconnect | None:
    retries = options.pop("reconnection_retries", None)
    if retries is None:
        for key in ("reconnection_interval", "reconnection_interval_max"):
            if key in options:
                raise ValueError(f"{key} has no effect without reconnection_retries")
        return None
    interval = _seconds(options, "reconnection_interval", 1.0)
    longest = _seconds(options, "reconnection_interval_max", max(30.0, interval))
    if longest < interval:
        raise ValueError("reconnection_interval_max is shorter than reconnection_interval")
    if retries == "0":
        return None
    if retries == "unlimited":
        return Reconnect(None, interval, longest)
    if not (retries.isascii() and retries.isdigit()):
        raise ValueError(f"reconnection_retries is a number or unlimited, not {retries!r}")
    return Reconnect(int(retries), interval, longest)


def _seconds(options: dict[str, str], key: str, default: float) -> float:
    text = options.pop(key, None)
    if text is None:
        return default
    try:
        return parse_duration(text)
    except Invalid:
        raise ValueError(f"{key} is a duration such as 5s, not {text!r}") from None
