"""Stored users: the creation of root, names, numbers, permissions, and what survives a restart."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from pathlib import Path

import msgspec
import pytest

from tests.app.access.support.world import CHEAP, HOME, ROOT, everywhere, refusal, world
from tests.storage.support.world import opened
from tests.support.clocks import Clock
from whippet.app.access import users as users_module
from whippet.app.access.passwords import Passwords
from whippet.app.access.permissions import ALL, Permissions, StreamPermissions, TopicPermissions
from whippet.app.access.throttle import Limits, Throttle
from whippet.app.access.users import DEFAULT_NAME, DEFAULT_PASSWORD, USERS_MAX, User, Users
from whippet.app.config import ConfigError
from whippet.app.config.formats import Secret
from whippet.app.errors import Code, CommandError
from whippet.app.model.identity import UserStatus
from whippet.storage.errors import CatalogueError

ACTIVE, INACTIVE = UserStatus.ACTIVE, UserStatus.INACTIVE


# ---------------------------------------------------------------------------------------------------------------- root


async def test_the_variables_name_the_root_user(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        root = await made.gateway.users.log_in("root", "root's password", HOME)
        assert (root.id, root.permissions, root.status) == (0, ALL, ACTIVE)
        assert made.gateway.users.root is root
        assert made.gateway.users.generated_root_password is None


async def test_variables_come_before_the_default_credentials(tmp_path: Path) -> None:
    async with world(tmp_path, default_root=True) as made:
        assert made.gateway.users.root.username == "root"


async def test_default_credentials_need_a_flag_and_log_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with world(tmp_path, environment={}, default_root=True) as made:
        assert (await made.gateway.users.log_in(DEFAULT_NAME, DEFAULT_PASSWORD, HOME)).id == 0
        assert made.gateway.users.generated_root_password is None
    assert [record.levelname for record in caplog.records if "everybody knows" in record.getMessage()] == ["WARNING"]


async def test_without_variables_root_gets_a_random_password_that_is_shown_once(tmp_path: Path) -> None:
    passwords = set()

    async def begin(folder: Path) -> None:
        async with world(folder, environment={}) as made:
            password = made.gateway.users.generated_root_password
            assert password is not None
            assert 20 <= len(password) <= 39
            assert password.isascii()
            assert password.isalnum()
            assert (await made.gateway.users.log_in("iggy", password, HOME)).id == 0
            passwords.add(password)
        async with world(folder, environment={}) as made:
            assert made.gateway.users.generated_root_password is None

    for number in range(3):
        await begin(tmp_path / str(number))
    assert len(passwords) == 3


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"IGGY_ROOT_USERNAME": "root"}, "IGGY_ROOT_USERNAME is set and IGGY_ROOT_PASSWORD is not"),
        ({"IGGY_ROOT_PASSWORD": "hunter2"}, "IGGY_ROOT_PASSWORD is set and IGGY_ROOT_USERNAME is not"),
        ({"IGGY_ROOT_USERNAME": "ro", "IGGY_ROOT_PASSWORD": "hunter2"}, "IGGY_ROOT_USERNAME must have 3 to 50 bytes"),
        ({"IGGY_ROOT_USERNAME": "r" * 51, "IGGY_ROOT_PASSWORD": "hunter2"}, "IGGY_ROOT_USERNAME must have"),
        ({"IGGY_ROOT_USERNAME": "root", "IGGY_ROOT_PASSWORD": "hu"}, "IGGY_ROOT_PASSWORD must have 3 to 100 bytes"),
        ({"IGGY_ROOT_USERNAME": "root", "IGGY_ROOT_PASSWORD": "hunter2" * 20}, "IGGY_ROOT_PASSWORD must have"),
    ],
)
@pytest.mark.parametrize("default_root", [False, True])
async def test_incomplete_variables_prevent_the_start_and_are_never_repeated(
    tmp_path: Path, environment: dict[str, str], expected: str, default_root: bool
) -> None:
    with pytest.raises(ConfigError) as caught:
        async with world(tmp_path, environment=environment, default_root=default_root):
            raise AssertionError
    assert expected in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert list((tmp_path / "users").iterdir()) == []


async def test_a_refused_start_and_an_end_leave_no_password_threads(tmp_path: Path) -> None:
    async with opened(tmp_path, clock=Clock()) as store:
        for environment, refused in (({"IGGY_ROOT_USERNAME": "root"}, True), (ROOT, False)):
            passwords = Passwords(CHEAP)
            await passwords.hash("one thread")
            if refused:
                with pytest.raises(ConfigError):
                    await Users.open(store, environment, False, Clock(), passwords=passwords)
            else:
                (await Users.open(store, environment, False, Clock(), passwords=passwords)).close()
            with pytest.raises(RuntimeError, match="after shutdown"):
                await passwords.hash("another")


async def test_a_root_user_is_on_disk_only_after_it_was_saved(tmp_path: Path) -> None:
    async with opened(tmp_path, clock=Clock()) as store:
        users = await Users.open(store, ROOT, False, Clock(), passwords=Passwords(CHEAP))
        assert await users.log_in("root", "root's password", HOME) is users.root
        assert list((tmp_path / "users").iterdir()) == []
        await users.save_root()
        assert [path.name for path in (tmp_path / "users").iterdir()] == ["0.json"]
        users.close()


async def test_credentials_for_a_root_user_that_exists_are_reported_as_without_effect(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        async with world(tmp_path):
            assert "have no effect" not in caplog.text
        async with world(tmp_path, environment={}):
            assert "have no effect" not in caplog.text
        async with world(tmp_path) as made:
            assert "IGGY_ROOT_PASSWORD and --with-default-root-credentials have no effect" in caplog.text
            assert made.gateway.users.root.username == "root"


async def test_a_refused_first_start_can_be_repeated(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        async with world(tmp_path, environment={"IGGY_ROOT_USERNAME": "root"}):
            raise AssertionError
    async with world(tmp_path) as made:
        assert made.gateway.users.root.username == "root"


async def test_later_starts_ignore_the_variables(tmp_path: Path) -> None:
    async with world(tmp_path):
        pass
    for environment in (
        {"IGGY_ROOT_USERNAME": "other", "IGGY_ROOT_PASSWORD": "other one"},
        {"IGGY_ROOT_USERNAME": "x"},
    ):
        async with world(tmp_path, environment=environment, default_root=True) as made:
            assert (await made.gateway.users.log_in("root", "root's password", HOME)).id == 0
            assert len(made.gateway.users) == 1


async def test_secrets_of_the_configuration_are_used_as_they_are(tmp_path: Path) -> None:
    masked = {name: Secret(value) for name, value in ROOT.items()}
    async with world(tmp_path, environment=masked):
        pass
    async with world(tmp_path, environment={}) as made:
        assert (await made.gateway.users.log_in("root", "root's password", HOME)).username == "root"


async def test_root_keeps_all_permissions_and_can_be_renamed_and_made_inactive(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        users = made.gateway.users
        assert await refusal(users.change_permissions(0, None)) == Code.CANNOT_CHANGE_PERMISSIONS
        assert await refusal(users.change_permissions("root", Permissions())) == Code.CANNOT_CHANGE_PERMISSIONS
        assert await refusal(users.delete("root")) == Code.CANNOT_DELETE_USER
        await users.update(0, "admin", INACTIVE)
        assert users.root.username == "admin"
        assert await refusal(users.log_in("admin", "root's password", HOME)) == Code.USER_INACTIVE


async def test_an_edited_root_document_still_grants_all_permissions(tmp_path: Path) -> None:
    async with world(tmp_path):
        pass
    path = tmp_path / "users" / "0.json"
    document = msgspec.json.decode(path.read_bytes())
    document["permissions"] = None
    path.write_bytes(msgspec.json.encode(document))
    async with world(tmp_path) as made:
        assert made.gateway.users.root.permissions == ALL


async def test_an_unreadable_root_document_prevents_the_start(
    tmp_path: Path,
) -> None:
    async with world(tmp_path):
        pass
    (tmp_path / "users" / "0.json").write_bytes(b"{")
    with pytest.raises(CatalogueError, match=r"users/0\.json"):
        async with world(tmp_path):
            raise AssertionError
    (tmp_path / "users" / "0.json").rename(tmp_path / "kept")
    async with world(tmp_path) as made:
        assert made.gateway.users.root.username == "root"


async def test_a_new_root_never_takes_the_name_of_another_user(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await made.gateway.users.create("alice", "secret", ACTIVE, None)
    (tmp_path / "users" / "0.json").unlink()
    with pytest.raises(ConfigError, match="another user is called 'alice'"):
        async with world(tmp_path, environment={"IGGY_ROOT_USERNAME": "alice", "IGGY_ROOT_PASSWORD": "hunter2"}):
            raise AssertionError
    async with world(tmp_path) as made:
        assert [user.username for user in made.gateway.users] == ["root", "alice"]


# ----------------------------------------------------------------------------------------------------- names, numbers


@pytest.mark.parametrize(
    ("username", "password", "code"),
    [
        ("ab", "secret", Code.INVALID_USERNAME),
        ("a" * 51, "secret", Code.INVALID_USERNAME),
        ("é" * 26, "secret", Code.INVALID_USERNAME),
        ("alice", "12", Code.INVALID_PASSWORD),
        ("alice", "x" * 101, Code.INVALID_PASSWORD),
        ("alice", "é" * 51, Code.INVALID_PASSWORD),
        ("root", "secret", Code.USER_ALREADY_EXISTS),
        ("abc", "123", None),
        ("a" * 50, "x" * 100, None),
        ("é" * 25, "é" * 50, None),
        ("é!", "🐕", None),
        ("Root", "secret", None),
        (" root", "secret", None),
        ("123", "secret", None),
    ],
)
async def test_names_have_3_to_50_bytes_and_passwords_3_to_100(
    tmp_path: Path, username: str, password: str, code: Code | None
) -> None:
    async with world(tmp_path) as made:
        assert await refusal(made.gateway.users.create(username, password, ACTIVE, None)) == code
        if code is None:
            assert (await made.gateway.users.log_in(username, password, HOME)).id == 1


async def test_numbers_are_reused_last_freed_first_and_after_a_start_lowest_first(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        users = made.gateway.users

        async def make(name: str) -> int:
            return (await users.create(name, "secret", ACTIVE, None)).id

        assert [await make(name) for name in ("one", "two", "three")] == [1, 2, 3]
        await users.delete("two")
        await users.delete("one")
        assert [await make(name) for name in ("four", "five", "six")] == [1, 2, 4]
        await users.delete("six")
        await users.delete("four")
        await users.delete("five")
    async with world(tmp_path) as made:
        users = made.gateway.users
        assert [await make(name) for name in ("seven", "eight", "nine")] == [1, 2, 4]


def test_user_numbers_stay_below_the_one_that_means_nobody() -> None:
    assert USERS_MAX == 4_294_967_295


async def test_the_number_of_users_is_limited(tmp_path: Path) -> None:
    async with world(tmp_path, users_max=2) as made:
        await made.gateway.users.create("alice", "secret", ACTIVE, None)
        made_up = made.gateway.users.create("bob", "secret", ACTIVE, None)
        assert await refusal(made_up) == Code.USERS_LIMIT_REACHED


async def test_of_concurrent_requests_for_a_name_only_one_succeeds(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        users = made.gateway.users
        asked = [users.create("alice", "secret", ACTIVE, None) for _ in range(5)]
        outcomes = await asyncio.gather(*(refusal(one) for one in asked))
        assert sorted(outcomes, key=str) == [*[Code.USER_ALREADY_EXISTS] * 4, None]
        assert len(users) == 2


async def test_a_name_is_free_as_soon_as_its_user_is_renamed_or_deleted(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        users = made.gateway.users
        alice = await users.create("alice", "secret", ACTIVE, None)
        await users.update(alice.id, "alicia", None)
        bob = await users.create("alice", "other", ACTIVE, None)
        assert users.find("alice") is bob
        assert users.find("alicia") is alice
        assert await refusal(users.update("alicia", "alice", None)) == Code.USER_ALREADY_EXISTS
        assert await refusal(users.update("alicia", "alicia", None)) is None
        await users.delete(bob.id)
        await users.update("alicia", "alice", None)
        assert users.find("alice") is alice


async def test_active_users_are_found_by_number(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        users = made.gateway.users
        alice = await users.create("alice", "secret", ACTIVE, None)
        assert users.active(alice.id) is alice
        assert users.active(None) is None
        assert users.active(99) is None
        assert users.is_same(alice, "alice")
        assert users.is_same(alice, alice.id)
        assert not users.is_same(alice, "root")
        assert not users.is_same(alice, "nobody")
        await users.update("alice", None, INACTIVE)
        assert users.active(alice.id) is None
        await users.update("alice", None, ACTIVE)
        assert users.active(alice.id) is alice
        await users.delete(alice.id)
        assert users.active(alice.id) is None


# --------------------------------------------------------------------------------------------------- removal of rights


async def test_a_new_stream_or_topic_inherits_no_rights_of_its_number(tmp_path: Path) -> None:
    topics = {1: TopicPermissions(poll_messages=True), 2: TopicPermissions(send_messages=True)}
    permissions = Permissions(streams={4: StreamPermissions(topics=topics), 5: StreamPermissions(read_stream=True)})
    async with world(tmp_path) as made:
        users = made.gateway.users
        for name, granted in (
            ("alice", permissions),
            ("bob", permissions),
            ("carol", None),
            ("dave", everywhere()),
        ):
            await users.create(name, "secret", ACTIVE, granted)
        await users.forget_topic(4, 1)
        await users.forget_stream(5)
        await users.forget_stream(99)
    async with world(tmp_path) as made:
        users = made.gateway.users
        left = Permissions(streams={4: StreamPermissions(topics={2: TopicPermissions(send_messages=True)})})
        assert [user.permissions for user in users] == [ALL, left, left, None, everywhere()]


# ---------------------------------------------------------------------------------------------------------- a restart


async def test_users_are_the_same_after_a_restart(tmp_path: Path) -> None:
    permissions = Permissions(streams={0: StreamPermissions(manage_topics=True)})
    async with world(tmp_path) as made:
        users = made.gateway.users
        await users.create("alice", "secret", ACTIVE, permissions)
        await users.create("bob", "secret", INACTIVE, None)
        await users.update("alice", "alicia", None)
        before = [user.document for user in users]
    async with world(tmp_path) as made:
        users = made.gateway.users
        assert [user.document for user in users] == before
        assert (await users.log_in("alicia", "secret", HOME)).permissions == permissions
        assert await refusal(users.log_in("bob", "secret", HOME)) == Code.USER_INACTIVE
        assert await refusal(users.log_in("alice", "secret", HOME)) == Code.INVALID_CREDENTIALS


@pytest.mark.parametrize("content", [b"{}", b"", b'{"id": 1, "mark": "\xff"}', b"[" * 100_000])
async def test_unusable_documents_are_reported_and_left_as_they_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    async with world(tmp_path) as made:
        for name in ("alice", "bob", "carol"):
            await made.gateway.users.create(name, "secret", ACTIVE, None)
    folder = tmp_path / "users"
    (folder / "1.json").write_bytes(content)
    (folder / "3.json").write_bytes((folder / "2.json").read_bytes())
    damaged = (folder / "1.json").read_bytes(), (folder / "3.json").read_bytes()
    with caplog.at_level(logging.ERROR):
        async with world(tmp_path) as made:
            users = made.gateway.users
            assert [user.username for user in users] == ["root", "bob"]
            assert (await users.create("dave", "secret", ACTIVE, None)).id == 4
    assert ((folder / "1.json").read_bytes(), (folder / "3.json").read_bytes()) == damaged
    logged = " ".join(record.getMessage() for record in caplog.records)
    assert "users/1.json" in logged
    assert "users/3.json" in logged


async def test_a_change_that_could_not_be_written_has_no_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path) as made:
        users = made.gateway.users
        alice = await users.create("alice", "secret", ACTIVE, None)

        async def full(*_: object) -> None:
            raise CatalogueError("the disk is full")

        monkeypatch.setattr(made.store, "write_user", full)
        for change in (
            users.create("bob", "secret", ACTIVE, None),
            users.update("alice", "alicia", INACTIVE),
            users.change_permissions("alice", everywhere(read_servers=True)),
            users.change_password("alice", "secret", "other", HOME),
        ):
            with pytest.raises(CatalogueError):
                await change
        assert [user.username for user in users] == ["root", "alice"]
        assert users.active(alice.id) is alice
        assert alice.permissions is None
        assert users.find("alicia") is None
        assert await users.log_in("alice", "secret", HOME) is alice
        monkeypatch.undo()
        assert (await users.create("bob", "secret", ACTIVE, None)).id == 2


async def test_the_repr_of_a_user_contains_no_secret(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        root: User = made.gateway.users.root
        assert repr(root) == "<user 0 'root'>"


# --------------------------------------------------------------------------------------------------------------- login


@pytest.mark.parametrize(
    ("username", "password", "code"),
    [
        ("ab", "alicealice", Code.INVALID_USERNAME),
        ("alice", "12", Code.INVALID_PASSWORD),
        ("alice", "wrong", Code.INVALID_CREDENTIALS),
        ("nobody", "alicealice", Code.INVALID_CREDENTIALS),
        ("alice", "alicealice", None),
    ],
)
async def test_a_refused_login_gives_the_reason_and_not_which_users_exist(
    tmp_path: Path, username: str, password: str, code: Code | None
) -> None:
    async with world(tmp_path) as made:
        await made.user("alice")
        computed = made.passwords.computed
        assert await refusal(made.gateway.users.log_in(username, password, HOME)) == code
        unseen = code in (Code.INVALID_USERNAME, Code.INVALID_PASSWORD)
        assert made.passwords.computed == computed + (not unseen)


async def test_logins_and_password_changes_are_throttled_together(tmp_path: Path) -> None:
    async with world(tmp_path, throttle=Throttle(Limits(line_max=0))) as made:
        users = made.gateway.users
        assert await refusal(users.log_in("root", "root's password", HOME)) == Code.TRANSIENT_NOT_ACCEPTED
        changing = users.change_password("root", "root's password", "another", HOME)
        assert await refusal(changing) == Code.TRANSIENT_NOT_ACCEPTED


@pytest.mark.parametrize("meanwhile", ["deleted", "another password"])
async def test_a_password_that_was_changed_during_the_check_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    async with world(tmp_path) as made:
        users = made.gateway.users
        await made.user("alice")
        verify = made.passwords.verify

        async def slowly(stored: str | None, password: str) -> bool:
            monkeypatch.setattr(made.passwords, "verify", verify)
            matches = await verify(stored, password)
            if meanwhile == "deleted":
                await users.delete("alice")
            else:
                await users.change_password("alice", "alicealice", "another", HOME)
            return matches

        monkeypatch.setattr(made.passwords, "verify", slowly)
        assert await refusal(users.log_in("alice", "alicealice", HOME)) == Code.INVALID_CREDENTIALS


async def test_a_caller_who_may_not_change_a_password_learns_nothing_about_it(tmp_path: Path) -> None:
    def nobody(user: User) -> None:
        raise CommandError(Code.UNAUTHORIZED)

    async with world(tmp_path) as made:
        computed = made.passwords.computed
        for current in ("root's password", "wrong"):
            changing = made.gateway.users.change_password("root", current, "another", HOME, authorize=nobody)
            assert await refusal(changing) == Code.UNAUTHORIZED
        assert made.passwords.computed == computed


async def test_an_unauthorized_change_has_no_effect(tmp_path: Path) -> None:
    def nobody(user: User | None = None) -> None:
        raise CommandError(Code.UNAUTHORIZED)

    async with world(tmp_path) as made:
        users = made.gateway.users
        alice = await users.create("alice", "secret", ACTIVE, None)
        before = alice.document
        for change in (
            users.create("bob", "secret", ACTIVE, None, nobody),
            users.update("alice", "alicia", INACTIVE, nobody),
            users.change_permissions("alice", ALL, nobody),
            users.change_password("alice", "secret", "another", HOME, authorize=nobody),
            users.end_sessions("alice", end_tokens=True, authorize=nobody),
            users.delete("alice", nobody),
        ):
            assert await refusal(change) == Code.UNAUTHORIZED
        assert [user.username for user in users] == ["root", "alice"]
        assert users.find("alice") is alice
        assert alice.document is before


async def test_an_invalid_password_is_refused_without_a_check(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        computed = made.passwords.computed
        for current, new in (("12", "another"), ("root's password", "x" * 101)):
            changing = made.gateway.users.change_password("root", current, new, HOME)
            assert await refusal(changing) == Code.INVALID_PASSWORD
        assert made.passwords.computed == computed


async def test_ending_sessions_ends_tokens_only_on_request(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        users = made.gateway.users
        alice = await users.create("alice", "secret", ACTIVE, None)
        for end_tokens, epochs in ((False, (1, 0)), (True, (2, 1))):
            login = alice.login
            assert users.by_login(login) is alice
            assert await users.end_sessions("alice", end_tokens=end_tokens) is alice
            assert users.by_login(login) is None
            assert (alice.document.session_epoch, alice.document.token_epoch) == epochs
        await users.change_password("alice", "secret", "another", HOME)
        assert (alice.document.session_epoch, alice.document.token_epoch) == (3, 1)


async def test_every_user_has_a_mark_of_128_random_bits(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        users = made.gateway.users
        marks = {(await users.create(name, "secret", ACTIVE, None)).mark for name in ("one", "two", "three")}
        assert len(marks) == 3
        assert all(len(bytes.fromhex(mark)) == 16 for mark in marks)


async def test_an_inactive_user_has_no_sessions_left_to_end(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        users = made.gateway.users
        alice = await users.create("alice", "secret", ACTIVE, None)
        await users.update("alice", None, INACTIVE)
        before = alice.document
        assert (before.session_epoch, before.token_epoch) == (1, 1)
        await users.update("alice", "alicia", INACTIVE)
        assert alice.document == msgspec.structs.replace(before, username="alicia")


async def test_a_user_who_does_not_exist_has_no_password_whatever_the_check_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def matches(*_: object) -> bool:
        return True

    async with world(tmp_path) as made:
        monkeypatch.setattr(Passwords, "verify", matches)
        assert await refusal(made.gateway.users.log_in("nobody", "secret", HOME)) == Code.INVALID_CREDENTIALS


async def test_every_change_of_a_user_is_counted_once(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        users = made.gateway.users
        counted = [users.changes]

        async def count(change: Awaitable[object]) -> int:
            before = users.changes
            await change
            counted.append(users.changes)
            return users.changes - before

        assert await count(users.create("alice", "secret", ACTIVE, None)) == 1
        assert await count(users.update("alice", "alicia", None)) == 1
        assert await count(users.update("alicia", "alicia", ACTIVE)) == 0
        assert await count(users.change_permissions("alicia", everywhere(read_users=True))) == 1
        assert await count(users.change_password("alicia", "secret", "another", HOME)) == 1
        assert await count(users.delete("alicia")) == 1
        assert counted == sorted(counted)


async def test_no_user_gets_the_number_that_means_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users_module, "USERS_MAX", 3)
    async with world(tmp_path) as made:
        users = made.gateway.users
        assert [(await users.create(name, "secret", ACTIVE, None)).id for name in ("one", "two")] == [1, 2]
        assert await refusal(users.create("three", "secret", ACTIVE, None)) == Code.USERS_LIMIT_REACHED
