"""TLS for listeners: a context from the configured files, or with a certificate made at start and never written down.

A made certificate has an ECDSA P-256 key and names localhost and the loopback addresses: what official clients accept.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import ssl

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from app.config import ConfigError
from app.config.listeners import HttpTls, Tls

VALID_DAYS = 365


def context(tls: Tls | HttpTls, section: str) -> ssl.SSLContext | None:
    """None when TLS is off. Files that are named and there are used; without them a certificate is made, if allowed.

    It never is for HTTP: browsers and curl would not take it.
    """
    if not tls.enabled:
        return None
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    if os.path.exists(tls.cert_file) and os.path.exists(tls.key_file):
        try:
            made.load_cert_chain(tls.cert_file, tls.key_file)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"{section}.cert_file, {section}.key_file: cannot be used: {error}") from error
        return made
    if isinstance(tls, HttpTls) or not tls.self_signed:
        missing = tls.key_file if os.path.exists(tls.cert_file) else tls.cert_file
        otherwise = "" if isinstance(tls, HttpTls) else f", or set {section}.self_signed = true"
        raise ConfigError(f"{section}: {missing} is missing; put it there{otherwise}")
    certificate, key = self_signed()
    # The ssl module reads files only; this one has no name and never leaves memory.
    with open(os.memfd_create("certificate"), "w+b") as file:
        file.write(key + certificate)
        file.flush()
        made.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
    return made


def self_signed() -> tuple[bytes, bytes]:
    """Certificate and key, in PEM."""
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
    return (
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )
