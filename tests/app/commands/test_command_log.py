"""A line about every command at the level debug, also about those that take shorter ways otherwise."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.app.access.support.world import refusal, world
from tests.storage.support.world import texts
from whippet.app.commands import command_log, direct_sends, requests
from whippet.app.commands.requests import Partitioning, PartitioningKind

WHERE = Partitioning(PartitioningKind.PARTITION_ID, 0)


async def test_every_command_has_a_line_with_its_fields(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger=command_log.__name__)
    async with world(tmp_path) as here:
        root = await here.root()
        root.session.request_id = "mine"
        await root.execute(requests.CreateStream("s"))
        await root.execute(requests.CreateTopic("s", "t", 1))
        await direct_sends.send(here.gateway, root.session, requests.SendMessages("s", "t", WHERE, (texts("a"),)))
        await refusal(here.person().execute(requests.GetStreams()))
        fields = [record.__dict__["fields"] for record in caplog.records if record.name == command_log.__name__]
        assert [(each["command"], each["user"], each["outcome"]) for each in fields] == [
            ("login_user", "root", "done"),
            ("create_stream", "root", "done"),
            ("create_topic", "root", "done"),
            ("send_messages", "root", "done"),
            ("get_streams", None, "unauthenticated"),
        ]
        assert {each["transport"] for each in fields} == {"tcp"}
        assert fields[1]["address"] == root.session.address
        assert fields[1]["request_id"] == "mine"
        assert len({each["request_id"] for each in fields}) == 3
        assert all(each["duration_ms"] > 0 for each in fields)


async def test_otherwise_sends_take_the_shorter_way_and_nothing_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger=command_log.__name__)
    async with world(tmp_path) as here:
        root = await here.root()
        await root.execute(requests.CreateStream("s"))
        await root.execute(requests.CreateTopic("s", "t", 1))
        content = texts("a"), None
        assert direct_sends.begin(here.gateway, root.session, "s", "t", WHERE, content) is not None
        assert not [record for record in caplog.records if record.name == command_log.__name__]
