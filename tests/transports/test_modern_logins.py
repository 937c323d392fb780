"""0.9 clients against a live listener: registration, consumer groups, and the requests of a cluster."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.app.access.support.world import everywhere
from tests.support.clocks import Clock
from tests.transports.support.modern import (
    AS_ROOT,
    CLIENT,
    FIRST,
    ME,
    OTHER,
    SPOKEN,
    Modern,
    batch_of,
    checksum_of,
    frame,
    login,
    root,
    sending,
    stranger,
    with_topic,
)
from tests.transports.support.modern_clients import (
    nothing_is_logged,  # noqa: F401
    with_alice,
)
from tests.transports.support.raw import Served, served
from whippet.app.commands import requests as commands
from whippet.app.commands import responses
from whippet.app.errors import Code
from whippet.transports.wire.modern import registration, requests
from whippet.transports.wire.modern.frames import Reason
from whippet.transports.wire.modern.operations import LOGOUT, READ, REGISTER
from whippet.transports.wire.primitives import name, str8

GROUP = commands.Consumer(commands.ConsumerKind.GROUP, "g")
NEXT = commands.Strategy(commands.StrategyKind.NEXT)
OF_GROUP = ("s", "t", "g")
PAIR = batch_of(b"one", b"two")


# -------------------------------------------------------------------------------------------------------- registration


async def test_before_a_login_only_a_ping_and_a_logout_are_answered(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        made, client = await with_topic(world, client=OTHER), await stranger(world)
        for request in (
            commands.GetStats(),
            commands.GetMe(),
            commands.GetClusterMetadata(),
            commands.GetStream("nothing"),
            commands.SyncConsumerGroup(*OF_GROUP),
            commands.PollMessages(ME, 0, 0, 0, FIRST, 1, False),
            commands.AttachSession(OTHER, made.session),
            commands.GetPollRouting(ME, 0, 0, 0, FIRST, 1, False),
        ):
            for session in (0, made.session, 2**64 - 1):
                assert await client.refused(request, session=session) == Code.UNAUTHENTICATED
        for change in (commands.CreateStream("x"), sending(PAIR), commands.StoreConsumerOffset(ME, 0, 0, 0, 0)):
            for session in (0, made.session):
                reply = await client.demand(change, session=session)
                assert reply.evicted == Reason.NO_SESSION
                assert reply.head[128:144] == CLIENT
        assert not await client.refused(commands.LogoutUser())
        assert await client.is_alive()
        assert await made.payloads() == []


async def test_each_login_gets_a_higher_session_number(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client, sessions = await stranger(world), []
        for _ in range(3):
            reply = await client.register()
            answer = registration.decode_response(memoryview(reply.content))
            assert answer == registration.Registered(0, client.session, SPOKEN, "0.9.0")
            assert reply.head[128:144] == bytes(16)
            assert reply.head[160:176] == CLIENT
            assert struct.unpack_from("<QQ", reply.head, 176) == (client.session, client.session)
            sessions.append(client.session)
            assert not await client.refused(commands.CreateStream(f"stream {client.session}"))
        assert sessions == sorted(set(sessions))
        assert sessions[0] >= 1


async def test_only_supported_versions_may_log_in(tmp_path: Path) -> None:
    packed = registration.packed

    async with served(tmp_path) as world:
        client = await stranger(world)
        for spoken in (packed(0, 11, 0), packed(0, 11, 7), packed(0, 11, 1023)):
            assert (await client.register(protocol=spoken)).evicted is None
        for other in (0, packed(0, 10, 1023), packed(0, 12, 3), packed(1, 0, 0), 2**32 - 1):
            reply = await client.register(protocol=other)
            assert reply.evicted == Reason.INCOMPATIBLE_PROTOCOL
            newest, oldest = struct.unpack_from("<II", reply.head, 144)
            assert 1 <= oldest == packed(0, 11, 0) <= newest == packed(0, 12, 2)
            assert reply.head[128:144] == CLIENT
        # The previous login is still valid.
        assert not await client.refused(commands.GetMe())


HEAD = struct.pack("<I", SPOKEN) + name("sdk") + name("1")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        HEAD[:3],
        HEAD,
        HEAD[:4] + b"\0\0",
        HEAD + b"\xff" * 300,
        HEAD + name("root"),
        HEAD + name("root") + str8("password"),
        HEAD + name("root") + str8("password") + b"\1\0\0",
        HEAD + name("root") + str8("password") + b"\1\0\0\0",
        HEAD + b"\2\xff\xfe" + str8("password") + bytes(4),
        HEAD + name("token") + b"\1\0\0\0",
    ],
)
async def test_an_undecodable_login_is_evicted(tmp_path: Path, body: bytes) -> None:
    async with served(tmp_path) as world:
        client = await stranger(world)
        for checksum in (0, checksum_of(body)):
            reply = await client.say(frame(REGISTER, body, checksum=checksum))
            assert reply.evicted == Reason.MALFORMED_LOGIN
        assert await client.refused(commands.GetMe()) == Code.UNAUTHENTICATED
        assert (await client.register()).evicted is None


async def test_a_login_with_a_session_or_a_number_is_refused(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client = await stranger(world)
        for fields in ({"session": 1}, {"number": 1}):
            reply = await client.say(frame(REGISTER, login(AS_ROOT), **fields))  # type: ignore[arg-type]
            assert reply.evicted == Reason.MALFORMED_LOGIN
        reply = await client.say(frame(REGISTER, login(AS_ROOT), checksum=1))
        assert reply.refused == Code.INVALID_FORMAT
        assert await client.refused(commands.GetMe()) == Code.UNAUTHENTICATED


async def test_a_refused_login_has_a_reason_and_may_be_tried_again(tmp_path: Path) -> None:
    clock = Clock()
    async with served(tmp_path, store={"clock": clock}) as world:
        admin = await root(world, OTHER)
        alice = await with_alice(admin)
        token = (await admin.get(commands.CreatePersonalAccessToken("short", 1_000_000))).token
        expired = commands.LoginWithPersonalAccessToken(token)
        client = await stranger(world)
        assert (await client.register(expired)).evicted is None
        clock.now += 1_000_001
        assert not await admin.refused(commands.UpdateUser("alice", None, commands.UserStatus.INACTIVE))
        client = await stranger(world)
        for who, reason in (
            (commands.LoginUser("root", "wrong", "1"), Reason.INVALID_CREDENTIALS),
            (commands.LoginUser("nobody", "wrong", "1"), Reason.INVALID_CREDENTIALS),
            (commands.LoginUser("r", "wrong", "1"), Reason.INVALID_CREDENTIALS),
            (commands.LoginUser("root", "x" * 200, "1"), Reason.INVALID_CREDENTIALS),
            (alice, Reason.INVALID_CREDENTIALS),
            (expired, Reason.INVALID_TOKEN),
            (commands.LoginWithPersonalAccessToken("nothing"), Reason.INVALID_TOKEN),
            (commands.LoginWithPersonalAccessToken("x" * 255), Reason.INVALID_TOKEN),
        ):
            reply = await client.register(who)
            assert reply.evicted == reason, who
            assert reply.head[128:152] == CLIENT + bytes(8)
            assert await client.refused(commands.GetMe()) == Code.UNAUTHENTICATED
        assert (await client.register()).evicted is None
        # A failed login does not end the previous one.
        assert (await client.register(alice)).evicted == Reason.INVALID_CREDENTIALS
        assert not await client.refused(commands.CreateStream("s"))


async def test_a_login_replaces_the_previous_one_completely(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client = await with_topic(world)
        alice = await with_alice(client, permissions=everywhere(read_streams=True, poll_messages=True))
        assert not await client.refused(commands.CreateConsumerGroup(*OF_GROUP))
        assert not await client.refused(commands.JoinConsumerGroup(*OF_GROUP))
        assert (await client.get(commands.SyncConsumerGroup(*OF_GROUP))).partitions == (0,)
        old = client.asked(commands.CreateStream("as root"))
        client.client = OTHER
        assert (await client.register(alice)).evicted is None
        assert await client.get(commands.SyncConsumerGroup(*OF_GROUP)) is None
        assert await client.refused(commands.CreateStream("x")) == Code.UNAUTHORIZED
        assert (await client.say(old)).evicted == Reason.NO_SESSION
        assert (await client.get(commands.GetMe())).groups == ()


async def test_a_client_may_log_in_as_another_user_after_a_logout(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client = await with_topic(world)
        assert not await client.refused(commands.CreateConsumerGroup(*OF_GROUP))
        assert not await client.refused(commands.JoinConsumerGroup(*OF_GROUP))
        logout = client.asked(commands.LogoutUser())
        reply = await client.say(logout)
        assert (reply.operation, reply.refused, reply.body) == (LOGOUT, 0, b"")
        assert world.listener.gateway.replay_caches._sessions == {}
        # Again, and everything else has ended.
        assert not (await client.say(logout)).refused
        assert await client.refused(commands.GetMe()) == Code.UNAUTHENTICATED
        assert (await client.demand(commands.CreateStream("x"))).evicted == Reason.NO_SESSION
        client.client = OTHER
        assert (await client.register()).evicted is None
        assert (await client.get(commands.GetConsumerGroup(*OF_GROUP))).members == ()
        assert not await client.refused(commands.CreateStream("x"))


async def test_a_refused_logout_ends_no_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pipelined; the user is deactivated before its turn comes."""

    async with served(tmp_path) as world:
        client = await root(world)
        with monkeypatch.context() as patch:
            patch.setattr(world.listener.gateway.users, "by_login", lambda login: None)
            for request in (commands.LogoutUser(), commands.CreateStream("x"), commands.LogoutUser()):
                assert await client.refused(request) == Code.UNAUTHENTICATED
        assert not await client.refused(commands.CreateStream("x"))
        assert not await client.refused(commands.LogoutUser())


