"""HTTP requests of clients since 0.12: deferred polls, contexts of partitions, partial updates."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.transports.http.support.calling import Calling, calling
from whippet.app.errors import Code

TOPIC = "/streams/s/topics/t"
POLL = f"{TOPIC}/messages/deferred"


async def with_topic(world: Calling) -> dict[str, Any]:
    """Creates stream s and topic t like clients since 0.12, and returns the context of its partition."""
    await world.root.post("/streams", {"name": "s"})
    options = {"message_expiry": 7_200_000_000, "preallocate_segments": False, "durability": "replicated"}
    made = await world.root.post("/streams/s/topics", {"name": "t", "partitions_count": 1, "options": options})
    assert made["options"]["message_expiry"] == {"value": "7200000000", "explicit": True, "kind": "uint64"}
    context: dict[str, Any] = made["partitions"][0]["context"]
    assert context["owner_generation"] == 0
    return context


async def send(world: Calling, context: dict[str, Any] | None = None, **more: Any) -> Any:
    to = {"kind": "partition_id", "value": "AAAAAA=="}
    body = {"partitioning": to, "messages": [{"payload": "aGVsbG8="}], "context": context}
    return await world.root.ask("POST", f"{TOPIC}/messages", body, **more)


def encoded(context: dict[str, Any]) -> str:
    return json.dumps(context, separators=(",", ":"))


async def test_a_deferred_poll_returns_the_context_of_its_partition(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        context = await with_topic(world)
        assert (await send(world, context)).status_code == 201
        found = await world.root.get(f"{POLL}?consumer_kind=consumer&consumer_id=me&max_bytes=1000")
        assert found["context"]["incarnation"] == context["incarnation"]
        assert [message["payload"] for message in found["messages"]] == ["aGVsbG8="]
        assert (found["partition_id"], found["count"], found["current_offset"]) == (0, 1, 0)
        again = await world.root.get(f"{POLL}?kind=offset&value=1&context={encoded(found['context'])}")
        assert (again["count"], again["messages"]) == (0, [])


async def test_a_context_that_is_not_json_is_refused(tmp_path: Path) -> None:
    """JSON has no numbers with leading zeros."""
    async with calling(tmp_path) as world:
        await with_topic(world)
        for context in ('{"incarnation":01,"owner_generation":0,"metadata_op":1}', "{}", "nonsense"):
            assert await world.root.refused("GET", f"{POLL}?context={context}") == (400, 400, "context")


async def test_a_deferred_poll_by_post_commits_the_offset(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        context = await with_topic(world)
        await send(world)
        where = f"{TOPIC}/consumer-offsets"
        for count in (1, 0):
            found = await world.root.ask("POST", f"{POLL}?kind=next&auto_commit=true&consumer_id=7", None)
            assert (found.status_code, found.json()["count"]) == (200, count)
        offset = await world.root.get(f"{where}?consumer_kind=consumer&consumer_id=7")
        assert offset["stored_offset"] == 0
        body = {"consumer_kind": "consumer", "consumer_id": 7, "partition_id": 0, "offset": 0, "context": context}
        await world.root.put(where, body)
        gone = await world.root.ask("DELETE", f"{where}/7?consumer_kind=consumer&partition_id=0")
        assert gone.status_code == 204


async def test_a_deferred_poll_waits_for_its_minimum_of_messages(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        await with_topic(world)
        waits = "wait_us=30000000&request_timeout_us=40000000&min_count=2"
        polling = asyncio.create_task(world.root.get(f"{POLL}?{waits}"))
        for _ in range(2):
            assert not polling.done()
            await send(world)
        assert (await polling)["count"] == 2
        short = await world.root.get(f"{POLL}?wait_us=1&request_timeout_us=2000000&value=9")
        assert short["count"] == 0


async def test_a_partition_that_was_created_again_has_another_context(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        context = await with_topic(world)
        await world.root.ask("DELETE", f"{TOPIC}/partitions?partitions_count=1")
        await world.root.post(f"{TOPIC}/partitions", {"partitions_count": 1})
        response = await send(world, context)
        assert (response.status_code, response.json()["id"]) == (409, Code.PARTITION_RECREATED)
        assert await world.root.refused("GET", f"{POLL}?context={encoded(context)}") == (409, 87, None)
        body = {"offset": 0, "context": context}
        assert await world.root.refused("PUT", f"{TOPIC}/consumer-offsets", body) == (409, 87, None)
        anew = (await world.root.get(TOPIC))["partitions"][0]["context"]
        assert (await send(world, anew)).status_code == 201


async def test_an_update_contains_only_changes_and_resets(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        await with_topic(world)
        root = world.root
        await root.put(TOPIC, {"max_topic_size": str(2**40), "message_expiry": None})
        found = await root.get(TOPIC)
        assert (found["name"], found["max_topic_size"], found["message_expiry"]) == ("t", 2**40, 7_200_000_000)
        await root.put(TOPIC, {"name": "t9", "reset": ["message_expiry"]})
        found = await root.get("/streams/s/topics/t9")
        assert (found["max_topic_size"], found["message_expiry"]) == (2**40, 2**64 - 1)
        assert found["options"]["message_expiry"]["explicit"] is False
        assert await root.refused("PUT", "/streams/s/topics/t9", {}) == (400, Code.INVALID_COMMAND, None)


@pytest.mark.parametrize(
    "query",
    [
        "consumer_kind=consumer_group",
        "wait_us=5&request_timeout_us=1000004",
        "wait_us=600000001",
        "min_count=0",
        "min_count=11",
        "max_bytes=343",
        "context=nonsense",
        "wait=1s",
    ],
)
async def test_an_invalid_deferred_poll_is_refused(tmp_path: Path, query: str) -> None:
    async with calling(tmp_path) as world:
        await with_topic(world)
        response = await world.root.ask("GET", f"{POLL}?{query}")
        assert response.status_code == 400, response.text
