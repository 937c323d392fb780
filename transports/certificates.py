"""Certificates of the listeners: from the configured files, or a self-signed one that is kept in the data folder.

A self-signed certificate has an ECDSA P-256 key, is not an authority, and names localhost and the loopback addresses,
as official clients require. All listeners use the same one, also after a restart, so that clients may pin it.
"""

from __future__ import annotations

import datetime
import ipaddress
import logging
import os
import ssl
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from aioquic.quic.configuration import QuicConfiguration
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from whippet.app import secret_files
from whippet.app.certificate_expiry import CertificateExpiry
from whippet.app.config import ConfigError
from whippet.app.config.listeners import HttpTls, QuicCertificate, Tls

_log = logging.getLogger(__name__)

VALID_DAYS = 365
RENEWED_DAYS = 30
"""A self-signed certificate that expires sooner than this is replaced at the next start."""
FOLDER = "certificates"
KEPT = "self-signed.pem"
"""Holds the key, then the certificate."""
FILE_BYTES_MAX = 1 << 20


class Pair(NamedTuple):
    """A certificate, the certificates that vouch for it, and its key, in PEM."""

    certificate: bytes
    key: bytes

    def put_on(self, configuration: QuicConfiguration) -> None:
        chain = x509.load_pem_x509_certificates(self.certificate)
        configuration.certificate, configuration.certificate_chain = chain[0], chain[1:]
        configuration.private_key = serialization.load_pem_private_key(self.key, None)


class Renewals:
    """Certificates that are read again on a signal. Open connections keep the old one."""

    def __init__(self, ends: CertificateExpiry) -> None:
        self._ends = ends
        self._again: list[tuple[str, Callable[[], bytes]]] = []

    def add(self, section: str, again: Callable[[], bytes]) -> None:
        """`again` reads a certificate and returns it in PEM. It is called once now."""
        self._note(section, again())
        self._again.append((section, again))

    def context(self, tls: Tls | HttpTls, section: str, data_folder: str | None = None) -> ssl.SSLContext | None:
        made = empty_context() if tls.enabled else None
        if made is not None:
            self.add(section, partial(load, made, tls, section, data_folder))
        return made

    def _note(self, section: str, certificate: bytes) -> None:
        try:
            chain = x509.load_pem_x509_certificates(certificate)
        except ValueError as error:
            _log.warning("%s: cannot determine when the certificate expires: %s", section, error)
        else:
            self._ends.record(section, min(each.not_valid_after_utc.timestamp() for each in chain))

    def renew(self) -> None:
        """Blocks while files are read."""
        for section, again in self._again:
            try:
                self._note(section, again())
            except ConfigError as error:
                _log.error("%s; the previous certificate stays in use", error)
            else:
                _log.info("%s: read the certificate again; new connections use it", section)


def context(tls: Tls | HttpTls, section: str, data_folder: str | None = None) -> ssl.SSLContext | None:
    """Returns None if TLS is off."""
    if not tls.enabled:
        return None
    made = empty_context()
    load(made, tls, section, data_folder)
    return made


def empty_context() -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    return made


def load(made: ssl.SSLContext, tls: Tls | HttpTls, section: str, data_folder: str | None = None) -> bytes:
    """Loads the certificate for new handshakes and returns it in PEM. Configured files are used if they exist;
    otherwise a self-signed certificate is created, if that is allowed.

    It is never allowed for HTTP: browsers and curl would reject it.
    """
    if os.path.exists(tls.cert_file) and os.path.exists(tls.key_file):
        try:
            made.load_cert_chain(tls.cert_file, tls.key_file)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"{section}.cert_file, {section}.key_file: cannot be used: {error}") from error
        with open(tls.cert_file, "rb") as file:
            return file.read()
    if isinstance(tls, HttpTls) or not tls.self_signed:
        missing = tls.key_file if os.path.exists(tls.cert_file) else tls.cert_file
        otherwise = "" if isinstance(tls, HttpTls) else f", or set {section}.self_signed = true"
        raise ConfigError(f"{section}: {missing} is missing; create it{otherwise}")
    pair = self_signed() if data_folder is None else kept(data_folder)
    # The ssl module only reads files; this one has no name and stays in memory.
    with open(os.memfd_create("certificate"), "w+b") as file:
        file.write(pair.key + pair.certificate)
        file.flush()
        made.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
    return pair.certificate


def for_quic(wanted: QuicCertificate, data_folder: str) -> Pair:
    if wanted.self_signed:
        return kept(data_folder)
    section = "quic.certificate"
    try:
        with open(wanted.cert_file, "rb") as file:
            certificate = file.read()
        with open(wanted.key_file, "rb") as file:
            pair = Pair(certificate, file.read())
    except OSError as error:
        raise ConfigError(
            f"{section}: {error.filename} cannot be read: {error.strerror}; "
            f"create it, or set {section}.self_signed = true"
        ) from error
    problem = _problem(pair)
    if problem:
        raise ConfigError(f"{section}.cert_file, {section}.key_file: cannot be used: {problem}")
    key = serialization.load_pem_private_key(pair.key, None)
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        _log.warning(
            "%s.key_file is not an ECDSA P-256 key: official clients that do not validate certificates accept no other",
            section,
        )
    return pair


def _problem(pair: Pair) -> str:
    try:
        certificate = x509.load_pem_x509_certificates(pair.certificate)[0]
        key = serialization.load_pem_private_key(pair.key, None)
    except (ValueError, TypeError, IndexError) as error:
        return str(error) or "it is not in PEM"
    spki = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    if certificate.public_key().public_bytes(*spki) != key.public_key().public_bytes(*spki):
        return "the key does not belong to the certificate"
    return ""


def kept(data_folder: str) -> Pair:
    """Returns the self-signed certificate of this data folder. It is created if there is none, or if it expires
    soon."""
    folder = os.path.join(data_folder, FOLDER)
    path = os.path.join(folder, KEPT)
    try:
        octets = secret_files.read(path, FILE_BYTES_MAX)
        if octets is not None and (pair := _usable(octets)) is not None:
            return pair
        os.makedirs(folder, mode=0o750, exist_ok=True)
        pair = self_signed()
        secret_files.write(path, pair.key + pair.certificate)
    except OSError as error:
        raise ConfigError(
            f"{path}, the self-signed certificate, cannot be stored: {error.strerror or error}"
        ) from error
    if octets is not None:
        _log.warning(
            "replaced %s, which was damaged or expires soon; clients that have pinned it must pin the new one", path
        )
    return pair


def _usable(octets: bytes) -> Pair | None:
    begin = b"-----BEGIN CERTIFICATE-----"
    key, found, rest = octets.partition(begin)
    pair = Pair(found + rest, key)
    if not found or _problem(pair):
        return None
    certificate = x509.load_pem_x509_certificates(pair.certificate)[0]
    left = certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    return pair if left > datetime.timedelta(days=RENEWED_DAYS) else None


def self_signed() -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    loopback = [x509.IPAddress(ipaddress.ip_address(address)) for address in ("127.0.0.1", "::1")]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost"), *loopback]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return Pair(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )
