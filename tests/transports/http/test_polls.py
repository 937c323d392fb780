"""Polls over HTTP: formats of responses, and long polls."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.app.access.support.world import ROOT
from tests.storage.support.world import split
from tests.transports.http.support.calling import permissions, with_topic
from tests.transports.http.support.messages import MESSAGES, b64, header_entry, message, payloads, poll, sent
from tests.transports.http.support.serving import Link, Serving, serving
from whippet.app.access.permissions import GlobalPermissions, Permissions
from whippet.app.client import Client
from whippet.app.client.batching import pack
from whippet.app.commands import requests
from whippet.app.config.formats import Address
from whippet.app.config.listeners import Http, HttpLimits, HttpReaders
from whippet.storage.batch import check, header, messages
from whippet.transports.http.forms import poll_formats
from whippet.transports.tcp import TcpListener

NDJSON = "application/x-ndjson"
BATCH = "application/vnd.iggy.batch"
OCTETS = "application/octet-stream"


# ------------------------------------------------------------------------------------------------- formats


@pytest.mark.parametrize("count", [1, 3, 100])
async def test_a_poll_has_the_same_messages_in_every_format(tmp_path: Path, count: int) -> None:
    async with with_topic(tmp_path) as world:
        given = [message(b"line %d" % i, id=i + 1) for i in range(count)]
        await world.root.post(MESSAGES, sent(*given))
        entry = header_entry("string", b"k", "string", b"v")
        await world.root.post(MESSAGES, sent(message(b"with headers", user_headers=[entry])))
        query = f"{MESSAGES}?count={count + 5}"
        plain = await world.root.get(query)
        expected = [*(b"line %d" % i for i in range(count)), b"with headers"]
        assert [base64.b64decode(each["payload"]) for each in plain["messages"]] == expected

        lines = await world.root.ask("GET", query, accept=NDJSON)
        assert lines.headers["content-type"] == NDJSON
        assert [msgspec.json.decode(line) for line in lines.content.splitlines()] == plain["messages"]

        batches = await world.root.ask("GET", query, accept=BATCH)
        assert batches.headers["content-type"] == BATCH
        found = split([batches.content])
        for each in found:
            check(each)
        assert [one.payload for each in found for one in messages(each)] == expected
        assert [header(each).base_offset for each in found] == [0, count]

        text = await world.root.ask("GET", query, accept="text/plain")
        assert text.headers["content-type"] == "text/plain; charset=utf-8"
        assert text.content == b"".join(each + b"\n" for each in expected)

        octets = await world.root.ask("GET", f"{MESSAGES}?count=1&value={count}", accept=OCTETS)
        assert (octets.headers["content-type"], octets.content) == (OCTETS, b"with headers")

        for response in (lines, batches, text, await world.root.ask("GET", query)):
            assert response.headers["iggy-partition"] == "0"
            assert response.headers["iggy-count"] == str(count + 1)
            assert response.headers["iggy-current-offset"] == str(count)
            assert response.headers["iggy-next-offset"] == str(count + 1)


async def test_the_next_offset_leads_through_a_partition_in_every_format(tmp_path: Path) -> None:
    async with with_topic(tmp_path) as world:
        await world.root.post(MESSAGES, sent(*(message(b"%d" % i) for i in range(10))))
        for accept, count in (("application/json", 3), (NDJSON, 4), (BATCH, 3), ("text/plain", 7), (OCTETS, 1)):
            offset, steps = 0, []
            while True:
                response = await world.root.ask("GET", f"{MESSAGES}?value={offset}&count={count}", accept=accept)
                if response.headers["iggy-count"] == "0":
                    break
                steps.append(int(response.headers["iggy-count"]))
                offset = int(response.headers["iggy-next-offset"])
            assert (sum(steps), offset) == (10, 10), accept
            assert max(steps) == count


async def test_an_empty_response_has_the_offset_that_was_polled(tmp_path: Path) -> None:
    async with with_topic(tmp_path) as world:
        for accept, body in (
            (NDJSON, b""),
            (BATCH, b""),
            ("text/plain", b""),
            ("application/json", b'{"partition_id":1,"current_offset":0,"count":0,"messages":[]}'),
        ):
            response = await world.root.ask("GET", f"{MESSAGES}?partition_id=1&value=7", accept=accept)
            assert (response.status_code, response.content) == (200, body)
            assert response.headers["iggy-next-offset"] == "7"
        response = await world.root.ask("GET", f"{MESSAGES}?count=1", accept=OCTETS)
        assert (response.content, response.headers["iggy-count"]) == (b"", "0")


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("*/*", "application/json"),
        ("application/*", "application/json"),
        ("text/html,application/xhtml+xml,*/*;q=0.8", "application/json"),
        ("application/json, text/plain, */*", "application/json"),
        ("text/*", "text/plain; charset=utf-8"),
        ("TEXT/PLAIN ; q=0.5, application/json;q=0.4", "text/plain; charset=utf-8"),
        (f"application/json;q=0.1, {BATCH}", BATCH),
        (f"*/*, application/json;q=0, {NDJSON};q=0.1, text/plain;q=0, {BATCH};q=0.2", OCTETS),
    ],
)
async def test_the_format_is_the_one_with_the_highest_weight(tmp_path: Path, accept: str, expected: str) -> None:
    async with with_topic(tmp_path) as world:
        response = await world.root.ask("GET", f"{MESSAGES}?count=1", accept=accept)
        assert response.headers["content-type"] == expected


async def test_unknown_formats_and_octets_of_several_messages_are_refused(tmp_path: Path) -> None:
    async with with_topic(tmp_path) as world:
        await world.root.post(MESSAGES, sent(message(b"a"), message(b"b")))
        query = f"{MESSAGES}?kind=next&auto_commit=true"
        for accept in ("text/html", "text/event-stream", "application/json;q=0", "x", ""):
            assert await world.root.refused("GET", query, accept=accept) == (406, 406, "accept"), accept
        assert await world.root.refused("GET", query, accept=OCTETS) == (400, 400, "count")
        assert await world.root.refused("GET", f"{query}&count=2", accept=OCTETS) == (400, 400, "count")
        assert await payloads(world, "kind=next") == [b"a", b"b"], "nothing was committed"


@pytest.mark.parametrize("accept", ["application/json", NDJSON, BATCH, "text/plain"])
async def test_every_format_is_compressed_on_request(tmp_path: Path, accept: str) -> None:
    async with with_topic(tmp_path) as world:
        await world.root.post(MESSAGES, sent(*[message(b"x" * 100)] * 100))
        query = f"{MESSAGES}?count=100"
        plain = await world.root.ask("GET", query, accept=accept, accept_encoding="identity")
        zipped = await world.root.ask("GET", query, accept=accept, accept_encoding="gzip")
        assert zipped.headers["content-encoding"] == "gzip"
        assert int(zipped.headers["content-length"]) < int(plain.headers["content-length"])
        assert zipped.content == plain.content
        assert plain.headers["vary"] == zipped.headers["vary"] == "accept, accept-encoding"
        short = await world.root.ask("GET", f"{MESSAGES}?count=1", accept=accept)
        assert short.headers["vary"] == "accept"


async def test_responses_of_batches_are_limited_and_complete(tmp_path: Path) -> None:
    async with with_topic(tmp_path, Http(limits=HttpLimits(answer_bytes=65_536))) as world:
        for _ in range(5):
            await world.root.post(MESSAGES, sent(*[message(b"x" * 900)] * 100))
        offset, sizes = 0, []
        while True:
            response = await world.root.ask("GET", f"{MESSAGES}?count=4294967295&value={offset}", accept=BATCH)
            if response.headers["iggy-count"] == "0":
                break
            sizes.append(len(response.content))
            assert sum(header(each).message_count for each in split([response.content])) == int(
                response.headers["iggy-count"]
            )
            offset = int(response.headers["iggy-next-offset"])
        assert offset == 500
        assert max(sizes) <= 65_536


# ------------------------------------------------------------------------------------------------- long polls


@asynccontextmanager
async def live(tmp_path: Path, **readers: Any) -> AsyncIterator[Serving]:
    async with serving(tmp_path, Http(readers=HttpReaders(**readers))) as world:
        link = await world.link()
        await link.ask(world.request("POST", "/streams", {"name": "s"}))
        await link.ask(world.request("POST", "/streams/s/topics", {"name": "t", "partitions_count": 3}))
        yield world
        assert len(world.api.waiting) == 0


async def send_one(world: Serving, payload: bytes = b"x", partition: int = 0) -> None:
    to = {"kind": "partition_id", "value": b64(partition.to_bytes(4, "little"))}
    link = await world.link()
    response = await link.ask(world.request("POST", MESSAGES, sent(message(payload), to=to)))
    assert response.status == 201


async def until_waiting(world: Serving, count: int) -> None:
    while len(world.api.waiting) != count:  # noqa: ASYNC110
        await asyncio.sleep(0)


async def waiting_poll(world: Serving, query: str, *more: str) -> tuple[Link, asyncio.Task[Any]]:
    """Starts a poll and returns it when it waits."""
    link = await world.link()
    before = len(world.api.waiting)
    requested = asyncio.create_task(link.ask(world.request("GET", f"{MESSAGES}?{query}", None, *more)))
    await until_waiting(world, before + 1)
    return link, requested


@pytest.mark.parametrize(
    "query",
    ["value=0", "kind=first", "kind=last", "kind=next&consumer_id=me&auto_commit=true", "kind=timestamp&value=1"],
)
async def test_a_waiting_poll_is_answered_by_the_append(tmp_path: Path, query: str) -> None:
    async with live(tmp_path) as world:
        _, requested = await waiting_poll(world, f"{query}&wait=30s")
        await send_one(world, b"elsewhere", 1)
        assert not requested.done()
        await send_one(world, b"here")
        found = (await requested).json()
        assert [base64.b64decode(each["payload"]) for each in found["messages"]] == [b"here"]
        link = await world.link()
        again = await link.ask(world.request("GET", f"{MESSAGES}?value=0&wait=30s"))
        assert again.json()["count"] == 1, "what is there is not waited for"


async def test_a_waiting_poll_is_woken_by_a_client_on_tcp(tmp_path: Path) -> None:
    async with live(tmp_path) as world:
        listener = TcpListener(world.world.gateway)
        await listener.listen(Address("127.0.0.1", 0), "tcp.address", None)
        address = f"iggy://{ROOT['IGGY_ROOT_USERNAME']}:{ROOT['IGGY_ROOT_PASSWORD']}@127.0.0.1"
        _, requested = await waiting_poll(world, "partition_id=2&wait=30s", "Accept: text/plain")
        async with await Client.connect(f"{address}:{listener.address.port}?heartbeat_interval=0") as client:
            to = requests.Partitioning(requests.PartitioningKind.PARTITION_ID, 2)
            await client.send_messages("s", "t", [b"over TCP"], to)
        assert (await requested).body == b"over TCP\n"
        await listener.stop(10)


async def test_a_poll_waits_for_a_distant_offset(tmp_path: Path) -> None:
    async with live(tmp_path) as world:
        _, requested = await waiting_poll(world, "value=3&wait=30s")
        for i in range(5):
            await send_one(world, b"%d" % i)
        found = (await requested).json()
        assert found["messages"][0]["header"]["offset"] == 3


async def test_a_poll_with_an_epoch_that_waits_during_a_purge_is_refused(tmp_path: Path) -> None:
    async with live(tmp_path) as world:
        link = await world.link()
        epoch = (await link.ask(world.request("GET", MESSAGES))).headers["iggy-epoch"]
        _, requested = await waiting_poll(world, f"value=1&epoch={epoch}&wait=30s")
        root = await world.world.root()
        await root.execute(requests.PurgeTopic("s", "t"))
        await send_one(world)
        await send_one(world)
        refused = await requested
        assert (refused.status, refused.json()["code"]) == (409, "partition_recreated")


async def test_a_poll_that_times_out_returns_no_messages(tmp_path: Path) -> None:
    async with live(tmp_path) as world:
        link = await world.link()
        began = time.monotonic()
        response = await link.ask(world.request("GET", f"{MESSAGES}?wait=50ms"))
        assert response.json() == {"partition_id": 0, "current_offset": 0, "count": 0, "messages": []}
        assert time.monotonic() - began > 0.04
        assert await link.pings()
        for query in ("count=0&wait=30s", "wait="):
            response = await link.ask(world.request("GET", f"{MESSAGES}?{query}"))
            assert (response.status, response.json()["count"]) == (200, 0)
        await link.send(world.request("HEAD", f"{MESSAGES}?wait=30s"))
        assert (await link.response(has_body=False)).status == 200


async def test_the_time_and_number_of_waiting_polls_are_limited(tmp_path: Path) -> None:
    async with live(tmp_path, waiting=3, wait_time=20.0) as world:
        link = await world.link()
        for wait in ("21s", "1", "-1s", "soon", "0", "0s", "1h"):
            response = await link.ask(world.request("GET", f"{MESSAGES}?wait={wait}"))
            assert (response.status, response.json()["field"]) == (400, "wait"), wait
        polls = [(await waiting_poll(world, "wait=20s"))[1] for _ in range(3)]
        refused = await link.ask(world.request("GET", f"{MESSAGES}?wait=20s"))
        assert (refused.status, refused.json()["code"]) == (429, "too_many_waiting")
        assert refused.headers["retry-after"] == "1"
        await send_one(world)
        assert [(await each).json()["count"] for each in polls] == [1, 1, 1]


async def test_a_disconnected_client_stops_waiting_and_commits_nothing(tmp_path: Path) -> None:
    async with live(tmp_path) as world:
        link, requested = await waiting_poll(world, "kind=next&consumer_id=me&auto_commit=true&wait=30s")
        requested.cancel()
        link.link.close()
        await until_waiting(world, 0)
        await send_one(world)
        other = await world.link()
        offset = await other.ask(world.request("GET", "/streams/s/topics/t/consumer-offsets?consumer_id=me"))
        assert offset.status == 404


async def test_one_user_cannot_occupy_all_waiting_polls(tmp_path: Path) -> None:
    async with live(tmp_path, waiting=4, waiting_per_user=2) as world:
        link = await world.link()
        polls = [(await waiting_poll(world, "wait=20s"))[1] for _ in range(2)]
        refused = await link.ask(world.request("GET", f"{MESSAGES}?wait=20s"))
        assert (refused.status, refused.json()["code"]) == (429, "too_many_waiting")
        assert "http.readers.waiting_per_user = 2" in refused.json()["reason"]
        root = world.token
        await world.world.user(permissions=Permissions(GlobalPermissions(poll_messages=True)))
        world.token = world.api.access_tokens.issue(world.world.gateway.users.get("alice")).text
        polls += [(await waiting_poll(world, "wait=20s"))[1] for _ in range(2)]
        refused = await link.ask(world.request("GET", f"{MESSAGES}?wait=20s"))
        assert "http.readers.waiting = 4" in refused.json()["reason"]
        world.token = root
        await send_one(world)
        assert [(await each).json()["count"] for each in polls] == [1] * 4
        assert world.api.waiting.users_count == 0


async def test_deleting_a_topic_or_a_user_ends_waiting_polls(tmp_path: Path) -> None:
    async with live(tmp_path) as world:
        link = await world.link()
        _, deleted = await waiting_poll(world, "wait=30s")
        assert (await link.ask(world.request("DELETE", "/streams/s/topics/t"))).status == 204
        assert (await deleted).status == 404
        await link.ask(world.request("POST", "/streams/s/topics", {"name": "t", "partitions_count": 1}))
        _, purged = await waiting_poll(world, "value=5&wait=30s")
        assert (await link.ask(world.request("DELETE", "/streams/s/topics/t/purge"))).status == 204
        assert (await purged).json()["count"] == 0


async def test_permission_to_poll_is_checked_before_and_after_waiting(tmp_path: Path) -> None:
    async with live(tmp_path) as world:
        await world.world.user("alice")
        users = world.world.gateway.users
        root, alice = world.token, world.api.access_tokens.issue(users.get("alice")).text
        link = await world.link()
        world.token = alice
        assert (await link.ask(world.request("GET", f"{MESSAGES}?wait=30s"))).status == 403
        world.token = root
        granted = await link.ask(
            world.request("PUT", "/users/alice/permissions", {"permissions": permissions("poll_messages")})
        )
        assert granted.status == 204, granted.body
        world.token = alice
        _, requested = await waiting_poll(world, "wait=30s")
        world.token = root
        assert (await link.ask(world.request("PUT", "/users/alice", {"status": "inactive"}))).status == 204
        await send_one(world)
        assert (await requested).status == 401


async def test_a_stopping_server_answers_waiting_polls(tmp_path: Path) -> None:
    async with live(tmp_path) as world:
        _, requested = await waiting_poll(world, "wait=30s")
        began = time.monotonic()
        world.api.drain()
        await world.server.stop()
        assert time.monotonic() - began < 30, "the poll waits for 30 s"
        response = await requested
        assert (response.status, response.json()["count"]) == (200, 0)


async def test_one_append_wakes_many_polls(tmp_path: Path) -> None:
    async with live(tmp_path) as world:
        polls = [(await waiting_poll(world, "wait=30s", f"Accept: {BATCH}"))[1] for _ in range(100)]
        await send_one(world)
        bodies = {(await each).body for each in polls}
        assert len(bodies) == 1


async def test_the_encoder_and_the_decoder_of_batches_agree(tmp_path: Path) -> None:
    """A polled batch can be sent unchanged."""

    async with with_topic(tmp_path) as world:
        await world.root.ask("POST", f"{MESSAGES}?partition=0", bytes(pack([b"a", b"b"])), content_type=BATCH)
        read = await world.root.ask("GET", MESSAGES, accept=BATCH)
        copied = await world.root.ask("POST", f"{MESSAGES}?partition=1", read.content, content_type=BATCH)
        assert copied.status_code == 201
        ids = [[each["header"]["id"] for each in await poll(world, f"partition_id={n}")] for n in (0, 1)]
        assert ids[0] == ids[1]


async def test_ndjson_goes_out_as_it_came_in(tmp_path: Path) -> None:
    lines = b'{"n":1,"text":"\\u00e4 \xc3\xa4"}\n[1, 2.50, 1e400]\nnull\n"x"\n12345678901234567890123\n'
    async with with_topic(tmp_path) as world:
        place = f"{MESSAGES}?partition=0"
        assert (await world.root.ask("POST", place, lines, content_type=NDJSON)).status_code == 201
        for accept in (f"{NDJSON}; values", f"text/plain;q=0.1, {NDJSON.upper()};VALUES;q=0.9"):
            polled = await world.root.ask("GET", f"{place}&count=10", accept=accept)
            assert polled.content == lines
            assert polled.headers["content-type"] == NDJSON
            assert polled.headers["iggy-partition"] == "0"
        whole = await world.root.ask("GET", f"{place}&count=10", accept=f"{NDJSON};q=1")
        assert whole.text.count('"payload":') == 5


@pytest.mark.parametrize(
    ("payload", "line"),
    [
        (b'{\n  "a": 1.50\r\n}\n', b'{"a":1.50}'),
        (b"no json", b'"no json"'),
        (b'{"a":1} {"b":2}', b'"{\\"a\\":1} {\\"b\\":2}"'),
        (b"two\nlines", b'"two\\nlines"'),
        (b"\xff\x00", b'{"base64":"/wA="}'),
        (b"[" * 100_000, b'"' + b"[" * 100_000 + b'"'),
        (b" 1 ", b"1"),
    ],
)
def test_every_payload_is_one_line_of_json(payload: bytes, line: bytes) -> None:
    assert poll_formats._value(payload) == line
