"""Health checks: of a running server, while the store is being opened, and while the server stops."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import httpx
import pytest

from tests.app.support.process import DEADLINE_S, Start, starting
from tests.transports.http.support.calling import calling
from tests.transports.support.dated import ending_in
from whippet.app.readiness import Readiness, Stage
from whippet.storage.opening_progress import Progress
from whippet.transports.http.serving.startup import startup_application

SLOW_OPENING = """
import asyncio, sys
from whippet.storage.opening_progress import Progress
from whippet.storage.store import Store
from whippet.transports.http.serving import server

open_store, listen = Store.open, server.start

async def slow(options, progress, **others):
    progress(Progress(2, 5))
    print("opening", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    return await open_store(options, progress, **others)

async def said(*given, **named):
    started = await listen(*given, **named)
    print(f"early at {started.address}", flush=True)
    return started

Store.open, server.start = slow, said
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with starting(tmp_path / "data") as start_one:
        yield start_one


async def test_a_running_server_is_live_and_ready_without_a_token(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        assert await world.stranger.get("/health/live") == {"status": "live"}
        ready = await world.stranger.get("/health/ready")
        assert (ready["status"], ready["recovery"]) == ("ready", None)
        assert ready["seconds"] >= 0
        assert (await world.stranger.ask("HEAD", "/health/ready")).status_code == 200


@pytest.mark.parametrize("stage", [Stage.RECOVERING, Stage.STARTING, Stage.STOPPING])
async def test_a_server_that_is_not_ready_returns_an_error_with_its_progress(tmp_path: Path, stage: Stage) -> None:
    async with calling(tmp_path) as world:
        world.gateway.readiness.enter(stage)
        world.gateway.readiness.recovery = Progress(3, 40)
        response = await world.stranger.ask("GET", "/health/ready")
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")
        body = response.json()
        assert (body["id"], body["code"], body["field"]) == (503, "not_ready", None)
        assert (body["status"], body["recovery"]) == (stage.value, {"opened": 3, "total": 40})
        assert stage.value in body["reason"]
        assert (await world.stranger.ask("GET", "/health/live")).status_code == 200


async def test_during_startup_everything_but_the_health_checks_is_503() -> None:
    readiness = Readiness()
    transport = httpx.ASGITransport(startup_application(readiness))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        assert (await client.get("/health/live")).json() == {"status": "live"}
        assert (await client.get("/health/ready")).json()["recovery"] is None
        readiness.recovery = Progress(1, 2)
        for method, path in (("GET", "/ping"), ("POST", "/users/login"), ("POST", "/health/live"), ("GET", "/x")):
            response = await client.request(method, path)
            assert (response.status_code, response.headers["retry-after"]) == (503, "1")
            body = response.json()
            assert list(body) == ["id", "code", "reason", "field"]
            assert body["code"] == "not_ready"
            assert "opened 1 of 2 partitions" in body["reason"]


def test_a_process_reports_its_health_during_recovery_and_serves_after_the_banner(start: Start) -> None:
    process = start(SLOW_OPENING)
    early = process.line(r"early at (\S+)").group(1)
    process.line("opening")
    with httpx.Client(trust_env=False, timeout=DEADLINE_S, base_url=f"http://{early}") as client:
        assert client.get("/health/live").status_code == 200
        ready = client.get("/health/ready")
        assert ready.status_code == HTTPStatus.SERVICE_UNAVAILABLE
        assert ready.json()["recovery"] == {"opened": 2, "total": 5}
        assert client.get("/ping").status_code == HTTPStatus.SERVICE_UNAVAILABLE
        assert not [line for line in process.out if "http://" in line], "the banner is for when everything is up"
        assert process.process.stdin is not None
        process.process.stdin.write("\n")
        process.process.stdin.flush()
        assert process.address() == early
        assert client.get("/ping").text == "pong"
        ready = client.get("/health/ready")
        assert (ready.status_code, ready.json()["status"]) == (200, "ready")
        assert json.loads(ready.content)["recovery"] == {"opened": 0, "total": 0}


async def test_an_expired_certificate_is_reported_as_a_problem_of_a_ready_server(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        assert (await world.stranger.get("/health/ready"))["problems"] == []
        world.gateway.readiness.certificates.record("http.tls", 1_700_000_000)
        ready = await world.stranger.get("/health/ready")
        assert ready["status"] == "ready"
        assert ready["problems"] == [
            "http.tls: the certificate expired on 2023-11-14 22:13 UTC; clients that check it refuse to connect"
        ]
        returned = (await world.stranger.ask("GET", "/metrics")).text
        days = re.search(r'^whippet_certificate_days_left\{section="http.tls"\} (-[\d.]+)$', returned, re.MULTILINE)
        assert days is not None
        assert float(days[1]) < -700


def test_an_expired_certificate_is_logged_at_the_start_and_does_not_prevent_it(start: Start, tmp_path: Path) -> None:
    pair = ending_in(-3)
    (tmp_path / "c.pem").write_bytes(pair.certificate)
    (tmp_path / "k.pem").write_bytes(pair.key)
    names = {"CERT_FILE": str(tmp_path / "c.pem"), "KEY_FILE": str(tmp_path / "k.pem"), "SELF_SIGNED": "false"}
    gateway = start(**{f"IGGY_QUIC_CERTIFICATE_{name}": value for name, value in names.items()})
    gateway.line(r"ERROR .* quic\.certificate: the certificate expired on ")
    (problem,) = gateway.get("/health/ready").json()["problems"]
    assert problem.startswith("quic.certificate: the certificate expired on ")
