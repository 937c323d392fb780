"""Conversations with 0.12 clients: sessions that outlive connections, numbers that are done once, polls that wait."""

from __future__ import annotations

import asyncio
import logging
import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.app.access.support.world import world
from tests.transports.support.modern import Reply, batch_of, checksum_of, login, sending
from tests.transports.support.modern import frame as modern_frame
from tests.transports.support.newer import (
    CLIENT,
    ME,
    SECRET,
    SPOKEN,
    Newer,
    frame,
    is_committed,
    root,
    with_topic,
)
from whippet.app import long_poll
from whippet.app.access.permissions import GlobalPermissions, Permissions
from whippet.app.commands import requests
from whippet.app.commands.responses import OptionFlags
from whippet.app.config import Config
from whippet.app.errors import Code
from whippet.app.model.next_replay import (
    ALL_BYTES_MAX,
    BYTES_MAX,
    REQUESTS_MAX,
    SCARCE_REQUESTS_MAX,
    ReplayMemory,
    ReplayWindow,
)
from whippet.app.model.options import Option, OptionScope, ValueKind
from whippet.storage import batch as batches
from whippet.storage.partition import Partition
from whippet.transports import reservations
from whippet.transports.wire.modern import registration as modern_registration
from whippet.transports.wire.modern.frames import Reason
from whippet.transports.wire.modern.operations import READ, REGISTER
from whippet.transports.wire.next import registration
from whippet.transports.wire.next.operations import BIND_SESSION

OTHER = bytes(range(1, 17))
NEXT, FIRST = requests.Strategy(requests.StrategyKind.NEXT), requests.Strategy(requests.StrategyKind.FIRST)
GROUP = requests.Consumer(requests.ConsumerKind.GROUP, "g")
MINUTE = 60_000_000
SPARE = 1_000_000


def settings(**limits: Any) -> Config:
    config = Config()
    system = msgspec.structs.replace(config.system, limits=msgspec.structs.replace(config.system.limits, **limits))
    return msgspec.structs.replace(config, system=system)


def at(offset: int) -> requests.Strategy:
    return requests.Strategy(requests.StrategyKind.OFFSET, offset)


def poll(
    *, strategy: requests.Strategy = FIRST, count: int = 10, wait: int = 0, commit: bool = False, **more: Any
) -> requests.PollMessagesDeferred:
    """Of partition 0, as consumer 1."""
    bounds = {"wait_us": wait, "max_bytes": 1 << 20, "request_timeout_us": wait + SPARE} | more
    return requests.PollMessagesDeferred(ME, "s", "t", 0, strategy, count, commit, **bounds)


def fetch(
    *targets: requests.FetchTarget, consumer: requests.Consumer = ME, wait: int = 0, **more: Any
) -> requests.FetchMessages:
    bounds = {"min_count": 1, "count": 1000, "max_bytes": 1 << 20, "auto_commit": False} | more
    return requests.FetchMessages(
        consumer, "s", "t", wait_us=wait, request_timeout_us=wait + SPARE, targets=targets, **bounds
    )


def target(
    partition: int, incarnation: int, strategy: requests.Strategy = NEXT, max_bytes: int = 1 << 20
) -> requests.FetchTarget:
    return requests.FetchTarget(partition, strategy, max_bytes, incarnation)


def payloads(found: Any) -> list[bytes]:
    octets = [message.payload for batch in found.batches for message in batches.messages(batch)]
    assert len(octets) == found.messages_count
    return octets


async def sent(client: Newer, *texts: bytes, partition: int = 0) -> Reply:
    return await client.demand(sending(batch_of(*texts), partition))


async def stored(client: Newer) -> list[bytes]:
    return payloads((await client.get(poll(count=1000))).polled)


# ---------------------------------------------------------------------------------------------------------- logging in


