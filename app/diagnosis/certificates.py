"""Checks the certificates of the listeners: expiry, names, the key, and who may read the key."""

from __future__ import annotations

import datetime
import ipaddress
import itertools
import os
import stat
from collections.abc import Iterator
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization

from whippet.app.certificate_expiry import SOON_DAYS
from whippet.app.config import Config
from whippet.app.diagnosis.finding import Finding, fail, ok, warn

CHECK = "certificate"
HOW = "`whippet certs` makes one for development"


class Configured(NamedTuple):
    section: str
    cert_file: str
    key_file: str
    creates_one: bool
    """The server makes its own if the files are missing, or instead of reading them."""
    reads_files: bool
    host: str
    """Where the listener listens."""


def configured(config: Config) -> list[Configured]:
    found = []
    http, tcp, websocket, quic = config.http, config.tcp, config.websocket, config.quic
    if http.enabled and http.tls.enabled:
        found.append(Configured("http.tls", http.tls.cert_file, http.tls.key_file, False, True, http.address.host))
    if tcp.enabled and tcp.tls.enabled:
        found.append(
            Configured("tcp.tls", tcp.tls.cert_file, tcp.tls.key_file, tcp.tls.self_signed, True, tcp.address.host)
        )
    if websocket.enabled and websocket.address is not None and websocket.tls.enabled:
        tls = websocket.tls
        found.append(
            Configured("websocket.tls", tls.cert_file, tls.key_file, tls.self_signed, True, websocket.address.host)
        )
    if quic.enabled:
        own = quic.certificate
        files = not own.self_signed
        found.append(
            Configured("quic.certificate", own.cert_file, own.key_file, own.self_signed, files, quic.address.host)
        )
    return found


def findings(config: Config, now: datetime.datetime | None = None) -> Iterator[Finding]:
    every = configured(config)
    if not every:
        yield ok(CHECK, "no listener is encrypted")
    for each in every:
        yield from _about(each, now or datetime.datetime.now(datetime.UTC))


def _about(each: Configured, now: datetime.datetime) -> Iterator[Finding]:
    section = each.section
    missing = [path for path in (each.cert_file, each.key_file) if not os.path.exists(path)]
    if each.creates_one and (missing or not each.reads_files):
        yield ok(CHECK, f"{section}: the server makes its own, which no client can check")
        return
    if missing:
        yield fail(CHECK, f"{section}: {missing[0]} is missing", f"create it: {HOW}")
        return
    try:
        with open(each.cert_file, "rb") as file:
            chain = x509.load_pem_x509_certificates(file.read())
        with open(each.key_file, "rb") as file:
            key = serialization.load_pem_private_key(file.read(), None)
    except (OSError, ValueError, TypeError) as error:
        sentence = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
        yield fail(
            CHECK, f"{section}: {each.cert_file} and {each.key_file} cannot be used: {sentence}", f"replace them: {HOW}"
        )
        return
    leaf = chain[0]
    if _bytes_of(leaf.public_key()) != _bytes_of(key.public_key()):
        yield fail(
            CHECK,
            f"{section}: {each.key_file} is not the key of {each.cert_file}",
            "use the key with which the certificate was requested, and put the server's certificate first in the file",
        )
        return
    if stat.S_IMODE(os.stat(each.key_file).st_mode) & 0o007:
        yield warn(CHECK, f"{section}: every user can read {each.key_file}", f"chmod 600 {each.key_file}")
    if not _follows(chain):
        yield warn(
            CHECK,
            f"{section}: the certificates in {each.cert_file} do not vouch for each other in their order",
            "put the server's first, and after each the one that has signed it",
        )
    names = _names(leaf)
    if not names:
        yield fail(CHECK, f"{section}: {each.cert_file} names no host: clients refuse it", f"replace it: {HOW}")
    elif not _is_named(each.host, names):
        yield warn(
            CHECK,
            f"{section}: {each.cert_file} is for {', '.join(names)}, and not for {each.host}, which is listened on",
            "clients that use this address refuse it: add the address, or let them use one of the names",
        )
    yield _validity(each, chain, now, names)


def _is_named(host: str, names: list[str]) -> bool:
    """Which names clients use for an address of all interfaces cannot be known."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host in names or f"*.{host.partition('.')[2]}" in names
    return address.is_unspecified or host in names or (address.is_loopback and "localhost" in names)


def _validity(each: Configured, chain: list[x509.Certificate], now: datetime.datetime, names: list[str]) -> Finding:
    ends = min(one.not_valid_after_utc for one in chain)
    begins = max(one.not_valid_before_utc for one in chain)
    shown = f"{each.section}: {each.cert_file} for {', '.join(names) or 'nobody'}"
    renew = "replace the files, then send the server SIGHUP"
    if ends <= now:
        return fail(CHECK, f"{shown} expired on {ends:%Y-%m-%d}", renew)
    if begins > now:
        return fail(CHECK, f"{shown} is not valid before {begins:%Y-%m-%d %H:%M}Z", "check the clock, or replace it")
    days = (ends - now).days
    if days < SOON_DAYS:
        return warn(CHECK, f"{shown} expires on {ends:%Y-%m-%d}, in {days} days", renew)
    return ok(CHECK, f"{shown} is valid until {ends:%Y-%m-%d}")


def _bytes_of(public: object) -> bytes:
    found: bytes = public.public_bytes(  # type: ignore[attr-defined]
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return found


def _follows(chain: list[x509.Certificate]) -> bool:
    for own, authority in itertools.pairwise(chain):
        try:
            own.verify_directly_issued_by(authority)
        except (ValueError, TypeError, InvalidSignature):
            return False
    return True


def _names(leaf: x509.Certificate) -> list[str]:
    try:
        extension = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (x509.ExtensionNotFound, ValueError):
        return []
    names: list[str] = extension.value.get_values_for_type(x509.DNSName)
    return [*names, *map(str, extension.value.get_values_for_type(x509.IPAddress))]
