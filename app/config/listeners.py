"""The sections about who may reach the server and how: HTTP, TCP, QUIC, WebSocket and the extra metrics listener.

The docstring of a field is its sentence in the documentation; its annotation says how it is written.
"""

from __future__ import annotations

from typing import Annotated, Literal

from whippet.app.config import formats
from whippet.app.config.formats import Address, Secret, choice, integer, list_of, optional, size
from whippet.app.config.section import Section

Boolean = Annotated[bool, formats.BOOLEAN]
Text = Annotated[str, formats.TEXT]
Name = Annotated[str, formats.NAME]
Bytes = Annotated[int, formats.SIZE]
Seconds = Annotated[float, formats.DURATION]
Positive = Annotated[float, formats.PERIOD]
Microseconds = Annotated[int | None, formats.EXPIRY]
"""None: never."""
Texts = Annotated[tuple[str, ...], formats.TEXTS]
Listen = Annotated[Address, formats.ADDRESS]
Hidden = Annotated[Secret, formats.SECRET]
OptionalBytes = Annotated[int | None, optional(formats.SIZE)]

METHODS = ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "CONNECT", "PATCH", "TRACE")
Methods = Annotated[tuple[str, ...], list_of(choice(*METHODS), f"a list of some of {', '.join(METHODS)}")]
Algorithm = Annotated[str, choice("HS256", "HS384", "HS512")]

CERTIFICATE = "core/certs/iggy_cert.pem"
PRIVATE_KEY = "core/certs/iggy_key.pem"


class HttpCors(Section, frozen=True):
    """What browsers on other origins may do."""

    enabled: Boolean = True
    """Answer preflight requests of the allowed origins and add the CORS headers for them."""
    allowed_methods: Methods = ("GET", "POST", "PUT", "DELETE")
    """Methods that other origins may use."""
    allowed_origins: Texts = ()
    """Origins of pages that may call over HTTP and WebSocket, besides this server's own; a first entry `*` allows any,
    an empty list none (Iggy allows any)."""
    allowed_headers: Texts = ("content-type", "authorization")
    """Request headers that other origins may send."""
    exposed_headers: Texts = ("iggy-view",)
    """Response headers that a browser's scripts may read."""
    allow_credentials: Boolean = False
    """Let browsers send cookies and credentials along."""
    allow_private_network: Boolean = False
    """Let public pages reach this server on a private network."""


class TrustedIssuer(Section, frozen=True):
    """Somebody else whose tokens are accepted; one table for each."""

    issuer: Text = ""
    """The `iss` that its tokens carry."""
    audience: Text = ""
    """The `aud` that its tokens must carry."""
    jwks_url: Text = ""
    """Where its public keys are fetched."""
    user_id: Annotated[int, integer(0)] = 0
    """Number of the local user that its tokens act as; with 0, who is the root user, all its tokens are refused."""


class HttpJwt(Section, frozen=True):
    """Tokens that a login over HTTP hands out."""

    algorithm: Algorithm = "HS256"
    """How tokens are signed; no other algorithm is accepted."""
    issuer: Text = "iggy.apache.org"
    """The `iss` of tokens made here."""
    audience: Text = "iggy.apache.org"
    """The `aud` of tokens made here."""
    valid_issuers: Texts = ("iggy.apache.org",)
    """Accepted values of `iss`."""
    valid_audiences: Texts = ("iggy.apache.org",)
    """Accepted values of `aud`."""
    access_token_expiry: Microseconds = 3_600_000_000
    """Life of a token, as a duration; `none` makes tokens that last for decades."""
    clock_skew: Seconds = 5.0
    """Duration by which clocks may differ when the end of a token's life is checked."""
    not_before: Seconds = 0.0
    """Duration after its issue from which a token says that it is valid."""
    encoding_secret: Hidden = Secret("")
    """Secret that signs tokens, of at least 32 bytes; empty: the decoding secret, or one that is made once and kept in
    the data folder."""
    decoding_secret: Hidden = Secret("")
    """Secret whose tokens are accepted too, of at least 32 bytes; empty: only those of the encoding secret."""
    use_base64_secret: Boolean = False
    """The two secrets are given in base64."""
    trusted_issuers: tuple[TrustedIssuer, ...] = ()