async def test_a_client_logs_in_creates_sends_and_polls(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        client = Newer(made)
        assert not (await client.reply(frame(READ, code=1))).refused
        reply = await client.register()
        assert is_committed(reply)
        assert reply.head[128:144] == (77).to_bytes(16, "little")
        assert not await client.refused(requests.CreateStream("s"))
        topic = await client.get(requests.CreateTopic("s", "t", 2))
        assert {partition.incarnation for partition in topic.partitions} != {0}
        route = await client.get(requests.GetPartitionRoute("s", "t", 1))
        assert route.incarnation == topic.partitions[1].incarnation
        assert route.partitions_count == 2
        client.incarnation = route.incarnation
        reply = await sent(client, b"a", b"b")
        assert is_committed(reply)
        assert reply.head[224:232] == route.incarnation.to_bytes(8, "little")
        found = await client.get(poll())
        assert (payloads(found.polled), found.incarnation) == ([b"a", b"b"], route.incarnation)
        assert found.metadata_op >= int.from_bytes(reply.head[184:192], "little")
        roster = await client.get(requests.GetClusterMetadata())
        assert len(roster.nodes) == 1


@pytest.mark.parametrize("version", [modern_registration.packed(0, 12, patch) for patch in range(3)])
async def test_partitions_are_described_as_the_version_wants_it(tmp_path: Path, version: int) -> None:
    async with world(tmp_path) as made:
        client = Newer(made)
        await client.register(protocol=version)
        await client.demand(requests.CreateStream("s"))
        await client.demand(requests.CreateTopic("s", "t", 1))
        without, with_one = [
            len((await client.demand(request)).content)
            for request in (requests.CreateTopic("s", "x", 0), requests.GetTopic("s", "t"))
        ]
        assert with_one - without == (68 if version == SPOKEN else 64)


async def test_a_login_that_is_refused_is_an_eviction_and_there_is_no_session(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        client = Newer(made)
        reply = await client.register(requests.LoginUser("root", "wrong", "1"))
        assert reply.evicted == Reason.INVALID_CREDENTIALS
        assert len(made.gateway.resumable_sessions) == 0
        assert (await client.register()).evicted is None
        assert len(made.gateway.sessions) == len(made.gateway.resumable_sessions) == 1


async def test_a_client_of_0_9_may_be_followed_by_one_of_0_12(tmp_path: Path) -> None:
    """On the same connection; what the one was, the other is not."""
    async with world(tmp_path) as made:
        client = Newer(made)
        reply = await client.reply(modern_frame(REGISTER, login(requests.LoginUser("root", "root's password", "1"))))
        assert not reply.refused
        older = [client.own.registration]
        unknown = modern_registration.packed(0, 13, 0)
        assert (await client.register(protocol=unknown)).evicted == Reason.INCOMPATIBLE_PROTOCOL
        older.append(client.own.registration)
        assert older[0] is older[1] is not None
        await client.register()
        assert client.own.registration is None
        assert (await client.get(requests.GetMe())).user_id == 0


async def test_an_unknown_version_is_told_what_is_spoken_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    unknown = modern_registration.packed(0, 13, 0)
    async with world(tmp_path) as made:
        with caplog.at_level(logging.INFO):
            for port in range(3):
                reply = await Newer(made, port=port).register(protocol=unknown)
                assert reply.evicted == Reason.INCOMPATIBLE_PROTOCOL
                newest, oldest = (int.from_bytes(reply.head[at : at + 4], "little") for at in (144, 148))
                assert (oldest, newest) == (modern_registration.packed(0, 11, 0), SPOKEN)
        said = [record.getMessage() for record in caplog.records if "0.13.0" in record.getMessage()]
        assert len(said) == 1
        assert "0.11.0 to 0.12.2" in said[0]


# ---------------------------------------------------------------------------------------------- sessions and bindings


async def test_a_session_goes_on_with_its_secret_on_another_connection(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        first = await with_topic(made)
        await first.demand(requests.CreateConsumerGroup("s", "t", "g"))
        await first.demand(requests.JoinConsumerGroup("s", "t", "g"))
        me = await first.get(requests.GetMe())
        first.close()
        (away,) = made.gateway.sessions
        assert away.groups
        second = Newer(made, port=5001)
        reply = await second.bind(first.session, number=9)
        assert not reply.refused
        assert not is_committed(reply)
        assert second.session == first.session
        again = await second.get(requests.GetMe())
        assert (again.client_id, again.groups) == (me.client_id, me.groups)
        assert again.address.endswith(":5001")
        assert (await second.get(requests.SyncConsumerGroup("s", "t", "g"))).partitions == (0,)
        assert len(made.gateway.sessions) == 1


async def test_only_who_knows_the_secret_may_bind(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        first = await root(made)
        for client, session, secret in (
            (CLIENT, first.session, bytes(32)),
            (CLIENT, first.session + 1, SECRET),
            (OTHER, first.session, SECRET),
        ):
            stranger = Newer(made, client)
            assert (await stranger.bind(session, secret=secret)).refused == Code.UNAUTHENTICATED
            assert (await stranger.reply(frame(READ, client=client, code=20))).refused == Code.UNAUTHENTICATED
        borrowed = Newer(made, OTHER)
        assert (await borrowed.bind(first.session, client=CLIENT)).refused == Code.UNAUTHENTICATED
        assert not first.ended
        # Whoever has lost the reply to its login does not know the number.
        assert not (await Newer(made).bind(0)).refused
        assert first.ended


async def test_a_login_that_comes_again_is_answered_with_the_same_session(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        first = await root(made)
        await first.demand(requests.CreateStream("s"))
        first.close()
        again = Newer(made)
        await again.register()
        assert again.session == first.session
        # Another secret is another client, whatever it calls itself.
        other = Newer(made)
        await other.register(secret=bytes(32))
        assert other.session != first.session
        assert len(made.gateway.resumable_sessions) == 2


async def test_the_secret_of_a_session_is_worth_nothing_to_another_user(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await made.user("alice")
        first = await root(made)
        alice = Newer(made)
        await alice.register(requests.LoginUser("alice", "alicealice", "1"))
        assert alice.session != first.session
        assert await alice.refused(requests.CreateStream("s")) == Code.UNAUTHORIZED


@pytest.mark.parametrize("how", ["password", "deactivated", "deleted", "sessions ended", "logged out", "silent"])
@pytest.mark.parametrize("is_away", [True, False])
async def test_a_session_that_has_ended_cannot_be_bound(tmp_path: Path, how: str, is_away: bool) -> None:
    async with world(tmp_path) as made:
        await made.user("alice")
        boss = await made.root()
        alice = Newer(made)
        await alice.register(requests.LoginUser("alice", "alicealice", "1"))
        if how == "logged out":
            assert not await alice.refused(requests.LogoutUser())
        if is_away:
            alice.close()
        match how:
            case "password":
                await boss.execute(requests.ChangePassword("alice", "alicealice", "another one"))
            case "deactivated":
                await boss.execute(requests.UpdateUser("alice", None, requests.UserStatus.INACTIVE))
            case "deleted":
                await boss.execute(requests.DeleteUser("alice"))
            case "sessions ended":
                await boss.execute(requests.EndSessions("alice"))
            case "silent":
                for session in made.gateway.sessions:
                    session.stale = session.login is not None and session is not boss.session
        assert (await Newer(made).bind(alice.session)).refused == Code.UNAUTHENTICATED
        assert len(made.gateway.resumable_sessions) == 0


async def test_a_session_waits_for_its_client_for_a_while_and_then_leaves_its_groups(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        first = await with_topic(made)
        await first.demand(requests.CreateConsumerGroup("s", "t", "g"))
        await first.demand(requests.JoinConsumerGroup("s", "t", "g"))
        first.close()
        made.clock.now += MINUTE - 1
        made.gateway.resumable_sessions.expire()
        assert made.gateway.resumable_sessions.away_count == 1
        made.clock.now += 1
        made.gateway.resumable_sessions.expire()
        assert len(made.gateway.resumable_sessions) == len(made.gateway.sessions) == 0
        stream = made.gateway.streams.find("s")
        assert stream is not None
        topic = stream.topics.find("t")
        assert topic is not None
        (group,) = topic.groups
        assert not group.members
        assert (await Newer(made).bind(first.session)).refused == Code.UNAUTHENTICATED


async def test_nobody_can_push_out_the_sessions_of_others(tmp_path: Path) -> None:
    async with world(tmp_path, settings=settings(connections=4)) as made:
        await made.user("alice")
        for session in made.gateway.sessions:
            made.gateway.sessions.remove(session)
        first = await root(made)
        first.close()
        for number in range(20):
            crowd = Newer(made, bytes([number]) * 15 + b"c", port=number)
            await crowd.register(requests.LoginUser("alice", "alicealice", "1"), secret=bytes([number]) * 32)
            crowd.close()
        assert made.gateway.resumable_sessions.away_count == 4
        assert not (await Newer(made).bind(first.session)).refused


async def test_the_older_connection_of_a_session_is_closed(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        first = await root(made)
        second = Newer(made, port=5001)
        await second.bind(first.session)
        assert first.ended
        first.close()
        # Its end is not the end of the session.
        assert not await second.refused(requests.CreateStream("s"))
        assert made.gateway.resumable_sessions.away_count == 0
        second.close()
        assert made.gateway.resumable_sessions.away_count == 1


async def test_session_numbers_and_incarnations_are_never_given_twice(tmp_path: Path) -> None:
    given: set[int] = set()
    for start in range(3):
        async with world(tmp_path) as made:
            client = Newer(made)
            await client.register()
            numbers = [client.session]
            if not start:
                await client.demand(requests.CreateStream("s"))
            numbers += [
                (await client.get(requests.CreateTopic("s", f"t{start}", 1))).partitions[0].incarnation,
            ]
            await client.demand(requests.DeletePartitions("s", f"t{start}", 1))
            await client.demand(requests.CreatePartitions("s", f"t{start}", 1))
            route = await client.get(requests.GetPartitionRoute("s", f"t{start}", 0))
            numbers.append(route.incarnation)
            assert not given & set(numbers)
            assert len(set(numbers)) == 3
            assert all(0 < number < 2**43 for number in numbers)
            given |= set(numbers)


# ------------------------------------------------------------------------------------------------- once for each number


async def test_what_comes_again_after_a_lost_connection_is_done_once_and_answered_the_same(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        first = await with_topic(made)
        send = first.asked(sending(batch_of(b"once")))
        create = first.asked(requests.CreateStream("again"))
        replies = [await first.reply(octets) for octets in (send, create)]
        first.close()
        second = Newer(made)
        await second.bind(first.session, number=first.number + 1)
        second.incarnation = first.incarnation
        for octets, before in zip((send, create), replies, strict=True):
            for _ in range(2):
                reply = await second.reply(octets)
                assert is_committed(reply)
                assert reply == before
        assert await stored(second) == [b"once"]


async def test_a_number_below_the_newest_may_be_new(tmp_path: Path) -> None:
    """It is the one of a request that was lost on its way; later ones were done before it."""
    async with world(tmp_path) as made:
        client = await with_topic(made)
        lost = client.asked(sending(batch_of(b"lost")))
        await sent(client, b"later")
        assert is_committed(await client.reply(lost))
        assert is_committed(await client.reply(lost))
        assert await stored(client) == [b"later", b"lost"]


async def test_what_comes_twice_at_the_same_time_is_done_once(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        first = await with_topic(made)
        send = first.asked(sending(batch_of(b"once")))
        second = Newer(made)
        await second.bind(first.session)
        replies = await asyncio.gather(first.reply(send), second.reply(send), first.reply(send))
        assert all(is_committed(reply) for reply in replies)
        second.incarnation, second.number = first.incarnation, 100
        assert await stored(second) == [b"once"]


async def test_a_refusal_is_final_and_said_again(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made)
        taken = client.asked(requests.CreateStream("s"))
        reply = await client.reply(taken)
        assert (reply.refused, is_committed(reply)) == (Code.STREAM_NAME_ALREADY_EXISTS, True)
        await client.demand(requests.DeleteStream("s"))
        assert await client.reply(taken) == reply


async def test_a_send_that_stored_nothing_is_tried_again(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made)
        send = client.asked(sending(batch_of(b"a"), partition_id=1), incarnation=client.incarnation)
        reply = await client.reply(send)
        assert (reply.refused, is_committed(reply)) == (Code.PARTITION_NOT_FOUND, False)
        await client.demand(requests.CreatePartitions("s", "t", 1))
        # It is another incarnation than the one that the client has thought of.
        assert (await client.reply(send)).refused == Code.PARTITION_RECREATED


async def test_another_request_under_the_same_number_is_refused(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        client = await root(made)
        await client.demand(requests.CreateStream("s"))
        for fields in ({"stamp": 5}, {"number": 0}):
            client.number = 0
            assert await client.refused(requests.CreateStream("x"), **fields) == Code.INVALID_COMMAND
        assert len(await client.get(requests.GetStreams())) == 1


async def test_a_number_that_is_too_old_is_refused(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made)
        first = client.asked(sending(batch_of(b"first")))
        await client.reply(first)
        for _ in range(REQUESTS_MAX):
            await sent(client, b"later")
        reply = await client.reply(first)
        assert (reply.refused, is_committed(reply)) == (Code.REQUEST_TOO_OLD, False)
        assert (await stored(client)).count(b"first") == 1


async def test_a_long_answer_is_remembered_as_long_as_it_is_the_newest(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        client = await root(made)
        await client.demand(requests.CreateStream("s"))
        create = client.asked(requests.CreateTopic("s", "t", 1000))
        reply = await client.reply(create)
        assert await client.reply(create) == reply
        (bound,) = made.gateway.resumable_sessions._by_number.values()
        assert sum(bound.requests._sizes.values()) < 100_000
        await client.demand(requests.CreateStream("another"))
        assert (await client.reply(create)).refused == Code.REQUEST_TOO_OLD


# ----------------------------------------------------------------------------------------------------------- the fence


async def test_a_partition_that_was_made_again_is_another_one(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made)
        await sent(client, b"old")
        await client.demand(requests.DeletePartitions("s", "t", 1))
        await client.demand(requests.CreatePartitions("s", "t", 1))
        refused = [
            await client.refused(request)
            for request in (
                sending(batch_of(b"x")),
                poll(),
                requests.GetConsumerOffset(ME, "s", "t", 0),
                requests.StoreConsumerOffset(ME, "s", "t", 0, 0),
            )
        ]
        assert refused == [Code.PARTITION_RECREATED] * 4
        assert await client.refused(poll(), incarnation=0) == Code.PARTITION_RECREATED
        section = (await client.get(fetch(target(0, client.incarnation)))).sections[0]
        assert section.status == Code.PARTITION_RECREATED
        client.incarnation = (await client.get(requests.GetPartitionRoute("s", "t", 0))).incarnation
        assert await stored(client) == []


async def test_the_fence_tells_nothing_to_strangers(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made)
        octets = client.asked(poll(), session=0, client=OTHER)
        assert (await Newer(made, OTHER).reply(octets)).refused == Code.INVALID_COMMAND
        await client.demand(requests.LogoutUser())
        assert await client.refused(poll(), session=0) == Code.UNAUTHENTICATED


# ------------------------------------------------------------------------------------------------------------- waiting


async def test_a_poll_that_waits_holds_nobody_up_and_is_answered_when_a_message_comes(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made)
        assert await client.say(client.asked(poll(wait=MINUTE))) is None
        waiting = client.number
        assert not (await client.reply(client.asked(requests.Ping()))).refused
        await sent(client, b"there")
        reply = await client.come_late()
        assert reply is not None
        assert reply.number == waiting
        assert b"there" in reply.body
        assert len(made.gateway.waiting_polls) == 0


async def test_a_poll_waits_for_as_many_messages_as_it_wants(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made)
        await sent(client, b"1")
        assert await client.say(client.asked(poll(wait=MINUTE, min_count=3))) is None
        (late,) = client.late
        for text in (b"2", b"3"):
            await asyncio.sleep(0)
            assert not late.done()
            await sent(client, text)
        reply = await client.come_late()
        assert reply is not None
        assert reply.body[12:16] == (3).to_bytes(4, "little")


async def test_a_wait_that_is_over_is_answered_with_what_there_is(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made)
        await sent(client, b"1")
        assert await client.say(client.asked(poll(wait=1, min_count=3))) is None
        reply = await client.come_late()
        assert reply is not None
        assert reply.body[12:16] == (1).to_bytes(4, "little")
        assert await client.say(client.asked(poll(wait=1, strategy=at(5)))) is None
        reply = await client.come_late()
        assert reply is not None
        assert len(reply.body) == 40


@pytest.mark.parametrize("commit", [True, False])
async def test_what_is_cancelled_is_answered_with_nothing_and_commits_nothing(tmp_path: Path, commit: bool) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made)
        await sent(client, b"1")
        assert await client.say(client.asked(poll(wait=MINUTE, min_count=2, strategy=NEXT, commit=commit))) is None
        assert await client.cancel(client.number) is None
        reply = await client.come_late()
        assert reply is not None
        assert (reply.refused, len(reply.body)) == (0, 40)
        assert await client.get(requests.GetConsumerOffset(ME, "s", "t", 0)) is None
        # What is not there is not cancelled, and nobody is told.
        assert await client.cancel(client.number) is None
        assert await client.cancel(12345) is None


async def test_who_asks_is_looked_at_again_after_the_wait(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        boss = await with_topic(made)
        await made.user("alice", permissions=Permissions(GlobalPermissions(poll_messages=True)))
        alice = Newer(made, OTHER)
        await alice.register(requests.LoginUser("alice", "alicealice", "1"))
        alice.incarnation = boss.incarnation
        assert await alice.say(alice.asked(poll(wait=MINUTE))) is None
        await boss.demand(requests.UpdatePermissions("alice", None))
        await sent(boss, b"not for alice")
        reply = await alice.come_late()
        assert reply is not None
        assert reply.refused == Code.UNAUTHORIZED


async def test_a_wait_ends_with_its_connection(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made)
        assert await client.say(client.asked(poll(wait=MINUTE))) is None
        assert len(made.gateway.waiting_polls) == 1
        client.close()
        assert await client.come_late() is None
        assert len(made.gateway.waiting_polls) == 0


async def test_there_are_so_many_waiting_polls_of_a_user_and_so_many_of_a_connection(tmp_path: Path) -> None:
    async with world(tmp_path, settings=settings(waiting_polls=9, waiting_polls_per_user=5)) as made:
        client = await with_topic(made, 3)
        targets = [target(number, client.incarnation) for number in range(3)]
        assert await client.say(client.asked(fetch(*targets, wait=MINUTE))) is None
        for _ in range(2):
            assert await client.say(client.asked(poll(wait=MINUTE))) is None
        assert await client.refused(poll(wait=MINUTE)) == Code.TOO_MANY_WAITING_POLLS
        assert not await client.refused(poll())
        client.close()
        assert [await client.come_late() for _ in range(3)] == [None] * 3
        assert len(made.gateway.waiting_polls) == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"wait_us": 600_000_001, "request_timeout_us": 602_000_000},
        {"wait_us": 5, "request_timeout_us": 1_000_004},
        {"wait_us": 5, "request_timeout_us": 630_000_001},
        {"min_count": 0},
        {"min_count": 11},
        {"max_bytes": 343},
    ],
)
async def test_a_poll_that_cannot_be_meant_is_refused(tmp_path: Path, wrong: dict[str, int]) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made)
        request = msgspec.structs.replace(poll(wait=1), **wrong)
        assert await client.refused(request) == Code.INVALID_COMMAND


async def test_a_fetch_reads_many_partitions_within_its_bounds(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made, 3)
        for number in range(3):
            await sent(client, *[b"%d:%d" % (number, index) for index in range(4)], partition=number)
        targets = [target(number, client.incarnation) for number in range(3)]
        found = await client.get(fetch(*targets))
        assert {section.partition_id: payloads(section) for section in found.sections} == {
            number: [b"%d:%d" % (number, index) for index in range(4)] for number in range(3)
        }
        assert {section.next_offset for section in found.sections} == {4}
        few = await client.get(fetch(*targets, count=5))
        assert sum(section.messages_count for section in few.sections) == 5
        absent = await client.get(fetch(target(7, client.incarnation), target(0, client.incarnation, at(4))))
        by_number = {section.partition_id: section for section in absent.sections}
        assert by_number[7].status == Code.PARTITION_NOT_FOUND
        assert (by_number[0].status, by_number[0].next_offset, by_number[0].batches) == (0, 4, ())


async def test_a_fetch_waits_for_any_of_its_partitions(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made, 3)
        targets = [target(number, client.incarnation) for number in range(3)]
        assert await client.say(client.asked(fetch(*targets, wait=MINUTE))) is None
        await sent(client, b"here", partition=2)
        reply = await client.come_late()
        assert reply is not None
        assert b"here" in reply.body


async def test_a_message_that_is_larger_than_the_bounds_comes_alone(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made, 2)
        for number in range(2):
            await sent(client, b"x" * 5000, partition=number)
        targets = [target(number, client.incarnation, max_bytes=344) for number in range(2)]
        found = await client.get(fetch(*targets, max_bytes=344))
        assert sorted(section.messages_count for section in found.sections) == [0, 1]
        assert {section.next_offset - section.messages_count for section in found.sections} == {0}
        assert len(payloads((await client.get(poll(max_bytes=344, wait=1))).polled)) == 1


@pytest.mark.parametrize("wrong", ["twice", "strategy", "too much", "none"])
async def test_a_fetch_that_cannot_be_meant_is_refused(tmp_path: Path, wrong: str) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made)
        one = target(0, client.incarnation)
        targets = {
            "twice": (one, one),
            "strategy": (target(0, client.incarnation, FIRST),),
            "too much": (target(0, client.incarnation, max_bytes=(1 << 20) + 1),),
            "none": (),
        }[wrong]
        assert await client.refused(fetch(*targets)) == Code.INVALID_COMMAND


async def test_a_member_fetches_what_it_owns_and_commits(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made, 2)
        await client.demand(requests.CreateConsumerGroup("s", "t", "g"))
        one = target(0, client.incarnation)
        assert await client.refused(fetch(one, consumer=GROUP)) == Code.CONSUMER_GROUP_MEMBER_NOT_FOUND
        await client.demand(requests.JoinConsumerGroup("s", "t", "g"))
        other = Newer(made, OTHER)
        await other.register(secret=bytes(32))
        await other.demand(requests.JoinConsumerGroup("s", "t", "g"))
        owned = (await client.get(requests.SyncConsumerGroup("s", "t", "g"))).partitions
        assert len(owned) == 1
        for number in range(2):
            await sent(client, b"m", partition=number)
        targets = [target(number, client.incarnation) for number in range(2)]
        found = await client.get(fetch(*targets, consumer=GROUP, auto_commit=True))
        by_number = {section.partition_id: section for section in found.sections}
        (foreign,) = {0, 1} - set(owned)
        assert payloads(by_number[owned[0]]) == [b"m"]
        assert by_number[foreign].status == Code.CONSUMER_GROUP_PARTITION_NOT_OWNED
        offset = await client.get(requests.GetConsumerOffset(GROUP, "s", "t", owned[0]))
        assert offset.stored_offset == 0


async def test_an_external_group_stores_any_offset_and_needs_no_member(tmp_path: Path) -> None:
    external = requests.Consumer(requests.ConsumerKind.EXTERNAL_GROUP, "g")
    ask = requests.GetConsumerOffset(external, "s", "t", 0)
    async with world(tmp_path) as made:
        client = await with_topic(made)
        assert await client.get(ask) is None
        store = requests.StoreConsumerOffset(external, "s", "t", 0, 1_000_000)
        assert await client.refused(store) == Code.CONSUMER_GROUP_ID_NOT_FOUND
        await client.demand(requests.CreateConsumerGroup("s", "t", "g"))
        await client.demand(store)
        assert (await client.get(ask)).stored_offset == 1_000_000
        # The group's own offsets are others.
        assert await client.get(requests.GetConsumerOffset(GROUP, "s", "t", 0)) is None
        assert await client.refused(msgspec.structs.replace(poll(), consumer=external)) == Code.INVALID_COMMAND
        await client.demand(requests.DeleteConsumerOffset(external, "s", "t", 0))
        assert await client.get(ask) is None
        await client.demand(store)
        await client.demand(requests.DeleteConsumerGroup("s", "t", "g"))
        await client.demand(requests.CreateConsumerGroup("s", "t", "g"))
        assert await client.get(ask) is None


async def test_a_client_of_0_12_0_asks_which_partitions_have_messages(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made, 3)
        starts = tuple((number, NEXT) for number in range(3))
        assert (
            await client.say(client.asked(requests.AwaitMessages(ME, "s", "t", MINUTE, MINUTE + SPARE, starts))) is None
        )
        await sent(client, b"here", partition=1)
        reply = await client.come_late()
        assert reply is not None
        assert reply.body == (1).to_bytes(4, "little") + (1).to_bytes(4, "little")


# ----------------------------------------------------------------------------------------- producers that number sends

PRODUCER = 15 << 20


def numbered(*texts: bytes, producer: int = PRODUCER, epoch: int = 0, sequence: int = 0) -> bytearray:
    """As a client makes it: who sends is in the header, and in the checksum of the batch."""
    batch = batch_of(*texts)
    said = struct.pack("<QHI", producer, epoch, sequence)
    batch[52:72] = struct.pack("<B3xQHHI", 1, producer, epoch, 0, sequence)
    positions = [256]
    for _ in texts:
        positions.append(positions[-1] + 48 + sum(struct.unpack_from("<II", batch, positions[-1] + 32)))
    frames = b"".join(bytes(batch[at : at + 8]) for at in positions[:-1])
    struct.pack_into("<Q", batch, 40, checksum_of(bytes(batch[:40]) + bytes(batch[48:52]) + b"\1" + said + frames))
    return batch


async def test_a_producer_that_numbers_its_messages_is_stored_once_and_in_order(tmp_path: Path) -> None:
    """Whatever the numbers of its requests."""
    async with world(tmp_path) as made:
        client = await with_topic(made)
        two, one = numbered(b"a", b"b"), numbered(b"c", sequence=2)
        first = await client.demand(sending(two))
        assert is_committed(first)
        assert is_committed(await client.demand(sending(one)))
        for batch, offset in ((two, 0), (one, 2)):
            again = await client.demand(sending(batch))
            assert is_committed(again)
            assert int.from_bytes(again.content[16:24], "little") == offset
        assert await stored(client) == [b"a", b"b", b"c"]
        # The log has it as it has every batch, for clients of all generations.
        found = await client.get(poll())
        assert all(batches.check(batch) for batch in _whole(found.polled.batches))


def _whole(octets: Any) -> list[memoryview]:
    rest, found = memoryview(b"".join(octets)), []
    while rest:
        length = batches.header(rest).length
        found.append(rest[:length])
        rest = rest[length:]
    return found


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"sequence": 3}, Code.PRODUCER_OUT_OF_ORDER),
        ({"sequence": 1}, Code.PRODUCER_OUT_OF_ORDER),
        ({"sequence": 2**31 - 1}, Code.PRODUCER_OUT_OF_ORDER),
        ({"producer": 7, "sequence": 2}, Code.UNKNOWN_PRODUCER),
        ({"epoch": 2, "sequence": 2}, Code.UNKNOWN_PRODUCER),
        ({"epoch": 0, "sequence": 2}, Code.PRODUCER_EPOCH_FENCED),
        ({"producer": 2**63}, Code.INVALID_RESERVED_FIELD),
        ({"epoch": 2**15}, Code.INVALID_RESERVED_FIELD),
        ({"sequence": 2**31}, Code.INVALID_RESERVED_FIELD),
    ],
)
async def test_what_does_not_follow_is_refused_and_not_stored(
    tmp_path: Path, wrong: dict[str, int], code: Code
) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made)
        await client.demand(sending(numbered(b"a", b"b", epoch=1)))
        reply = await client.demand(sending(numbered(b"x", **({"epoch": 1} | wrong))))
        assert (reply.refused, is_committed(reply)) == (code, False)
        assert not await client.refused(sending(numbered(b"c", epoch=1, sequence=2)))
        assert await stored(client) == [b"a", b"b", b"c"]


async def test_numbers_begin_anew_after_the_highest(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made)
        stream = made.gateway.streams.find("s")
        assert stream is not None
        partition = stream.topics.find("t").partition(0)  # type: ignore[union-attr]
        await client.demand(sending(numbered(b"a")))
        (known,) = partition._producers._known.values()  # type: ignore[union-attr]
        # As if all the numbers up to the last one had been sent.
        record = known.answers.pop(0)
        highest = msgspec.structs.replace(record.producer, sequence=2**31 - 1)
        known.answers[2**31 - 1] = msgspec.structs.replace(record, producer=highest)
        for _ in range(2):
            assert not await client.refused(sending(numbered(b"b", sequence=0)))
        assert not await client.refused(sending(numbered(b"c", sequence=1)))
        assert await stored(client) == [b"a", b"b", b"c"]


async def test_a_numbered_batch_that_is_damaged_is_refused(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made)
        good = numbered(b"a", b"b")
        for at in (*range(52, 80), 24, 40, 260, 300, 330):
            bad = bytearray(good)
            bad[at] ^= 1
            assert await client.refused(sending(bad)), at
        short = bytearray(good[:290])
        struct.pack_into("<Q", short, 32, len(short))
        assert await client.refused(sending(short))
        plainly_summed = batch_of(b"a")
        plainly_summed[52:72] = good[52:72]
        assert await client.refused(sending(plainly_summed)) == Code.INVALID_BATCH_CHECKSUM
        assert await stored(client) == []


async def test_a_producer_that_numbers_its_messages_names_the_partition(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made)
        for partitioning in (
            requests.Partitioning(requests.PartitioningKind.BALANCED),
            requests.Partitioning(requests.PartitioningKind.MESSAGES_KEY, key=b"k"),
        ):
            request = requests.SendMessages(0, 0, partitioning, (memoryview(numbered(b"a")),))
            assert await client.refused(request) == Code.PRODUCER_WITHOUT_PARTITION


async def test_the_number_of_a_producer_is_the_users_alone(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made)
        await made.user("alice", permissions=Permissions(GlobalPermissions(send_messages=True)))
        alice = Newer(made, OTHER)
        await alice.register(requests.LoginUser("alice", "alicealice", "1"))
        alice.incarnation = client.incarnation
        assert not await client.refused(sending(numbered(b"roots")))
        assert not await alice.refused(sending(numbered(b"alices")))
        assert await stored(client) == [b"roots", b"alices"]


# ------------------------------------------------------------------------------------------------------------ updates


def text(key: str, value: str) -> Option:
    return Option(key, ValueKind.STRING, value.encode())


async def test_an_update_changes_what_it_names_and_nothing_else(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made)
        await made.user("alice")
        hour, size = text("message_expiry", "1 hour"), text("max_topic_size", "10 GiB")
        assert not await client.refused(requests.PatchTopic("s", "t", (hour, size)))
        assert not await client.refused(requests.PatchTopic("s", "t", (text("name", "t9"),)))
        assert not await client.refused(requests.PatchTopic("s", "t9", (hour,), ("max_topic_size",)))
        info = (await client.get(requests.GetTopic("s", "t9"))).info
        assert (info.message_expiry, info.max_topic_size) == (3_600_000_000, 2**64 - 1)
        assert [option.key for option in info.explicit] == ["message_expiry"]
        assert not await client.refused(requests.PatchStream("s", (text("name", "s9"),)))
        assert (await client.get(requests.GetStream("s9"))).info.name == "s9"
        changes = (text("username", "alicia"), text("status", "inactive"))
        assert not await client.refused(requests.PatchUser("alice", changes))
        user = (await client.get(requests.GetUser("alicia"))).info
        assert user.status is requests.UserStatus.INACTIVE


@pytest.mark.parametrize(
    ("patch", "code"),
    [
        (requests.PatchTopic("s", "t"), Code.INVALID_COMMAND),
        (requests.PatchTopic("s", "t", (text("nonsense", "1"),)), Code.UNSUPPORTED_OPTION_KEY),
        (requests.PatchTopic("s", "t", reset=("nonsense",)), Code.UNSUPPORTED_OPTION_KEY),
        (requests.PatchTopic("s", "t", (text("durability", "persisted"),)), Code.OPTION_NOT_UPDATABLE),
        (requests.PatchTopic("s", "t", (text("compression_algorithm", "gzip"),)), Code.OPTION_NOT_UPDATABLE),
        (requests.PatchTopic("s", "t", reset=("name",)), Code.OPTION_NOT_RESETTABLE),
        (requests.PatchTopic("s", "t", reset=("message_expiry", "message_expiry")), Code.INVALID_OPTION_VALUE),
        (
            requests.PatchTopic("s", "t", (text("message_expiry", "1 h"),), ("message_expiry",)),
            Code.INVALID_OPTION_VALUE,
        ),
        (requests.PatchTopic("s", "t", (text("message_expiry", "soon"),)), Code.INVALID_OPTION_VALUE),
        (requests.PatchTopic("s", "t", (text("name", "x"),)), Code.TOPIC_NAME_ALREADY_EXISTS),
        (requests.PatchTopic("s", "t", (Option("name", ValueKind.UINT32, bytes(4)),)), Code.INVALID_OPTION_VALUE),
        (requests.PatchStream("s", (text("encryption_key_source", "none"),)), Code.OPTION_READ_ONLY),
        (requests.PatchStream("s", (text("name", "s2"),)), Code.STREAM_NAME_ALREADY_EXISTS),
        (requests.PatchUser("root", (text("username", "boss"),)), Code.ROOT_USER_UNCHANGEABLE),
        (requests.PatchUser(0, (text("status", "inactive"),)), Code.ROOT_USER_UNCHANGEABLE),
        (requests.PatchUser("alice", (text("status", "asleep"),)), Code.INVALID_OPTION_VALUE),
        (requests.CreateStream("new", (text("encryption_key", "secret"),)), Code.ENCRYPTION_UNAVAILABLE),
    ],
    ids=str,
)
async def test_an_update_that_cannot_be_made_says_why_and_changes_nothing(
    tmp_path: Path, patch: requests.Request, code: Code
) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made)
        await made.user("alice")
        await client.demand(requests.CreateTopic("s", "x", 1))
        await client.demand(requests.CreateStream("s2"))
        before = [
            await client.get(request)
            for request in (requests.GetTopics("s"), requests.GetStreams(), requests.GetUsers())
        ]
        reply = await client.demand(patch)
        assert (reply.refused, is_committed(reply)) == (code, True)
        assert before == [
            await client.get(request)
            for request in (requests.GetTopics("s"), requests.GetStreams(), requests.GetUsers())
        ]


async def test_an_update_needs_the_right_to_manage_what_it_changes(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        boss = await with_topic(made)
        await made.user("alice", permissions=Permissions(GlobalPermissions(read_streams=True, read_topics=True)))
        alice = Newer(made, OTHER)
        await alice.register(requests.LoginUser("alice", "alicealice", "1"))
        for patch in (
            requests.PatchTopic("s", "t", (text("name", "mine"),)),
            requests.PatchStream("s", (text("name", "mine"),)),
            requests.PatchUser("alice", (text("username", "root2"),)),
        ):
            assert await alice.refused(patch) == Code.UNAUTHORIZED
        assert (await boss.get(requests.GetTopic("s", "t"))).info.name == "t"


@pytest.mark.parametrize("scope", OptionScope)
async def test_options_are_described_with_what_can_be_done_with_them(tmp_path: Path, scope: OptionScope) -> None:
    async with world(tmp_path) as made:
        client = await root(made)
        found = {
            option.key: option.flags for option in await client.get(requests.DescribeOptions(scope, with_columns=True))
        }
        both = OptionFlags.UPDATABLE | OptionFlags.RESETTABLE
        match scope:
            case OptionScope.TOPIC:
                assert (found["name"], found["message_expiry"], found["durability"]) == (OptionFlags.UPDATABLE, both, 0)
            case OptionScope.STREAM:
                assert found == {"name": OptionFlags.UPDATABLE}
            case OptionScope.USER:
                assert found.keys() == {"username", "status"}


# ---------------------------------------------------------------------------------------------------- what is refused


async def test_what_has_no_meaning_is_refused_and_the_connection_goes_on(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        client = await root(made)
        for code in (0, 2, 14, 35, 102, 103, 104, 123, 204, 205, 304, 305, 999):
            octets = frame(READ, b"body", number=5, session=client.session, code=code)
            assert (await client.reply(octets)).refused == Code.INVALID_COMMAND, code
        changes = frame(READ, bytes(60), number=5, session=client.session, code=17)
        assert (await client.reply(changes)).refused == Code.FEATURE_UNAVAILABLE
        for operation in (0, 4, 64, 72, 129, 131, 133, 135, 142, 151, 163, 255):
            octets = frame(operation, b"body", number=5, session=client.session)
            assert (await client.reply(octets)).refused == Code.INVALID_COMMAND, operation
        assert not await client.refused(requests.GetMe())


async def test_a_request_for_another_session_is_an_eviction(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        client = await root(made)
        octets = client.asked(requests.CreateStream("s"), session=client.session + 1)
        assert (await client.reply(octets)).evicted == Reason.NO_SESSION
        assert client.talk.is_over


async def test_numbers_are_reserved_on_the_disk_before_they_are_given(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        client = await root(made)
        assert made.store.numbers_reserved > client.session


async def test_generations_share_what_they_make(tmp_path: Path) -> None:
    """One of 0.12 beside one of 0.9 in the same group."""
    async with world(tmp_path) as made:
        newer = await with_topic(made, 2)
        await newer.demand(requests.CreateConsumerGroup("s", "t", "g"))
        await newer.demand(requests.JoinConsumerGroup("s", "t", "g"))
        older = await made.root()
        await older.execute(requests.JoinConsumerGroup("s", "t", "g"))
        await sent(newer, b"m", partition=0)
        polled = await older.execute(requests.PollMessages(ME, "s", "t", 0, FIRST, 10, False))
        assert polled.messages_count == 1
        group = await newer.get(requests.GetConsumerGroup("s", "t", "g"))
        assert sorted(len(member.partitions) for member in group.members) == [1, 1]


# ------------------------------------------------------------------------------------------------------ hostile clients


@pytest.mark.parametrize("is_quick", [True, False])
async def test_a_session_whose_connection_is_lost_during_the_login_does_not_stay_for_ever(
    tmp_path: Path, is_quick: bool
) -> None:
    """`is_quick`: before the listener has heard that the login is done."""
    async with world(tmp_path) as made:
        client = Newer(made)
        before = client.talk
        login_in_hand = asyncio.create_task(client.register())
        if is_quick:
            await login_in_hand
            before.close()
        else:
            await asyncio.sleep(0)
            client.close()
            await login_in_hand
        assert made.gateway.resumable_sessions.away_count == len(made.gateway.resumable_sessions) == 1
        made.clock.now += MINUTE
        made.gateway.resumable_sessions.expire()
        assert len(made.gateway.resumable_sessions) == len(made.gateway.sessions) == 0


@pytest.mark.parametrize("is_first", [True, False])
async def test_two_logins_at_the_same_time_leave_no_session_behind(tmp_path: Path, is_first: bool) -> None:
    """`is_first`: nobody has spoken this protocol on the connection before."""
    async with world(tmp_path) as made:
        client = Newer(made)
        if not is_first:
            await client.register(secret=bytes(32))
        await asyncio.gather(client.register(), client.register(secret=bytes(range(32, 64))))
        client.close()
        assert made.gateway.resumable_sessions.away_count == len(made.gateway.resumable_sessions)
        made.clock.now += MINUTE
        made.gateway.resumable_sessions.expire()
        assert len(made.gateway.resumable_sessions) == len(made.gateway.sessions) == 0


async def test_a_session_is_not_bound_with_a_version_that_has_no_such_sessions(tmp_path: Path) -> None:
    """Its polls would not be bounded by the memory that there is."""
    async with world(tmp_path) as made:
        first = await root(made)
        older = registration.encode_binding(
            modern_registration.packed(0, 11, 0), CLIENT, first.session, SECRET, "test", "1"
        )
        for client in (Newer(made), first):
            octets = frame(READ, older, number=1, session=first.session, code=BIND_SESSION)
            assert (await client.reply(octets)).evicted == Reason.MALFORMED_LOGIN
        assert not first.ended


async def test_who_waits_for_a_partition_that_is_not_there_hears_so_at_once(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made)
        absent = [target(number, client.incarnation) for number in range(1, 1000)]
        found = await client.get(fetch(target(0, client.incarnation), *absent, wait=MINUTE))
        statuses = {section.partition_id: section.status for section in found.sections}
        assert statuses == dict.fromkeys(range(1000), Code.PARTITION_NOT_FOUND) | {0: 0}
        wanted = msgspec.structs.replace(poll(wait=MINUTE), partition_id=1)
        assert await client.refused(wanted) == Code.PARTITION_NOT_FOUND


async def test_a_fetch_of_an_old_incarnation_is_refused_without_waiting(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made, 2)
        old = client.incarnation
        await client.demand(requests.DeletePartitions("s", "t", 1))
        await client.demand(requests.CreatePartitions("s", "t", 1))
        found = await client.get(fetch(target(0, old), target(1, old), wait=MINUTE))
        assert {section.partition_id: section.status for section in found.sections} == {
            0: 0,
            1: Code.PARTITION_RECREATED,
        }


@pytest.mark.parametrize("how", ["logged out", "logged in anew", "bound elsewhere"])
async def test_what_waits_ends_with_its_session_and_commits_nothing(tmp_path: Path, how: str) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made)
        assert await client.say(client.asked(poll(wait=MINUTE, strategy=NEXT, commit=True))) is None
        later, session = client.late[0], client.session
        other = Newer(made, port=5001)
        match how:
            case "logged out":
                await client.demand(requests.LogoutUser())
            case "logged in anew":
                await client.register(secret=bytes(32))
            case "bound elsewhere":
                await other.bind(session, number=client.number)
        await asyncio.wait([later], timeout=30)
        assert later.done()
        assert len(made.gateway.waiting_polls) == 0
        if how != "bound elsewhere":
            await other.register()
        other.incarnation = client.incarnation
        assert await other.get(requests.GetConsumerOffset(ME, "s", "t", 0)) is None


async def test_a_partition_that_is_made_again_while_a_poll_waits_for_memory_is_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made)
        scarce = asyncio.get_running_loop().create_future()
        monkeypatch.setattr(reservations, "reserve_response", lambda reservation, most: None)
        monkeypatch.setattr(reservations.Reservation, "wait", lambda reservation: scarce)
        polled = asyncio.create_task(client.reply(client.asked(poll(strategy=NEXT, commit=True))))
        await asyncio.sleep(0)
        await client.demand(requests.DeletePartitions("s", "t", 1))
        await client.demand(requests.CreatePartitions("s", "t", 1))
        scarce.set_result(1 << 20)
        assert (await polled).refused == Code.PARTITION_RECREATED


async def test_a_slow_request_is_remembered_when_others_were_done_meanwhile() -> None:
    requests = ReplayWindow(ReplayMemory())
    slow = requests.start(1, 132, 1)
    for number in range(2, REQUESTS_MAX + 2):
        requests.start(number, 132, number).set_result(number)
        requests.finish(number, 8)
    slow.set_result(1)
    requests.finish(1, BYTES_MAX + 1)
    assert requests.find(1, 132, 1) is slow


async def test_a_request_that_is_done_after_the_end_of_its_session_is_not_remembered() -> None:
    memory = ReplayMemory()
    requests = ReplayWindow(memory)
    requests.start(1, 132, 1)
    requests.clear()
    requests.finish(1, 8)
    assert memory.size == 0


async def test_the_answers_of_all_sessions_together_are_bounded(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made)
        remembered = made.gateway.resumable_sessions.replay_memory
        before = remembered.size
        assert before > 0
        asked = [client.asked(requests.StoreConsumerOffset(ME, "s", "t", 0, 0)) for _ in range(SCARCE_REQUESTS_MAX + 2)]
        remembered.size += ALL_BYTES_MAX
        for octets in asked:
            await client.reply(octets)
        assert (await client.reply(asked[1])).refused == Code.REQUEST_TOO_OLD
        assert (await client.reply(asked[2])).refused != Code.REQUEST_TOO_OLD
        remembered.size -= ALL_BYTES_MAX
        await client.demand(requests.LogoutUser())
        assert remembered.size == 0


async def test_a_wait_for_many_messages_does_not_look_at_all_partitions_for_each_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made, 3)
        begun: list[int] = []
        awaited = Partition.awaited

        def counted(partition: Partition, offset: int) -> asyncio.Future[None]:
            begun.append(partition.place.partition)
            return awaited(partition, offset)

        monkeypatch.setattr(Partition, "awaited", counted)
        monkeypatch.setattr(long_poll, "PAUSE_SECONDS", 1000)
        targets = [target(number, client.incarnation) for number in range(3)]
        assert await client.say(client.asked(fetch(*targets, wait=MINUTE, min_count=50))) is None
        number = client.number
        for _ in range(5):
            await sent(client, b"x")
            await asyncio.sleep(0)
        await client.cancel(number)
        assert await client.come_late() is not None
        assert begun == [0, 1, 2]


async def test_others_have_their_turn_while_many_partitions_are_fetched(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made, 500)
        octets = client.asked(fetch(*[target(number, client.incarnation) for number in range(500)]))
        loop, turns_of_others = asyncio.get_running_loop(), [0]
        fetched = loop.create_task(client.reply(octets))

        def turn() -> None:
            turns_of_others[0] += 1
            if not fetched.done():
                loop.call_soon(turn)

        loop.call_soon(turn)
        assert not (await fetched).refused
        assert turns_of_others[0] >= 5


async def test_stats_report_open_files(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        stats = await (await root(made)).get(requests.GetStats())
        assert 0 < stats.open_files_count < stats.open_files_limit
