"""The chores of the gateway: retention, eviction of silent clients, expiry of tokens, reassignment."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from tests.app.access.support.world import SECOND, Person, make_group, world
from whippet.app import housekeeping
from whippet.app.certificate_expiry import CertificateExpiry
from whippet.app.commands import requests
from whippet.app.commands.requests import Consumer, ConsumerKind, Partitioning, PartitioningKind
from whippet.app.errors import Code, CommandError
from whippet.app.model.options import from_text
from whippet.app.model.topic_options import UNLIMITED
from whippet.app.telemetry import metrics
from whippet.storage.batch import Message, build

ME = Consumer(ConsumerKind.CONSUMER, 1)


async def make_topic(person: Person, **settings: Any) -> None:
    await person.execute(requests.CreateStream("s"))
    await person.execute(requests.CreateTopic("s", "t", 1, **settings))


async def send(person: Person, count: int) -> None:
    to = Partitioning(PartitioningKind.PARTITION_ID, 0)
    for _ in range(count):
        await person.execute(requests.SendMessages("s", "t", to, (build([Message(bytes(700))], 1, os.urandom),)))


async def segments(person: Person) -> tuple[int, int]:
    """As topic details and statistics report them."""
    topic = await person.execute(requests.GetTopic("s", "t"))
    stats = await person.execute(requests.GetStats())
    return topic.partitions[0].segments_count, stats.segments_count


async def test_expired_segments_are_deleted_and_the_sizes_follow(tmp_path: Path) -> None:
    async with world(tmp_path, segment_bytes=1024) as here:
        root = await here.root()
        await make_topic(root, message_expiry=10 * SECOND)
        await send(root, 6)
        assert await segments(root) == (4, 4)
        here.clock.now += 9 * SECOND
        await housekeeping.apply_retention(here.gateway)
        assert await segments(root) == (4, 4)
        here.clock.now += 2 * SECOND
        await housekeeping.apply_retention(here.gateway)
        assert await segments(root) == (1, 1)
        assert (await root.execute(requests.GetStats())).messages_count == 0


async def test_changed_limits_of_a_topic_apply_from_the_next_round_on(tmp_path: Path) -> None:
    async with world(tmp_path, segment_bytes=1024) as here:
        root = await here.root()
        await make_topic(root)
        await send(root, 20)
        here.clock.now += 10 * SECOND
        await housekeeping.apply_retention(here.gateway)
        assert await segments(root) == (11, 11)
        await root.execute(requests.UpdateTopic("s", "t", "t", max_topic_size=10_000))
        await housekeeping.apply_retention(here.gateway)
        assert await segments(root) == (5, 5)
        await root.execute(requests.UpdateTopic("s", "t", "t", options=(from_text("message_expiry", "20 s"),)))
        await housekeeping.apply_retention(here.gateway)
        assert await segments(root) == (5, 5)
        await root.execute(requests.UpdateTopic("s", "t", "t", message_expiry=5 * SECOND))
        await housekeeping.apply_retention(here.gateway)
        assert await segments(root) == (1, 1)


async def test_a_segment_with_uncommitted_messages_is_kept(tmp_path: Path) -> None:
    async with world(tmp_path, segment_bytes=1024, respects_consumers="all") as here:
        root = await here.root()
        await make_topic(root, message_expiry=SECOND)
        await send(root, 6)
        await root.execute(requests.StoreConsumerOffset(ME, "s", "t", 0, 2))
        here.clock.now += 5 * SECOND
        await housekeeping.apply_retention(here.gateway)
        assert await segments(root) == (3, 3)
        await root.execute(requests.StoreConsumerOffset(ME, "s", "t", 0, 3))
        await housekeeping.apply_retention(here.gateway)
        assert await segments(root) == (2, 2)


async def test_who_holds_back_retention_is_visible(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with world(tmp_path, segment_bytes=1024) as here:
        root = await here.root()
        await make_topic(root, message_expiry=SECOND)
        await root.execute(requests.CreateConsumerGroup("s", "t", "billing"))
        await root.execute(requests.JoinConsumerGroup("s", "t", "billing"))
        await send(root, 6)
        billing = Consumer(ConsumerKind.GROUP, "billing")
        await root.execute(requests.StoreConsumerOffset(billing, "s", "t", 0, 1))
        here.clock.now += 5 * SECOND
        caplog.clear()
        for _ in range(2):
            await housekeeping.apply_retention(here.gateway)
            held = (await root.execute(requests.GetTopic("s", "t"))).partitions[0].held_back
            assert (held.consumer_kind, held.consumer, held.offset, held.segments) == ("group", "billing", 1, 2)
        said = [record.getMessage() for record in caplog.records if "group 'billing'" in record.getMessage()]
        assert said == [
            f"retention: s/t, partition 0: 2 segments ({held.bytes} bytes) stay, because group 'billing' has read only "
            "up to offset 1 (retention.respects_consumers = groups)"
        ]
        (series,) = [each for each in metrics._readers(here.gateway) if each.name == "whippet_retention_held_bytes"]
        assert series.values == [(("s", "t", "0", "group", "billing"), held.bytes)]
        (stream,) = (await here.gateway.rates._sample({}, {}, 1.0)).streams
        assert stream.topics[0].held_back == [f"group billing has not read {held.bytes} bytes that have expired"]
        await root.execute(requests.StoreConsumerOffset(billing, "s", "t", 0, 5))
        await housekeeping.apply_retention(here.gateway)
        assert (await root.execute(requests.GetTopic("s", "t"))).partitions[0].held_back is None


async def test_a_topic_without_limits_holds_nothing_back(tmp_path: Path) -> None:
    async with world(tmp_path, segment_bytes=1024, respects_consumers="all") as here:
        root = await here.root()
        await make_topic(root, message_expiry=SECOND)
        await send(root, 6)
        await root.execute(requests.StoreConsumerOffset(ME, "s", "t", 0, 0))
        here.clock.now += 5 * SECOND
        await housekeeping.apply_retention(here.gateway)
        held = (await root.execute(requests.GetTopic("s", "t"))).partitions[0].held_back
        assert (held.consumer_kind, held.consumer, held.offset) == ("consumer", "1", 0)
        await root.execute(requests.UpdateTopic("s", "t", "t", message_expiry=UNLIMITED))
        await housekeeping.apply_retention(here.gateway)
        assert (await root.execute(requests.GetTopic("s", "t"))).partitions[0].held_back is None


async def test_if_full_topics_refuse_sends_only_expired_segments_are_deleted(
    tmp_path: Path,
) -> None:
    async with world(tmp_path, segment_bytes=1024, delete_oldest_segments=False) as here:
        root = await here.root()
        await make_topic(root)
        await send(root, 6)
        await root.execute(requests.UpdateTopic("s", "t", "t", max_topic_size=1024, message_expiry=5 * SECOND))
        await housekeeping.apply_retention(here.gateway)
        assert await segments(root) == (4, 4)
        with pytest.raises(CommandError, match="topic 't' of stream 's' is full") as refused:
            await send(root, 1)
        assert refused.value.code is Code.TOPIC_FULL
        here.clock.now += 6 * SECOND
        await housekeeping.apply_retention(here.gateway)
        assert await segments(root) == (1, 1)
        await send(root, 1)


async def test_several_batches_that_do_not_fit_are_refused_as_a_whole(tmp_path: Path) -> None:
    async with world(tmp_path, segment_bytes=1024, delete_oldest_segments=False) as here:
        root = await here.root()
        await make_topic(root, max_topic_size=1500)
        batches = tuple(build([Message(bytes(700))], 1, os.urandom) for _ in range(2))
        with pytest.raises(CommandError, match="is full"):
            await root.execute(requests.SendMessages("s", "t", Partitioning(PartitioningKind.PARTITION_ID, 0), batches))
        assert (await root.execute(requests.GetStats())).messages_count == 0
        await send(root, 1)


async def test_a_topic_without_limits_keeps_everything(tmp_path: Path) -> None:
    async with world(tmp_path, segment_bytes=1024) as here:
        root = await here.root()
        await make_topic(root)
        await send(root, 6)
        here.clock.now += 10**6 * SECOND
        await housekeeping.apply_retention(here.gateway)
        assert await segments(root) == (4, 4)


async def test_a_silent_client_loses_its_groups_and_its_next_command_is_refused(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        silent, lively = await here.root(), await here.root()
        await make_group(silent)
        await silent.execute(requests.CreateConsumerGroup("s", "t", "mine"))
        await silent.execute(requests.JoinConsumerGroup("s", "t", "mine"))
        here.clock.now += 5 * SECOND
        await lively.execute(requests.Ping())
        here.clock.now += 2 * SECOND
        await housekeeping.evict_silent_clients(here.gateway)
        group = await lively.execute(requests.GetConsumerGroup("s", "t", "mine"))
        assert group.info.members_count == 0
        with pytest.raises(CommandError) as refused:
            await silent.execute(requests.GetStreams())
        assert refused.value.code is Code.STALE_CLIENT
        assert await lively.execute(requests.GetStreams())


async def test_a_silent_client_without_a_group_is_not_evicted(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        silent = await here.root()
        await make_group(silent)
        await silent.execute(requests.CreateConsumerGroup("s", "t", "mine"))
        await silent.execute(requests.JoinConsumerGroup("s", "t", "mine"))
        await silent.execute(requests.LeaveConsumerGroup("s", "t", "mine"))
        here.clock.now += 100 * SECOND
        await housekeeping.evict_silent_clients(here.gateway)
        assert await silent.execute(requests.GetStreams())


async def test_an_expired_token_is_removed_and_its_name_is_free_again(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        root = await here.root()
        await root.execute(requests.CreatePersonalAccessToken("ci token", 10 * SECOND))
        here.clock.now += 11 * SECOND
        assert len(await root.execute(requests.GetPersonalAccessTokens())) == 1
        await housekeeping.remove_expired_tokens(here.gateway)
        assert await root.execute(requests.GetPersonalAccessTokens()) == ()
        await root.execute(requests.CreatePersonalAccessToken("ci token", 0))


async def test_a_chore_that_fails_runs_again(caplog: pytest.LogCaptureFixture) -> None:
    rounds = 0

    with caplog.at_level(logging.ERROR):
        enough = asyncio.Event()

        async def chore(gateway: Any) -> None:
            nonlocal rounds
            rounds += 1
            if rounds == 3:
                enough.set()
            raise RuntimeError("a defect")

        task = asyncio.create_task(housekeeping._regularly(None, chore, 0))  # type: ignore[arg-type]
        await enough.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert rounds == 3
    assert "failed; the next round runs as usual" in caplog.text


async def test_cached_responses_expire_if_the_client_does_not_return(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        caches = here.gateway.replay_caches
        client = caches.register(bytes(16), "mark", 1, frozenset())
        client.start(1, 2, 3, counted=True).set_result(None)
        caches.disconnect(client)
        here.clock.now += 59 * SECOND
        await housekeeping.expire_sessions(here.gateway)
        assert caches.register(bytes(16), "mark", 2, frozenset()) is client
        caches.disconnect(client)
        here.clock.now += 61 * SECOND
        await housekeeping.expire_sessions(here.gateway)
        # No client has connected or disconnected since.
        assert not caches._sessions
        assert not caches._away


async def test_a_certificate_that_expires_at_run_time_is_reported_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with world(tmp_path) as here:
        certificates = CertificateExpiry(lambda: here.clock.now / SECOND)
        here.gateway.readiness.certificates = certificates
        certificates.record("tcp.tls", here.clock.now / SECOND + 100 * 24 * 3600)
        await housekeeping.report_certificates(here.gateway)
        assert not caplog.records
        here.clock.now += 101 * 24 * 3600 * SECOND
        await housekeeping.report_certificates(here.gateway)
        (record,) = caplog.records
        assert record.getMessage().startswith("tcp.tls: the certificate expired on ")
