"""Searches: conditions, budgets, cursors, and what they leave to others."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.transports.http.support.calling import Caller, permissions, with_topic
from tests.transports.http.support.messages import BALANCED, MESSAGES, header_entry, message, sent
from whippet.transports.http.handlers import searches
from whippet.transports.http.search_turns import Searches

SEARCH = f"{MESSAGES}/search"
TOPIC = MESSAGES.removesuffix("/messages")


async def search(caller: Caller, **query: Any) -> Any:
    return await caller.get(f"{SEARCH}?{urlencode(query)}")


def found(result: Any) -> list[str]:
    return [base64.b64decode(each["payload"]).decode() for each in result["matches"]]


async def all_of(caller: Caller, **query: Any) -> tuple[list[str], int]:
    """Follows the cursors to the end; returns the payloads found, and how many messages were examined."""
    payloads: list[str] = []
    examined = 0
    more: dict[str, Any] = {}
    for _ in range(200):
        result = await search(caller, **query, **more)
        payloads += found(result)
        examined += result["examined"]
        if result["cursor"] is None:
            assert result["remaining"] == 0
            return payloads, examined
        more = {"cursor": result["cursor"]}
    raise AssertionError("the search does not end")


async def fill(root: Caller, count: int, each: int = 10) -> None:
    for start in range(0, count, each):
        numbers = range(start, min(start + each, count))
        await root.post(MESSAGES, sent(*(message(b'{"n": %d}' % number, id=number + 1) for number in numbers)))


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"message_id": "7"}, ["seven"]),
        ({"message_id": "00000000-0000-0000-0000-000000000007"}, ["seven"]),
        ({"header": "kind"}, ["seven", "flagged"]),
        ({"header": "kind", "value": "true"}, ["flagged"]),
        ({"header": "kind", "value": "-7"}, ["seven"]),
        ({"header": "other"}, []),
        ({"text": "even"}, ["seven"]),
        ({"where": "$.order.total > 100"}, ['{"order": {"total": 129.9}}']),
        ({"where": "$.order.total"}, ['{"order": {"total": 12}}', '{"order": {"total": 129.9}}']),
        ({"where": "$.order.total", "text": "129"}, ['{"order": {"total": 129.9}}']),
        ({"until": 1}, []),
    ],
)
async def test_messages_that_fulfil_all_conditions_are_found(
    tmp_path: Path, query: dict[str, Any], expected: list[str]
) -> None:
    async with with_topic(tmp_path) as world:
        number = header_entry("string", b"kind", "int32", (-7).to_bytes(4, "little", signed=True))
        flag = header_entry("string", b"kind", "bool", b"\x01")
        given = [
            message(b"seven", id=7, user_headers=[number]),
            message(b"flagged", user_headers=[flag]),
            message(b'{"order": {"total": 12}}'),
            message(b'{"order": {"total": 129.9}}'),
            message(b"\xff no text"),
            message(b"[" * 5000),
        ]
        await world.root.post(MESSAGES, sent(*given))
        assert found(await search(world.root, **query, order="oldest")) == expected
        assert found(await search(world.root, **query)) == expected[::-1]


async def test_time_bounds_what_is_examined(tmp_path: Path) -> None:
    async with with_topic(tmp_path) as world:
        times = []
        for number in range(5):
            await world.root.post(MESSAGES, sent(message(b"%d" % number)))
            polled = await world.root.get(f"{MESSAGES}?kind=last&count=1")
            times.append(polled["messages"][0]["header"]["timestamp"])
            world.clock.now += 1_000_000
        result = await search(world.root, since=times[1], until=times[3])
        assert (found(result), result["examined"]) == (["3", "2", "1"], 3)
        assert result["reached"] == times[1]


@pytest.mark.parametrize("order", ["newest", "oldest"])
async def test_a_search_that_is_continued_finds_every_match_once_and_examines_every_message_once(
    tmp_path: Path, order: str
) -> None:
    async with with_topic(tmp_path) as world:
        await fill(world.root, 95)
        payloads, examined = await all_of(world.root, where="$.n >= 10", order=order, budget=30, limit=7)
        expected = [f'{{"n": {number}}}' for number in range(10, 95)]
        assert payloads == (expected if order == "oldest" else expected[::-1])
        assert examined == 95


@pytest.mark.parametrize("order", ["newest", "oldest"])
async def test_the_time_of_a_request_ends_it_also_in_the_middle_of_the_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    monkeypatch.setattr(searches, "SLICE_SECONDS", 0.0)
    monkeypatch.setattr(searches, "CHUNK_MESSAGES", 4)
    async with with_topic(tmp_path) as world:
        for number in range(30):
            await world.root.post(MESSAGES, sent(message(b"%d" % number), to=BALANCED))
        assert (await search(world.root, order=order))["examined"] == 4
        payloads, examined = await all_of(world.root, order=order)
        assert (sorted(payloads, key=int), examined) == ([str(number) for number in range(30)], 30)


async def test_a_budget_is_a_limit_that_the_response_reports(tmp_path: Path) -> None:
    async with with_topic(tmp_path) as world:
        await fill(world.root, 50)
        result = await search(world.root, text="nothing like this", budget=20)
        assert (result["examined"], result["remaining"], result["matches"]) == (20, 30, [])
        result = await search(world.root, text="nothing like this", budget=20, cursor=result["cursor"])
        assert (result["examined"], result["remaining"]) == (20, 10)


@pytest.mark.parametrize("order", ["newest", "oldest"])
async def test_large_messages_are_read_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    monkeypatch.setattr(searches, "CHUNK_BYTES", 3000)
    monkeypatch.setattr(searches, "MATCH_BYTES", 2500)
    async with with_topic(tmp_path) as world:
        sizes = [10] * 20 + [2000] * 6 + [5000] + [10] * 3
        for number, size in enumerate(sizes):
            await world.root.post(MESSAGES, sent(message(b"%d " % number + b"x" * size)))
        payloads, examined = await all_of(world.root, text="x", order=order)
        numbers = [int(each.split()[0]) for each in payloads]
        assert numbers == (list(range(30)) if order == "oldest" else list(range(29, -1, -1)))
        assert examined == 30


async def test_only_the_partition_of_a_key_is_searched(tmp_path: Path) -> None:
    async with with_topic(tmp_path) as world:
        await world.root.post(f"{TOPIC}/partitions", {"partitions_count": 3})
        key = {"kind": "messages_key", "value": base64.b64encode(b"customer 7").decode()}
        for number in range(8):
            body = {"partitioning": {"kind": "balanced", "value": ""}, "messages": [message(b"other %d" % number)]}
            await world.root.post(MESSAGES, body)
        await world.root.post(MESSAGES, {"partitioning": key, "messages": [message(b"mine")]})
        result = await search(world.root, key="customer 7", text="mine")
        assert found(result) == ["mine"]
        assert result["examined"] == 3
        everything = await search(world.root, text="mine")
        assert everything["matches"] == result["matches"]
        assert everything["examined"] == 9
        partition = result["matches"][0]["partition_id"]
        assert found(await search(world.root, partition=(partition + 1) % 4, text="mine")) == []


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"message_id": "seven"}, "message_id"),
        ({"value": "x"}, "value"),
        ({"where": "total > 100"}, "where"),
        ({"cursor": "nonsense"}, "cursor"),
        ({"cursor": "7:0"}, "cursor"),
        ({"budget": 0}, "budget"),
        ({"limit": 101}, "limit"),
        ({"unknown": 1}, "unknown"),
    ],
)
async def test_what_cannot_be_searched_is_refused(tmp_path: Path, query: dict[str, Any], field: str) -> None:
    async with with_topic(tmp_path) as world:
        refused = await world.root.refused("GET", f"{SEARCH}?{urlencode(query)}")
        assert (refused[0], refused[2]) == (400, field)


async def test_a_search_ends_although_messages_are_deleted_meanwhile(tmp_path: Path) -> None:
    async with with_topic(tmp_path) as world:
        await fill(world.root, 30)
        first = await search(world.root, budget=10, limit=5)
        await world.root.delete(f"{TOPIC}/purge")
        last = await search(world.root, cursor=first["cursor"])
        assert (last["matches"], last["cursor"]) == ([], None)


async def test_a_permission_that_is_lost_during_a_search_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with with_topic(tmp_path) as world:
        await fill(world.root, 10)
        alice = await world.user("alice", permissions("poll_messages"))
        assert len((await search(alice))["matches"]) == 10
        run = searches.Search.run

        async def slowly(self: searches.Search) -> None:
            await run(self)
            await world.root.put("/users/alice/permissions", {"permissions": None})

        monkeypatch.setattr(searches.Search, "run", slowly)
        assert (await alice.ask("GET", SEARCH)).status_code == 403


async def test_users_take_turns_and_nobody_has_two() -> None:
    turns = Searches()
    began: list[str] = []
    free = asyncio.Event()

    async def one(mark: str) -> None:
        async with turns.turn(mark):
            began.append(mark)
            await free.wait()

    tasks = [asyncio.create_task(one(mark)) for mark in ("greedy", "greedy", "greedy", "other", "third")]
    for _ in range(20):
        await asyncio.sleep(0)
    assert began == ["greedy", "other"]
    tasks[1].cancel()
    free.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert sorted(began) == ["greedy", "greedy", "other", "third"]
    assert not turns._turns
