"""The sections about listeners: HTTP, TCP, QUIC, WebSocket and the extra one for metrics.

The docstring of a field is its sentence in the documentation; its annotation defines how its values are written.
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
    """Cross-origin requests of browsers."""

    enabled: Boolean = True
    """Answer preflight requests of the allowed origins, and add the CORS headers for them."""
    allowed_methods: Methods = ("GET", "POST", "PUT", "DELETE")
    """Methods that other origins may use."""
    allowed_origins: Texts = ()
    """Origins of pages that may use HTTP and WebSocket, besides this server's own; a first entry `*` allows any, an
    empty list none (Iggy allows any)."""
    allowed_headers: Texts = ("content-type", "authorization")
    """Request headers that other origins may send."""
    exposed_headers: Texts = ("iggy-view",)
    """Response headers that a browser's scripts may read."""
    allow_credentials: Boolean = False
    """Let browsers send cookies and credentials."""
    allow_private_network: Boolean = False
    """Let public pages reach this server on a private network."""


class TrustedIssuer(Section, frozen=True):
    """Another issuer whose tokens are accepted; one table each."""

    issuer: Text = ""
    """The `iss` that its tokens carry."""
    audience: Text = ""
    """The `aud` that its tokens must carry."""
    jwks_url: Text = ""
    """Where its public keys are fetched."""
    user_id: Annotated[int, integer(0)] = 0
    """Id of the local user that its tokens act as; with 0, the root user, all its tokens are refused."""


class HttpJwt(Section, frozen=True):
    """Tokens that a login over HTTP issues."""

    algorithm: Algorithm = "HS256"
    """Algorithm that signs tokens; no other algorithm is accepted."""
    issuer: Text = "iggy.apache.org"
    """The `iss` of tokens issued here."""
    audience: Text = "iggy.apache.org"
    """The `aud` of tokens issued here."""
    valid_issuers: Texts = ("iggy.apache.org",)
    """Accepted values of `iss`."""
    valid_audiences: Texts = ("iggy.apache.org",)
    """Accepted values of `aud`."""
    access_token_expiry: Microseconds = 3_600_000_000
    """Lifetime of a token; `none` issues tokens that last for decades."""
    clock_skew: Seconds = 5.0
    """How far clocks may differ when the end of a token's lifetime is checked."""
    not_before: Seconds = 0.0
    """Time after its issue at which a token becomes valid."""
    encoding_secret: Hidden = Secret("")
    """Secret that signs tokens, of at least 32 bytes; empty: the decoding secret, or one that is generated once and
    kept in the data folder."""
    decoding_secret: Hidden = Secret("")
    """Secret whose tokens are also accepted, of at least 32 bytes; empty: only those of the encoding secret."""
    use_base64_secret: Boolean = False
    """The two secrets are given in base64."""
    trusted_issuers: tuple[TrustedIssuer, ...] = ()


class HttpMetrics(Section, frozen=True):
    """Metrics for Prometheus on the HTTP port."""

    enabled: Boolean = True
    """Collect and serve metrics."""
    endpoint: Annotated[str, formats.ROUTE] = "/metrics"
    """Path of the metrics."""
    require_token: Boolean = False
    """Serve metrics only to requests with an access token or a personal access token, of any user; otherwise to anybody
    who can reach the port."""
    series: Annotated[int, integer(0)] = 10_000
    """Number of series about single consumer groups, consumers and their partitions, and as many about topics, so that
    a large catalogue does not make the response too long; above it some are left out, and another series counts
    them."""


class HttpLeases(Section, frozen=True):
    """Memberships of consumer groups over HTTP. Each is held by a lease that lapses when it is not used. Iggy has
    none."""

    expiry: Positive = 30.0
    """Time after its last use at which a lease lapses, unless the client asks for another; then its partitions go to
    other members."""
    expiry_min: Positive = 1.0
    """Shortest expiry that a client may ask for; a shorter one is refused."""
    expiry_max: Positive = 600.0
    """Longest expiry that a client may ask for, because the partitions of a client that is gone rest for so long; a
    longer one is refused."""
    leases: Annotated[int, integer(1)] = 4_096
    """Number of concurrent leases; one more is refused with 429."""
    leases_per_user: Annotated[int, integer(1)] = 1_024
    """Number of concurrent leases of one user; one more is refused with 429."""


