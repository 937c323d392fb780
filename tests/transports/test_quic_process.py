"""QUIC on a server process as users start it: the address that it reports, and certificates while it runs."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
import struct
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop
from aioquic.asyncio.client import connect
from aioquic.quic.configuration import QuicConfiguration
from cryptography.hazmat.primitives.serialization import Encoding

from tests.app.access.support.world import ROOT
from tests.app.support.process import Gateway, Start, starting
from tests.transports.support.quic import Client
from tests.transports.support.raw import LOG_IN, frame
from whippet.transports import certificates

GET_CLUSTER_METADATA = 12


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with starting(tmp_path / "data") as start_one:
        yield start_one


def port_of(gateway: Gateway) -> int:
    return int(gateway.line(r"quic://127\.0\.0\.1:(\d+)").group(1))


def with_client(port: int, use: Callable[[Client], Coroutine[Any, Any, Any]]) -> Any:
    async def main() -> Any:
        configuration = QuicConfiguration(verify_mode=ssl.CERT_NONE, server_name="localhost")
        async with connect("127.0.0.1", port, configuration=configuration, create_protocol=Client) as client:
            assert isinstance(client, Client)
            return await use(client)

    return uvloop.run(asyncio.wait_for(main(), 20))


async def certificate(client: Client) -> bytes:
    assert await client.is_alive()
    found = client.quic.tls._peer_certificate
    assert found is not None
    return found.public_bytes(Encoding.DER)


async def cluster_port(client: Client) -> bytes:
    assert (await client.ask(LOG_IN))[0] == 0
    status, metadata = await client.ask(frame(GET_CLUSTER_METADATA))
    assert status == 0
    return metadata


def test_the_banner_and_the_cluster_name_the_quic_address(start: Start) -> None:
    gateway = start(**ROOT)
    port = port_of(gateway)
    assert struct.pack("<H", port) in with_client(port, cluster_port)
    gateway.signal(signal.SIGTERM)
    assert gateway.end() == 0


def test_a_self_signed_certificate_survives_a_restart(start: Start) -> None:
    first = start(**ROOT)
    before = with_client(port_of(first), certificate)
    first.signal(signal.SIGTERM)
    assert first.end() == 0
    second = start(**ROOT)
    assert with_client(port_of(second), certificate) == before
    second.signal(signal.SIGTERM)
    assert second.end() == 0


def test_sighup_reloads_certificates_and_closes_no_connection(start: Start, tmp_path: Path) -> None:
    def put() -> None:
        pair = certificates.self_signed()
        (tmp_path / "c.pem").write_bytes(pair.certificate)
        (tmp_path / "k.key").write_bytes(pair.key)

    put()
    gateway = start(
        **ROOT,
        IGGY_QUIC_CERTIFICATE_SELF_SIGNED="false",
        IGGY_QUIC_CERTIFICATE_CERT_FILE=str(tmp_path / "c.pem"),
        IGGY_QUIC_CERTIFICATE_KEY_FILE=str(tmp_path / "k.key"),
    )
    port = port_of(gateway)
    before = with_client(port, certificate)
    put()
    gateway.signal(signal.SIGHUP)
    gateway.line(r"quic\.certificate: read the certificate again")
    after = with_client(port, certificate)
    assert after != before
    (tmp_path / "c.pem").write_text("nonsense")
    gateway.signal(signal.SIGHUP)
    gateway.line(r"the previous certificate stays in use")
    assert with_client(port, certificate) == after
    gateway.signal(signal.SIGTERM)
    assert gateway.end() == 0


def test_missing_certificate_files_refuse_the_start(start: Start, tmp_path: Path) -> None:
    gateway = start(**ROOT, IGGY_QUIC_CERTIFICATE_SELF_SIGNED="false", IGGY_QUIC_CERTIFICATE_CERT_FILE="no.pem")
    assert gateway.end() == 2
    assert "quic.certificate: no.pem cannot be read" in gateway.refusal()


def test_an_address_in_use_refuses_the_start(start: Start) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        gateway = start(**ROOT, IGGY_QUIC_ADDRESS=address)
        assert gateway.end() == 1
        assert f"cannot listen on {address} (quic.address)" in gateway.refusal()
