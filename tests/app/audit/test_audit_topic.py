"""The audit log as a topic of the server itself: it can be read like any other, and only the server writes it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.app.access.support.world import Person, refusal
from tests.app.audit.support.audited import audited_world, until_topic
from tests.app.commands.support.reading import payloads
from tests.storage.support.world import texts
from whippet.app.access.permissions import GlobalPermissions, Permissions
from whippet.app.audit import audit_topic
from whippet.app.commands import direct_sends, requests
from whippet.app.commands.requests import (
    Consumer,
    ConsumerKind,
    Partitioning,
    PartitioningKind,
    Strategy,
    StrategyKind,
)
from whippet.app.config.schema import Audit
from whippet.app.errors import Code
from whippet.storage.errors import DiskFull
from whippet.storage.partition import Partition

STREAM = Audit(stream="audit")
FIRST = Strategy(StrategyKind.FIRST)
SOMEBODY = Consumer(ConsumerKind.CONSUMER, "c")
WHERE = Partitioning(PartitioningKind.PARTITION_ID, 0)
ALMOST_EVERYTHING = Permissions(
    GlobalPermissions(**dict.fromkeys(("manage_streams", "manage_topics", "poll_messages", "send_messages"), True))
)


async def kept(root: Person) -> list[dict[str, Any]]:
    polled = await root.execute(requests.PollMessages(SOMEBODY, "audit", "entries", 0, FIRST, 1000, auto_commit=False))
    return [json.loads(payload) for payload in payloads(polled)]


async def test_the_topic_has_the_entries_of_the_file_and_does_not_record_itself(tmp_path: Path) -> None:
    async with audited_world(tmp_path, STREAM) as log:
        root = await log.here.root()
        await root.execute(requests.CreateStream("s"))
        await until_topic(log)
        found = await kept(root)
        assert [entry["command"] for entry in found] == ["start", "login_user", "create_stream"]
        assert found == await log.all_entries()


async def test_the_topic_continues_after_a_restart(tmp_path: Path) -> None:
    for _ in range(2):
        async with audited_world(tmp_path, STREAM) as log:
            root = await log.here.root()
            await until_topic(log)
            found = await kept(root)
    assert [entry["command"] for entry in found] == ["start", "login_user"] * 2


CHANGES = (
    requests.SendMessages("audit", "entries", WHERE, ()),
    requests.UpdateStream("audit", "renamed"),
    requests.PurgeStream("audit"),
    requests.DeleteStream("audit"),
    requests.PurgeTopic("audit", "entries"),
    requests.DeleteTopic("audit", "entries"),
    requests.DeletePartitions("audit", "entries", 1),
    requests.DeleteSegments("audit", "entries", 0, 1),
)


async def test_nobody_writes_to_it_or_takes_from_it(tmp_path: Path) -> None:
    async with audited_world(tmp_path, STREAM) as log:
        await log.here.user("alice", permissions=ALMOST_EVERYTHING)
        root, alice = await log.here.root(), await log.here.logged_in("alice")
        await until_topic(log)
        for person in (root, alice):
            for request in CHANGES:
                wanted = request
                if isinstance(request, requests.SendMessages):
                    wanted = msgspec.structs.replace(request, batches=(texts("forged"),))
                assert await refusal(person.execute(wanted)) == Code.UNAUTHORIZED, request
            forged = texts("forged")
            stream = log.here.gateway.streams.find("audit")
            assert stream is not None
            for name in ("audit", stream.id):
                assert (
                    direct_sends.begin(log.here.gateway, person.session, name, "entries", WHERE, (forged, None)) is None
                )
        await until_topic(log)
        found = await kept(root)
        assert not [entry for entry in found if "forged" in json.dumps(entry)]
        assert {entry["command"] for entry in found if entry["outcome"] == "unauthorized"} >= {
            "purge_topic",
            "delete_stream",
        }


async def test_only_root_changes_how_long_it_is_kept_which_is_recorded(tmp_path: Path) -> None:
    async with audited_world(tmp_path, STREAM) as log:
        await log.here.user("alice", permissions=ALMOST_EVERYTHING)
        root, alice = await log.here.root(), await log.here.logged_in("alice")
        await until_topic(log)
        shorter = requests.UpdateTopic("audit", "entries", "entries", message_expiry=1)
        assert await refusal(alice.execute(shorter)) == Code.UNAUTHORIZED
        await root.execute(shorter)
        await until_topic(log)
        assert (await kept(root))[-1]["changes"][0]["after"]["message_expiry"] == 1


async def test_entries_wait_while_the_topic_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_topic, "RETRY_S", 0.01)
    async with audited_world(tmp_path, STREAM) as log:
        root = await log.here.root()
        await until_topic(log)
        topic = log.trail._topic
        assert topic is not None

        async def refuse(*_: object) -> None:
            raise DiskFull("no room")

        with monkeypatch.context() as patched:
            patched.setattr(Partition, "append", refuse)
            await root.execute(requests.CreateStream("during"))
            while topic.problem is None:  # noqa: ASYNC110 -- the loop only has to turn
                await asyncio.sleep(0)
            assert log.trail.problem() == "the topic of the audit log cannot be written"
        await until_topic(log)
        assert (await kept(root))[-1]["request"]["name"] == "during"
        assert log.trail.problem() is None


async def test_what_waits_for_the_topic_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with audited_world(tmp_path, STREAM) as log:
        await until_topic(log)
        topic = log.trail._topic
        assert topic is not None
        monkeypatch.setattr(audit_topic, "WAITING_BYTES_MAX", 100)
        for number in range(20):
            topic.add(b'{"n":1%02d}' % number)
        assert topic.lost == 9
        await until_topic(log)
        assert [entry["n"] for entry in (await kept(await log.here.root()))[1:]] == list(range(109, 120))


async def test_a_message_limit_below_an_entry_loses_it_here_and_not_in_the_file(tmp_path: Path) -> None:
    async with audited_world(tmp_path, STREAM, payload_bytes_max=10) as log:
        await log.here.root()
        await until_topic(log)
        assert log.trail.lost == 2
        assert [entry["command"] for entry in await log.all_entries()] == ["start", "login_user"]
