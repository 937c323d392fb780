"""Certificates that expire when a test wants it."""

from __future__ import annotations

import datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from whippet.transports.certificates import Pair


def ending_in(days: float) -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([])
    ends_at = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days)
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, ends_at - datetime.timedelta(400), ends_at)
    return Pair(
        made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )
