"""The compression of topics: chosen, changed and refused through the table of commands, with its effect on the disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.app.access.support.world import Person, refusal, world
from tests.app.model.support.option_texts import to_text
from tests.storage.support.world import sized
from whippet.app.commands import requests, responses
from whippet.app.config import Config
from whippet.app.config.system import Compression
from whippet.app.errors import Code
from whippet.app.model.options import Option, from_text


def settings(compression: Compression) -> dict[str, Any]:
    """The configuration, and the options of the store that follow from it."""
    config = Config()
    system = msgspec.structs.replace(config.system, compression=compression)
    return {
        "settings": msgspec.structs.replace(config, system=system),
        "compression": compression.default_algorithm,
        "compression_override": compression.allow_override,
    }


def chosen(name: str) -> tuple[Option, ...]:
    return (from_text("compression_algorithm", name),)


async def created(person: Person, **fields: Any) -> responses.TopicInfo:
    if not await person.execute(requests.GetStreams()):
        await person.execute(requests.CreateStream("s"))
    return (await person.execute(requests.CreateTopic("s", "t", 1, **fields))).info  # type: ignore[no-any-return]


async def info_of(person: Person) -> responses.TopicInfo:
    return (await person.execute(requests.GetTopic("s", "t"))).info  # type: ignore[no-any-return]


def named(info: responses.TopicInfo) -> str:
    return {one.key: to_text(one) for one in (*info.explicit, *info.derived)}["compression_algorithm"]


async def saves(person: Person) -> bool:
    """Sends messages, and returns whether they take less space than they have bytes."""
    before = await info_of(person)
    (partition,) = person.gateway.store.partitions_of(0, 0)
    await partition.append(sized(20, 300))
    after = await info_of(person)
    plain = after.size_bytes - before.size_bytes
    assert plain == 256 + 20 * (48 + 300)
    return after.disk_bytes - before.disk_bytes < plain // 4


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"compression_algorithm": 2}, "gzip"),
        ({"compression_algorithm": 3}, "zstd"),
        ({"options": chosen("gzip")}, "gzip"),
        ({"options": chosen("zstd")}, "zstd"),
        ({}, "none"),
        ({"options": chosen("none")}, "none"),
    ],
)
async def test_a_topic_is_compressed_as_it_was_created(tmp_path: Path, fields: dict[str, Any], name: str) -> None:
    async with world(tmp_path) as here:
        root = await here.root()
        assert named(await created(root, **fields)) == name
        assert await saves(root) is (name != "none")


async def test_updates_of_all_clients_change_what_is_written_from_then_on(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        root = await here.root()
        await created(root)
        found = []
        for request in (
            requests.UpdateTopic("s", "t", "t", compression_algorithm=3),
            requests.UpdateTopic("s", "t", "t", compression_algorithm=1),
            requests.UpdateTopic("s", "t", "t", options=chosen("gzip")),
            requests.PatchTopic("s", "t", chosen("none")),
            requests.PatchTopic("s", "t", chosen("zstd")),
            requests.PatchTopic("s", "t", reset=("compression_algorithm",)),
        ):
            await root.execute(request)
            found.append((named(await info_of(root)), await saves(root)))
        assert found == [
            ("zstd", True), ("none", False), ("gzip", True), ("none", False), ("zstd", True), ("none", False)
        ]  # fmt: skip


async def test_topics_that_name_no_algorithm_get_the_default(tmp_path: Path) -> None:
    more = settings(Compression(default_algorithm="zstd"))
    async with world(tmp_path, **more) as here:
        root = await here.root()
        # Classic clients have to send something.
        assert named(await created(root, compression_algorithm=1)) == "zstd"
        assert await saves(root)
        await root.execute(requests.PatchTopic("s", "t", chosen("none")))
        assert not await saves(root)
        await root.execute(requests.PatchTopic("s", "t", reset=("compression_algorithm",)))
        assert named(await info_of(root)) == "zstd"
        assert await saves(root)


async def test_without_override_another_algorithm_than_the_default_is_refused(tmp_path: Path) -> None:
    more = settings(Compression(default_algorithm="gzip", allow_override=False))
    async with world(tmp_path, **more) as here:
        root = await here.root()
        await root.execute(requests.CreateStream("s"))
        for fields in ({"compression_algorithm": 3}, {"options": chosen("none")}, {"options": chosen("zstd")}):
            assert await refusal(created(root, **fields)) == Code.INVALID_OPTION_VALUE
        assert named(await created(root)) == "gzip"
        assert await saves(root)
        for request in (requests.PatchTopic("s", "t", chosen("none")), requests.UpdateTopic("s", "t", "t", 3)):
            assert await refusal(root.execute(request)) == Code.INVALID_OPTION_VALUE
        await root.execute(requests.UpdateTopic("s", "t", "renamed", 2))


async def test_without_override_existing_topics_are_compressed_like_all_others(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        await created(await here.root(), options=chosen("zstd"))
    for default, saved in (("none", False), ("gzip", True)):
        more = settings(Compression(default_algorithm=default, allow_override=False))  # type: ignore[arg-type]
        async with world(tmp_path, **more) as here:
            assert await saves(await here.root()) is saved


@pytest.mark.parametrize(
    ("topics", "default", "how_many", "which"),
    [
        (["zstd", "gzip"], "gzip", "1 topic is", "it: s/t0"),
        (["zstd", "none", "gzip"], "none", "2 topics are", "them: s/t0, s/t2"),
        (["zstd"] * 21, "none", "21 topics are", f"them: {', '.join(f's/t{each}' for each in range(20))} and 1 more"),
        (["gzip", "gzip"], "gzip", "", ""),
    ],
)
async def test_a_start_names_the_topics_whose_choice_it_overrides(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, topics: list[str], default: Any, how_many: str, which: str
) -> None:
    async with world(tmp_path) as here:
        root = await here.root()
        await root.execute(requests.CreateStream("s"))
        for number, name in enumerate(topics):
            await root.execute(requests.CreateTopic("s", f"t{number}", 1, options=chosen(name)))
    async with world(tmp_path, **settings(Compression(default_algorithm=default))):
        pass
    line = (
        f"system.compression.allow_override is false, so {how_many} compressed with "
        f"system.compression.default_algorithm = {default} from now on, although another choice was made for {which}"
    )
    assert caplog.messages == []
    async with world(tmp_path, **settings(Compression(default_algorithm=default, allow_override=False))):
        assert caplog.messages == ([line] if which else [])


async def test_polls_return_the_same_from_compressed_topics(tmp_path: Path) -> None:
    async with world(tmp_path, tail_bytes_max=0) as here:
        root = await here.root()
        polls = []
        for name in ("none", "gzip", "zstd"):
            await created(root, options=chosen(name))
            assert await saves(root) is (name != "none")
            request = requests.PollMessages(
                requests.Consumer(requests.ConsumerKind.CONSUMER, 1),
                "s",
                "t",
                0,
                requests.Strategy(requests.StrategyKind.OFFSET, 3),
                10,
                False,
            )
            polled = await root.execute(request)
            polls.append((polled.messages_count, b"".join(polled.batches)))
            await root.execute(requests.DeleteTopic("s", "t"))
        assert polls[0][0] == 10
        assert polls[0] == polls[1] == polls[2]
