"""0.12 clients without a socket: logins, sessions that move between connections, and numbered requests."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from tests.app.access.support.world import world
from tests.transports.support.modern import batch_of, login, sending
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
from tests.transports.support.next_requests import fetch, payloads, poll, sent, settings, stored, target
from whippet.app.commands import requests
from whippet.app.errors import Code
from whippet.app.model.next_replay import (
    REQUESTS_MAX,
)
from whippet.transports.wire.modern import registration as modern_registration
from whippet.transports.wire.modern.frames import Reason
from whippet.transports.wire.modern.operations import READ, REGISTER

OTHER = bytes(range(1, 17))

NEXT, FIRST = requests.Strategy(requests.StrategyKind.NEXT), requests.Strategy(requests.StrategyKind.FIRST)

MINUTE = 60_000_000


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
async def test_partitions_are_described_as_the_client_version_expects(tmp_path: Path, version: int) -> None:
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


async def test_a_refused_login_is_evicted_without_a_session(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        client = Newer(made)
        reply = await client.register(requests.LoginUser("root", "wrong", "1"))
        assert reply.evicted == Reason.INVALID_CREDENTIALS
        assert len(made.gateway.resumable_sessions) == 0
        assert (await client.register()).evicted is None
        assert len(made.gateway.sessions) == len(made.gateway.resumable_sessions) == 1


async def test_a_0_12_login_may_follow_a_0_9_client_on_a_connection(tmp_path: Path) -> None:
    """On the same connection, without keeping anything of the 0.9 session."""
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


async def test_an_unsupported_version_gets_the_supported_ones_and_is_logged_once(
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


async def test_a_session_is_resumed_with_its_secret_on_another_connection(tmp_path: Path) -> None:
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


async def test_resuming_a_session_needs_its_secret(tmp_path: Path) -> None:
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
        # A client that has lost the reply to its login does not know the number.
        assert not (await Newer(made).bind(0)).refused
        assert first.ended


async def test_a_repeated_login_returns_the_same_session(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        first = await root(made)
        await first.demand(requests.CreateStream("s"))
        first.close()
        again = Newer(made)
        await again.register()
        assert again.session == first.session
        # Another secret is another client, whatever its id.
        other = Newer(made)
        await other.register(secret=bytes(32))
        assert other.session != first.session
        assert len(made.gateway.resumable_sessions) == 2


async def test_the_secret_of_a_session_is_useless_to_another_user(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await made.user("alice")
        first = await root(made)
        alice = Newer(made)
        await alice.register(requests.LoginUser("alice", "alicealice", "1"))
        assert alice.session != first.session
        assert await alice.refused(requests.CreateStream("s")) == Code.UNAUTHORIZED


@pytest.mark.parametrize("how", ["password", "deactivated", "deleted", "sessions ended", "logged out", "silent"])
@pytest.mark.parametrize("is_away", [True, False])
async def test_an_ended_session_cannot_be_resumed(tmp_path: Path, how: str, is_away: bool) -> None:
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


async def test_a_session_without_connection_is_kept_for_a_while_and_then_leaves_its_groups(tmp_path: Path) -> None:
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


async def test_no_user_can_displace_the_sessions_of_others(tmp_path: Path) -> None:
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
        # The end of the connection does not end the session.
        assert not await second.refused(requests.CreateStream("s"))
        assert made.gateway.resumable_sessions.away_count == 0
        second.close()
        assert made.gateway.resumable_sessions.away_count == 1


async def test_session_numbers_and_incarnations_are_unique(tmp_path: Path) -> None:
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


# ------------------------------------------------------------------------------------------------------ request numbers


async def test_a_request_repeated_after_a_lost_connection_is_executed_once(tmp_path: Path) -> None:
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
    """The number of a request that was lost; later ones were executed before it."""
    async with world(tmp_path) as made:
        client = await with_topic(made)
        lost = client.asked(sending(batch_of(b"lost")))
        await sent(client, b"later")
        assert is_committed(await client.reply(lost))
        assert is_committed(await client.reply(lost))
        assert await stored(client) == [b"later", b"lost"]


async def test_a_request_sent_twice_at_the_same_time_is_executed_once(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        first = await with_topic(made)
        send = first.asked(sending(batch_of(b"once")))
        second = Newer(made)
        await second.bind(first.session)
        replies = await asyncio.gather(first.reply(send), second.reply(send), first.reply(send))
        assert all(is_committed(reply) for reply in replies)
        second.incarnation, second.number = first.incarnation, 100
        assert await stored(second) == [b"once"]


async def test_a_final_refusal_is_repeated(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made)
        taken = client.asked(requests.CreateStream("s"))
        reply = await client.reply(taken)
        assert (reply.refused, is_committed(reply)) == (Code.STREAM_NAME_ALREADY_EXISTS, True)
        await client.demand(requests.DeleteStream("s"))
        assert await client.reply(taken) == reply


async def test_a_send_that_stored_nothing_is_executed_again(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made)
        send = client.asked(sending(batch_of(b"a"), partition_id=1), incarnation=client.incarnation)
        reply = await client.reply(send)
        assert (reply.refused, is_committed(reply)) == (Code.PARTITION_NOT_FOUND, False)
        await client.demand(requests.CreatePartitions("s", "t", 1))
        # Not the incarnation that the client has named.
        assert (await client.reply(send)).refused == Code.PARTITION_RECREATED


async def test_another_request_with_the_same_number_is_refused(tmp_path: Path) -> None:
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


async def test_a_long_response_is_remembered_while_it_is_the_newest(tmp_path: Path) -> None:
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


# -------------------------------------------------------------------------------------------------------- incarnations


async def test_a_recreated_partition_has_another_incarnation(tmp_path: Path) -> None:
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


async def test_checking_an_incarnation_reveals_nothing_without_permission(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made)
        octets = client.asked(poll(), session=0, client=OTHER)
        assert (await Newer(made, OTHER).reply(octets)).refused == Code.INVALID_COMMAND
        await client.demand(requests.LogoutUser())
        assert await client.refused(poll(), session=0) == Code.UNAUTHENTICATED
