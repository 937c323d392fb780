"""Everything that the newest SDK can do is tried: a call that a later version adds fails here until a test makes it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.sdk.support.program import PROGRAMS, Sdk

OTHER_TRANSPORTS = {
    "HttpConfig",
    "QuicConfig",
    "QuicReconnectionConfig",
    "WebSocketConfig",
    "WebSocketFramingConfig",
    "WebSocketReconnectionConfig",
}
"""This folder is about TCP; the other transports are tested elsewhere."""
ONLY_RECEIVED = {
    "CacheMetrics",
    "CacheMetricsKey",
    "ConsumerGroup",
    "ConsumerGroupDetails",
    "ConsumerGroupMember",
    "IggyConsumer",
    "IggyProducer",
    "OptionSpec",
    "Partition",
    "ReceiveMessage",
    "ReceiveMessageIterator",
    "SendMessagesConfirmation",
    "SendMessagesResponse",
    "Stats",
    "Stream",
    "StreamDetails",
    "Topic",
    "TopicDetails",
    "UserHeaders",
    "UserInfo",
    "UserInfoDetails",
}
"""A program uses them without naming them; their members are searched for."""


@pytest.fixture(scope="module")
def surface(newest: Sdk) -> dict[str, list[str]]:
    return dict(newest.run("surface")["surface"])


@pytest.fixture(scope="module")
def programs() -> str:
    """Returns the source of the programs, and of the tests that give them their tasks."""
    return "\n".join(file.read_text() for file in PROGRAMS.parent.rglob("*.py") if file.name != Path(__file__).name)


def test_every_class_is_used(surface: dict[str, list[str]], programs: str) -> None:
    used = {name for name in surface if re.search(rf"\b{name}\b", programs)}
    assert surface.keys() - used == OTHER_TRANSPORTS | (ONLY_RECEIVED - used)


def test_every_method_is_called(surface: dict[str, list[str]], programs: str) -> None:
    members = {f"{name}.{member}" for name in surface.keys() - OTHER_TRANSPORTS for member in surface[name]}
    untried = {member for member in members if not re.search(rf"\b{member.split('.')[1]}\b", programs)}
    assert sorted(untried) == []