ONE = batch_of(b"one copy", b"of both")


# --------------------------------------------------------------------------------------------------------------- groups


async def with_group(world: Served, partitions: int = 2) -> Modern:
    client = await with_topic(world, partitions)
    assert not await client.refused(commands.CreateConsumerGroup(*OF_GROUP))
    for partition_id in range(partitions):
        assert not await client.refused(sending(batch_of(b"%d" % partition_id), partition_id))
    return client


async def poll_of_group(client: Modern, partition_id: int | None, *, commit: bool = False) -> responses.Polled:
    found = await client.get(commands.PollMessages(GROUP, 0, 0, partition_id, NEXT, 10, commit))
    assert isinstance(found, responses.Polled)
    return found


async def test_members_learn_their_partitions_and_others_that_they_are_not_members(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client, other = await with_group(world), await root(world, OTHER)
        sync = commands.SyncConsumerGroup(*OF_GROUP)
        assert (await client.demand(sync)).content == b""
        assert not await client.refused(commands.JoinConsumerGroup(*OF_GROUP))
        first = await client.get(sync)
        assert first.partitions == (0, 1)
        assert (await other.demand(sync)).content == b""
        assert not await other.refused(commands.JoinConsumerGroup(*OF_GROUP))
        second, others = await client.get(sync), await other.get(sync)
        assert sorted(second.partitions + others.partitions) == [0, 1]
        assert first.generation < second.generation == others.generation
        third = await root(world, b"3" * 16)
        assert not await third.refused(commands.JoinConsumerGroup(*OF_GROUP))
        content = (await third.demand(sync)).content
        assert (len(content), content[8:]) == (12, bytes(4))
        assert not await client.refused(commands.LeaveConsumerGroup(*OF_GROUP))
        assert (await client.demand(sync)).content == b""
        assert await client.refused(commands.LeaveConsumerGroup(*OF_GROUP)) == 5006
        other.reset()
        while world.connections > 2:
            assert await client.is_alive()
        assert (await third.get(sync)).partitions == (0, 1)


async def test_a_partition_of_another_member_is_neither_polled_nor_committed(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client, other = await with_group(world), await root(world, OTHER)
        for member in (client, other):
            assert not await member.refused(commands.JoinConsumerGroup(*OF_GROUP))
        (mine,) = (await client.get(commands.SyncConsumerGroup(*OF_GROUP))).partitions
        reply = await client.demand(commands.PollMessages(GROUP, 0, 0, 1 - mine, NEXT, 10, True))
        assert reply.content == bytes.fromhex("ffffffff") + bytes(12)
        for not_there in (2, 2**32 - 1):
            reply = await client.demand(commands.PollMessages(GROUP, 0, 0, not_there, NEXT, 10, True))
            assert reply.refused == 3007 or reply.content == bytes.fromhex("ffffffff") + bytes(12)
        assert (await poll_of_group(client, mine)).messages_count == 1
        commit, forget = commands.StoreConsumerOffset, commands.DeleteConsumerOffset
        assert await client.refused(commit(GROUP, 0, 0, 1 - mine, 0)) == 5009
        assert await client.refused(forget(GROUP, 0, 0, 1 - mine)) == 5009
        assert not await client.refused(commit(GROUP, 0, 0, mine, 0))
        assert not await client.refused(forget(GROUP, 0, 0, mine))
        stranger_ = await root(world, b"3" * 16)
        assert await stranger_.refused(commands.PollMessages(GROUP, 0, 0, 0, NEXT, 10, True)) == 5006
        assert await stranger_.refused(commit(GROUP, 0, 0, 0, 0)) == 5006


async def test_a_partition_to_be_handed_over_is_skipped_until_its_messages_are_committed(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client, other = await with_group(world), await root(world, OTHER)
        sync = commands.SyncConsumerGroup(*OF_GROUP)
        assert not await client.refused(commands.JoinConsumerGroup(*OF_GROUP))
        for partition_id in (0, 1):
            assert (await poll_of_group(client, partition_id)).messages_count == 1
        assert not await other.refused(commands.JoinConsumerGroup(*OF_GROUP))
        before = await client.get(sync)
        assert len(before.partitions) == 1
        promised = 1 - before.partitions[0]
        # Twelve bytes, because the client is a member, although it has no partition yet.
        assert (await other.get(sync)).partitions == ()
        reply = await other.demand(commands.PollMessages(GROUP, 0, 0, promised, NEXT, 10, False))
        assert reply.content[:4] == b"\xff\xff\xff\xff"
        assert not await client.refused(commands.StoreConsumerOffset(GROUP, 0, 0, promised, 0))
        assert (await other.get(sync)).partitions == (promised,)
        assert await client.refused(commands.StoreConsumerOffset(GROUP, 0, 0, promised, 0)) == 5009
        assert not (await poll_of_group(client, promised)).owned


async def test_a_join_repeated_after_a_reconnect_is_executed_again(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client = await with_group(world)
        join = client.asked(commands.JoinConsumerGroup(*OF_GROUP))
        answered = await client.say(join)
        assert (await client.say(join)).whole == answered.whole
        client.reset()
        again = await root(world)
        assert (await again.say(join)).evicted == Reason.SESSION_TOO_LOW
        assert await again.get(commands.SyncConsumerGroup(*OF_GROUP)) is None
        assert not await again.refused(commands.JoinConsumerGroup(*OF_GROUP), number=4)
        assert (await again.get(commands.SyncConsumerGroup(*OF_GROUP))).partitions == (0, 1)


# ------------------------------------------------------------------------------------------------ requests of a cluster


async def test_every_partition_is_led_by_this_node(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client = await with_topic(world)
        world.listener.gateway.addresses.tcp = world.listener.address.port
        (node,) = (await client.get(commands.GetClusterMetadata())).nodes
        assert (node.ip, node.tcp_port) == ("127.0.0.1", world.listener.address.port)
        for request in (
            commands.GetPollRouting(ME, 0, 0, 0, NEXT, 1, True),
            commands.GetOffsetRouting(ME, 0, 0, 0),
        ):
            assert await client.get(request) == responses.Routing(CLIENT, client.session, 0, node)
        assert not await client.refused(sending(ONE))
        body = b"".join(requests.encode(commands.PollMessages(ME, 0, 0, 0, NEXT, 10, False)))
        polls = [
            (await client.say(frame(READ, body, session=client.session, code=code))).content for code in (100, 104)
        ]
        assert polls[0] == polls[1]
        assert b"one copy" in polls[0]


async def test_a_second_connection_shares_the_memberships_of_the_first(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        member, data = await with_group(world), await root(world, OTHER)
        assert not await member.refused(commands.JoinConsumerGroup(*OF_GROUP))
        poll = commands.PollMessages(GROUP, 0, 0, 1, NEXT, 10, False)
        assert await data.refused(poll) == 5006
        assert (await data.demand(commands.AttachSession(CLIENT, member.session))).content == b""
        assert (await data.get(commands.SyncConsumerGroup(*OF_GROUP))).partitions == (0, 1)
        assert (await data.get(poll)).messages_count == 1
        assert not await data.refused(commands.StoreConsumerOffset(GROUP, 0, 0, 1, 0))
        # To itself: it acts for itself again.
        assert not await data.refused(commands.AttachSession(OTHER, data.session))
        assert await data.refused(poll) == 5006


async def test_attaching_needs_an_existing_session_of_the_same_user(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        member, data = await with_group(world), await root(world, OTHER)
        old = member.session
        assert not (await member.register()).refused
        for client, number in ((CLIENT, old), (CLIENT, member.session + 1), (b"?" * 16, member.session)):
            assert await data.refused(commands.AttachSession(client, number)) == Code.CLIENT_NOT_FOUND
        # The same client twice: the number identifies the connection.
        twin = await root(world)
        for session in (member.session, twin.session):
            assert not await data.refused(commands.AttachSession(CLIENT, session))
        alices = await stranger(world, b"a" * 16)
        await alices.register(await with_alice(data, permissions=everywhere(poll_messages=True)))
        assert await alices.refused(commands.AttachSession(CLIENT, member.session)) == Code.UNAUTHORIZED


async def test_an_attached_connection_does_not_act_for_the_next_user(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        member, data = await with_group(world), await root(world, OTHER)
        alice = await with_alice(member, permissions=everywhere(read_streams=True, read_topics=True))
        assert not await data.refused(commands.AttachSession(CLIENT, member.session))
        assert not (await member.register(alice)).refused
        assert not await member.refused(commands.JoinConsumerGroup(*OF_GROUP))
        assert await data.get(commands.SyncConsumerGroup(*OF_GROUP)) is None
        assert await data.refused(commands.PollMessages(GROUP, 0, 0, 0, NEXT, 10, False)) == 5006
        # A client that logs in again acts for itself.
        third = await root(world, b"3" * 16)
        assert not await third.refused(commands.JoinConsumerGroup(*OF_GROUP))
        assert not await data.refused(commands.AttachSession(b"3" * 16, third.session))
        assert (await data.get(commands.SyncConsumerGroup(*OF_GROUP))) is not None
        assert not (await data.register()).refused
        assert await data.get(commands.SyncConsumerGroup(*OF_GROUP)) is None


async def test_a_connection_attached_to_a_lost_one_is_evicted_when_it_polls(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        member, data = await with_group(world), await root(world, OTHER)
        assert not await member.refused(commands.JoinConsumerGroup(*OF_GROUP))
        assert not await data.refused(commands.AttachSession(CLIENT, member.session))
        member.reset()
        while world.connections > 1:
            assert await data.is_alive()
        assert await data.get(commands.SyncConsumerGroup(*OF_GROUP)) is None
        poll = commands.PollMessages(GROUP, 0, 0, 0, NEXT, 10, False)
        assert (await data.demand(poll)).evicted == Reason.STALE_CLIENT
        assert await data.is_closed()
