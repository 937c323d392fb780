"""The log reports who changed what in the catalogue, with the names from before, and no refused changes."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.app.access.support.world import refusal, world
from whippet.app.commands import requests
from whippet.app.errors import Code


async def test_every_change_of_the_catalogue_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with world(tmp_path) as here:
        root = await here.root()
        with caplog.at_level(logging.INFO, logger="whippet.app.commands.registry"):
            await root.execute(requests.CreateStream("s"))
            await root.execute(requests.CreateTopic("s", "t\nforged line", 1))
            await root.execute(requests.UpdateTopic(0, 0, "u"))
            await root.execute(requests.CreatePartitions("s", "u", 2))
            await root.execute(requests.CreateConsumerGroup("s", "u", "g"))
            await root.execute(requests.DeleteConsumerGroup("s", "u", "g"))
            await root.execute(requests.DeleteStream(0))
            assert await refusal(root.execute(requests.DeleteStream(0))) == Code.STREAM_ID_NOT_FOUND
        who = f"{root.session.address}, user 'root': "
        assert [record.getMessage().removeprefix(who) for record in caplog.records] == [
            "create_stream name 's'",
            "create_topic stream 's', name 't\\nforged line'",
            "update_topic stream 's', topic 't\\nforged line', name 'u'",
            "create_partitions stream 's', topic 'u', count 2",
            "create_consumer_group stream 's', topic 'u', name 'g'",
            "delete_consumer_group stream 's', topic 'u', group 'g'",
            "delete_stream stream 's'",
        ]
