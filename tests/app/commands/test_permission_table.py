"""Every command against every single permission, as in section 2.4 of the protocol's page.

The table here was written down from that page, not from app/access/permissions.py; `pytest -s` prints the result.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.app.access.support.world import Person, World, refusal, world
from tests.app.commands.support.rights import RIGHTS, grants
from tests.storage.support.world import texts
from tests.transports.support.raw import Raw, asked, frame, make_topic, message_body, served
from whippet.app.access.permissions import ALL
from whippet.app.commands import registry, requests
from whippet.app.errors import Code
from whippet.app.model.identity import UserStatus
from whippet.app.model.options import OptionScope

OPEN, LOGIN = "anybody", "every logged-in user"

ACTIVE = UserStatus.ACTIVE
ME = requests.Consumer(requests.ConsumerKind.CONSUMER, 1)
FIRST = requests.Strategy(requests.StrategyKind.FIRST)
BALANCED = requests.Partitioning(requests.PartitioningKind.BALANCED)
HERE = (0, 0)

COMMANDS: dict[int, tuple[str, requests.Request]] = {
    1: (OPEN, requests.Ping()),
    10: ("server read", requests.GetStats()),
    11: ("server read", requests.GetSnapshot(1, (4,))),
    12: (LOGIN, requests.GetClusterMetadata()),
    13: (LOGIN, requests.DescribeOptions(OptionScope.TOPIC)),
    14: (LOGIN, requests.AttachSession(bytes(16), 1)),
    20: (LOGIN, requests.GetMe()),
    21: ("server read", requests.GetClient(1)),
    22: ("server read", requests.GetClients()),
    31: ("users read", requests.GetUser("bob")),
    32: ("users read", requests.GetUsers()),
    33: ("users manage", requests.CreateUser("carol", "secret", ACTIVE, None)),
    34: ("users manage", requests.DeleteUser("bob")),
    35: ("users manage", requests.UpdateUser("bob", "robert", None)),
    36: ("users manage", requests.UpdatePermissions("bob", None)),
    37: ("users manage", requests.ChangePassword("bob", "bobbob", "another")),
    38: (OPEN, requests.LoginUser("alice", "alicealice")),
    39: (LOGIN, requests.LogoutUser()),
    41: (LOGIN, requests.GetPersonalAccessTokens()),
    42: (LOGIN, requests.CreatePersonalAccessToken("token", 0)),
    43: (LOGIN, requests.DeletePersonalAccessToken("token")),
    44: (OPEN, requests.LoginWithPersonalAccessToken("token")),
    100: ("poll", requests.PollMessages(ME, *HERE, 0, FIRST, 1, False)),
    101: ("send", requests.SendMessages(*HERE, BALANCED, (texts("a"),))),
    102: ("send", requests.FlushUnsavedBuffer(*HERE, 0, True)),
    103: ("poll", requests.GetPollRouting(ME, *HERE, 0, FIRST, 1, False)),
    105: ("route", requests.GetPartitionRoute(*HERE, 0)),
    106: ("poll", requests.PollMessagesDeferred(ME, *HERE, 0, FIRST, 1, False)),
    107: ("poll", requests.AwaitMessages(ME, *HERE, 0, 1, ((0, FIRST),))),
    109: (
        "poll",
        requests.FetchMessages(ME, *HERE, 0, 1, 1, 1, 1000, False, (requests.FetchTarget(0, FIRST, 1000, 1),)),
    ),
    120: ("poll", requests.GetConsumerOffset(ME, *HERE, 0)),
    121: ("poll", requests.StoreConsumerOffset(ME, *HERE, 0, 0)),
    122: ("poll", requests.DeleteConsumerOffset(ME, *HERE, 0)),
    123: ("poll", requests.GetOffsetRouting(ME, *HERE, 0)),
    200: ("stream read", requests.GetStream(0)),
    201: ("all streams read", requests.GetStreams()),
    202: ("streams manage", requests.CreateStream("new")),
    203: ("stream manage", requests.DeleteStream(0)),
    204: ("stream manage", requests.UpdateStream(0, "renamed")),
    205: ("stream manage", requests.PurgeStream(0)),
    300: ("topic read", requests.GetTopic(*HERE)),
    301: ("topics read", requests.GetTopics(0)),
    302: ("topics manage", requests.CreateTopic(0, "new", 1)),
    303: ("topic manage", requests.DeleteTopic(*HERE)),
    304: ("topic manage", requests.UpdateTopic(*HERE, "renamed")),
    305: ("topic manage", requests.PurgeTopic(*HERE)),
    402: ("topic manage", requests.CreatePartitions(*HERE, 1)),
    403: ("topic manage", requests.DeletePartitions(*HERE, 1)),
    503: ("topic manage", requests.DeleteSegments(*HERE, 0, 1)),
    600: ("topic read", requests.GetConsumerGroup(*HERE, 0)),
    601: ("topic read", requests.GetConsumerGroups(*HERE)),
    602: ("topic read", requests.CreateConsumerGroup(*HERE, "new")),
    603: ("topic read", requests.DeleteConsumerGroup(*HERE, 0)),
    604: ("topic read", requests.JoinConsumerGroup(*HERE, 0)),
    605: ("topic read", requests.LeaveConsumerGroup(*HERE, 0)),
    606: ("topic read", requests.SyncConsumerGroup(*HERE, 0)),
}
NOT_FOUND_IS_NOTHING = {120, 200, 300, 301, 600, 601, 606}


def is_allowed(code: int, grant: str) -> bool:
    right = COMMANDS[code][0]
    return right in (OPEN, LOGIN) or grant == "everything" or grant in RIGHTS[right].split()


async def peopled(made: World) -> Person:
    """Streams 0 and 1 with a topic 0 each, of which the first has group 0; alice, logged in, and bob."""
    root = await made.root()
    for number, name in enumerate(("s", "other")):
        await root.execute(requests.CreateStream(name))
        await root.execute(requests.CreateTopic(number, "t", 1))
    await root.execute(requests.CreateConsumerGroup(0, 0, "g"))
    await made.user("alice")
    await made.user("bob")
    return await made.logged_in("alice")


def without_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces the handlers: commands are admitted or refused, and have no effect."""

    async def nothing(*_: object) -> None:
        pass

    for command in registry.COMMANDS:
        monkeypatch.setitem(registry.BY_REQUEST, command.request, command._replace(handler=nothing))


