"""Users, their permissions and passwords: created users are found, and changes apply to the next login."""

from __future__ import annotations

from tests.sdk.support.program import Sdk
from tests.sdk.support.server import Server

ACTIVE, INACTIVE = True, False


def test_users_are_created_changed_and_deleted_and_only_existing_ones_can_log_in(
    newest: Sdk, server: Server, name: str
) -> None:
    said = newest.finished("users", address=server.address, name=name).findings()

    def errors(key: str) -> list[str | None]:
        return [newest.error(answer) for answer in said[key]]

    full, plain, idle = (number for number, *_ in said["made"])
    made = [[full, f"{name}-full", ACTIVE], [plain, f"{name}-plain", ACTIVE], [idle, f"{name}-idle", INACTIVE]]
    assert said["made"] == made
    assert said["created_at"] == sorted(said["created_at"])
    assert said["globally"] == ["manage_topics", "read_servers", "send_messages"]
    assert said["tree_is_kept"] == said["no_permissions"] == [True, True]
    assert said["by_id"] == made[1]
    assert said["absent"] == [None, None]
    assert [user for user in said["listed"] if user[1].startswith(name)] == sorted(made)
    assert said["listed"] == sorted(said["listed"])
    assert said["root"] == [0, "iggy", ACTIVE]
    assert errors("logins") == [None, "InvalidCredentials"]
    bad = ["InvalidUsername"] * 2 + ["InvalidPassword"] * 2
    assert errors("refused") == ["UserAlreadyExists", *bad]

    assert said["updated"] == [
        [full, f"{name}-both", INACTIVE],
        [plain, f"{name}-renamed", ACTIVE],
        [idle, f"{name}-idle", ACTIVE],
    ]
    assert said["old_name"] is None
    assert errors("logins_updated") == [None, None, "InvalidCredentials"]
    assert errors("refused_updates") == ["ResourceNotFound", "UserAlreadyExists", "UnsupportedOptionKey"]
    assert said["after_refusals"] == [plain, f"{name}-renamed", ACTIVE]

    assert said["replaced"] == [True, True]
    assert said["removed"] is True
    assert errors("refused_permissions") == ["ResourceNotFound", "CannotChangePermissions"]

    assert newest.error(said["wrong_current"]) == "InvalidCredentials"
    assert errors("bad_new") == ["InvalidPassword"] * 2
    assert newest.error(said["of_nobody"]) == "ResourceNotFound"
    assert [said["by_root"], said["by_oneself"], said["goes_on"]] == [None] * 3
    assert errors("logins_changed") == [None, None, "InvalidCredentials"]

    assert said["gone"] == [None] * 3
    assert said["left"] == []
    assert errors("after_the_end") == ["InvalidCredentials"] * 2
    assert errors("again") == ["ResourceNotFound", "CannotDeleteUser"]


READING_TOPICS = {"get_topics", "get_topic", "poll", "poll of other topic"}
GROUPS = {"create_consumer_group", "get_consumer_groups", "join_consumer_group"}
READING_STREAMS = READING_TOPICS | GROUPS | {"get_streams", "get_stream"}
MANAGING_TOPICS = READING_TOPICS | GROUPS | {"create_topic", "update_topic", "create_partitions", "send"}
ON_ONE_TOPIC = {"get_topic", "poll"} | GROUPS

GRANTED: list[tuple[dict[str, list[str]], set[str]]] = [
    ({}, set()),
    ({"everywhere": ["read_servers"]}, {"get_stats"}),
    ({"everywhere": ["manage_servers"]}, {"get_stats"}),
    ({"everywhere": ["manage_users"]}, {"get_users", "create_user"}),
    ({"everywhere": ["read_users"]}, {"get_users"}),
    ({"everywhere": ["read_streams"]}, READING_STREAMS),
    (
        {"everywhere": ["manage_streams"]},
        READING_STREAMS | MANAGING_TOPICS | {"create_stream", "update_stream", "purge_stream of other"},
    ),
    ({"everywhere": ["manage_topics"]}, MANAGING_TOPICS),
    ({"everywhere": ["read_topics"]}, READING_TOPICS | GROUPS),
    ({"everywhere": ["poll_messages"]}, {"poll", "poll of other topic"}),
    ({"everywhere": ["send_messages"]}, {"send"}),
    ({"stream": ["manage_stream"]}, MANAGING_TOPICS | {"get_stream", "update_stream"}),
    ({"stream": ["read_stream"]}, READING_TOPICS | GROUPS | {"get_stream"}),
    ({"stream": ["send_messages"]}, {"send"}),
    ({"topic": ["manage_topic"]}, ON_ONE_TOPIC | {"update_topic", "create_partitions", "send"}),
    ({"topic": ["read_topic"]}, ON_ONE_TOPIC),
    (
        {"topic": ["poll_messages"], "stream": ["send_messages"], "everywhere": ["read_servers"]},
        {"poll", "send", "get_stats"},
    ),
]
"""What a user may do, by the flags set at each level."""


def test_permissions_allow_exactly_what_they_grant(newest: Sdk, server: Server, name: str) -> None:
    grants = [grant for grant, _ in GRANTED]
    program = newest.finished("permitted", address=server.address, name=name, grants=grants)
    for (grant, allowed), answers in zip(GRANTED, program.all("answers"), strict=True):
        assert {act for act, answer in answers.items() if answer is None} == allowed, grant
        refused = {newest.error(answer) for answer in answers.values() if answer is not None}
        assert refused <= {"Unauthorized"}, grant
