"""Resources: their URIs, their pages, and what they return."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.app.access.support.world import world
from tests.app.mcp.support.working import Desk
from whippet.app.mcp import resources
from whippet.app.mcp.work import Limits, Refused

NAMES = ("orders", "with / and ü", "42", "..")


async def test_every_stream_and_topic_is_listed_and_can_be_read_by_its_uri(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        desk = Desk(await made.root())
        for name in NAMES:
            await desk("create_stream", name=name)
            await desk("create_topic", stream_id="orders" if name == "42" else name, name=name, partitions_count=1)
        found, cursor = await resources.page(desk.work, None)
        assert cursor is None
        assert [each.name for each in found[1:5]] == ["orders", "orders/orders", "orders/42", "with / and ü"]
        assert json.loads(await resources.read(desk.work, found[0].uri))["total"] == 4
        for each in found[1:]:
            shown = json.loads(await resources.read(desk.work, each.uri))
            assert each.name in (shown["name"], f"{each.name.partition('/')[0]}/{shown['name']}") or "with" in each.name


@pytest.mark.parametrize("items", [1, 2, 3, 4, 100])
async def test_pages_have_every_resource_once(tmp_path: Path, items: int) -> None:
    async with world(tmp_path) as made:
        desk = Desk(await made.root())
        for stream in ("a", "b", "c"):
            await desk("create_stream", name=stream)
            for topic in range(4):
                await desk("create_topic", stream_id=stream, name=f"t{topic}", partitions_count=1)
        work = Desk(await made.root(), limits=Limits(items, 4096)).work
        names: list[str] = []
        cursor = None
        while True:
            found, cursor = await resources.page(work, cursor)
            assert 0 < len(found) <= items + 1
            names += [each.name for each in found]
            if cursor is None:
                break
        assert names == ["streams", *(n for s in "abc" for n in (s, *(f"{s}/t{topic}" for topic in range(4))))]


@pytest.mark.parametrize(
    "uri",
    [
        "whippet://streams/",
        "whippet://streams/a/b",
        "whippet://streams/a/topics/",
        "whippet://streams/none",
        "whippet://streams/none/topics/t",
        "file:///etc/passwd",
        "",
        "whippet://streamsx",
        "whippet://streams/" + "a" * 70_000,
    ],
)
async def test_other_uris_are_refused(tmp_path: Path, uri: str) -> None:
    async with world(tmp_path) as made:
        desk = Desk(await made.root())
        with pytest.raises(Refused) as refused:
            await resources.read(desk.work, uri)
        assert len(str(refused.value)) < 1000


@pytest.mark.parametrize("cursor", ["x", "1", "1.2.3", "-1.0", "9" * 5000 + ".0"])
async def test_a_cursor_from_elsewhere_is_refused(tmp_path: Path, cursor: str) -> None:
    async with world(tmp_path) as made:
        with pytest.raises(Refused, match="cursor"):
            await resources.page(Desk(await made.root()).work, cursor)
