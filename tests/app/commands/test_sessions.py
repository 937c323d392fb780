"""Login and logout: who is admitted, how others are refused, and why guessing is futile."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.app.access.support.world import SECOND, World, everywhere, make_group, refusal, world
from tests.support.clocks import Seconds
from whippet.app.access.throttle import USUAL, Throttle
from whippet.app.commands import requests
from whippet.app.errors import Code, CommandError
from whippet.app.model.identity import UserStatus


async def test_a_password_and_a_token_open_a_session(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await made.user("alice")
        person = made.person()
        assert await person.log_in("alice", "alicealice") == 1
        assert (await person.execute(requests.GetMe())).user_id == 1
        token = (await person.execute(requests.CreatePersonalAccessToken("build", 0))).token
        program = made.person()
        assert (await program.execute(requests.LoginWithPersonalAccessToken(token))).user_id == 1
        assert (await program.execute(requests.GetMe())).user_id == 1


@pytest.mark.parametrize(
    ("username", "password", "code"),
    [
        ("alice", "wrong", Code.INVALID_CREDENTIALS),
        ("alice", "alicealic", Code.INVALID_CREDENTIALS),
        ("Alice", "alicealice", Code.INVALID_CREDENTIALS),
        ("nobody", "alicealice", Code.INVALID_CREDENTIALS),
        ("bob", "wrong", Code.INVALID_CREDENTIALS),
        ("bob", "bobbob", Code.USER_INACTIVE),
        ("ab", "alicealice", Code.INVALID_USERNAME),
        ("a" * 51, "alicealice", Code.INVALID_USERNAME),
        ("alice", "12", Code.INVALID_PASSWORD),
        ("alice", "x" * 101, Code.INVALID_PASSWORD),
    ],
)
async def test_a_refused_login_does_not_change_the_session(
    tmp_path: Path, username: str, password: str, code: Code
) -> None:
    async with world(tmp_path) as made:
        await made.user("alice")
        await made.user("bob", status=UserStatus.INACTIVE)
        stranger, root = made.person(), await made.root()
        for person in (stranger, root):
            before = person.session.login
            assert await refusal(person.log_in(username, password)) == code
            assert person.session.login == before


async def test_a_user_name_of_digits_is_not_taken_for_a_number(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        assert await made.user("123") == 1
        assert await made.person().log_in("123", "123123") == 1
        await made.user("777")
        assert await refusal(made.person().log_in("000", "root's password")) == Code.INVALID_CREDENTIALS


async def test_an_unknown_user_costs_the_same_work_and_gets_the_same_response(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await made.user("alice")
        await made.user("bob", status=UserStatus.INACTIVE)
        answers = set()
        for name in ("alice", "bob", "nobody"):
            before = made.passwords.computed
            with pytest.raises(CommandError) as caught:
                await made.person().log_in(name, "a wrong guess")
            assert made.passwords.computed == before + 1
            answers.add((caught.value.code, str(caught.value)))
        assert len(answers) == 1


async def test_unknown_users_are_throttled_like_known_ones(tmp_path: Path) -> None:
    """Otherwise the waits would reveal which users exist."""

    async def waits(name: str, folder: Path) -> list[float]:
        time = Seconds()
        async with world(folder, throttle=Throttle(clock=time, sleep=time.sleep)) as made:
            await made.user("alice")
            for _ in range(12):
                await refusal(made.person("10.9.9.9").log_in(name, "a wrong guess"))
            return time.slept

    known = await waits("alice", tmp_path / "known")
    assert len(known) > 5
    assert known == await waits("nobody", tmp_path / "unknown")


async def test_brute_force_is_slowed_down(tmp_path: Path) -> None:
    """An hour of guessing as fast as responses arrive, from one address, over any number of connections."""

    time = Seconds()
    async with world(tmp_path, throttle=Throttle(clock=time, sleep=time.sleep)) as made:
        await made.user("alice")
        before, start = made.passwords.computed, time.now
        while time.now < start + 3600:
            guess = made.person("10.9.9.9").log_in("alice", "a wrong guess")
            assert await refusal(guess) in (Code.INVALID_CREDENTIALS, Code.TOO_MANY_LOGINS)
            time.now += 0.1
        per_minute = (made.passwords.computed - before) / 60
        assert per_minute < 5
        # The user, from another address, waits for seconds at most, and gets in.
        time.slept.clear()
        assert await made.person("10.0.0.2").log_in("alice", "alicealice") == 1
        assert sum(time.slept) <= USUAL.user_wait_max_s


async def test_a_fleet_that_reconnects_at_once_can_log_in(tmp_path: Path) -> None:
    time = Seconds()
    async with world(tmp_path, throttle=Throttle(clock=time, sleep=time.sleep)) as made:
        await made.user("alice")
        fleet = [made.person("10.5.5.5") for _ in range(200)]
        assert await asyncio.gather(*(person.log_in("alice", "alicealice") for person in fleet)) == [1] * 200
        assert time.slept == []


async def test_another_login_replaces_the_user(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await made.user("alice")
        person = await made.root()
        await person.log_in("alice", "alicealice")
        assert await refusal(person.execute(requests.GetUsers())) == Code.UNAUTHORIZED


async def test_a_logout_ends_all_rights_and_leaves_the_groups(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        root = await made.root()
        await make_group(root)
        await root.execute(requests.JoinConsumerGroup("s", "t", "g"))
        assert root.session.groups == {(0, 0, 0)}
        await root.execute(requests.LogoutUser())
        assert root.session.login is None
        assert root.session.groups == set()
        assert not root.ended
        assert await refusal(root.execute(requests.GetUsers())) == Code.UNAUTHENTICATED
        other = await made.root()
        details = await other.execute(requests.GetConsumerGroup("s", "t", "g"))
        assert details.members == ()


async def test_unknown_expired_and_voided_tokens_are_refused(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await made.user("alice")
        alice = await made.logged_in("alice")
        short = (await alice.execute(requests.CreatePersonalAccessToken("short", SECOND))).token
        kept = (await alice.execute(requests.CreatePersonalAccessToken("kept", 0))).token
        made.clock.now += SECOND
        program = made.person()
        for text, code in (
            ("", Code.RESOURCE_NOT_FOUND),
            ("nonsense", Code.RESOURCE_NOT_FOUND),
            (kept.lower(), Code.RESOURCE_NOT_FOUND),
            (short, Code.PERSONAL_ACCESS_TOKEN_EXPIRED),
        ):
            assert await refusal(program.execute(requests.LoginWithPersonalAccessToken(text))) == code
            assert program.session.login is None
        root = await made.root()
        await root.execute(requests.UpdateUser("alice", None, UserStatus.INACTIVE))
        for status in (UserStatus.INACTIVE, UserStatus.ACTIVE):
            await root.execute(requests.UpdateUser("alice", None, status))
            assert (
                await refusal(program.execute(requests.LoginWithPersonalAccessToken(kept))) == Code.RESOURCE_NOT_FOUND
            )


async def test_before_a_login_only_ping_and_login_are_allowed(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        stranger = made.person()
        await stranger.execute(requests.Ping())
        for request in (
            requests.GetUser("root"),
            requests.GetUser("nobody"),
            requests.LogoutUser(),
            requests.GetPersonalAccessTokens(),
            requests.GetMe(),
            requests.GetStream("nothing"),
            requests.ChangePassword("root", "root's password", "another"),
        ):
            assert await refusal(stranger.execute(request)) == Code.UNAUTHENTICATED


async def test_a_password_that_was_changed_during_the_check_opens_no_session(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await made.user("alice")
        alice = await made.logged_in("alice")
        await _while_comparing(made, alice.execute(requests.ChangePassword("alice", "alicealice", "another one")))


async def test_a_user_who_was_deleted_during_the_check_cannot_log_in(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await made.user("alice")
        root = await made.root()
        await _while_comparing(made, root.execute(requests.DeleteUser("alice")))


async def _while_comparing(made: World, change: object) -> None:
    """Something happens between the successful check of a password and the response."""
    compare = made.passwords.verify

    async def verify(stored: str | None, password: str) -> bool:
        matches = await compare(stored, password)
        if made.passwords.verify is verify:
            made.passwords.verify = compare  # type: ignore[method-assign]
            await change  # type: ignore[misc]
        return matches

    made.passwords.verify = verify  # type: ignore[method-assign]
    person = made.person()
    assert await refusal(person.log_in("alice", "alicealice")) == Code.INVALID_CREDENTIALS
    assert person.session.login is None


async def test_the_permissions_of_the_current_user_apply(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await made.user("alice", permissions=everywhere(read_users=True))
        alice = await made.logged_in("alice")
        assert len(await alice.execute(requests.GetUsers())) == 2
        root = await made.root()
        await root.execute(requests.UpdatePermissions("alice", None))
        assert await refusal(alice.execute(requests.GetUsers())) == Code.UNAUTHORIZED
