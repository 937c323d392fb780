"""Helpers for tests of 0.9 clients: users, groups, and a log that has to stay empty."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.transports.support.modern import (
    Modern,
)
from whippet.app.access.permissions import Permissions
from whippet.app.commands import requests as commands


@pytest.fixture(autouse=True)
def nothing_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.WARNING):
        yield
    said = [record.getMessage() for record in caplog.get_records("call")]
    # A socket of an earlier test's client, which is collected only now, may report that it was reset.
    assert [line for line in said if "ConnectionResetError" not in line] == []


async def with_alice(client: Modern, *, permissions: Permissions | None = None) -> commands.LoginUser:
    created = await client.demand(commands.CreateUser("alice", "alicealice", commands.UserStatus.ACTIVE, permissions))
    assert not created.refused
    return commands.LoginUser("alice", "alicealice", "1")
