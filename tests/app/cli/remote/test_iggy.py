"""The commands that Iggy's command line has as well: what they do with an Iggy server 0.8.0, from a recording.

The same commands are then given to a server of ours: the exit codes, the output and the errors are the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.app.cli.remote.support import exchanges
from tests.app.cli.remote.support.commands import Whippet
from tests.app.cli.remote.support.exchanges import Recorded
from tests.app.support.process import starting
from whippet.app.cli import docs
from whippet.app.cli.main import SUBCOMMANDS

RECORDED = exchanges.recorded()

OTHER_OUTCOMES = {
    "stream get none": "it is reported as a success",
    "topic list none": "the list is empty",
    "topic get shop none": "it is reported as a success",
    "consumer-offset get nobody shop europe 0": "it is reported as a success",
    "consumer-offset get -k consumer-group billing shop europe 0": "it is reported as a success",
    "consumer-group get shop europe none": "it is reported as a success",
    "user get none": "it is reported as a success",
    "client get 12345": "it is reported as a success",
    "segment delete shop europe 0 1": "it crashes",
    "consumer-offset set -k consumer-group billing shop europe 0 1": "it does not join the group, and is refused",
}
"""What Iggy's command line does otherwise, with either server."""

VOLATILE = {"round_trip", "file", "created_at", "timestamp", "expires_at", "token", "address"}
"""What is different each time."""
COUNTED_LATER = "segments_count"
"""An Iggy server returns 0 for a topic that it has just created, and 1 when it is asked again."""
OWN = {
    "stats": "the server and its machine",
    "me": "the number of the connection",
    "client list": "the number of the connection",
    "cluster metadata": "the ports",
    "snapshot -s test": "the texts in it",
}
"""Output that is different for another server."""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exchanges.prepare(tmp_path)
    monkeypatch.setenv("WHIPPET_USERNAME", exchanges.USER)
    monkeypatch.setenv("WHIPPET_PASSWORD", exchanges.PASSWORD)


@pytest.mark.parametrize("entry", RECORDED, ids=lambda entry: " ".join(entry.words))
def test_a_command_does_with_an_iggy_server_what_it_did_when_it_was_recorded(
    entry: Recorded, files: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with exchanges.playing(entry.connections) as server:
        monkeypatch.setenv("WHIPPET_SERVER", f"iggy://{server.address}")
        ran = Whippet(capsys)(*entry.words, "--output", "json", code=entry.code)
    assert server.problems == []
    assert steady(ran.json if ran.out else None, {"round_trip", "file"}) == steady(entry.output, {"round_trip", "file"})
    assert ran.err == entry.error


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with starting(tmp_path_factory.mktemp("ours") / "data") as start:
        gateway = start(IGGY_ROOT_USERNAME=exchanges.USER, IGGY_ROOT_PASSWORD=exchanges.PASSWORD)
        yield gateway.line(r"tcp://(\S+)").group(1)


def test_the_outcomes_are_the_same_with_our_server(
    ours: str, files: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WHIPPET_SERVER", f"iggy://{ours}")
    whippet = Whippet(capsys)
    for entry in RECORDED:
        ran = whippet(*entry.words, "--output", "json", code=entry.code)
        assert ran.err == entry.error, entry.words
        if " ".join(entry.words) not in OWN:
            volatile = VOLATILE | {COUNTED_LATER} if entry.words[:2] == ["topic", "create"] else VOLATILE
            assert steady(ran.json if ran.out else None, volatile) == steady(entry.output, volatile), entry.words


def steady(output: Any, volatile: set[str] = VOLATILE) -> Any:
    """Leaves out what is different each time. A message has a random id, which is a text."""
    if isinstance(output, list):
        return [steady(each, volatile) for each in output]
    if isinstance(output, dict):
        return {
            name: steady(value, volatile)
            for name, value in output.items()
            if name not in volatile and not (name == "id" and isinstance(value, str) and "timestamp" in volatile)
        }
    return output


def test_the_outcomes_are_those_of_the_command_line_of_iggy() -> None:
    differ = {entry.iggy for entry in RECORDED if bool(entry.iggy_code) is not bool(entry.code)}
    assert differ == OTHER_OUTCOMES.keys()


def test_the_page_lists_what_is_recorded() -> None:
    ours = {subcommand.words for subcommand in SUBCOMMANDS}
    recorded = {tuple(entry.words[: 2 if tuple(entry.words[:2]) in ours else 1]) for entry in RECORDED}
    assert recorded <= ours
    assert {" ".join(words) for words in recorded} == set(docs.OF_IGGY)