def test_the_table_has_all_commands() -> None:
    assert {code: type(request) for code, (_, request) in COMMANDS.items()} == {
        command.code: command.request for command in registry.COMMANDS
    }
    named = {flag for right in RIGHTS.values() for flag in right.split()}
    assert named == {name for name, _ in grants() if name not in ("", "everything")}


async def test_every_command_needs_exactly_the_right_of_the_protocol(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path) as made:
        alice = await peopled(made)
        without_effect(monkeypatch)
        found: dict[int, list[str]] = {code: [] for code in COMMANDS}
        for grant, permissions in grants():
            await made.gateway.users.change_permissions("alice", permissions)
            for code, (_, request) in COMMANDS.items():
                outcome = await refusal(alice.execute(request))
                assert outcome in (None, Code.UNAUTHORIZED), (code, outcome)
                found[code] += [grant or "(nothing)"] * (outcome is None)
                assert (outcome is None) == is_allowed(code, grant), (request, permissions)
        for code, (right, request) in COMMANDS.items():
            everybody = right in (OPEN, LOGIN)
            print(f"{code:4} {type(request).__name__:28} {right if everybody else ' '.join(found[code])}")  # noqa: T201


async def test_users_may_see_themselves_and_change_their_password_without_permission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path) as made:
        alice = await peopled(made)
        without_effect(monkeypatch)
        for me in ("alice", 1):
            assert await refusal(alice.execute(requests.GetUser(me))) is None
            assert await refusal(alice.execute(requests.ChangePassword(me, "alicealice", "another"))) is None
            for request in (
                requests.UpdateUser(me, "alicia", None),
                requests.UpdatePermissions(me, ALL),
                requests.DeleteUser(me),
            ):
                assert await refusal(alice.execute(request)) == Code.UNAUTHORIZED
        for other in ("bob", 0, "nobody", 99, "1"):
            assert await refusal(alice.execute(requests.GetUser(other))) == Code.UNAUTHORIZED
            assert await refusal(alice.execute(requests.ChangePassword(other, "bobbob", "x"))) == Code.UNAUTHORIZED


