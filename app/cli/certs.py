"""`whippet certs`: creates an authority and a server certificate for development, and prints how to trust them.

The authority is created once and reused, so a client that trusts it also trusts later certificates. Both have ECDSA
P-256 keys, which official clients accept over QUIC. Nothing created here is for production, or for git.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from whippet.app import secret_files

AUTHORITY_DAYS = 3650
LEAF_DAYS_MAX = 397
"""Apple's systems refuse longer ones."""
HOSTS = ("localhost", "127.0.0.1", "::1")

HOW = """\
{created}

Use it in a server (each transport has its own switch; QUIC is always encrypted):

  export IGGY_TCP_TLS_ENABLED=true  IGGY_TCP_TLS_CERT_FILE={leaf}  IGGY_TCP_TLS_KEY_FILE={key}
  export IGGY_HTTP_TLS_ENABLED=true IGGY_HTTP_TLS_CERT_FILE={leaf} IGGY_HTTP_TLS_KEY_FILE={key}
  export IGGY_QUIC_CERTIFICATE_SELF_SIGNED=false
  export IGGY_QUIC_CERTIFICATE_CERT_FILE={leaf} IGGY_QUIC_CERTIFICATE_KEY_FILE={key}

A running server reads the files again on SIGHUP. To trust the authority, {authority}:

  curl            curl --cacert {authority} https://localhost:3000/ping
  Iggy SDKs       TCP: tls_ca_file={authority} in the connection string; QUIC with validation uses the system's store
  Debian, Ubuntu  sudo cp {authority} /usr/local/share/ca-certificates/whippet-dev.crt && sudo update-ca-certificates
  Fedora, RHEL    sudo trust anchor {authority}
  macOS           sudo security add-trusted-cert -d -r trustRoot -k /Library/Keychains/System.keychain {authority}
  Windows         certutil -addstore Root {authority}
  Firefox         Settings, Certificates, Authorities, Import

Anyone with {authority_key} can impersonate any server to clients that trust it: keep it here, and remove the trust
afterwards.
"""


def run(
    hosts: Annotated[
        list[str] | None, typer.Argument(help=f"host names and addresses (default: {', '.join(HOSTS)})")
    ] = None,
    folder: Annotated[Path, typer.Option(help="folder for the files")] = Path("certs"),
    days: Annotated[
        int, typer.Option(min=1, max=LEAF_DAYS_MAX, help="validity of the certificate in days")
    ] = LEAF_DAYS_MAX,
) -> int:
    names = hosts or HOSTS
    folder.mkdir(parents=True, exist_ok=True)
    authority_path, authority_key_path = folder / "authority.pem", folder / "authority.key"
    exists = authority_path.exists() and authority_key_path.exists()
    if exists:
        authority = x509.load_pem_x509_certificate(authority_path.read_bytes())
        key = serialization.load_pem_private_key(authority_key_path.read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
    else:
        authority, key = make_authority()
        write(authority_key_path, pem_of_key(key), secret=True)
        write(authority_path, authority.public_bytes(serialization.Encoding.PEM))
    leaf, leaf_key = make_leaf(authority, key, names, days)
    leaf_path, leaf_key_path = folder / "server.pem", folder / "server.key"
    write(leaf_key_path, pem_of_key(leaf_key), secret=True)
    write(leaf_path, leaf.public_bytes(serialization.Encoding.PEM))
    which = "the existing authority" if exists else f"a new authority, {authority_path}"
    sys.stdout.write(
        HOW.format(
            created=f"Created {leaf_path} for {', '.join(names)} ({days} days), signed by {which}.",
            leaf=leaf_path,
            key=leaf_key_path,
            authority=authority_path,
            authority_key=authority_key_path,
        )
    )
    return 0


def make_authority() -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Whippet development, {os.uname().nodename}"[:64])])
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    builder = _builder(name, name, key.public_key(), AUTHORITY_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(usage, critical=True)
    return builder.sign(key, hashes.SHA256()), key


def make_leaf(
    authority: x509.Certificate, authority_key: ec.EllipticCurvePrivateKey, hosts: Sequence[str], days: int
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
    builder = _builder(name, authority.subject, key.public_key(), days)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    builder = builder.add_extension(identifier, critical=False)
    return builder.sign(authority_key, hashes.SHA256()), key


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def pem_of_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def write(path: Path, octets: bytes, *, secret: bool = False) -> None:
    """Writes under another name first, because a server may read the file at any moment."""
    if secret:
        secret_files.write(str(path), octets)
        return
    temporary = path.with_name(f"{path.name}.new")
    temporary.unlink(missing_ok=True)
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    with open(handle, "wb") as file:
        file.write(octets)
    temporary.rename(path)
