"""A client that sends one message after another, with the same head, is answered in fewer steps, and cannot tell."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.storage.support.world import SlowDisk, reached
from tests.support.running import HANGS_S
from tests.transports.http.support.serving import Link, Response, Serving, serving
from whippet.app.config.listeners import Http, HttpCors
from whippet.storage.options import Durability
from whippet.transports.http.handlers.single_sends import SingleSends
from whippet.transports.http.serving.protocol import Phase
from whippet.transports.http.serving.repeated_heads import RepeatedHeads

MESSAGES = "/streams/s/topics/t/messages"
FIRST = "AAAAAA=="
HELD = {"messages_required_to_save": 1, "durability": Durability.SYNCED}


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each request that could be answered in fewer steps was."""
    taken = list[bool]()
    begin = SingleSends.begin

    def noticed(*arguments: Any) -> bool:
        taken.append(begin(*arguments))
        return taken[-1]

    monkeypatch.setattr(SingleSends, "begin", noticed)
    return taken


def message(text: str = "AAAA", **more: Any) -> dict[str, Any]:
    return {"partitioning": {"kind": "partition_id", "value": FIRST}, "messages": [{"payload": text} | more]}


async def prepared(world: Serving) -> Link:
    link = await world.link()
    assert (await link.ask(world.request("POST", "/streams", {"name": "s"}))).status == 200
    body = {"name": "t", "partitions_count": 1}
    assert (await link.ask(world.request("POST", "/streams/s/topics", body))).status == 200
    return link


async def settled(world: Serving, link: Link, *more: str) -> bytes:
    """Repeats a request until its head is known; returns it."""
    request = world.request("POST", MESSAGES, message(), *more)
    for _ in range(3):
        assert (await link.ask(request)).status == 201
    return request


async def stored(world: Serving, link: Link) -> list[Any]:
    found = await link.ask(world.request("GET", f"{MESSAGES}?partition_id=0&value=0&count=100"))
    return [(each["header"]["id"], each["payload"], each["user_headers"]) for each in found.json()["messages"]]


CASES: dict[str, tuple[Any, bool]] = {
    "a message": (message(id=7), True),
    "with headers": (message(id=7, user_headers={"k": {"kind": "string", "value": "dg=="}}), False),
    "two messages": (message(id=7) | {"messages": [{"id": 7, "payload": "AAAA"}, {"id": 8, "payload": "BBBB"}]}, False),
    "no messages": (message() | {"messages": []}, False),
    "an empty payload": (message(""), False),
    "not base64": (message("?"), False),
    "no such partition": (message() | {"partitioning": {"kind": "partition_id", "value": "CQAAAA=="}}, False),
    "a short number": (message() | {"partitioning": {"kind": "partition_id", "value": "AA=="}}, False),
    "balanced": (message(id=7) | {"partitioning": {"kind": "balanced", "value": ""}}, True),
    "by key": (message(id=7) | {"partitioning": {"kind": "messages_key", "value": "AAAA"}}, True),
    "a bad id": (message(id="x"), False),
    "a context": (
        message(id=7) | {"context": {"incarnation": 99, "owner_generation": 0, "metadata_op": 0}},
        False,
    ),
    "an unknown member": (message(id=7) | {"more": 1}, False),
    "not JSON": (b"{", False),
    "nothing": (b"", False),
    "twice the same member": (b'{"partitioning":{"kind":"balanced","value":""},"messages":[],"messages":[]}', False),
}


@pytest.mark.parametrize(("body", "is_taken"), CASES.values(), ids=CASES)
async def test_both_ways_answer_and_store_the_same(
    tmp_path: Path, at_once: list[bool], monkeypatch: pytest.MonkeyPatch, body: Any, is_taken: bool
) -> None:
    async def outcome(path: Path) -> tuple[list[Response], list[Any]]:
        async with serving(path) as world:
            link = await prepared(world)
            await settled(world, link)
            request = world.request("POST", MESSAGES, body)
            responses = [await link.ask(request) for _ in range(4)]
            return responses, await stored(world, link)

    fewer = await outcome(tmp_path / "fewer")
    assert is_taken == (len(at_once) > 1 and at_once[-1])
    at_once.clear()
    monkeypatch.setattr(RepeatedHeads, "find", lambda *_: None)
    usual = await outcome(tmp_path / "usual")
    assert at_once == []
    for short, long in zip(fewer[0], usual[0], strict=True):
        assert short.headers.pop("date")
        assert long.headers.pop("date")
        assert (short.status, short.headers, short.body) == (long.status, long.headers, long.body)
    assert [each[1:] for each in fewer[1]] == [each[1:] for each in usual[1]]
    assert [each for each in fewer[1] if each[0] < 9] == [each for each in usual[1] if each[0] < 9]