async def test_missing_things_are_not_found_for_every_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams and topics are looked up before permissions are checked; users and the server are not."""

    async with world(tmp_path) as made:
        alice = await peopled(made)
        without_effect(monkeypatch)
        for code, (_, request) in COMMANDS.items():
            fields = {name: getattr(request, name) for name in request.__struct_fields__}
            for place, expected in (("stream", Code.STREAM_ID_NOT_FOUND), ("topic", Code.TOPIC_ID_NOT_FOUND)):
                if place in fields:
                    absent = type(request)(**fields | {place: "nowhere"})
                    answer = None if code in NOT_FOUND_IS_NOTHING else expected
                    assert await refusal(alice.execute(absent)) == answer, absent
            if "user" in fields:
                absent = type(request)(**fields | {"user": "nobody"})
                assert await refusal(alice.execute(absent)) == Code.UNAUTHORIZED


@pytest.mark.parametrize("how", ["never logged in", "logged out", "inactive", "deleted", "replaced"])
async def test_without_a_login_only_ping_and_login_are_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    async with world(tmp_path) as made:
        alice = await peopled(made)
        without_effect(monkeypatch)
        users = made.gateway.users
        await users.change_permissions("alice", ALL)
        match how:
            case "never logged in":
                alice = made.person()
            case "logged out":
                alice.session.login = None
            case "inactive":
                await users.update("alice", None, UserStatus.INACTIVE)
            case "deleted":
                await users.delete("alice")
            case "replaced":
                # Another user gets the number. A deletion ends sessions, but this one was not among them.
                await users.delete("alice")
                assert (await users.create("eve", "eveeve", ACTIVE, ALL)).id == 1
        for code, (right, request) in COMMANDS.items():
            expected = None if right == OPEN else Code.UNAUTHENTICATED
            assert await refusal(alice.execute(request)) == expected, code


# ------------------------------------------------------------------------------------------------------------- over TCP


def sample(number: int) -> dict[int, bytes]:
    """A repeatable command for every right; the number makes new names."""
    repeatable = {code: asked(COMMANDS[code][1]) for code in (10, 22, 31, 32, 120, 200, 201, 300, 301, 600, 601, 100)}
    return repeatable | {
        33: asked(requests.CreateUser(f"user {number}", "secret", ACTIVE, None)),
        101: frame(101, message_body(10)),
        102: asked(COMMANDS[102][1]),
        121: asked(COMMANDS[121][1]),
        202: asked(requests.CreateStream(f"stream {number}")),
        204: asked(requests.UpdateStream(0, "s")),
        302: asked(requests.CreateTopic(0, f"topic {number}", 0)),
        304: asked(requests.UpdateTopic(0, 0, "t")),
        402: asked(requests.CreatePartitions(0, 0, 1)),
        602: asked(requests.CreateConsumerGroup(0, 0, f"group {number}")),
    }


async def test_a_tcp_client_gets_41_for_commands_without_permission(tmp_path: Path) -> None:
    async with served(tmp_path, store={"catalog_syncs": False}) as made:
        root = await made.root()
        await make_topic(root)
        for request in (
            requests.CreateUser("bob", "bobbob", ACTIVE, None),
            requests.CreateConsumerGroup(0, 0, "g"),
            requests.CreateStream("other"),
        ):
            assert (await root.ask(request))[0] == 0
        await root.send(frame(101, message_body(10)))
        assert (await root.answer())[0] == 0
        for number, (grant, permissions) in enumerate(grants()):
            name = f"person {number}"
            assert (await root.ask(requests.CreateUser(name, "secret", ACTIVE, permissions)))[0] == 0
            person = await made.stranger()
            assert (await person.ask(requests.LoginUser(name, "secret")))[0] == 0
            await _try(person, grant, number)


async def _try(person: Raw, grant: str, number: int) -> None:
    requests = sample(number)
    await person.send(b"".join(requests.values()))
    for code in requests:
        status, payload = await person.answer()
        assert status == (0 if is_allowed(code, grant) else 41), (code, grant)
        assert payload == b"" or status == 0
