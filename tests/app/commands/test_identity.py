"""A session acts only as the user who logged in, also after a wait, and also when another user has the number."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.app.access.support.world import Person, World, everywhere, make_group, refusal, world
from tests.app.commands.support.reading import reading
from tests.storage.support.world import settled
from whippet.app import housekeeping
from whippet.app.access.permissions import ALL, Permissions, StreamPermissions, TopicPermissions
from whippet.app.commands import requests
from whippet.app.commands.requests import UserStatus
from whippet.app.errors import Code
from whippet.app.model.sessions import Registration, Session, Transport

ACTIVE, INACTIVE = UserStatus.ACTIVE, UserStatus.INACTIVE
ME = requests.Consumer(requests.ConsumerKind.CONSUMER, 1)


async def replace_alice(made: World) -> None:
    """Gives alice's number to a user with all rights. Her sessions are not ended, as if they had been overlooked."""
    users = made.gateway.users
    number = users.get("alice").id
    await users.delete("alice")
    assert (await users.create("mallory", "mallory", ACTIVE, ALL)).id == number


# ------------------------------------------------------------------------------------------------- sessions


async def test_closing_an_evicted_session_late_removes_no_other_session(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        evicted = await made.root()
        await make_group(evicted)
        await evicted.execute(requests.JoinConsumerGroup("s", "t", "g"))
        made.clock.now += 10**9
        await housekeeping.evict_silent_clients(made.gateway)
        later = Person(made.gateway, evicted.session.address)
        assert later.session.client_id == evicted.session.client_id
        made.gateway.sessions.remove(evicted.session)
        assert made.gateway.sessions.get(later.session.client_id) is later.session


async def test_an_attached_session_does_not_act_for_the_successor_of_an_evicted_one(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        root = await made.root()
        await make_group(root)
        evicted, polling = await made.root(), await made.root()
        registration = evicted.session.registration = Registration(b"client".ljust(16), 7)
        await evicted.execute(requests.JoinConsumerGroup("s", "t", "g"))
        await polling.execute(requests.AttachSession(*registration))
        assert await polling.execute(requests.SyncConsumerGroup("s", "t", "g")) is not None
        made.clock.now += 10**9
        for person in (root, polling):
            person.session.last_heartbeat = made.clock.now
        await housekeeping.evict_silent_clients(made.gateway)
        successor = Person(made.gateway, evicted.session.address)
        assert successor.session.client_id == evicted.session.client_id
        await successor.log_in("root", "root's password")
        await successor.execute(requests.JoinConsumerGroup("s", "t", "g"))
        assert await polling.execute(requests.SyncConsumerGroup("s", "t", "g")) is None


async def test_a_session_may_log_out_once_after_a_password_change(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await made.user("alice")
        alice = await made.logged_in("alice")
        await alice.execute(requests.ChangePassword("alice", "alicealice", "another"))
        assert await refusal(alice.execute(requests.GetMe())) == Code.UNAUTHENTICATED
        await alice.execute(requests.LogoutUser())
        assert await refusal(alice.execute(requests.LogoutUser())) == Code.UNAUTHENTICATED
        assert await refusal(made.person().execute(requests.LogoutUser())) == Code.UNAUTHENTICATED
        await alice.log_in("alice", "another")
        await alice.execute(requests.LogoutUser())
        assert await refusal(alice.execute(requests.LogoutUser())) == Code.UNAUTHENTICATED


async def test_a_session_never_acts_as_the_next_user_with_the_same_number(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await made.user("alice", permissions=ALL)
        alice = await made.logged_in("alice")
        assert await alice.execute(requests.GetUsers())
        await replace_alice(made)
        for request in (
            requests.GetUsers(),
            requests.GetMe(),
            requests.CreateStream("s"),
            requests.CreatePersonalAccessToken("abc", 0),
        ):
            assert await refusal(alice.execute(request)) == Code.UNAUTHENTICATED


async def test_logging_in_as_another_user_leaves_all_groups(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        root = await made.root()
        await make_group(root)
        await made.user("alice", permissions=ALL)
        person = await made.logged_in("alice")
        await person.execute(requests.JoinConsumerGroup("s", "t", "g"))
        await person.log_in("alice", "alicealice")
        assert len((await root.execute(requests.GetConsumerGroup("s", "t", "g"))).members) == 1
        await person.log_in("root", "root's password")
        assert (await root.execute(requests.GetConsumerGroup("s", "t", "g"))).members == ()


# ------------------------------------------------------------------------------------------------- after a wait


@pytest.mark.parametrize("how", ["replaced", "inactive", "another password", "no permission"])
async def test_the_caller_is_checked_again_after_waiting_for_the_catalogue(tmp_path: Path, how: str) -> None:
    async with world(tmp_path) as made:
        await made.user("alice", permissions=everywhere(manage_streams=True))
        alice = await made.logged_in("alice")
        async with made.gateway.catalogue_lock:
            asked = asyncio.create_task(refusal(alice.execute(requests.CreateStream("hers"))))
            await settled()
            await take_away(made, how)
        expected = Code.UNAUTHORIZED if how == "no permission" else Code.UNAUTHENTICATED
        assert await asked == expected
        assert made.gateway.streams.find("hers") is None


async def take_away(made: World, how: str) -> None:
    users = made.gateway.users
    match how:
        case "replaced":
            await replace_alice(made)
        case "inactive":
            await users.update("alice", None, INACTIVE)
            await users.update("alice", None, ACTIVE)
        case "another password":
            await users.change_password("alice", "alicealice", "another", "10.9.9.9:1")
        case "no permission":
            await users.change_permissions("alice", None)


@pytest.mark.parametrize("how", ["replaced", "inactive", "another password", "no permission"])
async def test_messages_are_not_returned_if_the_caller_lost_the_right_during_the_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    async with reading(tmp_path, 1) as made:
        await made.fill(1)
        await made.world.user("alice", permissions=everywhere(poll_messages=True))
        alice = await made.world.logged_in("alice")
        partition = made.topic.served[0]
        read, going = partition.read, asyncio.Event()

        async def read_slowly(*arguments: Any) -> Any:
            await going.wait()
            return await read(*arguments)

        monkeypatch.setattr(type(partition), "read", lambda _, *arguments: read_slowly(*arguments))
        request = requests.PollMessages(ME, "s", "t", 0, requests.Strategy(requests.StrategyKind.FIRST), 1, False)
        asked = asyncio.create_task(refusal(alice.execute(request)))
        await settled()
        await take_away(made.world, how)
        going.set()
        assert await asked == (Code.UNAUTHORIZED if how == "no permission" else Code.UNAUTHENTICATED)


async def test_a_manager_who_lost_the_right_while_waiting_changes_nothing(tmp_path: Path) -> None:
    changes = (
        requests.CreateUser("carol", "secret", ACTIVE, None),
        requests.UpdateUser("bob", "robert", None),
        requests.UpdatePermissions("bob", everywhere(manage_users=True)),
        requests.ChangePassword("bob", "bobbob", "another"),
        requests.EndSessions("bob"),
        requests.DeleteUser("bob"),
    )
    async with world(tmp_path) as made:
        users = made.gateway.users
        await made.user("alice", permissions=everywhere(manage_users=True))
        bob = await made.user("bob")
        before = users.get(bob).document
        alice = await made.logged_in("alice")
        async with users._changing:
            asked = [asyncio.create_task(refusal(alice.execute(request))) for request in changes]
            await settled()
            # Not by a command, which would wait as well.
            alices = users.get("alice")
            alices.document = msgspec.structs.replace(alices.document, permissions=None)
        assert await asyncio.gather(*asked) == [Code.UNAUTHORIZED] * len(changes)
        assert users.get(bob).document == before
        assert users.find("carol") is None


# ----------------------------------------------------------------------------------------------------- ending sessions


async def test_a_new_password_ends_all_sessions_and_tokens_only_on_request(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await made.user("alice")
        text = (await (await made.logged_in("alice")).execute(requests.CreatePersonalAccessToken("build", 0))).token
        for ends_tokens, old, new in ((False, "alicealice", "another"), (True, "another", "a third")):
            thief, program, alice = made.person(), made.person(), made.person()
            await thief.log_in("alice", old)
            await program.execute(requests.LoginWithPersonalAccessToken(text))
            await alice.log_in("alice", old)
            await alice.execute(requests.ChangePassword("alice", old, new, ends_tokens))
            for person in (thief, program, alice):
                assert await refusal(person.execute(requests.GetMe())) == Code.UNAUTHENTICATED
            assert (thief.ended, program.ended, alice.ended) == (True, True, False)
            found = await refusal(made.person().execute(requests.LoginWithPersonalAccessToken(text)))
            assert found == (Code.RESOURCE_NOT_FOUND if ends_tokens else None)
            assert await made.person().log_in("alice", new) == 1
        assert list((tmp_path / "tokens").iterdir()) == []


async def test_ended_tokens_are_void_even_if_a_crash_has_left_their_files(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await made.user("alice")
        alice = await made.logged_in("alice")
        text = (await alice.execute(requests.CreatePersonalAccessToken("build", 0))).token
        await made.gateway.users.update("alice", None, INACTIVE)
        await made.gateway.users.update("alice", None, ACTIVE)
        assert len(list((tmp_path / "tokens").iterdir())) == 1
    async with world(tmp_path) as made:
        await made.gateway.personal_tokens.forget_void(made.gateway.users)
        assert (
            await refusal(made.person().execute(requests.LoginWithPersonalAccessToken(text))) == Code.RESOURCE_NOT_FOUND
        )
        assert list((tmp_path / "tokens").iterdir()) == []


async def test_users_end_their_own_sessions_and_managers_those_of_others(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await made.user("alice")
        await made.user("bob", permissions=everywhere(manage_users=True))
        alice, elsewhere = await made.logged_in("alice"), await made.logged_in("alice")
        text = (await alice.execute(requests.CreatePersonalAccessToken("build", 0))).token
        bob = await made.logged_in("bob")
        assert await refusal(alice.execute(requests.EndSessions("bob"))) == Code.UNAUTHORIZED
        await alice.execute(requests.EndSessions("alice"))
        assert (alice.ended, elsewhere.ended, bob.ended) == (False, True, False)
        again = made.person()
        await again.execute(requests.LoginWithPersonalAccessToken(text))
        await bob.execute(requests.EndSessions("alice", personal_access_tokens=True))
        assert again.ended
        assert (
            await refusal(made.person().execute(requests.LoginWithPersonalAccessToken(text))) == Code.RESOURCE_NOT_FOUND
        )
        assert await refusal(bob.execute(requests.EndSessions("root"))) == Code.UNAUTHORIZED


async def test_unlisted_sessions_end_as_well(tmp_path: Path) -> None:
    """Such as those of single requests over HTTP, and those that were evicted."""
    async with world(tmp_path) as made:
        await made.user("alice")
        alice = await made.logged_in("alice")
        alone = Session(Transport.HTTP, alice.session.address, 0, lambda: None)
        alone.login = alice.session.login
        made.gateway.sessions.remove(alice.session)
        alice.session = alone
        assert await alice.execute(requests.GetMe())
        await (await made.root()).execute(requests.EndSessions("alice"))
        assert await refusal(alice.execute(requests.GetMe())) == Code.UNAUTHENTICATED


# ---------------------------------------------------------------------------------------------- changes by managers


async def test_only_root_changes_root(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await made.user("alice", permissions=ALL)
        alice, root = await made.logged_in("alice"), await made.root()
        for request in (
            requests.UpdateUser("root", "toor", None),
            requests.UpdateUser(0, None, INACTIVE),
            requests.ChangePassword("root", "root's password", "another"),
            requests.EndSessions("root"),
        ):
            assert await refusal(alice.execute(request)) == Code.UNAUTHORIZED, request
        assert await root.execute(requests.GetMe())
        await root.execute(requests.ChangePassword("root", "root's password", "another"))
        assert await made.person().log_in("root", "another") == 0


IN_STREAM_3 = Permissions(streams={3: StreamPermissions(manage_topics=True, topics={7: TopicPermissions()})})
ON_TOPIC_7 = Permissions(streams={3: StreamPermissions(topics={7: TopicPermissions(manage_topic=True)})})


@pytest.mark.parametrize(
    ("holds", "grants", "allowed"),
    [
        ({}, everywhere(manage_users=True), True),
        ({}, everywhere(read_users=True), True),
        ({}, None, True),
        ({}, everywhere(), True),
        ({}, everywhere(read_servers=True), False),
        ({}, everywhere(send_messages=True), False),
        ({}, IN_STREAM_3, False),
        ({}, ON_TOPIC_7, False),
        ({}, ALL, False),
        ({"read_servers": True}, everywhere(manage_servers=True), False),
        ({"read_servers": True}, everywhere(read_servers=True), True),
        ({"manage_streams": True}, IN_STREAM_3, True),
        ({"manage_streams": True}, everywhere(manage_topics=True, send_messages=True), True),
        ({"manage_topics": True}, everywhere(manage_streams=True), False),
        ({"manage_topics": True}, ON_TOPIC_7, True),
        ({"poll_messages": True}, everywhere(read_topics=True), False),
    ],
)
async def test_users_can_only_grant_and_revoke_rights_that_they_have(
    tmp_path: Path, holds: dict[str, bool], grants: Permissions | None, allowed: bool
) -> None:
    expected = None if allowed else Code.UNAUTHORIZED
    async with world(tmp_path) as made:
        await made.user("alice", permissions=everywhere(manage_users=True, **holds))
        await made.user("plain")
        strong = await made.user("strong", permissions=grants)
        alice = await made.logged_in("alice")
        for request in (
            requests.CreateUser("carol", "secret", ACTIVE, grants),
            requests.UpdatePermissions("plain", grants),
            requests.UpdatePermissions(strong, None),
            requests.UpdateUser(strong, None, INACTIVE),
            requests.UpdateUser(strong, "weak", ACTIVE),
            requests.EndSessions(strong),
            requests.DeleteUser(strong),
        ):
            await made.gateway.users.change_permissions(strong, grants)
            assert await refusal(alice.execute(request)) == expected, request
        assert await refusal(alice.execute(requests.UpdatePermissions("alice", ALL))) == Code.UNAUTHORIZED


async def test_rights_in_a_stream_can_only_be_granted_and_revoked_there(tmp_path: Path) -> None:
    manager = Permissions(everywhere(manage_users=True).everywhere, IN_STREAM_3.streams)
    elsewhere = Permissions(streams={4: StreamPermissions(manage_topics=True)})
    async with world(tmp_path) as made:
        await made.user("alice", permissions=manager)
        await made.user("bob", permissions=elsewhere)
        alice = await made.logged_in("alice")
        both = Permissions(streams=IN_STREAM_3.streams | elsewhere.streams)
        assert await refusal(alice.execute(requests.UpdatePermissions("bob", both))) is None
        assert await refusal(alice.execute(requests.UpdatePermissions("bob", IN_STREAM_3))) == Code.UNAUTHORIZED
        assert await refusal(alice.execute(requests.UpdatePermissions("bob", elsewhere))) is None