class HttpReaders(Section, frozen=True):
    """Readers that wait for messages: long polls, and tails, which stay as long as they like. Iggy has neither."""

    wait_time: Positive = 60.0
    """Longest time that a poll may wait for messages; a longer one is refused."""
    waiting: Annotated[int, integer(1)] = 4_096
    """Number of polls that wait at the same time; one more is refused with 429."""
    waiting_per_user: Annotated[int, integer(1)] = 1_024
    """Number of polls of one user that wait at the same time, so that others can wait, too; one more is refused with
    429."""
    tails: Annotated[int, integer(1)] = 4_096
    """Number of concurrent tails; one more is refused with 429."""
    tails_per_user: Annotated[int, integer(1)] = 1_024
    """Number of concurrent tails of one user, so that others can have some, too; one more is refused with 429."""
    heartbeat: Positive = 15.0
    """Time after which an idle tail sends a comment, so that proxies keep the connection open."""
    stall_time: Positive = 10.0
    """How long a tail's client may take nothing; then the tail sends its last offset and ends. After
    `http.limits.answer_time` it is dropped without a word."""
    ticket_time: Positive = 30.0
    """Time in which a ticket, for clients that cannot send a token in a header, must be used."""


class HttpTls(Section, frozen=True):
    """HTTPS."""

    enabled: Boolean = False
    """Serve HTTPS instead of HTTP."""
    cert_file: Name = CERTIFICATE
    """Certificate chain in PEM, relative to the working directory."""
    key_file: Name = PRIVATE_KEY
    """Private key in PEM, relative to the working directory."""


class HttpLimits(Section, frozen=True):
    """Limits of the memory and the time that HTTP clients take. Iggy has no such keys."""

    connections: Annotated[int, integer(1)] = 8_192
    """Number of concurrent connections, those of HTTP/3 included, so that descriptors are left for files; above it, new
    ones are answered with 503 and closed, those of HTTP/3 refused."""
    first_byte_time: Positive = 20.0
    """How long a new connection may send nothing; then it is closed."""
    headers_time: Positive = 10.0
    """Time in which the headers of a request must arrive completely; then it is answered with 408."""
    body_time: Positive = 10.0
    """How long the body of a request may arrive more slowly than `body_rate`, to tolerate short interruptions; then it
    is answered with 408."""
    body_rate: Annotated[int, size()] = 16_384
    """Bytes per second that the body of a request must bring on average after that time."""
    idle_time: Positive = 75.0
    """How long a connection may be idle between requests; longer than the connection pools of common clients keep
    one."""
    answer_time: Positive = 60.0
    """How long a client may take nearly nothing of its response; then the connection is closed."""
    headers: Annotated[int, integer(1)] = 128
    """Number of headers of a request; more are answered with 431."""
    headers_bytes: Annotated[int, size(at_least=1_024)] = 65_536
    """Bytes of the request line and all headers; more are answered with 431."""
    bodies_bytes: Annotated[int, size(at_least=1)] = 268_435_456
    """Bytes of all bodies that are being received or processed, over all connections, so that many large ones at once
    cannot fill the memory; above it, requests wait."""
    answer_bytes: Annotated[int, size(at_least=65_536)] = 16_777_216
    """Approximate bytes of JSON in the response to a poll, so that a greedy reader cannot fill the memory; the response
    ends there, but has at least one message."""


class McpPermissions(Section, frozen=True):
    """What assistants may do if `mcp.read_only` is false; the rights of their users count besides."""

    create: Boolean = True
    """Offer the tools that create something, and that send messages."""
    update: Boolean = True
    """Offer the tools that change something, or store offsets."""
    delete: Boolean = True
    """Offer the tools that delete something."""


class Mcp(Section, frozen=True):
    """The Model Context Protocol for assistants, at `/mcp` of the HTTP listener. [The MCP server](mcp.md) describes it.
    Iggy's MCP server is another program."""

    enabled: Boolean = False
    """Serve it; this needs the extra `mcp` of whippet-gateway."""
    read_only: Boolean = True
    """Offer only the tools that read."""
    consumer: Text = "mcp"
    """Name of the consumer whose offsets the tools read and store."""
    max_request_size: Annotated[int, size(at_least=4_096)] = 262_144
    """Size that the body of a request may have; a larger one is answered with 413, as is one above
    `http.max_request_size`."""
    max_response_size: Annotated[int, size(at_least=4_096)] = 65_536
    """Bytes of JSON in the result of a tool or in a resource, because models read only so much; it says what was left
    out."""
    max_items: Annotated[int, integer(1, 10_000)] = 100
    """Number of entries of a list in a result, such as messages or topics; it says what was left out."""
    permissions: McpPermissions = McpPermissions()


class Http(Section, frozen=True):
    """The REST API, and what shares its port: metrics, the dashboard and, by default, WebSocket."""

    enabled: Boolean = True
    """Start the HTTP listener."""
    address: Listen = Address("127.0.0.1", 3000)
    """Address that it listens on (TCP); port 0 takes any free port."""
    max_request_size: Annotated[int, size(at_most=268_435_456)] = 2_000_000
    """Size that the body of a request may have; a larger one is answered with 413."""
    allowed_hosts: Texts = ()
    """Host names or addresses, without ports, that clients may use for this server, over WebSocket and HTTP/3, too;
    `*`: any, `*.example.com`: all subdomains; empty: any, but on a loopback address only `localhost`, its subdomains
    and loopback addresses. A request for another name is answered with 421, so that no web page reaches the server
    under a name of its own (DNS rebinding). Iggy has no such setting."""
    web_ui: Boolean = True
    """Serve the dashboard at `/ui`, if WebSocket is enabled, and redirect browsers from `/` to it; on here (off in
    Iggy), because it consists of files without secrets, and shows nothing before a user has signed in."""
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
    """Create a certificate if the files are absent."""
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
    """Let the kernel probe silent connections."""
    nodelay: Boolean = False
    """Send small packets at once instead of gathering them."""
    linger: Seconds = 0.0
    """How long a connection that is being closed may take to accept what it was sent; then the rest is dropped. 0: the
    operating system decides. Nothing else waits meanwhile."""


class Tcp(Section, frozen=True):
    """The binary protocol over TCP."""

    enabled: Boolean = True
    """Start the TCP listener."""
    address: Listen = Address("127.0.0.1", 8090)
    """Address that it listens on; port 0 takes any free port."""
    socket_migration: Boolean = True
    """Accepted for compatibility; has no effect, because one event loop serves all connections."""
    ipv6: Boolean = False
    """Listen on an IPv6 socket, even if a name has addresses of both kinds (otherwise its IPv4 address is used); an
    IPv4 address is then refused."""
    message_header: Annotated[Literal["auto", "56", "64"], formats.choice("auto", "56", "64")] = "auto"
    """Size of the header before each message that clients get: 56 bytes for those of Iggy 0.6, 64 for later ones;
    `auto` recognises them by what they send."""
    tls: Tls = Tls()
    socket: TcpSocket = TcpSocket()


class QuicCertificate(Section, frozen=True):
    """The certificate of QUIC, which is always encrypted."""

    self_signed: Boolean = True
    """Create a certificate instead of reading the files."""
    cert_file: Text = CERTIFICATE
    """Certificate chain in PEM, relative to the working directory; may be empty while `self_signed` is true."""
    key_file: Text = PRIVATE_KEY
    """Private key in PEM, relative to the working directory; may be empty while `self_signed` is true."""


class QuicSocket(Section, frozen=True):
    """Options of the UDP socket, applied only when `override_defaults` is on."""

    override_defaults: Boolean = False
    """Apply the keys of this section; otherwise both buffers are as large as the operating system allows, up to 4
    MiB."""
    recv_buffer_size: Bytes = 64_000
    """Size of the kernel's receive buffer."""
    send_buffer_size: Bytes = 64_000
    """Size of the kernel's send buffer."""
    keepalive: Boolean = False
    """Set SO_KEEPALIVE on the socket."""


class Quic(Section, frozen=True):
    """The binary protocol over QUIC, and HTTP/3."""

    enabled: Boolean = True
    """Start the QUIC listener."""
    address: Listen = Address("127.0.0.1", 3000)
    """Address that it listens on (UDP, so the port number may be that of HTTP in TCP); port 0 takes any free port."""
    max_concurrent_bidi_streams: Annotated[int, integer(1)] = 100
    """Number of streams that one connection may have open; each costs memory and time. Official clients use one."""
    datagram_send_buffer_size: Bytes = 100_000
    """Accepted for compatibility; has no effect, because QUIC's unreliable datagrams are not used."""
    initial_mtu: Annotated[int, size(at_least=1_200, at_most=16_384)] = 1_200
    """Size of the first datagrams after the handshake, before the path has been probed; larger ones than the path
    carries are lost until that is detected."""
    max_datagram_size: Annotated[int, size(at_least=1_200, at_most=16_384)] = 1_452
    """Size that datagrams may grow to when probing shows that the path and the client take them: 1452 is what Ethernet
    carries; 8952 suits jumbo frames and 16384 the loopback, and make large responses several times as fast."""
    send_window: Annotated[int, size(at_least=1_200)] = 1_048_576
    """Bytes that may be sent on a connection before they are acknowledged."""
    receive_window: Annotated[int, size(at_least=1_200)] = 262_144
    """Bytes that a client may send on a connection before they are processed; a request whose memory is reserved may be
    larger."""
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
    """Number of subscriptions per connection, because each costs memory, and time at each message; one more is
    refused."""
    subscriptions_total: Annotated[int, integer(1)] = 40_000
    """Number of subscriptions of all connections together; one more is refused."""
    subscriptions_per_user: Annotated[int, integer(1)] = 10_000
    """Number of subscriptions of one user over all connections, so that others can have some, too; one more is
    refused."""
    ping_time: Positive = 20.0
    """How long a client may be silent before it is pinged."""
    silence_time: Positive = 60.0
    """How long a client may be silent, without even answering pings, before its connection is closed."""


class Websocket(Section, frozen=True):
    """The binary protocol over WebSocket."""

    enabled: Boolean = True
    """Accept WebSocket connections."""
    address: Annotated[Address | None, optional(formats.ADDRESS)] = None
    """Address that it listens on in addition to that of HTTP, which both share: for example 127.0.0.1:8092, where
    official clients look for it. Not set: none. Without HTTP, WebSocket is served only here."""
    read_buffer_size: OptionalBytes = None
    """Size of one read while the kind of the next frame is unknown; not set: 64 KiB."""
    write_buffer_size: OptionalBytes = None
    """Accepted for compatibility; has no effect, because frames are written at once."""
    max_write_buffer_size: OptionalBytes = None
    """Bytes that may wait for a slow reader before its connection is closed; not set: one response, and a client that
    takes nearly nothing of it for a minute is closed."""
    max_message_size: OptionalBytes = None
    """Size that a message may have; a larger one closes the connection. Not set: any, because the limits of the
    requests in it bound the memory."""
    max_frame_size: OptionalBytes = None
    """Size that a frame of a message may have; not set: any."""
    accept_unmasked_frames: Boolean = False
    """Accept unmasked frames from clients, against the standard."""
    channel: WebsocketChannel = WebsocketChannel()
    tls: Tls = Tls()


class Metrics(Section, frozen=True):
    """A separate listener for the metrics, for scrapers that must not reach the HTTP API."""

    enabled: Boolean = False
    """Start the listener."""
    endpoint: Listen = Address("0.0.0.0", 9090)
    """Address that it listens on (TCP); the path is that of `http.metrics.endpoint`."""
