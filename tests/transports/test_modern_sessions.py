"""0.9 clients against a live listener: sessions, request numbers, and requests that are repeated."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.app.access.support.world import everywhere
from tests.storage.support.world import SlowDisk, reached
from tests.support.clocks import Clock
from tests.transports.support.modern import (
    AS_ROOT,
    CLIENT,
    ME,
    OTHER,
    batch_of,
    confirmed,
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
from whippet.app.commands import direct_sends
from whippet.app.commands import requests as commands
from whippet.app.errors import Code
from whippet.app.model.sessions import Session
from whippet.transports import tcp
from whippet.transports.modern_conversation import REMEMBERED_BYTES_MAX
from whippet.transports.wire.modern.frames import Reason
from whippet.transports.wire.modern.operations import REGISTER

SEND, CREATE_STREAM = 160, 128


PAIR = batch_of(b"one", b"two")


# ------------------------------------------------------------------------------------------------- sessions and numbers


async def test_the_session_of_another_client_is_evicted(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client = await root(world)
        first = client.session
        other = await root(world, OTHER)
        assert (await client.register()).evicted is None
        for fields, reason in (
            ({"session": first}, Reason.SESSION_TOO_LOW),
            ({"session": other.session}, Reason.SESSION_TOO_LOW),
            ({"session": 2**64 - 1}, Reason.NO_SESSION),
            ({"session": client.session + 1}, Reason.NO_SESSION),
            ({"client": OTHER}, Reason.NO_SESSION),
            ({"client": OTHER, "session": other.session}, Reason.NO_SESSION),
        ):
            assert (await client.demand(commands.CreateStream("x"), **fields)).evicted == reason
            assert (await client.demand(commands.GetStreams(), **fields)).evicted == reason
            assert (await client.demand(commands.LogoutUser(), **fields)).evicted == reason
        # Without a session nothing can be changed, but read.
        assert (await client.demand(commands.CreateStream("x"), session=0)).evicted == Reason.SESSION_TOO_LOW
        assert await client.get(commands.GetStreams(), session=0) == ()
        assert await other.get(commands.GetStreams()) == ()


async def test_only_the_newest_session_of_a_client_is_valid(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        old = await with_topic(world)
        new = await root(world)
        assert (await old.demand(commands.CreateStream("x"))).evicted == Reason.SESSION_TOO_LOW
        assert (await old.demand(sending(PAIR))).evicted == Reason.SESSION_TOO_LOW
        assert not await old.refused(commands.GetStreams())
        assert not await new.refused(commands.CreateStream("x"))


async def test_request_numbers_only_increase(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client = await root(world)
        assert await client.refused(commands.CreateStream("zero"), number=0) == Code.INVALID_COMMAND
        first = client.asked(commands.CreateStream("one"), number=5)
        answered = await client.say(first)
        assert (answered.refused, answered.number) == (0, 5)
        # The earlier response: executing it again would be refused.
        assert (await client.say(first)).whole == answered.whole
        refused = await client.demand(commands.CreateStream("one"), number=6)
        assert refused.refused == Code.STREAM_NAME_ALREADY_EXISTS
        assert not await client.refused(commands.DeleteStream("one"), number=7)
        assert (await client.demand(commands.CreateStream("one"), number=6)).whole == refused.whole
        assert (await client.say(first)).whole == answered.whole
        assert await client.get(commands.GetStreams()) == ()
        for number, request, code in (
            (4, commands.CreateStream("four"), Code.REQUEST_ALREADY_APPLIED),
            (5, commands.CreateStream("other"), Code.INVALID_COMMAND),
            (7, commands.DeleteStream("other"), Code.INVALID_COMMAND),
            (7, commands.LogoutUser(), Code.INVALID_COMMAND),
        ):
            assert await client.refused(request, number=number) == code, number
        assert not await client.refused(commands.CreateStream("last"), number=2**64 - 1)
        assert await client.refused(commands.CreateStream("after"), number=8) == Code.REQUEST_ALREADY_APPLIED
        assert [stream.name for stream in await client.get(commands.GetStreams())] == ["last"]


async def test_a_poll_returns_as_much_as_official_clients_ask_for(tmp_path: Path) -> None:
    """100 MB: 5,000 messages of 20 KB, in batches as they are sent."""
    async with served(tmp_path) as world:
        client = await with_topic(world)
        for number in range(10):
            batch = batch_of(*[bytes(20_000)] * 500, ids=range(500 * number + 1, 500 * number + 501))
            assert not await client.refused(sending(batch))
        first = commands.Strategy(commands.StrategyKind.FIRST)
        polled = await client.get(commands.PollMessages(ME, 0, 0, 0, first, 5_000, False))
        assert (polled.messages_count, polled.current_offset) == (5_000, 4_999)


async def test_requests_for_one_partition_may_be_counted_separately(tmp_path: Path) -> None:
    """Java clients do so, in a sequence that is lower or higher than the other one."""
    async with served(tmp_path) as world:
        client = await with_topic(world)
        change = client.next_number
        for apart in (1, 2, 50, 51):
            octets = client.asked(sending(batch_of(b"%d" % apart, ids=[apart])), number=apart)
            answered = await client.say(octets)
            assert not answered.refused
            assert (await client.say(octets)).whole == answered.whole
            assert not await client.refused(commands.StoreConsumerOffset(ME, 0, 0, 0, 0), number=apart)
            assert not await client.refused(commands.CreateStream(f"stream {apart}"), number=change)
            change += 1
        assert await client.payloads() == [b"1", b"2", b"50", b"51"]


async def test_early_clients_may_send_with_the_number_of_the_next_change(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client = await with_topic(world)
        for turn in range(1, 4):
            number = client.next_number
            for part in range(3):
                batch = batch_of(b"%d %d" % (turn, part), ids=[10 * turn + part])
                assert not await client.refused(sending(batch), number=number)
            assert not await client.refused(commands.StoreConsumerOffset(ME, 0, 0, 0, turn), number=number)
            assert not await client.refused(commands.CreateStream(f"stream {turn}"), number=number)
            client.next_number = number + 1
        assert await client.payloads() == [b"%d %d" % (turn, part) for turn in (1, 2, 3) for part in range(3)]


async def test_a_limited_number_of_responses_is_remembered(tmp_path: Path) -> None:
    async with served(tmp_path, session_answers=2) as world:
        client = await root(world)
        octets = [client.asked(commands.CreateStream(f"stream {number}")) for number in range(3)]
        answered = [await client.say(one) for one in octets]
        assert [one.refused for one in answered] == [0] * 3
        assert (await client.say(octets[0])).refused == Code.REQUEST_ALREADY_APPLIED
        assert [await client.say(one) for one in octets[1:]] == answered[1:]


async def test_of_a_long_response_only_its_number_is_remembered(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client = await root(world)
        assert not await client.refused(commands.CreateStream("s"))
        many = client.asked(commands.CreateTopic("s", "t", 200))
        reply = await client.say(many)
        assert not reply.refused
        assert len(reply.whole) > REMEMBERED_BYTES_MAX
        assert (await client.say(many)).refused == Code.REQUEST_ALREADY_APPLIED
        kept = world.listener.gateway.replay_caches._sessions[CLIENT]._kept
        assert len(kept) == 1


# ------------------------------------------------------------------------------------------------- repeated messages


ONE = batch_of(b"one copy", b"of both")


async def test_messages_repeated_on_the_same_connection_are_stored_once(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client = await with_topic(world)
        octets = client.asked(sending(ONE))
        answered = await client.say(octets)
        assert confirmed(answered) == (0, 0, 0, 0)
        for _ in range(3):
            assert (await client.say(octets)).whole == answered.whole
        # Repeated with a new number, it is another request.
        assert confirmed(await client.demand(sending(ONE))) == (0, 0, 0, 2)
        assert await client.payloads() == [b"one copy", b"of both"] * 2


@pytest.mark.parametrize("verbatim", [True, False], ids=["in the old session", "in the new session"])
async def test_messages_repeated_after_a_reconnect_are_stored_once(tmp_path: Path, verbatim: bool) -> None:
    async with served(tmp_path) as world:
        client = await with_topic(world)
        number = client.next_number
        octets = client.asked(sending(ONE))
        answered = await client.say(octets)
        client.reset()
        for _ in range(3):
            again = await root(world)
            assert again.session > client.session
            if not verbatim:
                octets = again.asked(sending(ONE), number=number)
            reply = await again.say(octets)
            assert confirmed(reply) == confirmed(answered)
            assert (reply.number, reply.operation) == (number, SEND)
            assert await again.payloads() == [b"one copy", b"of both"]
            again.reset()


async def test_another_client_or_user_is_not_mistaken_for_the_sender(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client = await with_topic(world)
        alice = await with_alice(client, permissions=everywhere(send_messages=True))
        number = client.next_number
        octets = client.asked(sending(ONE))
        assert confirmed(await client.say(octets)) == (0, 0, 0, 0)
        other = await root(world, OTHER)
        assert confirmed(await other.demand(sending(ONE), number=number)) == (0, 0, 0, 2)
        thief = await stranger(world)
        assert (await thief.register(alice)).evicted is None
        assert (await thief.say(octets)).evicted == Reason.SESSION_TOO_LOW
        assert confirmed(await thief.demand(sending(ONE), number=number)) == (0, 0, 0, 4)
        # The first client is still known on its connection.
        assert confirmed(await client.say(octets)) == (0, 0, 0, 0)


async def test_sends_are_remembered_for_a_while_after_the_connection(tmp_path: Path) -> None:
    clock = Clock()
    async with served(tmp_path, store={"clock": clock}, session_memory=5.0) as world:
        client = await with_topic(world)
        octets = client.asked(sending(ONE))
        answered = await client.say(octets)
        for wait, known in ((4_900_000, True), (5_000_001, False)):
            client.reset()
            while world.connections:  # noqa: ASYNC110
                await asyncio.sleep(0)
            clock.now += wait
            client = await root(world)
            reply = await client.say(octets)
            assert (reply.whole == answered.whole) == known
            assert reply.evicted == (None if known else Reason.SESSION_TOO_LOW)


async def test_messages_repeated_while_they_are_being_written_are_stored_once(tmp_path: Path) -> None:
    disk = SlowDisk()
    async with served(tmp_path, store={"files": disk, "messages_required_to_save": 1}) as world:
        client = await with_topic(world)
        number = client.next_number
        octets = client.asked(sending(ONE))
        disk.stop()
        await client.send(octets)
        await reached(disk.reached)
        # Repeated on the same connection, and on two others that have logged in meanwhile.
        await client.send(octets)
        verbatim = await root(world)
        await verbatim.send(octets)
        anew = await root(world)
        await anew.send(anew.asked(sending(ONE), number=number))
        for witness in (await root(world, OTHER), await root(world, OTHER)):
            assert await witness.is_alive()
        disk.go()
        replies = [await one.reply() for one in (client, client, verbatim, anew)]
        assert [confirmed(reply) for reply in replies] == [(0, 0, 0, 0)] * 4
        assert await anew.payloads() == [b"one copy", b"of both"]


async def test_messages_of_a_connection_lost_during_the_write_are_stored_once(tmp_path: Path) -> None:
    disk = SlowDisk()
    async with served(tmp_path, store={"files": disk, "messages_required_to_save": 1}) as world:
        client, witness = await with_topic(world), await root(world, OTHER)
        octets = client.asked(sending(ONE))
        disk.stop()
        await client.send(octets)
        await reached(disk.reached)
        client.reset()
        while world.connections == 2:
            assert await witness.is_alive()
        again = await root(world)
        await again.send(octets)
        assert await witness.is_alive()
        disk.go()
        assert confirmed(await again.reply()) == (0, 0, 0, 0)
        assert await again.payloads() == [b"one copy", b"of both"]


async def test_refused_messages_may_be_repeated_and_are_then_stored(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client = await root(world)
        assert not await client.refused(commands.CreateStream("s"))
        early = client.asked(sending(ONE), number=7)
        assert (await client.say(early)).refused == Code.TOPIC_ID_NOT_FOUND
        assert (await client.say(early)).refused == Code.TOPIC_ID_NOT_FOUND
        made = await root(world, OTHER)
        assert not await made.refused(commands.CreateTopic("s", "t", 1))
        assert confirmed(await client.say(early)) == (0, 0, 0, 0)
        assert confirmed(await client.say(early)) == (0, 0, 0, 0)
        assert await client.payloads() == [b"one copy", b"of both"]


def _session_of(world: Served, client: bytes) -> Session:
    (found,) = (
        one for one in world.listener.gateway.sessions if one.registration and one.registration.client == client
    )
    return found


async def test_a_stale_client_is_evicted_and_its_requests_are_not_executed(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        made = await with_topic(world, client=OTHER)
        for request in (
            commands.GetStreams(),
            commands.Ping(),
            commands.CreateStream("x"),
            sending(ONE),
            commands.LogoutUser(),
        ):
            client = await root(world)
            number = client.next_number
            _session_of(world, CLIENT).stale = True
            octets = client.asked(request)
            await client.send(octets + octets)
            reply = await client.reply()
            assert reply.evicted == Reason.STALE_CLIENT
            assert reply.head[128:144] == CLIENT
            assert await client.is_closed()
            client.reset()
            again = await root(world)
            assert (await again.demand(request, number=number)).evicted is None, request
            again.reset()
            while world.connections > 1:
                assert await made.is_alive()
        client = await root(world)
        _session_of(world, CLIENT).stale = True
        assert (await client.register()).evicted == Reason.STALE_CLIENT
        assert await client.is_closed()
        assert await made.payloads() == [b"one copy", b"of both"]
        assert len(await made.get(commands.GetStreams())) == 2


async def test_an_unexpected_error_is_answered_logged_once_and_may_be_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(tmp_path) as world:
        client = await with_topic(world)
        number = client.next_number
        octets = client.asked(sending(ONE))
        going, begun = asyncio.Event(), asyncio.Event()

        async def broken(*_: Any) -> Any:
            begun.set()
            await going.wait()
            raise RuntimeError("of ours")

        with monkeypatch.context() as patch:
            patch.setattr(direct_sends, "choose_partition", lambda *_: 1 // 0)
            assert (await client.say(octets)).refused == Code.ERROR
            patch.setattr("whippet.transports.modern_conversation.send", broken)
            await client.send(octets)
            await begun.wait()
        again, witness = await root(world), await root(world, OTHER)
        await again.send(octets)
        assert await witness.is_alive()
        going.set()
        # Clients that wait for the same response all get it.
        assert [(await one.reply()).refused for one in (client, again)] == [Code.ERROR] * 2
        assert confirmed(await again.demand(sending(ONE), number=number)) == (0, 0, 0, 0)
        assert await again.payloads() == [b"one copy", b"of both"]
    assert len(caplog.records) == 2
    caplog.clear()


async def test_a_login_that_outlives_its_connection_leaves_nothing_behind(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        witness = await root(world, OTHER)
        users = world.listener.gateway.users
        log_in, going, count, logged_in = users.log_in, asyncio.Event(), 0, 0

        async def slow(*credentials: str) -> Any:
            nonlocal count, logged_in
            count += 1
            await going.wait()
            found = await log_in(*credentials)
            logged_in += 1
            return found

        users.log_in = slow  # type: ignore[assignment, method-assign]
        for number in range(20):
            client = await stranger(world, bytes([100 + number]) * 16)
            await client.send(frame(REGISTER, login(AS_ROOT), client=client.client))
            while count <= number:
                assert await witness.is_alive()
            client.reset()
        while world.connections > 1:
            assert await witness.is_alive()
        going.set()
        users.log_in = log_in  # type: ignore[method-assign]
        while logged_in < 20:  # noqa: ASYNC110
            await asyncio.sleep(0)
        # What follows the login is done in the same turn of the loop.
        assert await witness.is_alive()
        assert list(world.listener.gateway.replay_caches._sessions) == [OTHER]


async def test_queued_requests_of_a_lost_connection_are_not_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(tmp_path) as world:
        witness = await root(world, OTHER)
        for requests_ in (
            [commands.CreateStream("x")],
            [commands.LogoutUser(), commands.CreateStream("x")],
            [commands.GetMe()],
        ):
            client = await root(world)
            ahead = [memoryview(client.asked(request)) for request in (commands.Ping(), *requests_)]
            (connection,) = (
                one
                for one in world.listener._connections
                if isinstance(one, tcp.Connection) and one._session.registration == (CLIENT, client.session)
            )
            for one in ahead:
                connection._intake.claim.count(len(one))
                connection._intake.queue.append(one)
            going, done = asyncio.Event(), 0
            with monkeypatch.context() as patched:

                async def slow(_: object, frame: memoryview, to: object, going: asyncio.Event = going) -> list[bytes]:
                    nonlocal done
                    done += 1
                    await going.wait()
                    return [bytes(frame)]

                patched.setattr(type(connection._conversation), "respond", slow)
                connection._after_receive()
                connection.connection_lost(None)
                client.reset()
                going.set()
                while connection._is_working:  # noqa: ASYNC110
                    await asyncio.sleep(0)
                assert done == 1
            while world.connections > 1:
                assert await witness.is_alive()
        assert await witness.get(commands.GetStreams()) == ()


async def test_a_flood_of_logins_with_new_client_ids_is_not_remembered(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client = await with_topic(world)
        token = (await client.get(commands.CreatePersonalAccessToken("token", 0))).token
        who = commands.LoginWithPersonalAccessToken(token)
        octets = [frame(REGISTER, login(who), client=number.to_bytes(16, "big")) for number in range(1, 2000)]
        flooding = await stranger(world)
        sent = asyncio.ensure_future(flooding.send(b"".join(octets)))
        for _ in octets:
            assert not (await flooding.reply()).refused
        await sent
        # The connected client, and the last one of the flood.
        assert len(world.listener.gateway.replay_caches._sessions) == 2
        assert not world.listener.gateway.replay_caches._away
