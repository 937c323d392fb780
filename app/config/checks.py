"""Rejects combinations of settings that cannot work, each valid by itself, before anything is touched.

Every check yields the keys that it is about and a sentence; the error names the first of these keys that was set.
"""

from __future__ import annotations

import base64
import binascii
import itertools
from collections.abc import Iterator
from operator import attrgetter
from urllib.parse import urlsplit

from whippet.app.config import engine
from whippet.app.config.formats import DURATION, Address, write_protocol_version, write_size
from whippet.app.config.keys import KEYS, walk
from whippet.app.config.schema import Config
from whippet.app.config.support import unsupported

NAME_BYTES_MAX = 255
MIB = 1024 * 1024
BATCH_OVERHEAD = 256 + 48
"""The header of a batch and that of one message."""

PERIODS = {
    "message_saver.interval": "message_saver.enabled",
    "data_maintenance.messages.interval": "data_maintenance.messages.cleaner_enabled",
    "personal_access_token.cleaner.interval": "personal_access_token.cleaner.enabled",
    "heartbeat.interval": "heartbeat.enabled",
}
"""Periods that may be 0 only while the switch next to them is off."""

Problem = tuple[tuple[str, ...], str]


def problems(config: Config) -> Iterator[Problem]:
    yield from unsupported(config)
    yield from engine.problems(config, walk(config), KEYS)
    yield from _periods(config)
    yield from _limits(config)
    yield from _leases(config)
    yield from _memory_pool(config)
    yield from _protocol(config)
    yield from _secrets(config)
    yield from _ipv6(config)
    yield from _listeners(config)
    yield from _quic_certificate(config)
    yield from _dashboard(config)
    yield from _assistants(config)
    yield from _cors(config)
    yield from _trusted_issuers(config)
    yield from _archive(config)
    yield from _telemetry(config)
    if config.cluster.enabled:
        yield from _cluster(config)


def _periods(config: Config) -> Iterator[Problem]:
    for key, switch in PERIODS.items():
        if attrgetter(switch)(config) and attrgetter(key)(config) <= 0:
            yield (key, switch), f"{key} must be above 0 while {switch} is true"


def _limits(config: Config) -> Iterator[Problem]:
    limits, logging, system = config.system.limits, config.system.logging, config.system
    message = limits.payload_bytes + limits.user_headers_bytes + BATCH_OVERHEAD
    payload, headers, batch = (f"system.limits.{name}_bytes" for name in ("payload", "user_headers", "batch"))
    partition, total = "system.limits.partition_unflushed_bytes", "system.limits.unflushed_bytes"
    for value, least, keys, reason in (
        (
            limits.batch_bytes,
            message,
            (batch, payload, headers),
            f"{payload} + {headers} + {BATCH_OVERHEAD} bytes",
        ),
        (limits.partition_unflushed_bytes, limits.batch_bytes, (partition, batch), batch),
        (limits.unflushed_bytes, limits.partition_unflushed_bytes, (total, partition), partition),
    ):
        if value < least:
            yield keys, f"{keys[0]} ({write_size(value)}) must be at least {reason} ({write_size(least)})"
    if system.topic.max_size is not None and system.topic.max_size < system.segment.size:
        yield (
            ("system.topic.max_size", "system.segment.size"),
            f"system.topic.max_size ({write_size(system.topic.max_size)}) must be at least "
            f"system.segment.size ({write_size(system.segment.size)})",
        )
    for section, files in (("system.logging", logging), ("audit", config.audit)):
        if 0 < files.max_total_size < files.max_file_size:
            total, one = f"{section}.max_total_size", f"{section}.max_file_size"
            yield (
                (total, one),
                f"{total} ({write_size(files.max_total_size)}) must be 0 or at least "
                f"{one} ({write_size(files.max_file_size)})",
            )
    folders = {"users", "tokens", "access", "trash", "staging", config.system.stream.path}
    if config.audit.enabled and config.audit.path in folders:
        yield ("audit.path",), f"audit.path: the folder {config.audit.path!r} has other files"
    for key, is_set in (("audit.required", config.audit.required), ("audit.stream", bool(config.audit.stream))):
        if is_set and not config.audit.enabled:
            yield (key, "audit.enabled"), f"{key} needs audit.enabled"


def _telemetry(config: Config) -> Iterator[Problem]:
    telemetry = config.telemetry
    if not telemetry.enabled:
        return
    if not telemetry.service_name:
        yield ("telemetry.service_name", "telemetry.enabled"), "telemetry.service_name must not be empty"
    for name in ("logs", "traces", "metrics"):
        endpoint = attrgetter(f"{name}.endpoint")(telemetry)
        try:
            found = urlsplit(endpoint)
            is_url = found.scheme in {"http", "https"} and bool(found.hostname) and found.port != 0
        except ValueError:
            is_url = False
        if not is_url:
            key = f"telemetry.{name}.endpoint"
            yield (key, "telemetry.enabled"), f"{key}: {endpoint!r}: a URL such as http://localhost:4317 is needed"


