"""Clients of an Iggy server continue on Whippet, after its data folder was imported."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.sdk.support.program import Program, Sdk
from tests.sdk.support.server import Server
from whippet.app.cli.main import main

FOLDERS = Path(__file__).parents[1] / "app/importing/iggy/folders"
GROUP = "shop", "orders", "billing"


@pytest.mark.parametrize("name", ["server-0.8.0-stopped", "server-0.9.0-edge.5-stopped"])
def test_clients_find_their_messages_users_and_offsets(
    name: str,
    newest: Sdk,
    start: Callable[..., Program],
    own_server: Callable[..., Server],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record = json.loads((FOLDERS / f"{name}.json").read_text())
    with tarfile.open(FOLDERS / f"{name}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    monkeypatch.setenv("IGGY_ROOT_USERNAME", "iggy")
    monkeypatch.setenv("IGGY_ROOT_PASSWORD", record["passwords"]["iggy"])
    assert main(["import", "iggy", str(tmp_path / "local_data"), "--to", str(tmp_path / "server/data")]) == 0
    monkeypatch.undo()
    described = {
        (stream["name"], topic["name"], int(partition)): seen
        for stream in record["streams"]
        for topic in stream["topics"]
        for partition, seen in topic["partitions"].items()
    }
    remaining = [offset for number in range(3) for offset in after_commit(record, described, number)]
    program = start(
        newest,
        "imported",
        address=own_server().address,
        logins=[*record["passwords"].items(), ("alice", "not her password")],
        credentials=f"iggy:{record['passwords']['iggy']}",
        partitions=list(described),
        group=[*GROUP, len(remaining)],
    )
    program.end()
    refused = {finding["login"]: finding["refusal"] for finding in program.said[:4]}
    # Bob is inactive; the fifth login has a wrong password.
    assert [login for login, refusal in refused.items() if refusal is not None] == ["bob"]
    assert program.said[4]["refusal"] is not None
    summaries = {tuple(finding["place"]): finding["summary"] for finding in program.said if "place" in finding}
    assert summaries == {
        place: {key: value for key, value in seen.items() if key != "with_headers"} for place, seen in described.items()
    }
    assert program.all("consumed") == [sorted(remaining)]


def after_commit(
    record: dict[str, object], described: dict[tuple[str, str, int], dict[str, int]], number: int
) -> range:
    """The offsets in a partition that the group has not consumed."""
    offsets = record["group_offsets of shop/orders"]
    assert isinstance(offsets, dict)
    seen = described["shop", "orders", number]
    return range(max(offsets["billing"][str(number)] + 1, seen["first_offset"]), seen["last_offset"] + 1)
