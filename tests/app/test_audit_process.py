"""The audit log of a server as its users start it: every transport leads into it, and a kill leaves whole lines."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.app.client.support.server import until
from tests.app.commands.support.reading import FIRST, payloads
from tests.app.support.process import Gateway, starting
from whippet.app.commands.requests import Consumer, ConsumerKind
from whippet.client import connect

ROOT = {"IGGY_ROOT_USERNAME": "iggy", "IGGY_ROOT_PASSWORD": "a-long-password"}
SOMEBODY = Consumer(ConsumerKind.CONSUMER, "c")
LOGIN = {"username": "iggy", "password": ROOT["IGGY_ROOT_PASSWORD"]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def gateway(folder: Path) -> Iterator[Gateway]:
    with starting(folder) as start:
        yield start(**ROOT, IGGY_AUDIT_STREAM="audit")


def entries(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "audit" / "audit.log").read_text().splitlines()]


async def test_all_transports_lead_into_the_log_which_survives_a_kill(gateway: Gateway, folder: Path) -> None:
    base = f"http://{gateway.address()}"
    async with httpx.AsyncClient(base_url=base, trust_env=False) as http:
        token = (await http.post("/users/login", json=LOGIN)).json()["access_token"]["token"]
        refused = await http.get("/streams", headers={"authorization": "Bearer not.a.token"})
        assert refused.status_code == httpx.codes.UNAUTHORIZED
        token = (await http.post("/users/refresh-token", json={"token": token})).json()["access_token"]["token"]
        http.headers["authorization"] = f"Bearer {token}"
        assert (await http.post("/streams", json={"name": "over http"})).is_success
        assert (await http.post("/streams", json={"name": "audit"})).status_code == httpx.codes.BAD_REQUEST
        forged = {"partitioning": {"kind": "balanced", "value": ""}, "messages": [{"payload": "Zm9yZ2Vk"}]}
        response = await http.post("/streams/audit/topics/entries/messages", json=forged)
        assert response.status_code == httpx.codes.FORBIDDEN
        assert "server's own" in response.text
        assert (await http.delete("/users/logout")).is_success
    tcp = gateway.line(r"tcp\s+(?:tcp://)?(\S+:\d+)").group(1)
    async with await connect(f"iggy://iggy:{LOGIN['password']}@{tcp}") as client:
        await client.create_stream("over tcp")
        kept: list[dict[str, Any]] = []
        while not kept or kept[-1].get("request", {}).get("name") != "over tcp":
            polled = await client.poll_messages("audit", "entries", SOMEBODY, partition_id=0, strategy=FIRST)
            kept = [json.loads(payload) for payload in payloads(polled)]
    await until(lambda: len(entries(folder)) >= len(kept))
    found = entries(folder)
    assert found[: len(kept)] == kept
    assert [(entry["command"], entry["outcome"], entry.get("transport")) for entry in found] == [
        ("start", "done", None),
        ("login_user", "done", "http"),
        ("authenticate", "unauthenticated", "http"),
        ("refresh_access_token", "done", "http"),
        ("create_stream", "done", "http"),
        ("create_stream", "stream_name_already_exists", "http"),
        ("logout_user", "done", "http"),
        ("login_user", "done", "tcp"),
        ("create_stream", "done", "tcp"),
    ]
    assert [entry["user"] for entry in found if entry["command"] in {"logout_user", "refresh_access_token"}] == 2 * [
        "iggy"
    ]
    gateway.process.send_signal(signal.SIGKILL)
    gateway.end()
    assert entries(folder)[: len(found)] == found
    with starting(folder) as start:
        again = start(IGGY_AUDIT_STREAM="audit")
        again.ping()
        again.signal(signal.SIGTERM)
        assert again.end() == 0
    assert [entry["command"] for entry in entries(folder)[len(found) :]] == ["start", "stop"]


def test_a_folder_that_cannot_be_written_is_reported_and_does_not_stop_the_start(
    gateway: Gateway, folder: Path
) -> None:
    gateway.ping()
    gateway.signal(signal.SIGTERM)
    assert gateway.end() == 0
    for path in (folder / "audit").iterdir():
        path.unlink()
    (folder / "audit").rmdir()
    (folder / "audit").write_text("in the way")
    with starting(folder) as start:
        again = start()
        again.line("the audit log cannot be written: .*audit.*; entries wait")
        assert again.get("/health/ready").json()["problems"] == ["the audit log cannot be written"]
        again.signal(signal.SIGTERM)
        assert again.end() == 0
        again.line("entries of the audit log could not be written and are lost")
