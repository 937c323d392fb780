"""`whippet certs`, and TLS clients that use its certificates."""

from __future__ import annotations

import socket
import ssl
import stat
import threading
from pathlib import Path

import pytest
from cryptography import x509

from whippet.app.cli.main import main


def shake_hands(folder: Path, name: str) -> None:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "server.pem", folder / "server.key")
    ours, theirs = socket.socketpair()

    def serve() -> None:
        try:
            server.wrap_socket(theirs, server_side=True).close()
        except OSError:
            theirs.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        ssl.create_default_context(cafile=folder / "authority.pem").wrap_socket(ours, server_hostname=name).close()
    finally:
        ours.close()
        thread.join()


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
def test_a_client_that_trusts_the_authority_trusts_the_certificate(tmp_path: Path, name: str) -> None:
    assert main(["certs", "--folder", str(tmp_path)]) == 0
    shake_hands(tmp_path, name)


def test_the_certificate_is_for_the_given_hosts(tmp_path: Path) -> None:
    main(["certs", "--folder", str(tmp_path), "gateway.lan", "10.0.0.5"])
    shake_hands(tmp_path, "gateway.lan")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(tmp_path, "localhost")


def test_a_new_certificate_has_the_same_authority(tmp_path: Path) -> None:
    main(["certs", "--folder", str(tmp_path)])
    authority, leaf = (tmp_path / "authority.pem").read_bytes(), (tmp_path / "server.pem").read_bytes()
    main(["certs", "--folder", str(tmp_path)])
    assert (tmp_path / "authority.pem").read_bytes() == authority
    assert (tmp_path / "server.pem").read_bytes() != leaf
    shake_hands(tmp_path, "localhost")


def test_only_their_owner_can_read_the_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["certs", "--folder", str(tmp_path)])
    for key in ("authority.key", "server.key"):
        assert stat.S_IMODE((tmp_path / key).stat().st_mode) == 0o600
    assert "PRIVATE" not in capsys.readouterr().out


def test_the_certificate_is_not_an_authority(tmp_path: Path) -> None:
    main(["certs", "--folder", str(tmp_path)])
    leaf = x509.load_pem_x509_certificate((tmp_path / "server.pem").read_bytes())
    assert leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False


def test_the_output_explains_how_to_use_and_to_trust_the_certificate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["certs", "--folder", str(tmp_path)])
    said = capsys.readouterr().out
    for word in ("IGGY_HTTP_TLS_CERT_FILE", "IGGY_QUIC_CERTIFICATE_CERT_FILE", "--cacert", "update-ca-certificates"):
        assert word in said


def test_an_invalid_number_of_days_is_refused(tmp_path: Path) -> None:
    assert main(["certs", "--folder", str(tmp_path), "--days", "9999"]) == 2
    assert not list(tmp_path.iterdir())
