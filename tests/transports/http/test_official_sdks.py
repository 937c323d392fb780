"""The official SDKs 0.6 to 0.9 over HTTP: typical programs, against a server with default settings."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.app.support.process import DEADLINE_S, Gateway, starting
from tests.sdk.support import environments

PROGRAMS = Path(__file__).parent / "programs"
LOGIN = {"username": "iggy", "password": "iggy"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Gateway]:
    with starting(tmp_path / "data") as start:
        yield start(IGGY_ROOT_USERNAME=LOGIN["username"], IGGY_ROOT_PASSWORD=LOGIN["password"])


def outcome(version: str, program: str, *arguments: str) -> Any:
    command = [str(environments.interpreter(version)), str(PROGRAMS / program), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * DEADLINE_S, check=False)
    lines = done.stdout.splitlines()
    # Sometimes the wheel aborts when the interpreter exits, after everything is done.
    assert lines, done.stderr
    return json.loads(lines[-1])


@pytest.mark.parametrize("version", ["0.6.0", "0.7.0", "0.8.0"])
def test_a_program_of_0_6_to_0_8_can_use_all_of_its_sdk_over_http(server: Gateway, version: str) -> None:
    orders = [[offset, f"order {offset}".encode().hex(), True] for offset in range(3)]
    assert outcome(version, "classic.py", server.address()) == {
        "stream": [0, "orders", 1],
        "topic": [0, "eu", 2],
        "polled": [*orders, [3, "ff00", True]],
        "again": 0,
        "missing": [None, None],
        "refused": True,
    }


def test_a_program_of_0_9_can_use_all_of_its_sdk_over_http(server: Gateway) -> None:
    with httpx.Client(base_url=f"http://{server.address()}", trust_env=False) as client:
        token = client.post("/users/login", json=LOGIN).json()["access_token"]["token"]
        made = client.post(
            "/personal-access-tokens",
            json={"name": "sdk", "expiry": 0},
            headers={"authorization": f"Bearer {token}"},
        )
    found = outcome("0.9.0", "modern.py", server.address(), made.json()["token"])
    options = found.pop("options")
    assert {"durability", "segment_size", "message_expiry"} <= set(options)
    assert found == {
        "topic": [0, "eu", 2, ["consumer_offset_durability", "durability"]],
        "own": {"consumer_offset_durability": "replicated", "durability": "persisted", "segment_size": "1048576"},
        "topics": ["eu", "renamed"],
        "no topics": [],
        "missing": [None, None],
        "unknown option": True,
        "group": [0, "g", 2, 0],
        "groups": 1,
        "streams": ["orders"],
        "server": 1,
        "sent": [[1, 0]],
        "by key": 1,
        "polled": [[0, "first", ["('n', 7)", "('who', 'me')", "(3, 1.5)"]], [1, "second", []]],
        "id": 12345,
        "produced": 1500,
        "user": "bob",
        "users": 2,
        "me": "iggy",
        "gone": None,
        "with a token": 2,
        "with another": "Unauthenticated",
    }
