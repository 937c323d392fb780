"""Exchanges recorded from clients in other languages: this server still says byte for byte what it said to them then.

The files were recorded through a proxy between the client and this server. What differs between several replays is left
open. Whoever changes a response on purpose, such as by adding an option to topics, corrects its bytes there.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.sdk.support import recorded
from tests.sdk.support.recorded import ANY, RECORDED, Run
from tests.sdk.support.server import Server

FILES = sorted(RECORDED.iterdir())


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_recorded_requests_are_answered_as_they_were_then(file: Path, own_server: Callable[..., Server]) -> None:
    server = own_server()
    connections = recorded.connections(file.read_text())
    assert connections
    for number, connection in enumerate(connections):
        found = recorded.replayed(connection, server.port)
        expected = [run for run in connection if run.kind != ">"]
        for place, (run, octets) in enumerate(zip(expected, found, strict=True)):
            what = f"connection {number}, response {place}"
            assert len(octets) == len(run.octets), what
            masked = [octet if ours == ANY else ours for ours, octet in zip(run.octets, octets, strict=True)]
            assert bytes(octets) == bytes(masked), what


def test_a_recording_is_read_as_it_was_written() -> None:
    octets = [0, 0, 1, *[0] * 70, ANY, ANY, *[ANY] * 6, 255, 0]
    text = f"# of a client\n\nconnection\n> {recorded.encode([1, 2])}\n< {recorded.encode(octets)}\n"
    assert recorded.connections(text) == [[Run(">", [1, 2]), Run("<", octets)]]
    assert len(text) < 80
