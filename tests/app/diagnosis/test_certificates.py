"""What `whippet doctor` says about the certificates of the listeners."""

from __future__ import annotations

import datetime
import os
from pathlib import Path

import msgspec
import pytest

from whippet.app.cli.main import main
from whippet.app.config import Config
from whippet.app.config.formats import Address
from whippet.app.config.listeners import HttpTls, Tls
from whippet.app.diagnosis.certificates import findings
from whippet.app.diagnosis.finding import Finding, Status


@pytest.fixture
def folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["certs", "broker.example", "--folder", str(tmp_path), "--days", "100"]) == 0
    capsys.readouterr()
    return tmp_path


def with_https(cert: Path, key: Path, host: str = "broker.example") -> Config:
    config = Config()
    tls = HttpTls(enabled=True, cert_file=str(cert), key_file=str(key))
    http = msgspec.structs.replace(config.http, tls=tls, address=Address(host, 3000))
    quic = msgspec.structs.replace(config.quic, enabled=False)
    return msgspec.structs.replace(config, http=http, quic=quic)


def about(config: Config, in_days: int = 0) -> list[Finding]:
    return list(findings(config, datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=in_days)))


def test_a_certificate_that_is_valid_and_fits_is_ok(folder: Path) -> None:
    (found,) = about(with_https(folder / "server.pem", folder / "server.key"))
    assert (found.status, found.advice) == (Status.OK, "")
    assert "for broker.example is valid until" in found.found


@pytest.mark.parametrize(
    ("days", "status", "text"),
    [(-2, Status.FAIL, "not valid before"), (90, Status.WARN, "in 9 days"), (101, Status.FAIL, "expired on")],
)
def test_its_expiry_is_reported(days: int, status: Status, text: str, folder: Path) -> None:
    (found,) = about(with_https(folder / "server.pem", folder / "server.key"), days)
    assert (found.status, text in found.found) == (status, True)


def test_a_key_that_does_not_match_fails(folder: Path) -> None:
    (found,) = about(with_https(folder / "server.pem", folder / "authority.key"))
    assert (found.status, "is not the key of" in found.found) == (Status.FAIL, True)


def test_a_key_that_everybody_can_read_is_reported(folder: Path) -> None:
    os.chmod(folder / "server.key", 0o644)
    warned, _ = about(with_https(folder / "server.pem", folder / "server.key"))
    assert (warned.status, warned.advice) == (Status.WARN, f"chmod 600 {folder / 'server.key'}")


def test_files_that_are_missing_or_garbled_fail(folder: Path) -> None:
    (missing,) = about(with_https(folder / "no.pem", folder / "server.key"))
    (folder / "server.pem").write_text("nothing")
    (garbled,) = about(with_https(folder / "server.pem", folder / "server.key"))
    assert [missing.status, garbled.status] == [Status.FAIL, Status.FAIL]
    assert "no.pem is missing" in missing.found


@pytest.mark.parametrize(("host", "fits"), [("10.1.2.3", False), ("0.0.0.0", True), ("other.example", False)])
def test_an_address_that_the_certificate_does_not_name_is_reported(host: str, fits: bool, folder: Path) -> None:
    every = about(with_https(folder / "server.pem", folder / "server.key", host))
    assert [each.status for each in every] == ([Status.OK] if fits else [Status.WARN, Status.OK])


def test_certificates_in_the_wrong_order_are_reported(folder: Path) -> None:
    authority, server = (folder / name for name in ("authority.pem", "server.pem"))
    server.write_bytes(server.read_bytes() * 2 + authority.read_bytes())
    assert [each.status for each in about(with_https(server, folder / "server.key"))] == [Status.WARN, Status.OK]


def test_what_the_server_makes_itself_needs_no_files() -> None:
    config = Config()
    tcp = msgspec.structs.replace(config.tcp, tls=Tls(enabled=True, cert_file="no", key_file="no"))
    made = about(msgspec.structs.replace(config, tcp=tcp))
    assert [(each.status, "makes its own" in each.found) for each in made] == [(Status.OK, True)] * 2