class HttpMetrics(Section, frozen=True):
    """Numbers for Prometheus on the HTTP port."""

    enabled: Boolean = True
    """Count, and serve the counts."""
    endpoint: Annotated[str, formats.ROUTE] = "/metrics"
    """Path they are served at."""
    require_token: Boolean = False
    """Serve them only to who sends an access token or a personal access token, of any user; otherwise to everybody who
    can reach the port."""
    series: Annotated[int, integer(0)] = 10_000
    """Number of series about single consumer groups and consumers and their partitions, so that a large catalogue does
    not make them too long to read; above it some are left out, and how many series that were is told."""


class HttpLeases(Section, frozen=True):
    """Memberships of consumer groups over HTTP, each held by a lease that lapses unless it is used. Iggy has none."""

    expiry: Positive = 30.0
    """Duration after its last use at which a lease lapses, where a client asks for no other; its partitions go to other
    members then."""
    expiry_min: Positive = 1.0
    """Shortest duration that a client may ask for; a shorter one is refused."""
    expiry_max: Positive = 600.0
    """Longest duration that a client may ask for, because the partitions of a client that is gone rest for so long; a
    longer one is refused."""
    leases: Annotated[int, integer(1)] = 4_096
    """Number of leases at the same time; one more is answered 429."""
    leases_per_user: Annotated[int, integer(1)] = 1_024
    """Number of leases of one user at the same time; one more is answered 429."""


class HttpReaders(Section, frozen=True):
    """Readers that wait for messages: long polls, and tails, which stay for as long as they like. Iggy has neither."""

    wait_time: Positive = 60.0
    """Longest duration that a poll may wait for messages; a longer one is refused."""
    waiting: Annotated[int, integer(1)] = 4_096
    """Number of polls that wait at the same time; one more is answered 429."""
    waiting_per_user: Annotated[int, integer(1)] = 1_024
    """Number of polls of one user that wait at the same time, so that others can wait, too; one more is answered
    429."""
    tails: Annotated[int, integer(1)] = 4_096
    """Number of tails at the same time; one more is answered 429."""
    tails_per_user: Annotated[int, integer(1)] = 1_024
    """Number of tails of one user at the same time, so that others can have some, too; one more is answered 429."""
    heartbeat: Positive = 15.0
    """Duration after which a tail that has nothing to say says that it is still there, for what is in between."""
    stall_time: Positive = 10.0
    """Duration for which a tail's client may take nothing; then it is told its last offset and dropped. From
    `http.limits.answer_time` on it is dropped without a word."""
    ticket_time: Positive = 30.0
    """Duration in which a ticket, for clients that cannot send a token in a header, has to be used."""


class HttpTls(Section, frozen=True):
    """HTTPS."""

    enabled: Boolean = False
    """Speak HTTPS instead of HTTP."""
    cert_file: Name = CERTIFICATE
    """Certificate chain in PEM, relative to the working directory."""
    key_file: Name = PRIVATE_KEY
    """Private key in PEM, relative to the working directory."""


class HttpLimits(Section, frozen=True):
    """What bounds the memory and the time that HTTP clients take. Iggy has no such keys."""

    connections: Annotated[int, integer(1)] = 8_192
    """Number of connections at the same time, those of HTTP/3 included, so that descriptors are left for files; above
    it new ones are answered 503 and closed, those of HTTP/3 refused."""
    first_byte_time: Positive = 20.0
    """Duration for which a new connection may say nothing; then it is closed."""
    headers_time: Positive = 10.0
    """Duration in which the headers of a request that has begun must be there; then it is answered 408."""
    body_time: Positive = 10.0
    """Duration for which the body of a request may come slower than `body_rate`, so that a connection may hiccup; then
    it is answered 408."""
    body_rate: Annotated[int, size()] = 16_384
    """Bytes a second that the body of a request must bring on average, beyond that duration."""
    idle_time: Positive = 75.0
    """Duration for which a connection may rest between requests; longer than the pools of common clients keep one."""
    answer_time: Positive = 60.0
    """Duration for which a client may take nearly nothing of its answer; then the connection is closed."""
    headers: Annotated[int, integer(1)] = 128
    """Number of headers of a request; more are answered 431."""
    headers_bytes: Annotated[int, size(at_least=1_024)] = 65_536
    """Bytes of the request line and all headers; more are answered 431."""
    bodies_bytes: Annotated[int, size(at_least=1)] = 268_435_456
    """Bytes of all bodies that are being received or carried out, over all connections, so that many large ones at once
    cannot fill the memory; above it requests wait."""
    answer_bytes: Annotated[int, size(at_least=65_536)] = 16_777_216
    """Bytes of JSON that a poll is answered with, nearly, so that a greedy reader cannot fill the memory; the answer
    ends there, but with at least one message."""


class Http(Section, frozen=True):
    """The REST interface, and what shares its port: metrics, the dashboard and, by default, WebSocket."""

    enabled: Boolean = True
    """Start the HTTP interface."""
    address: Listen = Address("127.0.0.1", 3000)
    """Where it listens (TCP); port 0 takes any free port."""
    max_request_size: Annotated[int, size(at_most=268_435_456)] = 2_000_000
    """Size that a request's body may have; a larger one is answered 413."""
    allowed_hosts: Texts = ()
    """Names or addresses, without ports, by which clients may ask for this server, over WebSocket and HTTP/3, too; `*`:
    any, `*.example.com`: all below it; empty: any, but on a loopback address only `localhost`, names below it and
    loopback addresses. Asked for by another name it answers 421, so that no web page reaches it by a name of its own
    (DNS rebinding). Iggy has no such setting."""
    web_ui: Boolean = True
    """Serve the dashboard under `/ui`, if there is WebSocket, and lead browsers there that ask for `/`; on here (off in
    Iggy), because it is files without a secret, and shows nothing before somebody has signed in."""
    limits: HttpLimits = HttpLimits()
    cors: HttpCors = HttpCors()
    jwt: HttpJwt = HttpJwt()
    metrics: HttpMetrics = HttpMetrics()
    leases: HttpLeases = HttpLeases()
    readers: HttpReaders = HttpReaders()
    tls: HttpTls = HttpTls()


class Tls(Section, frozen=True):
    """Encryption of the connection."""

    enabled: Boolean = False
    """Accept only encrypted connections."""
    self_signed: Boolean = True
    """Make a certificate of our own when the files are absent."""
    cert_file: Name = CERTIFICATE
    """Certificate chain in PEM, relative to the working directory."""
    key_file: Name = PRIVATE_KEY
    """Private key in PEM, relative to the working directory."""


class TcpSocket(Section, frozen=True):
    """Options of accepted sockets, applied only when `override_defaults` is on."""

    override_defaults: Boolean = False
    """Apply the keys of this section; otherwise the operating system decides, and small packets are sent at once."""
    recv_buffer_size: Bytes = 100_000
    """Size of the kernel's receive buffer of a connection."""
    send_buffer_size: Bytes = 100_000
    """Size of the kernel's send buffer of a connection."""
    keepalive: Boolean = False
    """Let the kernel probe connections that are silent."""
    nodelay: Boolean = False
    """Send small packets at once instead of gathering them."""
    linger: Seconds = 0.0
    """Duration for which a connection that is being closed may take to accept what it was sent; then that is dropped.
    0: the operating system decides. Nobody waits meanwhile."""


class Tcp(Section, frozen=True):
    """The binary protocol over TCP."""

    enabled: Boolean = True
    """Start the TCP listener."""
    address: Listen = Address("127.0.0.1", 8090)
    """Where it listens; port 0 takes any free port."""
    socket_migration: Boolean = True
    """Accepted for compatibility; has no effect, because connections need not move to be near their partition."""
    ipv6: Boolean = False
    """Listen on an IPv6 socket, also where a name stands for addresses of both kinds, of which the IPv4 one is taken
    otherwise; an IPv4 address is refused then."""
    message_header: Annotated[Literal["auto", "56", "64"], formats.choice("auto", "56", "64")] = "auto"
    """Size of the header before each message that clients get: 56 bytes for those of Iggy 0.6, 64 for later ones; auto
    tells them apart by what they send."""
    tls: Tls = Tls()
    socket: TcpSocket = TcpSocket()


class QuicCertificate(Section, frozen=True):
    """QUIC is always encrypted, so it always has a certificate."""

    self_signed: Boolean = True
    """Make a certificate of our own instead of reading the files."""
    cert_file: Text = CERTIFICATE
    """Certificate chain in PEM, relative to the working directory; may be empty while `self_signed` is true."""
    key_file: Text = PRIVATE_KEY
    """Private key in PEM, relative to the working directory; may be empty while `self_signed` is true."""


class QuicSocket(Section, frozen=True):
    """Options of the UDP socket, applied only when `override_defaults` is on."""

    override_defaults: Boolean = False
    """Apply the keys of this section; otherwise both buffers are as large as the operating system allows, to 4 MiB."""
    recv_buffer_size: Bytes = 64_000
    """Size of the kernel's receive buffer."""
    send_buffer_size: Bytes = 64_000
    """Size of the kernel's send buffer."""
    keepalive: Boolean = False
    """Set SO_KEEPALIVE on the socket."""


