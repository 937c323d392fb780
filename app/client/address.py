"""Connection strings as in Iggy's SDKs: `iggy://user:password@host:port?key=value&...`,
`iggy+tcp://token@host:port`, `iggy+ws://...` over WebSocket. User, password and token are written literally, not
encoded; a user has no colon.

    wire                  classic (default), or modern, the protocol of 0.9
    tls                   true or false (default)
    tls_ca_file           trust this certificate instead of those of the system
    tls_domain            the name that the certificate must have, if it is not the host
    heartbeat_interval    seconds between pings (`5s`, the default); 0 sends none
    reconnection_retries  how often to try again when the connection is lost, or `unlimited` (default: not at all)
    reconnection_interval seconds between these (`1s`)
"""

from __future__ import annotations

import ssl
from urllib.parse import parse_qsl, urlsplit

import msgspec

from whippet.app.client.wires import WIRES
from whippet.app.commands.requests import LoginUser, LoginWithPersonalAccessToken
from whippet.app.config.formats import Invalid, host_and_port, parse_duration
from whippet.app.version import version

PORTS = {"tcp": 8090, "ws": 8092}
"""The supported transports and their default ports."""
CONTEXT = "whippet"
"""The name of this client in its logins."""

Login = LoginUser | LoginWithPersonalAccessToken


class Reconnect(msgspec.Struct, frozen=True):
    """How often to try to reconnect (None: until it works), and how long to wait in between."""

    retries: int | None = None
    interval_s: float = 1.0


class Destination(msgspec.Struct, frozen=True):
    """The server to connect to. `login` is None for a client that does not log in."""

    transport: str
    host: str
    port: int
    login: Login | None
    tls: ssl.SSLContext | None = None
    tls_domain: str | None = None
    heartbeat_s: float = 5.0
    reconnect: Reconnect | None = None
    wire: str = "classic"

    @property
    def address(self) -> str:
        return host_and_port(self.host, self.port)


def parse(text: str) -> Destination:
    """Raises a ValueError, which contains no secrets."""
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
    tls, domain = _tls(options)
    heartbeat_s = _seconds(options, "heartbeat_interval", 5.0)
    wire = options.pop("wire", "classic")
    if wire not in WIRES:
        raise ValueError(f"wire is {' or '.join(WIRES)}, not {wire!r}")
    login, reconnect = _login(credentials), _reconnect(options)
    found = Destination(transport, host, port, login, tls, domain, heartbeat_s, reconnect, wire)
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


def _tls(options: dict[str, str]) -> tuple[ssl.SSLContext | None, str | None]:
    wanted, domain, ca_file = (options.pop(key, None) for key in ("tls", "tls_domain", "tls_ca_file"))
    if wanted not in (None, "true", "false"):
        raise ValueError(f"tls is true or false, not {wanted!r}")
    if wanted != "true":
        return None, None
    return ssl.create_default_context(cafile=ca_file), domain


def _reconnect(options: dict[str, str]) -> Reconnect | None:
    retries = options.pop("reconnection_retries", None)
    interval = _seconds(options, "reconnection_interval", 1.0)
    if retries is None or retries == "0":
        return None
    if retries == "unlimited":
        return Reconnect(None, interval)
    if not (retries.isascii() and retries.isdigit()):
        raise ValueError(f"reconnection_retries is a number or unlimited, not {retries!r}")
    return Reconnect(int(retries), interval)


def _seconds(options: dict[str, str], key: str, default: float) -> float:
    text = options.pop(key, None)
    if text is None:
        return default
    try:
        return parse_duration(text)
    except Invalid:
        raise ValueError(f"{key} is a duration such as 5s, not {text!r}") from None
