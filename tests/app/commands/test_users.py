"""The commands for users: who may use them, what they return, and what happens to the users concerned."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.app.access.support.world import everywhere, make_group, refusal, world
from tests.support.clocks import NOON, Seconds
from whippet.app.access.permissions import ALL, Permissions, StreamPermissions
from whippet.app.access.throttle import Throttle
from whippet.app.commands import requests, responses
from whippet.app.errors import Code
from whippet.app.model.identity import UserStatus

ACTIVE, INACTIVE = UserStatus.ACTIVE, UserStatus.INACTIVE


async def test_a_user_is_described_as_created(tmp_path: Path) -> None:
    permissions = Permissions(streams={3: StreamPermissions(read_stream=True)})
    async with world(tmp_path) as made:
        root = await made.root()
        details = await root.execute(requests.CreateUser("alice", "secret", INACTIVE, permissions))
        assert details == responses.UserDetails(responses.UserInfo(1, NOON, INACTIVE, "alice"), permissions)
        for name in ("alice", 1):
            assert await root.execute(requests.GetUser(name)) == details
        assert await root.execute(requests.GetUsers()) == (
            responses.UserInfo(0, NOON, ACTIVE, "root"),
            responses.UserInfo(1, NOON, INACTIVE, "alice"),
        )
        assert (await root.execute(requests.GetUser(0))).permissions == ALL


async def test_an_unknown_user_cannot_be_seen_or_changed(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        root = await made.root()
        for missing in (99, "nobody", "0"):
            assert await root.execute(requests.GetUser(missing)) is None
            for request in (
                requests.DeleteUser(missing),
                requests.UpdateUser(missing, "somebody", None),
                requests.UpdatePermissions(missing, None),
                requests.ChangePassword(missing, "secret", "other"),
            ):
                assert await refusal(root.execute(request)) == Code.RESOURCE_NOT_FOUND


REQUESTS = {
    "get": requests.GetUser("bob"),
    "list": requests.GetUsers(),
    "create": requests.CreateUser("carol", "secret", ACTIVE, None),
    "update": requests.UpdateUser("bob", "robert", None),
    "permissions": requests.UpdatePermissions("bob", None),
    "password": requests.ChangePassword("bob", "bobbob", "another"),
    "delete": requests.DeleteUser("bob"),
    "missing": requests.GetUser("nobody"),
    "delete missing": requests.DeleteUser("nobody"),
}


@pytest.mark.parametrize(
    ("permissions", "allowed"),
    [
        (None, set()),
        (everywhere(), set()),
        (everywhere(manage_streams=True, manage_topics=True, manage_servers=True), set()),
        (everywhere(read_users=True), {"get", "list", "missing"}),
        (everywhere(manage_users=True), set(REQUESTS)),
    ],
)
async def test_only_managers_may_see_and_change_others(
    tmp_path: Path, permissions: Permissions | None, allowed: set[str]
) -> None:
    """The permission is checked before the existence of the user."""

    async with world(tmp_path) as made:
        await made.user("alice", permissions=permissions)
        await made.user("bob")
        alice = await made.logged_in("alice")
        refused = {name for name in REQUESTS if await refusal(alice.execute(REQUESTS[name])) == Code.UNAUTHORIZED}
        assert refused == set(REQUESTS) - allowed


async def test_users_see_themselves_and_change_their_own_passwords(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await made.user("alice")
        alice = await made.logged_in("alice")
        assert (await alice.execute(requests.GetUser("alice"))).info.username == "alice"
        assert (await alice.execute(requests.GetUser(1))).info.username == "alice"
        await alice.execute(requests.ChangePassword(1, "alicealice", "a new one"))
        assert await refusal(made.person().log_in("alice", "alicealice")) == Code.INVALID_CREDENTIALS
        assert await made.person().log_in("alice", "a new one") == 1
        await alice.log_in("alice", "a new one")
        assert await refusal(alice.execute(requests.UpdateUser("alice", "alicia", None))) == Code.UNAUTHORIZED
        assert await refusal(alice.execute(requests.UpdatePermissions("alice", ALL))) == Code.UNAUTHORIZED


@pytest.mark.parametrize(
    ("current", "new", "code"),
    [
        ("wrong", "another", Code.INVALID_CREDENTIALS),
        ("root's password", "another", Code.INVALID_CREDENTIALS),
        ("alicealice", "12", Code.INVALID_PASSWORD),
        ("alicealice", "x" * 101, Code.INVALID_PASSWORD),
        ("12", "another", Code.INVALID_PASSWORD),
        ("alicealice", "alicealice", None),
    ],
)
async def test_changing_a_password_requires_the_current_one_even_from_root(
    tmp_path: Path, current: str, new: str, code: Code | None
) -> None:
    async with world(tmp_path) as made:
        await made.user("alice")
        for ask_as in (made.root, made.logged_in):
            assert await refusal((await ask_as()).execute(requests.ChangePassword("alice", current, new))) == code
        assert await made.person().log_in("alice", "alicealice") == 1


async def test_a_stolen_session_cannot_guess_the_current_password_quickly(tmp_path: Path) -> None:
    time = Seconds()
    async with world(tmp_path, throttle=Throttle(clock=time, sleep=time.sleep)) as made:
        await made.user("alice")
        alice = await made.logged_in("alice")
        before = made.passwords.computed
        for _ in range(200):
            guess = requests.ChangePassword("alice", "a wrong guess", "another")
            assert await refusal(alice.execute(guess)) in (Code.INVALID_CREDENTIALS, Code.TOO_MANY_LOGINS)
        assert made.passwords.computed - before < 40
        assert sum(time.slept) > 5


async def test_of_two_concurrent_password_changes_one_is_refused(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await made.user("alice")
        root = await made.root()
        changes = [
            root.execute(requests.ChangePassword("alice", "alicealice", f"number {number}")) for number in range(2)
        ]
        outcomes = await asyncio.gather(*(refusal(each) for each in changes))
        assert sorted(outcomes, key=str) == [Code.INVALID_CREDENTIALS, None]
        assert await made.person().log_in("alice", f"number {outcomes.index(None)}") == 1


# ------------------------------------------------------------------------------------------- deletion and inactivity


async def test_deleting_a_user_ends_their_sessions_and_tokens(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await made.user("alice")
        first, second = await made.logged_in("alice"), await made.logged_in("alice")
        token = (await first.execute(requests.CreatePersonalAccessToken("build", 0))).token
        root = await made.root()
        await root.execute(requests.DeleteUser("alice"))
        assert (first.ended, second.ended, root.ended) == (True, True, False)
        for gone in (first, second):
            assert await refusal(gone.execute(requests.GetUser("alice"))) == Code.UNAUTHENTICATED
        assert list((tmp_path / "tokens").iterdir()) == []
        assert await refusal(made.person().log_in("alice", "alicealice")) == Code.INVALID_CREDENTIALS
        program = made.person()
        assert await refusal(program.execute(requests.LoginWithPersonalAccessToken(token))) == Code.RESOURCE_NOT_FOUND


async def test_ended_sessions_leave_their_groups_immediately(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        root = await made.root()
        await make_group(root)
        await made.user("alice", permissions=everywhere(read_topics=True))
        alice = await made.logged_in("alice")
        await alice.execute(requests.JoinConsumerGroup("s", "t", "g"))
        assert len((await root.execute(requests.GetConsumerGroup("s", "t", "g"))).members) == 1
        await root.execute(requests.UpdateUser("alice", None, INACTIVE))
        assert (await root.execute(requests.GetConsumerGroup("s", "t", "g"))).members == ()


async def test_a_new_user_inherits_nothing_from_the_previous_one_with_the_number(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await made.user("alice", permissions=everywhere(manage_users=True))
        before = await made.logged_in("alice")
        await before.execute(requests.CreatePersonalAccessToken("build", 0))
        root = await made.root()
        await root.execute(requests.DeleteUser("alice"))
        assert await made.user("bob") == 1
        assert await refusal(before.execute(requests.GetUsers())) == Code.UNAUTHENTICATED
        bob = await made.logged_in("bob")
        assert await refusal(bob.execute(requests.GetUsers())) == Code.UNAUTHORIZED
        assert await bob.execute(requests.GetPersonalAccessTokens()) == ()


async def test_making_a_user_inactive_ends_sessions_and_tokens_for_good(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await made.user("alice")
        alice = await made.logged_in("alice")
        await alice.execute(requests.CreatePersonalAccessToken("build", 0))
        root = await made.root()
        await root.execute(requests.UpdateUser("alice", None, INACTIVE))
        assert alice.ended
        assert await refusal(alice.execute(requests.GetMe())) == Code.UNAUTHENTICATED
        assert await refusal(made.person().log_in("alice", "alicealice")) == Code.USER_INACTIVE
        await root.execute(requests.UpdateUser("alice", None, ACTIVE))
        again = await made.logged_in("alice")
        assert await refusal(alice.execute(requests.GetMe())) == Code.UNAUTHENTICATED
        assert await again.execute(requests.GetPersonalAccessTokens()) == ()
        await again.execute(requests.CreatePersonalAccessToken("build", 0))


async def test_users_who_delete_themselves_get_a_response_and_lose_the_session(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await made.user("alice", permissions=everywhere(manage_users=True))
        alice, other = await made.logged_in("alice"), await made.logged_in("alice")
        await alice.execute(requests.DeleteUser("alice"))
        assert (alice.ended, other.ended) == (False, True)
        assert await refusal(alice.execute(requests.GetMe())) == Code.UNAUTHENTICATED


async def test_a_token_created_while_its_user_is_deleted_does_not_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path) as made:
        await made.user("alice")
        alice = await made.logged_in("alice")
        write, users = made.store.write_token, made.gateway.users

        async def write_slowly(token_id: int, document: bytes) -> None:
            await write(token_id, document)
            await users.delete("alice")

        monkeypatch.setattr(made.store, "write_token", write_slowly)
        assert await refusal(alice.execute(requests.CreatePersonalAccessToken("build", 0))) == Code.UNAUTHENTICATED
        assert list((tmp_path / "tokens").iterdir()) == []


async def test_root_cannot_be_deleted(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await made.user("alice", permissions=everywhere(manage_users=True))
        for asker in (await made.root(), await made.logged_in("alice")):
            for name in ("root", 0):
                assert await refusal(asker.execute(requests.DeleteUser(name))) == Code.CANNOT_DELETE_USER
                request = requests.UpdatePermissions(name, None)
                assert await refusal(asker.execute(request)) == Code.CANNOT_CHANGE_PERMISSIONS


async def test_the_name_and_the_status_can_be_changed_together_or_separately(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await made.user("alice")
        root = await made.root()
        await root.execute(requests.UpdateUser("alice", None, None))
        await root.execute(requests.UpdateUser("alice", "alicia", INACTIVE))
        assert (await root.execute(requests.GetUser(1))).info == responses.UserInfo(1, NOON, INACTIVE, "alicia")
        assert await refusal(root.execute(requests.UpdateUser(1, "root", None))) == Code.USER_ALREADY_EXISTS
        assert await refusal(root.execute(requests.UpdateUser(1, "ab", None))) == Code.INVALID_USERNAME
        await root.execute(requests.UpdateUser(1, "alicia", ACTIVE))
        assert await made.person().log_in("alicia", "alicealice") == 1
