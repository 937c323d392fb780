"""HTTPS: the same API over TLS, and clients that have not finished their handshake."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.transports.http.support.serving import Serving, serving, tls_context
from whippet.app.config import ConfigError
from whippet.app.config.listeners import HttpTls
from whippet.transports import certificates


def client(world: Serving, tmp_path: Path) -> httpx.AsyncClient:
    trusted = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
    return httpx.AsyncClient(
        base_url=f"https://{world.server.address}",
        verify=trusted,
        trust_env=False,
        headers={"authorization": f"Bearer {world.token}"},
    )


async def test_the_api_is_served_over_tls_with_a_certificate_that_verifies(tmp_path: Path) -> None:
    async with serving(tmp_path / "data", tls=tls_context(tmp_path)) as world, client(world, tmp_path) as secure:
        created: Any = await secure.post("/streams", json={"name": "s"})
        assert created.json()["name"] == "s"
        long = await secure.post("/streams", content=b" " * 3_000_000, headers={"content-type": "application/json"})
        assert long.status_code == 413
        assert (await secure.get("/ping")).text == "pong"


async def test_connections_in_their_handshake_count_and_time_out(tmp_path: Path) -> None:
    limits: dict[str, Any] = {"first_byte_time": 0.2, "connections": 2}
    async with serving(tmp_path / "data", tls=tls_context(tmp_path), **limits) as world:
        silent = [await world.link() for _ in range(2)]
        plain = await world.link()
        assert await plain.is_over(), "there is no room for a third one"
        for link in silent:
            assert await link.is_over()
        async with client(world, tmp_path) as secure:
            assert (await secure.get("/ping")).text == "pong"
        speaks_plainly = await world.link()
        await speaks_plainly.send(b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"pong" not in await asyncio.wait_for(speaks_plainly.rest(), 5)


def test_no_certificate_is_generated_for_http(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"http\.tls: .*missing\.pem is missing; create it$"):
        certificates.context(HttpTls(enabled=True, cert_file=str(tmp_path / "missing.pem")), "http.tls")
