"""Query parameters: each has an effect or is refused, and names are the same on every route."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from tests.transports.http.support.calling import with_topic
from whippet.storage.options import Durability

MESSAGES = "/streams/s/topics/t/messages"
TEXT = {"content_type": "text/plain"}


async def send(world: Any, lines: bytes, query: str = "") -> Any:
    return await world.root.ask("POST", f"{MESSAGES}{query}", lines, **TEXT)


def payloads(answer: Any) -> list[bytes]:
    return [base64.b64decode(message["payload"]) for message in answer["messages"]]


@pytest.mark.parametrize(
    ("method", "path", "name", "hint"),
    [
        ("POST", f"{MESSAGES}?durabilty=synced", "durabilty", "did you mean `durability`?"),
        ("GET", f"{MESSAGES}?partion_id=1", "partion_id", "did you mean `partition_id`?"),
        ("GET", f"{MESSAGES}/tail?frm=first", "frm", "did you mean `from`?"),
        ("GET", "/streams?consistancy=linearizable", "consistancy", "did you mean `consistency`?"),
        ("GET", "/users?zzz=1", "zzz", "the parameters of this operation are `consistency`"),
        ("GET", "/stats?verbose=1", "verbose", "this operation has no parameters"),
        ("GET", "/ping?x", "x", "this operation has no parameters"),
        ("DELETE", "/streams/s?force=true", "force", "this operation has no parameters"),
    ],
)
async def test_an_unknown_parameter_is_refused_with_the_nearest_known_one(
    tmp_path: Path, method: str, path: str, name: str, hint: str
) -> None:
    async with with_topic(tmp_path) as world:
        response = await world.root.ask(method, path, b"a" if method == "POST" else None, **TEXT)
        assert (response.status_code, response.json()["field"]) == (400, name)
        assert f"unknown parameter `{name}`; {hint}" in response.json()["reason"]
        assert (await world.root.get("/streams/s"))["messages_count"] == 0


async def test_a_query_with_too_many_parameters_is_refused(tmp_path: Path) -> None:
    async with with_topic(tmp_path) as world:
        response = await world.root.ask("GET", f"{MESSAGES}?" + "&".join(["count=1"] * 65))
        assert response.status_code == 400
        assert "at most 64 parameters" in response.json()["reason"]


@pytest.mark.parametrize("name", ["partition", "partition_id"])
async def test_sends_polls_and_offsets_accept_a_partition_by_either_name(tmp_path: Path, name: str) -> None:
    async with with_topic(tmp_path) as world:
        sent = (await send(world, b"one", f"?{name}=2")).json()
        assert sent["confirmations"][0]["partition_id"] == 2
        assert payloads(await world.root.get(f"{MESSAGES}?{name}=2")) == [b"one"]
        offsets = "/streams/s/topics/t/consumer-offsets"
        await world.root.put(offsets, {"consumer_id": 7, "partition_id": 2, "offset": 0})
        assert (await world.root.get(f"{offsets}?consumer_id=7&{name}=2"))["stored_offset"] == 0
        await world.root.delete(f"{offsets}/7?{name}=2")


@pytest.mark.parametrize(
    ("method", "path", "words"),
    [
        ("POST", MESSAGES, "`partition_id` and `partition` mean the same"),
        ("GET", MESSAGES, "`partition_id` and `partition` mean the same"),
        ("GET", f"{MESSAGES}/tail", "`partition_id` and `partition` mean the same"),
        ("GET", "/streams/s/topics/t/consumer-offsets", "`partition_id` and `partition` mean the same"),
    ],
)
async def test_two_names_for_the_partition_are_refused(tmp_path: Path, method: str, path: str, words: str) -> None:
    async with with_topic(tmp_path) as world:
        query = f"{path}?partition_id=0&partition=1"
        response = await world.root.ask(method, query, b"a" if method == "POST" else None, **TEXT)
        assert response.status_code == 400
        assert words in response.json()["reason"]


async def test_a_poll_starts_at_from(tmp_path: Path) -> None:
    async with with_topic(tmp_path, partitions=1) as world:
        await send(world, b"one\ntwo\nthree")
        assert payloads(await world.root.get(f"{MESSAGES}?from=first&count=2")) == [b"one", b"two"]
        assert payloads(await world.root.get(f"{MESSAGES}?from=last&count=1")) == [b"three"]
        taken = f"{MESSAGES}?from=next&count=1&auto_commit=true"
        assert [payloads(await world.root.get(taken)) for _ in range(2)] == [[b"one"], [b"two"]]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("from=first&kind=last", "`kind` and `from` mean the same"),
        ("from=first&value=7", "`value` has no meaning with `from=first`"),
        ("from=middle", "Invalid enum value"),
    ],
)
async def test_a_poll_with_two_starting_positions_is_refused(tmp_path: Path, query: str, words: str) -> None:
    async with with_topic(tmp_path) as world:
        response = await world.root.ask("GET", f"{MESSAGES}?{query}")
        assert response.status_code == 400
        assert words in response.json()["reason"]


async def test_a_flush_may_repeat_its_path_in_the_query_but_not_contradict_it(tmp_path: Path) -> None:
    async with with_topic(tmp_path) as world:
        ok = await world.root.ask("GET", f"{MESSAGES}/flush/1/true?partition_id=1&fsync=true")
        assert ok.status_code == 200
        for query, field in (("partition_id=2", "partition_id"), ("fsync=false", "fsync")):
            assert await world.root.refused("GET", f"{MESSAGES}/flush/1/true?{query}") == (400, 400, field)


@pytest.mark.parametrize("level", ["written", "synced"])
async def test_a_send_returns_the_durability_level_that_it_reached(tmp_path: Path, level: str) -> None:
    async with with_topic(tmp_path) as world:
        response = await send(world, b"a", f"?durability={level}")
        assert response.headers["whippet-durability"] == level


async def test_an_unacknowledged_send_claims_no_durability_level(tmp_path: Path) -> None:
    async with with_topic(tmp_path) as world:
        response = await send(world, b"a", "?ack=none")
        assert response.status_code == 202
        assert "whippet-durability" not in response.headers


async def test_a_server_in_memory_mode_returns_memory(tmp_path: Path) -> None:
    async with with_topic(tmp_path, messages_required_to_save=1000, durability=Durability.MEMORY) as world:
        assert (await send(world, b"a")).headers["whippet-durability"] == "memory"