def _leases(config: Config) -> Iterator[Problem]:
    leases = config.http.leases
    if not leases.expiry_min <= leases.expiry <= leases.expiry_max:
        keys = ("http.leases.expiry", "http.leases.expiry_min", "http.leases.expiry_max")
        shown = [f"{key} ({DURATION.write(attrgetter(key)(config))})" for key in keys]
        yield keys, f"{shown[0]} must be from {shown[1]} to {shown[2]}"


def _protocol(config: Config) -> Iterator[Problem]:
    protocol = config.system.protocol
    if protocol.newest < protocol.oldest:
        yield (
            ("system.protocol.newest", "system.protocol.oldest"),
            (
                f"system.protocol.newest ({write_protocol_version(protocol.newest)}) must be at least "
                f"system.protocol.oldest ({write_protocol_version(protocol.oldest)})"
            ),
        )


def _memory_pool(config: Config) -> Iterator[Problem]:
    """The pool has no effect, but a file that Iggy would refuse is refused here, too."""
    pool = config.system.memory_pool
    if pool.enabled and (pool.size < 512 * MIB or pool.size % 4096):
        yield (
            ("system.memory_pool.size", "system.memory_pool.enabled"),
            f"system.memory_pool.size ({write_size(pool.size)}) must be at least 512 MiB and a multiple of 4 KiB "
            "while system.memory_pool.enabled is true",
        )
    capacity = pool.bucket_capacity
    if pool.enabled and (capacity < 128 or capacity & (capacity - 1)):
        yield (
            ("system.memory_pool.bucket_capacity", "system.memory_pool.enabled"),
            f"system.memory_pool.bucket_capacity ({capacity}) must be a power of two, at least 128, "
            "while system.memory_pool.enabled is true",
        )


JWT_SECRET_BYTES_MIN = 32
"""RFC 7518 requires as many bytes as the hash of HS256 has; a shorter secret can be found by trial with a single
token."""


def _secrets(config: Config) -> Iterator[Problem]:
    jwt = config.http.jwt
    for name, secret in (("encoding_secret", jwt.encoding_secret), ("decoding_secret", jwt.decoding_secret)):
        length = _decoded_bytes(secret) if jwt.use_base64_secret else len(secret.encode())
        if length is None:
            yield (
                (f"http.jwt.{name}", "http.jwt.use_base64_secret"),
                f"http.jwt.{name} must be base64 while http.jwt.use_base64_secret is true",
            )
        elif secret and length < JWT_SECRET_BYTES_MIN:
            yield (
                (f"http.jwt.{name}",),
                f"http.jwt.{name} is too short: it has {length} bytes and needs {JWT_SECRET_BYTES_MIN}, because "
                "anyone who guesses it can act as any user; leave it empty and one is generated in the data folder",
            )


def _decoded_bytes(text: str) -> int | None:
    try:
        return len(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError):
        return None


def _ipv6(config: Config) -> Iterator[Problem]:
    if config.tcp.enabled and config.tcp.ipv6 and config.tcp.address.is_ipv4:
        yield (
            ("tcp.ipv6", "tcp.address"),
            f"tcp.ipv6 = true needs an IPv6 address or a name, such as [::1]:8090; tcp.address is {config.tcp.address}",
        )


def _listeners(config: Config) -> Iterator[Problem]:
    http, tcp, websocket, metrics = config.http, config.tcp, config.websocket, config.metrics
    shared = http.enabled and websocket.address in {None, http.address}
    nowhere_else = shared or websocket.address is None
    if websocket.enabled and websocket.tls.enabled and nowhere_else and not http.tls.enabled:
        yield (
            ("websocket.tls.enabled", "websocket.address", "http.tls.enabled"),
            "websocket.tls.enabled needs a websocket.address of its own, or http.tls.enabled: "
            "on the address of HTTP, HTTP decides",
        )
    listening: list[tuple[str, bool, Address | None]] = [
        ("tcp.address", tcp.enabled, tcp.address),
        ("http.address", http.enabled, http.address),
        ("websocket.address", websocket.enabled and not shared, websocket.address),
        ("metrics.endpoint", metrics.enabled, metrics.endpoint),
    ]
    taken = [(key, address) for key, on, address in listening if on and address is not None and address.port]
    for (key, address), (other, other_address) in itertools.combinations(taken, 2):
        wildcard = bool({"0.0.0.0", "::"} & {address.host, other_address.host})
        if address.port == other_address.port and (wildcard or address.host == other_address.host):
            yield (key, other), f"{key} and {other} both use TCP port {address.port}; give each its own port"


