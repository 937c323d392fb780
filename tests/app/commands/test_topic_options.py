"""Topic options through the table of commands: chosen, changed, described, refused, and stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.app.access.support.world import SECOND, Person, refusal, world
from tests.app.model.support.option_texts import to_text
from whippet.app.commands import requests, responses
from whippet.app.config.system import System
from whippet.app.errors import Code
from whippet.app.model.identity import UserStatus
from whippet.app.model.options import Option, OptionScope, ValueKind, from_text
from whippet.app.model.topic_options import ARCHIVED, NEWER, TOPIC_OPTIONS, UNLIMITED, WHIPPET_ONLY, TopicDefaults
from whippet.storage.options import GIB, MIB, Durability

DAY = 86_400 * SECOND


def options(**texts: str) -> tuple[Option, ...]:
    return tuple(from_text(key, text) for key, text in texts.items())


def described(info: responses.TopicInfo) -> tuple[dict[str, str], dict[str, str]]:
    """The explicit ones and the derived ones."""
    explicit, derived = ({one.key: to_text(one) for one in part} for part in (info.explicit, info.derived))
    same = {"enforce_fsync"} if "durability" in explicit and "enforce_fsync" not in explicit else set()
    assert sorted([*explicit, *derived]) == sorted(
        TOPIC_OPTIONS.keys() - WHIPPET_ONLY - ((NEWER | ARCHIVED) - explicit.keys()) - same
    )
    assert (list(explicit), list(derived)) == (sorted(explicit), sorted(derived))
    return explicit, derived


async def made(person: Person, partitions: int = 1, **fields: Any) -> responses.TopicInfo:
    if not await person.execute(requests.GetStreams()):
        await person.execute(requests.CreateStream("s"))
    info = (await person.execute(requests.CreateTopic("s", "t", partitions, **fields))).info
    assert isinstance(info, responses.TopicInfo)
    return info


async def changed(person: Person, name: str = "t", **fields: Any) -> responses.TopicInfo:
    await person.execute(requests.UpdateTopic("s", 0, name, **fields))
    info = (await person.execute(requests.GetTopic("s", 0))).info
    assert isinstance(info, responses.TopicInfo)
    return info


def limits(info: responses.TopicInfo) -> tuple[int, int, int]:
    return info.compression_algorithm, info.message_expiry, info.max_topic_size


# ------------------------------------------------------------------------------------------------------------- creation


async def test_chosen_options_apply_are_described_and_survive_a_restart(tmp_path: Path) -> None:
    chosen = options(
        durability="Persisted",
        consumer_offset_durability="replicated",
        segment_size="128 MiB",
        message_expiry="7 days",
        compression_algorithm="gzip",
    )
    async with world(tmp_path) as here:
        root = await here.root()
        info = await made(root, options=chosen)
        assert limits(info) == (2, 7 * DAY, UNLIMITED)
        assert described(info)[0] == {
            "compression_algorithm": "gzip",
            "consumer_offset_durability": "replicated",
            "durability": "persisted",
            "message_expiry": "604800000000",
            "segment_size": "134217728",
        }
    async with world(tmp_path) as here:
        root = await here.root()
        for answer in (
            (await root.execute(requests.GetTopic("s", "t"))).info,
            (await root.execute(requests.GetTopics("s")))[0],
            (await root.execute(requests.GetStream("s"))).topics[0],
        ):
            assert answer == info
        (partition,) = here.store.partitions_of(0, 0)
        assert partition.durability is Durability.SYNCED


async def test_enforce_fsync_syncs_before_the_response_also_after_a_restart(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as here:
        info = await made(await here.root(), options=options(enforce_fsync="true"))
        assert described(info)[0] == {"enforce_fsync": "true"}
        assert described(info)[1]["durability"] == "persisted"
        after = await changed(await here.root(), options=options(message_expiry="1 h"))
        assert described(after)[0] == {"enforce_fsync": "true", "message_expiry": "3600000000"}
    async with world(tmp_path) as here:
        (partition,) = here.store.partitions_of(0, 0)
        assert partition.durability is Durability.SYNCED


async def test_fields_of_classic_clients_choose_unless_they_are_0_or_uncompressed(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        root = await here.root()
        info = await made(root)
        assert limits(info) == (1, UNLIMITED, UNLIMITED)
        assert described(info)[0] == {}
        await root.execute(requests.DeleteTopic("s", "t"))
        info = await made(root, compression_algorithm=3, message_expiry=UNLIMITED, max_topic_size=2 * GIB)
        assert limits(info) == (3, UNLIMITED, 2 * GIB)
        assert described(info)[0] == {
            "compression_algorithm": "zstd",
            "max_topic_size": f"{2 * GIB}",
            "message_expiry": f"{UNLIMITED}",
        }


async def test_a_field_has_precedence_over_the_option_of_the_same_name(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        root = await here.root()
        chosen = options(compression_algorithm="gzip", message_expiry="1 s", max_topic_size="2 GiB")
        assert limits(await made(root, options=chosen)) == (2, SECOND, 2 * GIB)
        await root.execute(requests.DeleteTopic("s", "t"))
        info = await made(root, compression_algorithm=3, message_expiry=5, max_topic_size=3 * GIB, options=chosen)
        assert limits(info) == (3, 5, 3 * GIB)
        assert described(info)[0]["message_expiry"] == "5"
        info = await changed(root, message_expiry=6, max_topic_size=4 * GIB, options=chosen)
        assert limits(info) == (2, 6, 4 * GIB)


async def test_unchosen_options_have_the_servers_defaults(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        system = System()
        topic = msgspec.structs.replace(system.topic, max_size=5 * GIB, message_expiry=DAY)
        compression = msgspec.structs.replace(system.compression, default_algorithm="gzip")
        here.gateway.topic_defaults = TopicDefaults(
            msgspec.structs.replace(system, topic=topic, compression=compression), here.store.options
        )
        info = await made(await here.root(), options=options(message_expiry="0"))
        assert limits(info) == (2, DAY, 5 * GIB)
        assert described(info)[0] == {}


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"options": options(fsync="true")}, Code.UNSUPPORTED_OPTION_KEY),
        ({"options": options(enforce_fsync="true", durability="replicated")}, Code.INVALID_OPTION_VALUE),
        ({"options": options(durability="always")}, Code.INVALID_OPTION_VALUE),
        ({"options": (Option("segment_size", ValueKind.UINT32, bytes(4)),)}, Code.INVALID_OPTION_VALUE),
        ({"options": options(**{f"{i}": "x" for i in range(1025)})}, Code.OPTIONS_BLOCK_TOO_LARGE),
        ({"options": options(max_topic_size="2 MiB", segment_size="4 MiB")}, Code.INVALID_TOPIC_SIZE),
        ({"max_topic_size": MIB, "options": options(segment_size="2 MiB")}, Code.INVALID_TOPIC_SIZE),
        ({"options": options(max_topic_size="2 MiB")}, Code.INVALID_TOPIC_SIZE),
        ({"partitions": 65, "options": options(preallocate_segments="true")}, Code.INVALID_OPTION_VALUE),
        ({"options": options(replication_factor="2")}, Code.INVALID_REPLICATION_FACTOR),
        ({"compression_algorithm": 4}, Code.INVALID_COMMAND),
    ],
    ids=[
        *("key", "contradiction", "value", "kind", "many", "size", "size field", "size and default", "reserved"),
        *("replication", "compression"),
    ],
)
async def test_invalid_options_create_no_topic(tmp_path: Path, fields: dict[str, Any], code: Code) -> None:
    async with world(tmp_path) as here:
        root = await here.root()
        await root.execute(requests.CreateStream("s"))
        assert await refusal(made(root, **fields)) == code
        assert await root.execute(requests.GetTopics("s")) == ()
        assert (await made(root)).id == 0


async def test_a_fixed_topic_keeps_its_partitions(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        root = await here.root()
        chosen = options(partition_resize_policy="fixed", replication_factor="1")
        explicit, _ = described(await made(root, 2, options=chosen))
        assert explicit == {"partition_resize_policy": "fixed", "replication_factor": "1"}
        for resize in (requests.CreatePartitions("s", 0, 1), requests.DeletePartitions("s", 0, 1)):
            assert await refusal(root.execute(resize)) == Code.PARTITION_RESIZE_DISABLED
        assert (await root.execute(requests.GetTopic("s", 0))).info.partitions_count == 2
        await root.execute(requests.PurgeTopic("s", 0))


async def test_a_topic_with_its_own_segment_size_may_be_smaller_than_the_servers_segments(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        root = await here.root()
        await made(root, options=options(segment_size="1 MiB", max_topic_size="1 MiB"))
        assert (await changed(root, max_topic_size=2 * MIB)).max_topic_size == 2 * MIB
        assert await refusal(changed(root, max_topic_size=MIB - 1)) == Code.INVALID_TOPIC_SIZE
        assert await refusal(changed(root, options=options(max_topic_size="1 KiB"))) == Code.INVALID_TOPIC_SIZE


async def test_reserved_disk_space_is_limited_for_added_partitions_too(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        root = await here.root()
        await made(root, 63, options=options(preallocate_segments="true", segment_size="1 GiB"))
        assert await refusal(root.execute(requests.CreatePartitions("s", "t", 2))) == Code.INVALID_OPTION_VALUE
        await root.execute(requests.CreatePartitions("s", "t", 1))
        assert len((await root.execute(requests.GetTopic("s", "t"))).partitions) == 64


# -------------------------------------------------------------------------------------------------------------- changes


async def test_renaming_a_topic_changes_nothing_else_with_0_and_without_fields(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as here:
        root = await here.root()
        chosen = options(compression_algorithm="gzip", message_expiry="1 s", durability="persisted")
        before = await made(root, max_topic_size=2 * GIB, replication_factor=3, options=chosen)
        for fields in (
            {},
            {"message_expiry": 0, "max_topic_size": 0, "replication_factor": 0},
            {"options": options(message_expiry="0", max_topic_size="0")},
        ):
            after = await changed(root, "renamed", **fields)
            assert msgspec.structs.replace(after, name="t") == before
            await changed(root, "t")
    async with world(tmp_path) as here:
        assert (await (await here.root()).execute(requests.GetTopic("s", "t"))).info == before


async def test_changed_options_apply_and_count_as_chosen(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        root = await here.root()
        await made(root)
        info = await changed(root, options=options(message_expiry="1 h", max_topic_size="5 GiB"))
        assert limits(info) == (1, 3600 * SECOND, 5 * GIB)
        assert described(info)[0] == {"max_topic_size": f"{5 * GIB}", "message_expiry": "3600000000"}
        info = await changed(root, compression_algorithm=2, message_expiry=UNLIMITED)
        assert limits(info) == (2, UNLIMITED, 5 * GIB)
        assert described(info)[0].keys() == {"compression_algorithm", "max_topic_size", "message_expiry"}
        info = await changed(root, compression_algorithm=1, options=options(compression_algorithm="gzip"))
        assert info.compression_algorithm == 2
        info = await changed(root, compression_algorithm=1)
        assert described(info)[0]["compression_algorithm"] == "none"


async def test_choosing_no_compression_for_an_uncompressed_topic_changes_nothing(tmp_path: Path) -> None:
    """Classic clients have to send something."""

    async with world(tmp_path) as here:
        root = await here.root()
        await made(root)
        assert described(await changed(root, compression_algorithm=1))[0] == {}


async def test_fixed_options_cannot_be_changed(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        root = await here.root()
        before = await made(root)
        for key in ("durability", "segment_size", "enforce_fsync"):
            code = await refusal(changed(root, "renamed", options=options(**{key: "1"})))
            assert code == Code.UNSUPPORTED_OPTION_KEY
        assert (await root.execute(requests.GetTopic("s", "t"))).info == before


# ---------------------------------------------------------------------------------------- descriptions and other scopes


async def test_options_are_described_to_every_logged_in_user(tmp_path: Path) -> None:
    async with world(tmp_path, messages_required_to_save=9, durability=Durability.MEMORY) as here:
        await here.user("alice")
        alice = await here.logged_in("alice")
        rows = await alice.execute(requests.DescribeOptions(OptionScope.TOPIC))
        assert [row.key for row in rows] == list(TOPIC_OPTIONS)
        row = next(row for row in rows if row.key == "messages_required_to_save")
        assert (row.kind, row.default) == (11, b"\x09\0\0\0")
        assert row.description == TOPIC_OPTIONS[row.key].description
        for scope in (OptionScope.STREAM, OptionScope.USER):
            assert await alice.execute(requests.DescribeOptions(scope)) == ()
        assert await refusal(here.person().execute(requests.DescribeOptions(OptionScope.TOPIC))) == Code.UNAUTHENTICATED


async def test_streams_and_users_have_no_options(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        root = await here.root()
        await root.execute(requests.CreateStream("s"))
        await here.user("alice")
        some = options(durability="persisted")
        for request in (
            requests.CreateStream("other", some),
            requests.UpdateStream("s", "other", some),
            requests.UpdateStream("s", "s", some),
            requests.CreateUser("bob", "bobbob", UserStatus.ACTIVE, None, some),
            requests.UpdateUser("alice", "alicia", None, some),
        ):
            assert await refusal(root.execute(request)) == Code.UNSUPPORTED_OPTION_KEY
        assert [stream.name for stream in await root.execute(requests.GetStreams())] == ["s"]
        assert [user.username for user in await root.execute(requests.GetUsers())] == ["root", "alice"]
