"""A server whose disk is full: every client reports an error that it knows, keeps its connection, and reads."""

from __future__ import annotations

from collections.abc import Callable

from tests.sdk.support.program import Sdk
from tests.sdk.support.server import Server


def test_a_full_disk_is_reported_by_name_and_the_connection_stays_usable(
    sdk: Sdk, own_server: Callable[..., Server]
) -> None:
    server = own_server()
    task = {"stream": "s", "topic": "t"}
    sdk.run("full", address=server.address, create=True, **task)
    server.stop()
    # More than any disk has.
    server.set(IGGY_SYSTEM_DISK_RESERVE="8 EB")
    server.start()
    found = sdk.run("full", address=server.address, create=False, **task)
    for refused in ("sent", "created", "again"):
        assert sdk.error(found[refused]) == "CannotSaveMessagesToSegment"
    assert found["stored"] == ["before"]
