"""Self-signed and configured certificates, and their renewal while the server runs."""

from __future__ import annotations

import datetime
import logging
import ssl
import stat
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from tests.transports.support.dated import ending_in
from whippet.app.certificate_expiry import CertificateExpiry
from whippet.app.config import ConfigError
from whippet.app.config.listeners import QuicCertificate, Tls
from whippet.transports import certificates
from whippet.transports.certificates import Pair, Renewals


def test_a_self_signed_certificate_is_reused(tmp_path: Path) -> None:
    first = certificates.kept(str(tmp_path))
    assert certificates.kept(str(tmp_path)) == first
    file = tmp_path / "certificates" / "self-signed.pem"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [each.name for each in file.parent.iterdir()] == [file.name]


def test_a_self_signed_certificate_suits_official_clients(tmp_path: Path) -> None:
    leaf = x509.load_pem_x509_certificate(certificates.kept(str(tmp_path)).certificate)
    key = leaf.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1)
    assert leaf.signature_hash_algorithm is not None and leaf.signature_hash_algorithm.name == "sha256"
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "::1"]
    assert leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False


@pytest.mark.parametrize("broken", [b"", b"nonsense", b"-----BEGIN CERTIFICATE-----\nno\n-----END CERTIFICATE-----\n"])
def test_a_damaged_certificate_is_replaced_and_logged(
    tmp_path: Path, broken: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    certificates.kept(str(tmp_path))
    file = tmp_path / "certificates" / "self-signed.pem"
    file.write_bytes(broken)
    made = certificates.kept(str(tmp_path))
    assert certificates.kept(str(tmp_path)) == made
    assert "pinned" in caplog.text


def test_a_certificate_that_expires_soon_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "VALID_DAYS", certificates.RENEWED_DAYS - 1)
    old = certificates.kept(str(tmp_path))
    monkeypatch.setattr(certificates, "VALID_DAYS", 365)
    new = certificates.kept(str(tmp_path))
    assert new != old
    left = x509.load_pem_x509_certificate(new.certificate).not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    assert left > datetime.timedelta(days=300)


def test_a_certificate_that_others_could_read_is_made_private(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    certificates.kept(str(tmp_path))
    file = tmp_path / "certificates" / "self-signed.pem"
    file.chmod(0o644)
    certificates.kept(str(tmp_path))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "others" in caplog.text


def files(folder: Path, pair: Pair) -> dict[str, Any]:
    (folder / "c.pem").write_bytes(pair.certificate)
    (folder / "k.key").write_bytes(pair.key)
    return {"cert_file": str(folder / "c.pem"), "key_file": str(folder / "k.key")}


def test_quic_uses_the_configured_certificate(tmp_path: Path) -> None:
    pair = certificates.self_signed()
    wanted = QuicCertificate(self_signed=False, **files(tmp_path, pair))
    assert certificates.for_quic(wanted, str(tmp_path)) == pair
    assert certificates.for_quic(QuicCertificate(**files(tmp_path, pair)), str(tmp_path)) != pair


def test_unusable_certificate_files_are_named(tmp_path: Path) -> None:
    pair, other = certificates.self_signed(), certificates.self_signed()
    wanted = QuicCertificate(self_signed=False, **files(tmp_path, Pair(pair.certificate, other.key)))
    with pytest.raises(ConfigError, match="does not belong to the certificate"):
        certificates.for_quic(wanted, str(tmp_path))
    (tmp_path / "c.pem").write_text("nonsense")
    with pytest.raises(ConfigError, match=r"quic\.certificate\.cert_file"):
        certificates.for_quic(wanted, str(tmp_path))
    (tmp_path / "c.pem").unlink()
    with pytest.raises(ConfigError, match=r"c\.pem cannot be read.*self_signed = true"):
        certificates.for_quic(wanted, str(tmp_path))


def test_a_key_that_official_clients_reject_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    key = rsa.generate_private_key(65537, 2048)
    name = x509.Name([])
    now = datetime.datetime.now(datetime.UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + datetime.timedelta(1))
    pair = Pair(
        made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )
    certificates.for_quic(QuicCertificate(self_signed=False, **files(tmp_path, pair)), str(tmp_path))
    assert "P-256" in caplog.text


def test_a_renewed_certificate_is_used_unless_it_is_invalid(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    named = files(tmp_path, certificates.self_signed())
    renewals = Renewals(CertificateExpiry())
    context = renewals.context(Tls(enabled=True, **named), "tcp.tls")
    assert context is not None
    assert renewals.context(Tls(), "http.tls") is None
    seen: list[int] = []

    def read_for_quic() -> bytes:
        seen.append(1)
        return certificates.self_signed().certificate

    renewals.add("quic.certificate", read_for_quic)
    before = served(context)
    files(tmp_path, certificates.self_signed())
    renewals.renew()
    after = served(context)
    assert before != after
    (tmp_path / "c.pem").write_text("nonsense")
    renewals.renew()
    assert served(context) == after
    assert seen == [1, 1, 1]
    assert "stays in use" in caplog.text


def served(context: ssl.SSLContext) -> bytes | None:
    """The certificate that a client receives."""
    client = ssl.create_default_context()
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(down, up, server_hostname="localhost")
    theirs = context.wrap_bio(up, down, server_side=True)
    for side in (ours, theirs, ours, theirs):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    return ours.getpeercert(binary_form=True)


@pytest.mark.parametrize(
    ("days", "said", "level"),
    [(-3, "the certificate expired on ", logging.ERROR), (5, "the certificate expires on ", logging.WARNING)],
)
def test_a_certificate_that_has_expired_or_soon_will_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, days: int, said: str, level: int
) -> None:
    ends = CertificateExpiry()
    renewals = Renewals(ends)
    renewals.context(Tls(enabled=True, **files(tmp_path, ending_in(days))), "tcp.tls")
    (record,) = [record for record in caplog.records if said in record.getMessage()]
    assert record.levelno == level
    (problem,) = ends.problems()
    assert problem.startswith(f"tcp.tls: {said}")
    assert ends.days_left()["tcp.tls"] == pytest.approx(days, abs=0.01)
    files(tmp_path, ending_in(90))
    renewals.renew()
    assert ends.problems() == []
    assert ends.days_left()["tcp.tls"] == pytest.approx(90, abs=0.01)


def test_the_first_expiry_of_a_chain_counts(tmp_path: Path) -> None:
    leaf, above = ending_in(90), ending_in(-1)
    ends = CertificateExpiry()
    chain = Pair(leaf.certificate + above.certificate, leaf.key)
    Renewals(ends).context(Tls(enabled=True, **files(tmp_path, chain)), "tcp.tls")
    assert ends.days_left()["tcp.tls"] == pytest.approx(-1, abs=0.01)