def _quic_certificate(config: Config) -> Iterator[Problem]:
    certificate = config.quic.certificate
    for field, path in (("cert_file", certificate.cert_file), ("key_file", certificate.key_file)):
        if config.quic.enabled and not certificate.self_signed and not path.strip():
            key = f"quic.certificate.{field}"
            yield (key, "quic.certificate.self_signed"), f"{key} is needed while quic.certificate.self_signed is false"


def _dashboard(config: Config) -> Iterator[Problem]:
    http = config.http
    if http.web_ui and http.metrics.enabled and f"{http.metrics.endpoint}/".startswith("/ui/"):
        keys = ("http.metrics.endpoint", "http.web_ui")
        yield keys, "http.metrics.endpoint cannot be below /ui while http.web_ui is true: the dashboard is there"


def _assistants(config: Config) -> Iterator[Problem]:
    if config.mcp.enabled and not config.http.enabled:
        yield ("mcp.enabled", "http.enabled"), "mcp.enabled needs http.enabled: assistants reach it over HTTP"
    if not 1 <= len(config.mcp.consumer.encode()) <= NAME_BYTES_MAX:
        yield ("mcp.consumer",), f"mcp.consumer must have 1 to {NAME_BYTES_MAX} bytes"


def _cors(config: Config) -> Iterator[Problem]:
    cors = config.http.cors
    if not cors.enabled:
        return
    origins, key = [origin.strip() for origin in cors.allowed_origins], "http.cors.allowed_origins"
    if "*" in origins[1:]:
        yield (key,), f"{key}: `*`, which means any origin, can only be the first entry"
    if cors.allow_credentials and origins[:1] == ["*"]:
        yield (
            ("http.cors.allow_credentials", key),
            f"http.cors.allow_credentials needs origins by name in {key}: with `*`, any page may act for its visitors",
        )


def _trusted_issuers(config: Config) -> Iterator[Problem]:
    for number, issuer in enumerate(config.http.jwt.trusted_issuers):
        table = f"http.jwt.trusted_issuers.{number}"
        for field in ("issuer", "audience", "jwks_url"):
            if not getattr(issuer, field).strip():
                keys = tuple(f"{table}.{each}" for each in (field, "issuer", "audience", "jwks_url", "user_id"))
                yield keys, f"{table}.{field} is needed: a trusted issuer has issuer, audience and jwks_url"
        if not issuer.jwks_url.startswith(("https://", "http://")):
            yield (f"{table}.jwks_url", f"{table}.issuer"), f"{table}.jwks_url must begin with https:// or http://"


def _archive(config: Config) -> Iterator[Problem]:
    archiver, switch = config.data_maintenance.archiver, "data_maintenance.archiver.enabled"
    if config.system.segment.archive_expired and not archiver.enabled:
        yield (
            ("system.segment.archive_expired", switch),
            f"system.segment.archive_expired needs {switch}: otherwise nothing would ever be deleted",
        )
    if not archiver.enabled:
        return
    kind = "data_maintenance.archiver.kind"
    if archiver.kind == "disk":
        if not archiver.disk.path.strip():
            yield ("data_maintenance.archiver.disk.path", kind), "data_maintenance.archiver.disk.path is needed"
        return
    table = f"data_maintenance.archiver.{archiver.kind}"
    needed = {
        "s3": {"bucket": archiver.s3.bucket},
        "gcs": {"bucket": archiver.gcs.bucket},
        "azure": {"account": archiver.azure.account, "container": archiver.azure.container},
    }
    for name, value in needed[archiver.kind].items():
        if not value.strip():
            yield (f"{table}.{name}", kind), f"{table}.{name} is needed"
    endpoint = {"s3": archiver.s3.endpoint, "azure": archiver.azure.endpoint}.get(archiver.kind, "")
    if endpoint and not endpoint.startswith(("http://", "https://")):
        yield (f"{table}.endpoint", kind), f"{table}.endpoint must be empty, or begin with http:// or https://"
    if archiver.kind == "s3" and bool(archiver.s3.access_key_id) != bool(archiver.s3.secret_access_key):
        keys = (f"{table}.access_key_id", f"{table}.secret_access_key")
        yield keys, f"{keys[0]} and {keys[1]} must both be set, or both be empty"


def _cluster(config: Config) -> Iterator[Problem]:
    for field in ("name", "ip"):
        if any(not getattr(node, field).strip() for node in config.cluster.nodes):
            keys = (f"cluster.nodes.0.{field}", *(f"cluster.nodes.0.{each}" for each in ("name", "ip", "replica_id")))
            yield keys, f"cluster.nodes.0.{field} is needed: a node has a name and an ip"
    for key, value in (
        ("cluster.name", config.cluster.name),
        ("cluster.node.current.name", config.cluster.node.current.name),
        ("cluster.node.current.ip", config.cluster.node.current.ip),
    ):
        if not value.strip():
            yield (key, "cluster.enabled"), f"{key} must not be empty while cluster.enabled is true"
