"""Topics with deduplication: configured over HTTP, shown in their details, effective after a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.transports.http.support.calling import Calling, calling
from tests.transports.http.support.messages import FIRST, MESSAGES, message

TOPIC = "/streams/s/topics/t"
CHOSEN = {
    "message_deduplication": "true",
    "message_deduplication_max_entries": "1000000",
    "message_deduplication_expiry": "1 day",
}


async def send(world: Calling, *ids: int) -> Any:
    sent = [message(b"%d" % one, id=one) for one in ids]
    return await world.root.post(f"{MESSAGES}?durability=synced", {"partitioning": FIRST, "messages": sent})


async def payloads(world: Calling) -> list[int]:
    polled = await world.root.get(f"{MESSAGES}?partition_id=0&count=1000&kind=first")
    return [one["header"]["id"] for one in polled["messages"]]


async def options(world: Calling) -> dict[str, str]:
    details = await world.root.get(TOPIC)
    return {key: option["value"] for key, option in details["options"].items() if key in CHOSEN}


async def test_duplicates_are_dropped_after_a_restart_as_well(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        await world.root.post("/streams", {"name": "s"})
        await world.root.post("/streams/s/topics", {"name": "t", "partitions_count": 1, "options": CHOSEN})
        assert await options(world) == CHOSEN | {"message_deduplication_expiry": "86400000000"}
        await send(world, 1, 2, 1)
        await send(world, 2, 1)
        await send(world, 3)
        assert await payloads(world) == [1, 2, 3]
        (partition,) = (await world.root.get(TOPIC))["partitions"]
        assert (partition["first_offset"], partition["next_offset"]) == (0, 3)
    async with calling(tmp_path) as world:
        await send(world, 3, 4, 1)
        assert await payloads(world) == [1, 2, 3, 4]
        text = (await world.stranger.ask("GET", "/metrics")).text
        assert "whippet_messages_left_out_total 2\n" in text
        assert "whippet_deduplication_ids 4\n" in text
        await world.root.put(TOPIC, {"name": "t", "options": {"message_deduplication": "false"}})
        await send(world, 4)
        await world.root.put(TOPIC, {"name": "t", "options": {"message_deduplication": "true"}})
        await send(world, 4, 5)
        assert await payloads(world) == [1, 2, 3, 4, 4, 5]


async def test_invalid_deduplication_options_are_refused_by_name_and_valid_ones_returned(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        await world.root.post("/streams", {"name": "s"})
        for key, value in (
            ("message_deduplication", "sometimes"),
            ("message_deduplication_expiry", "soon"),
            ("message_deduplication_max_entries", "1 GiB"),
            ("message_deduplication_max_entries", "-1"),
        ):
            given = {"name": "t", "partitions_count": 1, "options": {key: value}}
            response = await world.root.ask("POST", "/streams/s/topics", given)
            assert (response.status_code, response.json()["id"]) == (400, 4042)
            assert key in response.json()["reason"]
            assert value in response.json()["reason"]
