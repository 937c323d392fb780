"""Defects of the reference server that Whippet does not copy; the numbers are those of their list."""

from __future__ import annotations

import io
import logging
import zipfile
from pathlib import Path

import pytest

from tests.app.access.support.world import SECOND, everywhere, make_group, refusal, world
from tests.storage.support.world import texts
from whippet.app.access.permissions import ALL
from whippet.app.commands import requests
from whippet.app.errors import Code, CommandError
from whippet.app.model.topic_options import UNLIMITED


async def test_1_a_changed_topic_keeps_the_limits_of_the_server(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        root = await made.root()
        await make_group(root)
        await root.execute(requests.UpdateTopic("s", "t", "t"))
        info = (await root.execute(requests.GetTopic("s", "t"))).info
        assert (info.max_topic_size, info.message_expiry, info.replication_factor) == (UNLIMITED, UNLIMITED, 1)


async def test_8_a_send_by_key_is_refused_without_partitions(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        root = await made.root()
        await root.execute(requests.CreateStream("s"))
        await root.execute(requests.CreateTopic("s", "t", 0))
        for to in (
            requests.Partitioning(requests.PartitioningKind.MESSAGES_KEY, key=b"k"),
            requests.Partitioning(requests.PartitioningKind.BALANCED),
        ):
            sent = requests.SendMessages("s", "t", to, (texts("a"),))
            assert await refusal(root.execute(sent)) == Code.TOPIC_ID_NOT_FOUND


async def test_12_the_refusal_of_a_token_does_not_contain_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        async with world(tmp_path) as made:
            await made.user("alice")
            alice = await made.logged_in("alice")
            short = (await alice.execute(requests.CreatePersonalAccessToken("short", SECOND))).token
            kept = (await alice.execute(requests.CreatePersonalAccessToken("kept", 0))).token
            made.clock.now += SECOND
            await made.gateway.users.update("alice", None, requests.UserStatus.INACTIVE)
            for text in (short, kept, kept[:-1], kept + "x", "guessed"):
                with pytest.raises(CommandError) as caught:
                    await made.person().execute(requests.LoginWithPersonalAccessToken(text))
                assert text not in f"{caught.value} {caught.value!r} {caught.value.args}"
                assert text not in repr(requests.LoginWithPersonalAccessToken(text))
                assert text not in caplog.text


async def test_16_an_inactive_user_is_refused_from_the_next_request_on(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await made.user("alice", permissions=ALL)
        alice, root = await made.logged_in("alice"), await made.root()
        await alice.execute(requests.GetUsers())
        await root.execute(requests.UpdateUser("alice", None, requests.UserStatus.INACTIVE))
        assert await refusal(alice.execute(requests.GetUsers())) == Code.UNAUTHENTICATED
        assert await refusal(alice.log_in("alice", "alicealice")) == Code.USER_INACTIVE
        assert alice.ended


async def test_17_a_snapshot_has_each_part_once_and_is_created_on_one_thread(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as made:
        await made.user("alice", permissions=everywhere(read_servers=True))
        alice = await made.logged_in("alice")
        for part in (1, 4):
            taken = await alice.execute(requests.GetSnapshot(2, (part,) * 255))
            assert len(zipfile.ZipFile(io.BytesIO(taken.content)).namelist()) == 1
        everything = await alice.execute(requests.GetSnapshot(5, (100,)))
        assert len(zipfile.ZipFile(io.BytesIO(everything.content)).namelist()) == 5
        assert made.gateway.snapshot_pool._max_workers == 1
        made.gateway.snapshot_pool.shutdown()
