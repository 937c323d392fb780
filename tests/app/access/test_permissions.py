"""The rights that each flag grants. The protocol's table is repeated here as text, and every flag is tried."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whippet.app.access import permissions as may
from whippet.app.access.permissions import (
    ALL,
    GlobalPermissions,
    Permissions,
    StreamPermissions,
    TopicPermissions,
    without_stream,
    without_topic,
)
from whippet.app.commands.registry import COMMANDS

TABLE = """
read_servers    G.manage_servers G.read_servers
read_users      G.manage_users G.read_users
manage_users    G.manage_users
read_streams    G.manage_streams G.read_streams
manage_streams  G.manage_streams
read_stream     G.manage_streams G.read_streams S.manage_stream S.read_stream
manage_stream   G.manage_streams S.manage_stream
read_topics     G.manage_streams G.read_streams G.manage_topics G.read_topics S.manage_stream S.read_stream S.manage_topics S.read_topics
read_topic      G.manage_streams G.read_streams G.manage_topics G.read_topics S.manage_stream S.read_stream S.manage_topics S.read_topics T.manage_topic T.read_topic
manage_topics   G.manage_streams G.manage_topics S.manage_stream S.manage_topics
manage_topic    G.manage_streams G.manage_topics S.manage_stream S.manage_topics T.manage_topic
poll_messages   G.manage_streams G.read_streams G.manage_topics G.read_topics G.poll_messages S.manage_stream S.read_stream S.manage_topics S.read_topics S.poll_messages T.manage_topic T.read_topic T.poll_messages
send_messages   G.manage_streams G.manage_topics G.send_messages S.manage_stream S.manage_topics S.send_messages T.manage_topic T.send_messages
route_messages  G.manage_streams G.read_streams G.manage_topics G.read_topics G.poll_messages G.send_messages S.manage_stream S.read_stream S.manage_topics S.read_topics S.poll_messages S.send_messages T.manage_topic T.read_topic T.poll_messages T.send_messages
"""  # noqa: E501
GRANTED_BY = {line.split()[0]: set(line.split()[1:]) for line in TABLE.strip().splitlines()}

STREAM, TOPIC = 4, 7
ELSEWHERE = 5
FLAGS = [
    f"{letter}.{name}"
    for letter, kind in (("G", GlobalPermissions), ("S", StreamPermissions), ("T", TopicPermissions))
    for name in kind.__struct_fields__
    if name != "topics"
]


def having(flags: set[str], stream_id: int = STREAM, topic_id: int = TOPIC) -> Permissions:
    """Exactly these flags; those of level S and T for one stream and one topic."""

    def of(letter: str) -> dict[str, bool]:
        return {flag[2:]: True for flag in flags if flag.startswith(letter)}

    topics = {topic_id: TopicPermissions(**of("T"))} if of("T") else {}
    streams = {stream_id: StreamPermissions(**of("S"), topics=topics)} if of("S") or topics else {}
    return Permissions(GlobalPermissions(**of("G")), streams)


def rights(permissions: Permissions, stream_id: int = STREAM, topic_id: int = TOPIC) -> set[str]:
    return {name for name in GRANTED_BY if getattr(may, name)(permissions, stream_id, topic_id)}


def test_there_are_twenty_flags() -> None:
    assert len(FLAGS) == 10 + 6 + 4


@pytest.mark.parametrize("flag", FLAGS)
def test_a_flag_alone_grants_exactly_what_the_table_says(flag: str) -> None:
    assert rights(having({flag})) == {name for name, flags in GRANTED_BY.items() if flag in flags}


@given(st.sets(st.sampled_from(FLAGS)))
def test_flags_add_up_and_none_denies_anything(flags: set[str]) -> None:
    expected = {name for name, granting in GRANTED_BY.items() if granting & flags}
    assert rights(having(flags)) == expected


@given(st.sets(st.sampled_from(FLAGS)))
def test_permissions_for_a_stream_and_topic_do_not_apply_to_others(flags: set[str]) -> None:
    permissions = having(flags)
    of_all = rights(having({flag for flag in flags if flag.startswith("G")}))
    of_stream = rights(having({flag for flag in flags if not flag.startswith("T")}))
    assert rights(permissions, stream_id=ELSEWHERE) == of_all
    assert rights(permissions, topic_id=ELSEWHERE) == of_stream


@pytest.mark.parametrize("flag", [flag for flag in FLAGS if flag.startswith("T")])
def test_permissions_for_topic_0_do_not_apply_where_no_topic_is_named(flag: str) -> None:
    """A command without a topic has 0 as its id."""
    permissions = having({flag}, topic_id=0)
    about_streams = {"read_streams", "manage_streams", "read_stream", "manage_stream", "read_topics", "manage_topics"}
    assert not rights(permissions, topic_id=0) & about_streams


@pytest.mark.parametrize("flag", [flag for flag in FLAGS if not flag.startswith("G")])
def test_permissions_for_stream_0_do_not_apply_where_no_stream_is_named(flag: str) -> None:
    of_the_server = {"read_servers", "read_users", "manage_users", "read_streams", "manage_streams"}
    assert not rights(having({flag}, stream_id=0), stream_id=0) & of_the_server


def test_without_a_flag_nothing_is_granted() -> None:
    assert rights(Permissions()) == set()


def test_root_may_do_everything_everywhere() -> None:
    assert rights(ALL) == set(GRANTED_BY)


def test_every_right_that_a_command_needs_is_in_the_table() -> None:
    known = {getattr(may, name) for name in GRANTED_BY}
    assert {command.right for command in COMMANDS if command.right is not None} == known


# ------------------------------------------------------------------------------------------------------------- removal


@given(st.sets(st.sampled_from(FLAGS)))
def test_rights_on_a_deleted_stream_do_not_pass_to_the_next_with_its_number(flags: set[str]) -> None:
    left = without_stream(having(flags), STREAM)
    assert rights(left) == rights(having({flag for flag in flags if flag.startswith("G")}))


@given(st.sets(st.sampled_from(FLAGS)))
def test_rights_on_a_deleted_topic_do_not_pass_to_the_next_with_its_number(flags: set[str]) -> None:
    left = without_topic(having(flags), STREAM, TOPIC)
    assert rights(left) == rights(having({flag for flag in flags if not flag.startswith("T")}))


def test_rights_on_other_streams_and_topics_stay() -> None:
    both = [having({"S.poll_messages", "T.send_messages"}, *ids) for ids in itertools.product((1, 2), (3,))]
    permissions = Permissions(streams={**both[0].streams, **both[1].streams})
    assert without_stream(permissions, 1) == both[1]
    assert without_topic(permissions, 2, 3).streams[1] == permissions.streams[1]
    assert without_stream(permissions, 9) is permissions
    assert without_topic(permissions, 1, 9) is permissions
    assert without_topic(permissions, 9, 3) is permissions


@given(st.sets(st.sampled_from(FLAGS)))
def test_permissions_are_the_same_after_encoding_and_decoding(flags: set[str]) -> None:
    permissions = having(flags)
    assert msgspec.json.decode(msgspec.json.encode(permissions), type=Permissions) == permissions


# ----------------------------------------------------------------------------------------------------- rights not held


NOTHING = Permissions()


@pytest.mark.parametrize("flag", FLAGS)
@pytest.mark.parametrize("taken", [False, True])
def test_granting_or_revoking_a_right_requires_having_it(flag: str, taken: bool) -> None:
    granted = having({flag})
    before, after = (granted, NOTHING) if taken else (NOTHING, granted)
    named = may.right_not_held(NOTHING, before, after)
    assert named is not None
    assert named.endswith(f" in stream {STREAM}") is not flag.startswith("G")
    assert may.right_not_held(None, before, after) == named
    assert may.right_not_held(granted, before, after) is None
    assert may.right_not_held(ALL, before, after) is None
    assert may.right_not_held(NOTHING, granted, granted) is None


@pytest.mark.parametrize("flag", [flag for flag in FLAGS if not flag.startswith("G")])
def test_a_right_on_another_stream_or_topic_is_not_enough(flag: str) -> None:
    after = having({flag})
    assert may.right_not_held(having({flag}, stream_id=ELSEWHERE), NOTHING, after) is not None
    in_another_topic = may.right_not_held(having({flag}, topic_id=ELSEWHERE), NOTHING, after)
    assert (in_another_topic is None) is flag.startswith("S")


def test_a_topic_that_only_one_of_the_two_permissions_names_is_compared() -> None:
    def topics(*names: int) -> Permissions:
        return Permissions(
            streams={STREAM: StreamPermissions(topics={name: TopicPermissions(read_topic=True) for name in names})}
        )

    assert may.right_not_held(topics(1), topics(1), topics(1, 2)) is not None
    assert may.right_not_held(topics(1), topics(1, 2), topics(1)) is not None
    assert may.right_not_held(topics(2), topics(1), topics(1, 2)) is None
    assert may.right_not_held(topics(2), topics(1, 2), topics(1)) is None


def test_missing_permissions_equal_empty_ones() -> None:
    assert may.right_not_held(None, None, NOTHING) is None
    assert may.right_not_held(None, NOTHING, None) is None