class Quic(Section, frozen=True):
    """The binary protocol over QUIC."""

    enabled: Boolean = True
    """Start the QUIC listener."""
    address: Listen = Address("127.0.0.1", 3000)
    """Where it listens (UDP, so it can have the number that HTTP has in TCP); port 0 takes any free port."""
    max_concurrent_bidi_streams: Annotated[int, integer(1)] = 100
    """Number of streams that one connection may have open; each costs memory and time. Official clients have one."""
    datagram_send_buffer_size: Bytes = 100_000
    """Accepted for compatibility; has no effect, because no datagrams wait to be sent."""
    initial_mtu: Annotated[int, size(at_least=1_200, at_most=16_384)] = 1_200
    """Size of the first datagrams after the handshake, before the path has been probed; what is larger than a path
    carries is lost until that is noticed."""
    max_datagram_size: Annotated[int, size(at_least=1_200, at_most=16_384)] = 1_452
    """Size that datagrams may grow to when probing shows that the path and the client take them: 1452 is what Ethernet
    does; 8952 suits jumbo frames and 16384 the loopback, and make large answers several times as fast."""
    send_window: Annotated[int, size(at_least=1_200)] = 1_048_576
    """Size of what may be sent to a connection before it acknowledges."""
    receive_window: Annotated[int, size(at_least=1_200)] = 262_144
    """Size of what a connection may send before it is taken; a request for which there is room may be larger."""
    stream_receive_window: Annotated[int, size(at_least=1_200)] = 131_072
    """The same for one stream."""
    keep_alive_interval: Seconds = 5.0
    """Period of the packets that keep a silent connection open; 0: none."""
    max_idle_timeout: Seconds = 10.0
    """Duration of silence after which a connection is closed; 0: never."""
    certificate: QuicCertificate = QuicCertificate()
    socket: QuicSocket = QuicSocket()


class WebsocketChannel(Section, frozen=True):
    """The channel for browsers, `/ws`. Iggy has none."""

    subscriptions: Annotated[int, integer(1)] = 100
    """Number of subscriptions of one connection; each costs memory, and time at each message. One more is refused."""
    subscriptions_total: Annotated[int, integer(1)] = 40_000
    """Number of subscriptions of all connections together; one more is refused."""
    subscriptions_per_user: Annotated[int, integer(1)] = 10_000
    """Number of subscriptions of one user over all connections, so that others can have some, too; one more is
    refused."""
    ping_time: Positive = 20.0
    """Duration of silence after which a client is pinged."""
    silence_time: Positive = 60.0
    """Duration of silence, answers to pings included, after which a connection is closed."""


class Websocket(Section, frozen=True):
    """The binary protocol over WebSocket."""

    enabled: Boolean = True
    """Accept WebSocket connections."""
    address: Annotated[Address | None, optional(formats.ADDRESS)] = None
    """Where it listens besides the address of HTTP, which both share: 127.0.0.1:8092, for example, which is where
    official clients look for it; not set: nowhere else. Without HTTP it is only here."""
    read_buffer_size: OptionalBytes = None
    """Size of what is read at once while it is not known what comes; not set: 64 KiB."""
    write_buffer_size: OptionalBytes = None
    """Accepted for compatibility; has no effect, because what is to be written is written at once."""
    max_write_buffer_size: OptionalBytes = None
    """Size of what may wait for a slow reader before its connection is closed; not set: what one answer has, and who
    takes nearly nothing of it for a minute is closed."""
    max_message_size: OptionalBytes = None
    """Size that a message may have, whose connection is closed otherwise; not set: any, because what bounds memory are
    the limits of the requests in it."""
    max_frame_size: OptionalBytes = None
    """Size that a frame of a message may have; not set: any."""
    accept_unmasked_frames: Boolean = False
    """Accept frames that a client has not masked, against the standard."""
    channel: WebsocketChannel = WebsocketChannel()
    tls: Tls = Tls()


class Metrics(Section, frozen=True):
    """A listener of its own for the metrics, for scrapers that must not reach the HTTP interface."""

    enabled: Boolean = False
    """Start it."""
    endpoint: Listen = Address("0.0.0.0", 9090)
    """Where it listens (TCP); the path is that of `http.metrics.endpoint`."""
