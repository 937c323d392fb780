"""The log of a server without a terminal: lines of JSON, from which a request can be found by its id."""

from __future__ import annotations

import json
from pathlib import Path

import httpx

from tests.app.support.process import starting

ROOT = {"IGGY_ROOT_USERNAME": "iggy", "IGGY_ROOT_PASSWORD": "a-long-password"}
LOGIN = {"username": "iggy", "password": ROOT["IGGY_ROOT_PASSWORD"]}


def test_a_request_is_found_in_the_log_by_its_id_and_secrets_are_not(tmp_path: Path) -> None:
    with starting(tmp_path / "data") as start:
        gateway = start(**ROOT, IGGY_SYSTEM_LOGGING_FORMAT="json", IGGY_SYSTEM_LOGGING_LEVEL="debug")
        with httpx.Client(base_url=f"http://{gateway.address()}", trust_env=False) as http:
            token = http.post("/users/login", json=LOGIN).json()["access_token"]["token"]
            http.headers["authorization"] = f"Bearer {token}"
            assert http.get("/streams/none", headers={"x-request-id": "my-request"}).status_code == 404
            assert http.get("/streams", headers={"x-request-id": "not\tmine"}).is_success
        gateway.line('"command": "get_streams"')
        found = [json.loads(line) for line in gateway.err]
        assert all(not {"time", "level", "logger", "message"} - each.keys() for each in found)
        by_command = {each["command"]: each for each in found if "command" in each}
        mine = by_command["get_stream"]
        assert (mine["request_id"], mine["user"], mine["transport"]) == ("my-request", "iggy", "http")
        assert by_command["get_streams"]["request_id"] != "not\tmine"
        assert token not in str(gateway)
        assert LOGIN["password"] not in str(gateway)
