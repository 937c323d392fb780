"""Formats of messages to send: lines, octets and batches, compressed or not; and what is refused."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import os
import struct
import time
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import zstandard
from starlette.types import Receive, Scope, Send

from tests.storage.support.world import local
from tests.transports.http.support.calling import Caller, Calling, with_topic
from tests.transports.http.support.messages import MESSAGES, header_entry, payloads, poll, stored
from tests.transports.http.support.serving import Serving, serving
from whippet.app.client.batching import pack
from whippet.app.config.listeners import Http
from whippet.storage.batch import Message, build, check, header
from whippet.storage.options import Durability

NDJSON = "application/x-ndjson"
OCTETS = "application/octet-stream"
BATCH = "application/vnd.iggy.batch"
ONE = {"partitioning": {"kind": "balanced", "value": ""}, "messages": [{"payload": "eA=="}]}


async def send(world: Calling, media: str, body: bytes, query: str = "partition=0", **headers: str) -> httpx.Response:
    return await world.root.ask("POST", f"{MESSAGES}?{query}", body, content_type=media, **headers)


async def refused(
    world: Calling, media: str, body: bytes, query: str = "partition=0", **headers: str
) -> tuple[int, int, str | None]:
    response = await send(world, media, body, query, **headers)
    error = response.json()
    assert list(error) == ["id", "code", "reason", "field"]
    return response.status_code, error["id"], error["field"]


@contextlib.asynccontextmanager
async def live(tmp_path: Path) -> AsyncIterator[Serving]:
    async with serving(tmp_path) as world:
        link = await world.link()
        await link.ask(world.request("POST", "/streams", {"name": "s"}))
        await link.ask(world.request("POST", "/streams/s/topics", {"name": "t", "partitions_count": 1}))
        yield world


def request_head(world: Serving, media: str, *more: str) -> bytes:
    lines = (f"POST {MESSAGES}?partition=0 HTTP/1.1", "Host: localhost", f"Authorization: Bearer {world.token}")
    return "\r\n".join((*lines, f"Content-Type: {media}", *more, "", "")).encode("latin-1")


# ------------------------------------------------------------------------------------------------- lines


@pytest.mark.parametrize("count", [1, 5, 12, 13, 1000])
async def test_a_line_of_json_is_a_message_byte_for_byte(tmp_path: Path, count: int) -> None:
    lines = [b'{"id": %d ,"text":"\xc3\xa4\\u00e4"}' % i for i in range(count)]

    async with with_topic(tmp_path) as world:
        response = await send(world, NDJSON, b"\n".join(lines) + b"\n")
        assert response.status_code == 201
        confirmation = {"stream_id": 0, "topic_id": 0, "partition_id": 0, "base_offset": 0}
        assert response.json() == {"confirmations": [confirmation]}
        assert response.headers["iggy-durability"] == "replicated"
        assert await payloads(world, f"count={count}") == lines
        (batch,) = await stored(world)
        assert header(batch).message_count == count
        assert len({each["header"]["id"] for each in await poll(world, f"count={count}")}) == count


async def test_a_line_may_be_any_json_value_and_excludes_its_line_end(tmp_path: Path) -> None:
    body = b'\n\r\n1\r\n"two"\n\n  [3, {}] \r\n   \nnull\r\ntrue\r\n-1.5e3\r'

    async with with_topic(tmp_path) as world:
        assert (await send(world, NDJSON, body)).status_code == 201
        assert await payloads(world) == [b"1", b'"two"', b"  [3, {}] ", b"null", b"true", b"-1.5e3"]


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"x",
        b"1 2",
        b'{"a":1}{"a":2}',
        b"[1,",
        b"NaN",
        b"'a'",
        b'"\xff"',
        b'{"a":\xc3}',
        b"01",
        b'"\x01"',
        b"\xef\xbb\xbf1",
        b"[" * 100_000,
    ],
    ids=lambda line: repr(line[:20]),
)
async def test_a_line_that_is_not_json_is_refused_with_its_number_and_nothing_is_stored(
    tmp_path: Path, line: bytes
) -> None:
    async with with_topic(tmp_path) as world:
        assert await refused(world, NDJSON, b'{"a":1}\n\n\r\n' + line + b'\n{"a":2}') == (400, 400, "line 4")
        assert await payloads(world) == []


async def test_json_values_that_span_lines_are_refused(tmp_path: Path) -> None:
    async with with_topic(tmp_path) as world:
        for body in (b"[1\n,2]\n3 4", b"[1\n2]\n3,4", b'{"a":\n1}', b"1,2"):
            assert await refused(world, NDJSON, body) == (400, 400, "line 1")


async def test_a_line_of_text_is_a_message(tmp_path: Path) -> None:
    async with with_topic(tmp_path) as world:
        body = b"one\ntwo \r\n\n\xff\xfe not UTF-8\r\n   \nlast, {without an end"
        assert (await send(world, "text/plain; charset=utf-8", body)).status_code == 201
        assert await payloads(world) == [b"one", b"two ", b"\xff\xfe not UTF-8", b"   ", b"last, {without an end"]


async def test_an_octet_stream_is_one_message_whatever_it_contains(tmp_path: Path) -> None:
    async with with_topic(tmp_path) as world:
        content = bytes(range(256)) * 4
        assert (await send(world, OCTETS, content)).status_code == 201
        assert await payloads(world) == [content]
        assert await refused(world, OCTETS, b"") == (400, 4024, None)


async def test_bodies_without_lines_and_lines_that_are_too_long_are_refused(tmp_path: Path) -> None:
    async with with_topic(tmp_path, payload_bytes_max=1000, batch_messages_max=100) as world:
        for media in (NDJSON, "text/plain"):
            for body in (b"", b"\n", b"\r\n\r\n"):
                assert await refused(world, media, body) == (400, 4009, None), (media, body)
        assert await refused(world, "text/plain", b"ok\n" + b"x" * 1001) == (400, 4022, None)
        assert await refused(world, OCTETS, b"x" * 1001) == (400, 4022, None)
        assert await refused(world, "text/plain", b"x\n" * 101) == (400, 4009, None)
        assert await payloads(world) == []


# ------------------------------------------------------------------------------------------------- batches


async def test_batches_are_stored_unchanged_and_in_order(tmp_path: Path) -> None:
    async with with_topic(tmp_path) as world:
        entry = struct.pack("<BI", 2, 1) + b"k" + struct.pack("<BI", 2, 1) + b"v"
        first = pack([b"a", b"b"])
        second = build([Message(b"c", 7, entry, 5), Message(b"d", 0, b"", 9)], 0, os.urandom)
        third = pack([b"%d" % i for i in range(100)])
        response = await send(world, BATCH, bytes(first + second + third))
        assert response.json()["confirmations"][0]["base_offset"] == 0
        found = await stored(world)
        assert [header(each).base_offset for each in found] == [0, 2, 4]
        for kept, sent in zip(found, (first, second, third), strict=True):
            check(kept)
            assert kept[256:] == sent[256:]
            assert header(kept).origin_timestamp == header(sent).origin_timestamp
        message = (await poll(world, "value=2&count=1"))[0]
        assert message["user_headers"] == [header_entry("string", b"k", "string", b"v")]
        assert message["header"]["id"] == 7


async def test_either_all_batches_of_a_body_are_stored_or_none(tmp_path: Path) -> None:
    good = bytes(pack([b"good"]))
    flipped = bytes(good[:-1]) + b"X"
    late = bytearray(good)
    struct.pack_into("<Q", late, 24, 2**64 - 1)

    async with with_topic(tmp_path) as world:
        for body, number in (
            (b"", 4009),
            (good[:255], 4036),
            (good[:-1], 4036),
            (good + good[:100], 4036),
            (good + bytes(256), 4036),
            (flipped, 4027),
            (good + flipped, 4027),
            (good + good + bytes(late), 10013),
            (good * 1025, 4036),
            (os.urandom(1000), 4036),
        ):
            assert await refused(world, BATCH, body) == (400, number, None)
        response = await send(world, BATCH, good + flipped)
        assert "batch 2: " in response.json()["reason"]
        assert await payloads(world) == []


# -------------------------------------------------------------------------------------- destinations and user headers


async def test_the_query_sets_the_destination_of_lines(tmp_path: Path) -> None:
    async with with_topic(tmp_path) as world:

        async def where(query: str, media: str = NDJSON) -> int:
            response = await send(world, media, b"1", query)
            assert response.status_code == 201, response.text
            return int(response.json()["confirmations"][0]["partition_id"])

        assert [await where("") for _ in range(4)] == [0, 1, 2, 0]
        assert await where("partition=2") == 2
        assert await where("partition=1", OCTETS) == 1
        same = await where("key=user-1")
        assert [await where("key=user-1", "text/plain") for _ in range(3)] == [same] * 3
        keyed = {**ONE, "partitioning": {"kind": "messages_key", "value": "w6Q="}}
        reply = await world.root.post(MESSAGES, keyed)
        assert await where("key=%C3%A4") == reply["confirmations"][0]["partition_id"]
        for query, expected in (
            ("partition=3", (404, 3007, "partition_id")),
            ("partition=x", (400, 400, "partition")),
            ("partition=-1", (400, 400, "partition")),
            ("partition=4294967296", (400, 400, "partition")),
            ("partition=1&key=a", (400, 400, "key")),
            ("key=", (400, 4028, None)),
            (f"key={'k' * 256}", (400, 4028, None)),
        ):
            assert await refused(world, NDJSON, b"1", query) == expected, query
        assert await world.root.refused("POST", f"{MESSAGES}?partition=0", ONE) == (400, 400, "partition")
        assert await world.root.refused("POST", f"{MESSAGES}?key=a", ONE) == (400, 400, "key")


@pytest.mark.parametrize("count", [1, 1000])
async def test_iggy_headers_of_a_request_become_user_headers_of_all_its_messages(tmp_path: Path, count: int) -> None:
    async with with_topic(tmp_path) as world:
        headers = {"Iggy-Header-Trace-Id": "abc 123", "iggy-header-a": "1"}
        assert (await send(world, "text/plain", b"line\n" * count, **headers)).status_code == 201
        expected = [
            header_entry("string", b"a", "string", b"1"),
            header_entry("string", b"trace-id", "string", b"abc 123"),
        ]
        found = await poll(world, f"count={count}")
        assert [each["user_headers"] for each in found] == [expected] * count


async def test_invalid_user_headers_are_refused(tmp_path: Path) -> None:
    async with with_topic(tmp_path) as world:
        assert await refused(world, NDJSON, b"1", **{"iggy-header-": "x"}) == (400, 4018, None)
        assert await refused(world, NDJSON, b"1", **{"iggy-header-" + "k" * 256: "x"}) == (400, 4018, None)
        assert await refused(world, NDJSON, b"1", **{"iggy-header-a": ""}) == (400, 4019, None)
        assert await refused(world, NDJSON, b"1", **{"iggy-header-a": "v" * 256}) == (400, 4019, None)
        batch = bytes(pack([b"x"]))
        assert await refused(world, BATCH, batch, **{"iggy-header-a": "1"}) == (400, 400, "iggy-header-a")
        answer = await world.root.ask("POST", MESSAGES, ONE, **{"iggy-header-a": "1"})
        assert answer.json()["field"] == "iggy-header-a"


async def test_a_user_header_that_is_duplicate_or_not_utf_8_is_refused(tmp_path: Path) -> None:
    async with live(tmp_path) as world:
        link = await world.link()
        for lines, number in (
            (("Iggy-Header-A: 1", "iggy-header-a: 2"), 400),
            (("Iggy-Header-A: \xff",), 4019),
        ):
            head = request_head(world, "text/plain", *lines, "Content-Length: 1")
            response = await link.ask(head + b"x")
            assert (response.status, response.json()["id"]) == (400, number)


async def test_an_unknown_media_type_is_answered_415(tmp_path: Path) -> None:
    async with with_topic(tmp_path) as world:
        for media in ("application/xml", "text/html", "application/ndjson2", "text", ""):
            response = await send(world, media, b"1")
            assert (response.status_code, response.json()["field"]) == (415, "content-type"), media
            assert BATCH in response.json()["reason"]
        assert (await world.root.refused("POST", "/streams", b"x", content_type=NDJSON))[0] == 415


# ------------------------------------------------------------------------------------------------- durability


@pytest.mark.parametrize("level", list(Durability))
async def test_a_send_may_raise_the_durability_of_the_topic_but_never_lower_it(
    tmp_path: Path, level: Durability
) -> None:
    settings: dict[str, Any] = {"messages_required_to_save": 1000} if level is Durability.MEMORY else {}
    async with with_topic(tmp_path, durability=level, **settings) as world:
        partition = local(world.gateway.store).partition(0, 0, 0)
        assert partition is not None
        for requested in Durability:
            response = await send(world, NDJSON, b"1\n2", f"partition=0&durability={requested.name.lower()}")
            reached = max(requested, level)
            expected = "persisted" if reached is Durability.SYNCED else "replicated"
            assert response.headers["iggy-durability"] == expected
            assert (partition.appended, partition.written, partition.synced)[reached] == partition.appended
        assert await refused(world, NDJSON, b"1", "durability=most") == (400, 400, "durability")


async def test_an_unacknowledged_send_accepts_lines_as_well(tmp_path: Path) -> None:
    async with with_topic(tmp_path, partitions=1) as world:
        response = await send(world, NDJSON, b"1\n2", "ack=none")
        assert (response.status_code, response.content) == (202, b"")
        assert response.headers["iggy-durability"] == "none"
        while not await payloads(world):  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert await refused(world, NDJSON, b"{", "ack=none") == (400, 400, "line 1")


# ------------------------------------------------------------------------------------------------- compressed bodies


def members(*parts: bytes) -> bytes:
    return b"".join(map(gzip.compress, parts))


def frames(*parts: bytes) -> bytes:
    """Includes a skippable frame, and one without its size."""
    unsized = zstandard.ZstdCompressor(write_content_size=False, write_checksum=True).compressobj()
    skipped = struct.pack("<II", 0x184D2A53, 3) + b"abc"
    last = b"".join([*map(unsized.compress, parts[1:]), unsized.flush()])
    return zstandard.compress(parts[0]) + skipped + last


@pytest.mark.parametrize(("coding", "compress"), [("gzip", members), ("X-GZIP", members), ("zstd", frames)])
@pytest.mark.parametrize("count", [1, 20_000])
async def test_compressed_bodies_are_decompressed(tmp_path: Path, coding: str, compress: Any, count: int) -> None:
    lines = [b'{"number":%d}' % i for i in range(count)]
    parts = [b"".join(line + b"\n" for line in lines[start::2]) for start in (0, 1)]

    async with with_topic(tmp_path) as world:
        response = await send(world, NDJSON, compress(*parts), content_encoding=coding)
        assert response.status_code == 201, response.text
        assert await payloads(world, f"count={count}") == lines[0::2] + lines[1::2]
        for media, body in ((BATCH, bytes(pack([b"in a batch"]))), (OCTETS, b"octets")):
            assert (await send(world, media, compress(body, b""), content_encoding=coding)).status_code == 201
        body = b'{"partitioning":{"kind":"balanced","value":""},"messages":[{"payload":"eA=="}]}'
        response = await world.root.ask("POST", MESSAGES, compress(body, b""), content_encoding=coding)
        assert response.status_code == 201
        assert (await send(world, NDJSON, b"1", content_encoding="identity")).status_code == 201


@pytest.mark.parametrize("coding", ["br", "deflate", "gzip, zstd", "gzip, gzip", "*", "compress"])
async def test_other_codings_are_answered_415_with_the_supported_ones(tmp_path: Path, coding: str) -> None:
    async with with_topic(tmp_path) as world:
        response = await send(world, NDJSON, b"1", content_encoding=coding)
        assert (response.status_code, response.json()["field"]) == (415, "content-encoding")
        assert response.headers["accept-encoding"] == "zstd, gzip"


async def test_a_body_that_does_not_match_its_coding_is_refused(tmp_path: Path) -> None:
    body = b'{"a":1}\n' * 500
    zipped, framed, unsized = gzip.compress(body), zstandard.compress(body), frames(body, body)
    far = zstandard.ZstdCompressionParameters(window_log=27)
    window = zstandard.ZstdCompressor(compression_params=far).compressobj()
    wide = window.compress(body) + window.flush()
    rotten = zipped[:-6] + bytes([zipped[-6] ^ 0xFF]) + zipped[-5:]

    async with with_topic(tmp_path) as world:
        wrong = [
            *(("gzip", each) for each in (b"", b"x", body, framed, rotten, zipped + b"junk", members(*[b""] * 2000))),
            *(("gzip", zipped[:cut]) for cut in (1, 5, 10, len(zipped) // 2, len(zipped) - 1)),
            *(("zstd", each) for each in (b"", b"x", body, zipped, wide, framed + b"junk")),
            *(("zstd", framed[:cut]) for cut in (1, 5, 10, len(framed) // 2, len(framed) - 1)),
            *(("zstd", unsized[:cut]) for cut in range(len(unsized) - 20, len(unsized))),
        ]
        for coding, each in wrong:
            found = await refused(world, NDJSON, each, content_encoding=coding)
            assert found == (400, 400, "content-encoding"), (coding, len(each))
        assert await payloads(world) == []


def gzip_bomb() -> bytes:
    compressor = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join([*(compressor.compress(bytes(1 << 24)) for _ in range(64)), compressor.flush()])


def zstd_bomb() -> bytes:
    compressor = zstandard.ZstdCompressor(level=3).compressobj(size=1 << 30)
    return b"".join([*(compressor.compress(bytes(1 << 24)) for _ in range(64)), compressor.flush()])


@pytest.mark.parametrize(("coding", "bomb"), [("gzip", gzip_bomb), ("zstd", zstd_bomb)])
@pytest.mark.parametrize("media", [NDJSON, "application/json", BATCH])
async def test_a_decompression_bomb_is_answered_413_before_it_expands(
    tmp_path: Path, coding: str, bomb: Any, media: str
) -> None:
    body = bomb()

    async with live(tmp_path) as world:
        link = await world.link()
        head = request_head(world, media, f"Content-Encoding: {coding}", f"Content-Length: {len(body)}")
        before = time.process_time()
        response = await link.ask(head + body)
        spent = time.process_time() - before
        assert (response.status, response.json()["id"]) == (413, 413)
        assert spent < 0.5, "all of it would have taken longer"
        assert await link.pings(), "the connection stays usable"


async def test_the_limit_of_a_body_applies_after_decompression(tmp_path: Path) -> None:
    async with with_topic(tmp_path, Http(max_request_size=1000)) as world:
        for size, status in ((1000, 201), (1001, 413)):
            for coding, compress in (("gzip", gzip.compress), ("zstd", zstandard.compress)):
                response = await send(world, OCTETS, compress(b"x" * size), content_encoding=coding)
                assert response.status_code == status


@pytest.mark.parametrize("coding", ["", "gzip", "zstd"])
async def test_chunks_of_one_byte_make_the_same_messages(tmp_path: Path, coding: str) -> None:
    body = b"\n".join([b'{"number":%d}' % i for i in range(50)])
    body = {"": body, "gzip": gzip.compress(body), "zstd": zstandard.compress(body)}[coding]

    async with live(tmp_path) as world:
        link = await world.link()
        more = [f"Content-Encoding: {coding}"] if coding else []
        await link.send(request_head(world, NDJSON, "Transfer-Encoding: chunked", *more))
        for i in range(len(body)):
            await link.send(b"1\r\n" + body[i : i + 1] + b"\r\n")
        response = await link.ask(b"0\r\n\r\n")
        assert response.status == 201
        polled = (await link.ask(world.request("GET", f"{MESSAGES}?count=100"))).json()
        assert polled["count"] == 50


@pytest.mark.parametrize("body", [b"{", b'{"messages":1}', b"{" * 100_000])
async def test_errors_in_a_body_are_not_reported_to_callers_who_may_not_send_it(tmp_path: Path, body: bytes) -> None:
    async with with_topic(tmp_path) as world:
        alice = await world.user()
        assert (await alice.refused("POST", MESSAGES, body))[0] == 403
        assert (await alice.refused("POST", MESSAGES, body, content_type="image/png"))[0] == 403
        nowhere = MESSAGES.replace("/topics/t", "/topics/nowhere")
        assert (await alice.refused("POST", nowhere, body))[0] == 404


async def test_a_large_body_of_unknown_length_is_not_read_for_a_caller_without_permission(tmp_path: Path) -> None:
    """Over HTTP/3 a body has no length unless the client sends one, and nothing else shows that a body follows."""
    async with with_topic(tmp_path) as world:
        alice = await world.user()

        async def over_http3(scope: Scope, receive: Receive, send: Send) -> None:
            lengths = (b"content-length", b"transfer-encoding")
            headers = [(name, value) for name, value in scope["headers"] if name not in lengths]
            await world.application({**scope, "http_version": "3", "headers": headers}, receive, send)

        transport = httpx.ASGITransport(over_http3)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            response = await Caller(client, alice.token).ask("POST", MESSAGES, b"{" * 100_000, content_type=NDJSON)
        assert response.status_code == 403