@pytest.mark.parametrize(
    "more",
    [
        "Iggy-Header-a: b",
        "Producer-Id: p\r\nProducer-Epoch: 1\r\nProducer-Seq: 1",
        "Content-Encoding: identity",
        "Origin: https://a.example",
    ],
)
async def test_other_headers_are_left_to_the_operation(tmp_path: Path, at_once: list[bool], more: str) -> None:
    config = Http(cors=HttpCors(enabled=True, allowed_origins=("https://a.example",)))
    async with serving(tmp_path, config) as world:
        link = await prepared(world)
        request = world.request("POST", MESSAGES, message(), more)
        responses = [await link.ask(request) for _ in range(4)]
        if more.startswith("Iggy"):
            assert {each.status for each in responses} == {400}
        elif more.startswith("Producer"):
            assert len({each.body for each in responses}) == 1
        elif more.startswith("Origin"):
            assert {each.headers["access-control-allow-origin"] for each in responses} == {"https://a.example"}
        assert not any(at_once) or more.startswith("Content")


async def test_a_personal_token_is_recognized_until_it_is_deleted(tmp_path: Path, at_once: list[bool]) -> None:
    async with serving(tmp_path) as world:
        link = await prepared(world)
        body = {"name": "build", "expiry": 3_600_000_000}
        made = await link.ask(world.request("POST", "/personal-access-tokens", body))
        assert made.status == 200, made.body
        root, world.token = world.token, made.json()["token"]
        request = await settled(world, link)
        assert at_once == [True]
        world.token = root
        assert (await link.ask(world.request("DELETE", "/personal-access-tokens/build"))).status == 204
        assert (await link.ask(request)).status == 401
        assert at_once == [True, False]


async def test_the_caller_learns_when_the_message_is_synced(tmp_path: Path, at_once: list[bool]) -> None:
    disk = SlowDisk()
    async with serving(tmp_path, store={"files": disk, **HELD}) as world:
        link = await prepared(world)
        request = await settled(world, link)
        disk.stop()
        await link.send(request)
        await reached(disk.reached)
        assert at_once[-1]
        (connection,) = world.server.listener.connections
        assert connection.phase is Phase.WORKING
        await link.send(request + world.request("GET", "/ping"))
        disk.go()
        responses = [await link.response() for _ in range(3)]
        assert [each.status for each in responses] == [201, 201, 200]
        assert [each.json()["confirmations"][0]["base_offset"] for each in responses[:2]] == [3, 4]
        assert responses[0].headers["whippet-durability"] == "synced"
        assert (await link.ask(request)).status == 201


@pytest.mark.parametrize("ending", ["reset", "stopped"])
async def test_a_connection_that_ends_meanwhile_loses_no_message(
    tmp_path: Path, at_once: list[bool], ending: str
) -> None:
    disk = SlowDisk()
    async with serving(tmp_path, store={"files": disk, **HELD}) as world:
        link = await prepared(world)
        request = await settled(world, link)
        disk.stop()
        await link.send(request)
        await reached(disk.reached)
        assert at_once[-1]
        if ending == "reset":
            link.reset()
            while world.connections:  # noqa: ASYNC110
                await asyncio.sleep(0)
            disk.go()
        else:
            (connection,) = world.server.listener.connections
            connection.shutdown()
            disk.go()
            response = await link.response()
            assert (response.status, response.headers["connection"]) == (201, "close")
            assert await link.is_over()
        again = await world.link()
        async with asyncio.timeout(HANGS_S):
            while len(await stored(world, again)) < 4:  # noqa: ASYNC110
                await asyncio.sleep(0)


async def test_a_write_that_fails_is_refused_like_any_other(
    tmp_path: Path, at_once: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk()
    async with serving(tmp_path, store={"files": disk, **HELD}) as world:
        link = await prepared(world)
        request = await settled(world, link)

        def fail(*_: object) -> int:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(SlowDisk, "write", fail)
            refused = await link.ask(request)
        assert at_once[-1]
        assert (refused.status, refused.json()["code"]) == (400, "cannot_save_messages_to_segment")
        assert (await link.ask(world.request("GET", f"{MESSAGES}/flush/0/true"))).status == 200
        assert (await link.ask(request)).status == 201
        assert len(await stored(world, link)) == 4


async def test_a_defect_is_logged_and_answered_and_the_connection_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path) as world:
        link = await prepared(world)
        request = await settled(world, link)
        with monkeypatch.context() as patched:
            patched.setattr("whippet.app.commands.direct_sends.choose_partition", None)
            assert (await link.ask(request)).json()["code"] == "error"
        assert "a send failed because of a defect" in caplog.text
        assert (await link.ask(request)).status == 201


async def test_requests_are_counted_the_same_way(tmp_path: Path, at_once: list[bool]) -> None:
    async with serving(tmp_path) as world:
        measured = world.world.gateway.measurements
        link = await prepared(world)
        before = measured.http_requests + measured.http_sends_at_once, measured.messages_sent
        await settled(world, link)
        after = measured.http_requests + measured.http_sends_at_once, measured.messages_sent
        assert after == (before[0] + 3, before[1] + 3)
        assert at_once == [True]
