"""Numbered sends: a repetition gets the same response and is stored once, and a newer epoch fences older ones."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.storage.support.world import local
from tests.transports.http.support.calling import Calling, calling, with_topic
from tests.transports.http.support.messages import MESSAGES, message, payloads, sent
from whippet.app.client.batching import pack

TEXT, BATCH = "text/plain", "application/vnd.iggy.batch"


async def send(
    world: Calling, body: Any, epoch: Any, sequence: Any, *, media: str = TEXT, query: str = "", name: str = "sensor-7"
) -> httpx.Response:
    headers = {"producer-id": name, "producer-epoch": str(epoch), "producer-seq": str(sequence)}
    if isinstance(body, bytes):
        headers["content-type"] = media
    return await world.root.ask("POST", f"{MESSAGES}{query}", body, **headers)


@pytest.mark.parametrize("form", ["json", TEXT, BATCH])
async def test_a_repeated_send_gets_the_same_response_and_is_stored_once(tmp_path: Path, form: str) -> None:
    first = {"json": sent(message(b"a")), TEXT: b"a", BATCH: bytes(pack([b"a"]))}[form]

    async def send_again_and_again(world: Calling) -> None:
        answers = []
        for sequence in (0, 1, 1, 0, 5, 1):
            response = await send(world, first, 1, sequence, media=form)
            assert response.status_code == 201, response.text
            answers.append((sequence, response.json()["confirmations"][0]["base_offset"]))
        assert answers == [(0, 0), (1, 1), (1, 1), (0, 0), (5, 2), (1, 1)]

    async with with_topic(tmp_path, partitions=1) as world:
        await send_again_and_again(world)
    async with calling(tmp_path) as after_a_restart:
        await send_again_and_again(after_a_restart)
        assert await payloads(after_a_restart) == [b"a"] * 3


async def test_a_repeated_balanced_send_goes_to_the_partition_of_the_first_one(tmp_path: Path) -> None:
    async with with_topic(tmp_path, partitions=3) as world:
        reply = [(await send(world, b"%d" % n, 1, n)).json() for n in range(6)]
        assert [(await send(world, b"%d" % n, 1, n)).json() for n in range(6)] == reply
        found = [each for partition in range(3) for each in await payloads(world, f"partition_id={partition}")]
        assert sorted(found) == [b"%d" % n for n in range(6)]


async def test_an_older_epoch_is_fenced_and_an_old_sequence_number_refused(tmp_path: Path) -> None:
    async with with_topic(tmp_path, partitions=1) as world:
        assert (await send(world, b"old", 1, 7)).status_code == 201
        assert (await send(world, b"new", 2, 0)).status_code == 201
        fenced = await send(world, b"old", 1, 8)
        assert (fenced.status_code, fenced.json()["code"]) == (409, "producer_fenced")
        assert (await send(world, b"new", 2, 9)).status_code == 201
        passed = await send(world, b"new", 2, 4)
        assert (passed.status_code, passed.json()["code"]) == (409, "producer_sequence_passed")
        assert (await send(world, b"another", 0, 0, name="sensor-8")).status_code == 201
        assert await payloads(world) == [b"old", b"new", b"new", b"another"]


async def test_incomplete_and_invalid_producer_headers_are_refused(tmp_path: Path) -> None:
    async with with_topic(tmp_path, partitions=1) as world:
        every = {"producer-id": "p", "producer-epoch": "1", "producer-seq": "1"}
        for left_out in every:
            headers = {name: value for name, value in every.items() if name != left_out}
            response = await world.root.ask("POST", MESSAGES, b"x", content_type=TEXT, **headers)
            assert (response.status_code, response.json()["code"]) == (400, "invalid_producer")
            assert response.json()["reason"].lower().endswith(f"{left_out} missing")
        for name, value in (
            *(("producer-id", each) for each in ("", "x" * 65)),
            *(("producer-epoch", each) for each in ("", "-1", "1.0", "x", "4294967296", "9" * 30)),
            *(("producer-seq", each) for each in ("", "-1", "1e3", "18446744073709551616")),
        ):
            response = await world.root.ask("POST", MESSAGES, b"x", content_type=TEXT, **{**every, name: value})
            assert (response.status_code, response.json()["code"]) == (400, "invalid_producer"), (name, value)
        two = bytes(pack([b"a"]) + pack([b"b"]))
        assert (await send(world, two, 1, 1, media=BATCH)).json()["id"] == 4009
        assert await payloads(world) == []


async def test_a_repeated_send_may_request_more_durability(tmp_path: Path) -> None:
    async with with_topic(tmp_path, partitions=1) as world:
        assert (await send(world, b"a", 1, 1)).headers["iggy-durability"] == "replicated"
        again = await send(world, b"a", 1, 1, query="?durability=synced")
        assert again.headers["iggy-durability"] == "persisted"
        partition = local(world.gateway.store).partition(0, 0, 0)
        assert partition is not None
        assert partition.synced == partition.appended == 1


async def test_concurrent_repetitions_are_stored_once(tmp_path: Path) -> None:
    async with with_topic(tmp_path, partitions=1) as world:
        found = await asyncio.gather(*(send(world, b"a", 1, 1) for _ in range(20)))
        assert {each.json()["confirmations"][0]["base_offset"] for each in found} == {0}
        assert await payloads(world) == [b"a"]
