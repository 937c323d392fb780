"""Messages and stored offsets over HTTP: sending, polling, and the error numbers of what is refused."""

from __future__ import annotations

import base64
import struct
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

from tests.transports.http.support.calling import with_topic
from tests.transports.http.support.messages import (
    BALANCED,
    FIRST,
    MESSAGES,
    OFFSETS,
    b64,
    header_entry,
    message,
    payloads,
    poll,
    sent,
    stored,
)
from whippet.app.config.listeners import Http, HttpLimits
from whippet.storage.batch import header, messages
from whippet.storage.options import Durability

# ------------------------------------------------------------------------------------------------- sending


async def test_a_send_returns_the_position_of_the_batch_and_its_durability(tmp_path: Path) -> None:
    async with with_topic(tmp_path) as world:
        for offset in (0, 2):
            response = await world.root.ask("POST", MESSAGES, sent(message(b"one"), message(b"two")))
            confirmation = {"stream_id": 0, "topic_id": 0, "partition_id": 0, "base_offset": offset}
            assert (response.status_code, response.json()) == (201, {"confirmations": [confirmation]})
            assert response.headers["iggy-durability"] == "replicated"
        assert await payloads(world) == [b"one", b"two"] * 2


async def test_a_send_to_a_synced_topic_returns_persisted(tmp_path: Path) -> None:
    async with with_topic(tmp_path, durability=Durability.SYNCED) as world:
        response = await world.root.ask("POST", MESSAGES, sent(message()))
        assert response.headers["iggy-durability"] == "persisted"


async def test_a_polled_message_has_every_field_of_the_reference(tmp_path: Path) -> None:
    async with with_topic(tmp_path) as world:
        await world.root.post(MESSAGES, sent(message(b"hello", id=339142883498231908523420813)))
        response = await world.root.ask("GET", f"{MESSAGES}?kind=offset&value=0&count=10")
        (batch,) = await stored(world)
        (one,) = messages(batch)
        checksum = struct.unpack_from("<Q", batch, 256)[0]
        assert response.text == (
            '{"partition_id":0,"current_offset":0,"count":1,"messages":[{"header":{"checksum":'
            f'{checksum},"id":339142883498231908523420813,"offset":0,"timestamp":{one.timestamp},"origin_timestamp":'
            f'{one.origin_timestamp},"user_headers_length":0,"payload_length":5,"reserved":0}},"payload":"aGVsbG8=",'
            '"user_headers":[]}]}'
        )
        assert response.headers["iggy-view"] == "0"


@pytest.mark.parametrize("count", [1, 2, 12, 13, 50, 1000, 1100, 3000])
@pytest.mark.parametrize("kind", ["uniform", "mixed", "named", "with headers"])
async def test_sent_messages_are_one_valid_batch_and_are_polled_unchanged(
    tmp_path: Path, count: int, kind: str
) -> None:
    def size(i: int) -> int:
        return {"uniform": 100, "mixed": 1 + i * 7 % 300}.get(kind, 20)

    expected = [bytes([i % 256]) * size(i) for i in range(count)]
    entries = [header_entry("string", b"n", "uint8", b"\x07")]

    def given(i: int) -> dict[str, Any]:
        more: dict[str, dict[str, Any]] = {
            "named": {"id": i and 2**127 + i},
            "with headers": {"user_headers": entries if i % 3 else None},
        }
        return message(expected[i], **more.get(kind, {}))

    async with with_topic(tmp_path) as world:
        await world.root.post(MESSAGES, sent(*map(given, range(count))))
        found = await poll(world, f"count={count}")
        assert [base64.b64decode(each["payload"]) for each in found] == expected
        assert [each["header"]["offset"] for each in found] == list(range(count))
        assert len({each["header"]["timestamp"] for each in found}) == 1
        assert len({each["header"]["id"] for each in found}) == count
        assert all(each["header"]["payload_length"] == len(expected[i]) for i, each in enumerate(found))
        if kind == "named":
            assert [each["header"]["id"] for each in found][1:] == [2**127 + i for i in range(1, count)]
        random = UUID(int=int.from_bytes(found[0]["header"]["id"].to_bytes(16, "little"), "big"))
        assert random.version == 4
        if kind == "with headers":
            assert [each["user_headers"] for each in found] == [entries if i % 3 else [] for i in range(count)]
        (batch,) = await stored(world)
        assert header(batch).message_count == count
        checksums = [struct.unpack_from("<Q", batch, at)[0] for at in frame_starts(batch)]
        assert [each["header"]["checksum"] for each in found] == checksums


def frame_starts(batch: bytes) -> list[int]:
    starts, position = [], 256
    while position < len(batch):
        starts.append(position)
        position += 48 + sum(struct.unpack_from("<II", batch, position + 32))
    return starts


async def test_ids_may_be_numbers_strings_and_uuids(tmp_path: Path) -> None:
    uuid = "0123abcd-4567-89AB-cdef-0123456789ab"
    given: list[tuple[Any, int | None]] = [
        (12345, 12345),
        (2**64, 2**64),
        (2**128 - 1, 2**128 - 1),
        ("12345", 12345),
        (str(2**128 - 1), 2**128 - 1),
        (uuid, UUID(uuid).int),
        (uuid.replace("-", ""), UUID(uuid).int),
        ("1" * 32, int("1" * 32)),
        (0, None),
        ("0", None),
        (None, None),
    ]

    async with with_topic(tmp_path) as world:
        await world.root.post(MESSAGES, sent(*(message(id=each) for each, _ in given), message()))
        found = [each["header"]["id"] for each in await poll(world)]
        for (_, expected), identity in zip(given, found, strict=False):
            assert identity == expected or (expected is None and identity > 0)
        for wrong in (-1, 2**128, 1.5, "", "x", "-1", str(2**128), "1" * 40, True, [1], uuid[:-1], f"{{{uuid}}}"):
            for count in (1, 20):
                body = sent(message(id=wrong), *[message()] * count)
                assert (await world.root.refused("POST", MESSAGES, body))[:2] == (422, 422), wrong


async def test_a_batch_goes_to_the_partition_of_its_partitioning(tmp_path: Path) -> None:
    async with with_topic(tmp_path) as world:

        async def where(kind: str, value: bytes) -> int:
            reply = await world.root.post(MESSAGES, sent(message(), to={"kind": kind, "value": b64(value)}))
            return int(reply["confirmations"][0]["partition_id"])

        assert [await where("balanced", b"") for _ in range(4)] == [0, 1, 2, 0]
        assert await where("partition_id", b"\x02\0\0\0") == 2
        assert await where("partition_id", b"\x01\0\0\0more") == 1
        assert await where("messages_key", b"user-1") == await where("messages_key", b"user-1")
        assert await where("messages_key", b"k" * 255) in range(3)


# ------------------------------------------------------------------------------------------------- user headers


PARAMETER_TYPES = (
    *("raw", "string", "bool", "int8", "int16", "int32", "int64", "int128"),
    *("uint8", "uint16", "uint32", "uint64", "uint128", "float32", "float64"),
)


async def test_user_headers_of_every_kind_are_returned_sorted_and_the_last_of_a_key_wins(tmp_path: Path) -> None:
    entries = [header_entry(kind, b"k", kind, bytes([number + 1])) for number, kind in enumerate(PARAMETER_TYPES)]
    twice = header_entry("raw", b"k", "raw", b"first")

    async with with_topic(tmp_path) as world:
        await world.root.post(MESSAGES, sent(message(user_headers=[twice, *reversed(entries)])))
        (found,) = await poll(world)
        assert found["user_headers"] == entries
        assert found["header"]["user_headers_length"] == 15 * 12


async def test_user_headers_of_0_6_and_encrypted_ones_are_accepted(tmp_path: Path) -> None:
    async with with_topic(tmp_path) as world:
        in_map = {"Trace": {"kind": "string", "value": b64(b"abc")}, "n": {"kind": "uint8", "value": "Bw=="}}
        secret = b64(b"encrypted: nobody can read it")
        await world.root.post(
            MESSAGES, sent(message(user_headers=in_map), message(user_headers=secret), message(user_headers=""))
        )
        first, second, third = await poll(world)
        assert first["user_headers"] == [
            header_entry("string", b"n", "uint8", b"\x07"),
            header_entry("string", b"trace", "string", b"abc"),
        ]
        assert second["user_headers"] == secret
        assert third["user_headers"] == []


async def test_a_client_of_0_6_polls_user_headers_as_a_map_or_not_at_all(tmp_path: Path) -> None:
    async with with_topic(tmp_path) as world:
        entries = [header_entry("string", b"n", "uint8", b"\x07"), header_entry("uint8", b"\x01", "raw", b"x")]
        only_typed = [header_entry("uint8", b"\x01", "raw", b"x")]
        several = [message(), message(user_headers=entries), message(user_headers=only_typed)]
        await world.root.post(MESSAGES, sent(*several))
        await world.root.post(MESSAGES, sent(*[message()] * 100))
        old = await world.log_in("root", "root's password", version="0.8.0", context="")
        found = (await old.get(f"{MESSAGES}?count=200"))["messages"]
        assert "user_headers" not in found[0]
        assert found[1]["user_headers"] == {"n": {"kind": "uint8", "value": "Bw=="}}
        assert all("user_headers" not in each for each in found[2:])
        assert len(found) == 103
        again = (await old.post("/users/refresh-token", {"token": old.token}))["access_token"]["token"]
        old.token = again
        assert "user_headers" not in (await old.get(f"{MESSAGES}?count=1"))["messages"][0]
        for version, context in (("0.9.0", ""), ("0.11.0", ""), ("0.8.0", "csharp-sdk"), ("", ""), ("x", "")):
            other = await world.log_in("root", "root's password", version=version, context=context)
            assert (await other.get(f"{MESSAGES}?count=1"))["messages"][0]["user_headers"] == []


async def test_user_headers_have_a_limit(tmp_path: Path) -> None:
    async with with_topic(tmp_path, Http(max_request_size=1 << 20)) as world:
        long = [header_entry("raw", bytes([i]), "raw", b"x" * 60_000) for i in (1, 2)]
        assert await world.root.refused("POST", MESSAGES, sent(message(user_headers=long))) == (
            422,
            422,
            "user_headers",
        )
        raw = b64(b"x" * 100_001)
        assert await world.root.refused("POST", MESSAGES, sent(message(user_headers=raw))) == (400, 4017, None)
        malformed: tuple[object, ...] = ("%%", "abc", [1], {"k": 1}, [{"key": {}}], 5)
        for wrong in (*malformed, [header_entry("text", b"k", "raw", b"v")]):
            found = await world.root.refused("POST", MESSAGES, sent(message(user_headers=wrong)))
            assert found[:2] == (422, 422), wrong


# ------------------------------------------------------------------------------------------------- refusals


async def test_invalid_sends_are_refused_with_the_error_numbers_of_the_reference(tmp_path: Path) -> None:
    async with with_topic(tmp_path) as world:
        root = world.root
        for to, expected in (
            ({"kind": "messages_key", "value": ""}, (400, 4028, None)),
            ({"kind": "messages_key", "value": b64(b"k" * 256)}, (400, 4028, None)),
            ({"kind": "balanced", "value": b64(b"k" * 256)}, (400, 4028, None)),
            ({"kind": "partition_id", "value": ""}, (400, 4028, None)),
            ({"kind": "partition_id", "value": "AAA="}, (400, 3, None)),
            ({"kind": "partition_id", "value": "CQAAAA=="}, (404, 3007, "partition_id")),
            ({"kind": "perhaps", "value": ""}, (422, 422, "partitioning.kind")),
            ({"kind": "balanced"}, (422, 422, "partitioning.value")),
        ):
            assert await root.refused("POST", MESSAGES, sent(message(), to=to)) == expected, to
        assert await root.refused("POST", MESSAGES, sent()) == (400, 4009, None)
        for path, expected in (
            ("/streams/x/topics/t/messages", (404, 1009, "stream_id")),
            ("/streams/s/topics/x/messages", (404, 2010, "topic_id")),
        ):
            for to in (FIRST, BALANCED):
                assert await root.refused("POST", path, sent(message(), to=to)) == expected
        assert await payloads(world) == []


async def test_a_topic_without_partitions_accepts_no_messages(tmp_path: Path) -> None:
    async with with_topic(tmp_path, partitions=0) as world:
        for to in (BALANCED, {"kind": "messages_key", "value": "aw=="}):
            assert await world.root.refused("POST", MESSAGES, sent(message(), to=to)) == (404, 2010, "topic_id")
        assert (await world.root.refused("POST", MESSAGES, sent(message())))[:2] == (404, 3007)


GOOD = msgspec.json.encode(sent(message(), message()))
M = b'[{"payload":"eA=="}]'
P = b'{"kind":"balanced","value":""}'


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"nonsense", 400),
        (b"\xff", 400),
        (GOOD[:-1], 400),
        (GOOD + b"x", 400),
        (b"[" * 100_000 + b"]" * 100_000, 422),
        (b'{"partitioning":' + b'{"a":' * 50_000, 400),
        (b"null", 422),
        (b"[]", 422),
        (b"{}", 422),
        (b'{"messages":' + M + b"}", 422),
        (b'{"partitioning":' + P + b"}", 422),
        (b'{"partitioning":' + P + b',"messages":null}', 422),
        (b'{"partitioning":' + P + b',"messages":{}}', 422),
        (b'{"partitioning":' + P + b',"messages":[null]}', 422),
        (b'{"partitioning":' + P + b',"messages":[{}]}', 422),
        (b'{"partitioning":' + P + b',"messages":[{"payload":""}]}', 422),
        (b'{"partitioning":' + P + b',"messages":[{"payload":null}]}', 422),
        (b'{"partitioning":' + P + b',"messages":[{"payload":5}]}', 422),
        (b'{"partitioning":' + P + b',"messages":[{"payload":"%%%%"}]}', 422),
        (b'{"partitioning":' + P + b',"messages":[{"payload":"eA"}]}', 422),
        (b'{"partitioning":' + P + b',"messages":' + M + b',"more":1}', 422),
        (b'{"partitioning":' + P + b',"messages":' + M + b',"more":[]}', 422),
        (b'{"messages":' + M + b',"partitioning":' + P + b',"options":{}}', 422),
        (b'{"partitioning":' + P + b',"messages":' + M + b',"messages":' + M + b"}", 422),
        (b'{"messages":' + M + b',"partitioning":' + P + b',"messages":' + M + b"}", 422),
        (b'{"partitioning":' + P + b',"messages":' + M + b',"partitioning":' + P + b"}", 422),
        (b'{"partitioning":' + P + b',"messages":' + M + b',"part\\u0069tioning":' + P + b"}", 422),
        (b'{"partitioning":' + P + b',"messages":' + M + b',"\\u006dessages":' + M + b"}", 422),
        (b'{"messages":' + M + b',"partitioning":' + P + b"}", 201),
        (b' {\n"partitioning" : ' + P + b' , "messages" : ' + M + b" } \r\n", 201),
        (b'{"part\\u0069tioning":' + P + b',"messages":' + M + b"}", 201),
        (b'{"partitioning":' + P + b',"messages":[{"payload":"eA==","header":{"a":["messages"]},"x":null}]}', 201),
        (b'{"partitioning":' + P[:-1] + b',"more":[1]},"messages":' + M + b"}", 201),
    ],
)
async def test_a_body_is_accepted_or_refused_as_a_whole(tmp_path: Path, body: bytes, status: int) -> None:
    async with with_topic(tmp_path) as world:
        response = await world.root.ask("POST", MESSAGES, body)
        assert response.status_code == status, response.text
        if status != 201:
            assert list(response.json()) == ["id", "code", "reason", "field"]
            assert response.json()["id"] == status
            assert await payloads(world) == []


async def test_a_send_needs_a_json_content_type_and_an_allowed_length(tmp_path: Path) -> None:
    async with with_topic(tmp_path, Http(max_request_size=1000)) as world:
        for kind in ("text/html", "application/xml", "", "application/x-www-form-urlencoded"):
            found = await world.root.refused("POST", MESSAGES, GOOD, content_type=kind)
            assert found == (415, 415, "content-type")
        for kind in ("application/json", "Application/JSON; charset=utf-8", "application/cloudevents+json"):
            assert (await world.root.ask("POST", MESSAGES, GOOD, content_type=kind)).status_code == 201
        long = await world.root.ask("POST", MESSAGES, sent(message(b"x" * 1000)))
        assert (long.status_code, long.headers["connection"]) == (413, "close")
        assert "http.max_request_size" in long.json()["reason"]


async def test_an_unknown_ack_is_refused_before_anything_is_stored(tmp_path: Path) -> None:
    async with with_topic(tmp_path) as world:
        assert await world.root.refused("POST", f"{MESSAGES}?ack=perhaps", GOOD) == (400, 400, "ack")
        assert (await world.root.ask("POST", f"{MESSAGES}?ack=replicated", GOOD)).status_code == 201


@pytest.mark.parametrize("where", ["at once", "append"])
async def test_a_bug_in_a_send_does_not_make_clients_send_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    async with with_topic(tmp_path) as world:

        def broken(*_: Any, **__: Any) -> None:
            raise RuntimeError("after it was stored, perhaps")

        partition = world.gateway.streams.find("s").topics.find("t").partitions[0]  # type: ignore[union-attr]
        at_once = broken if where == "at once" else lambda *_: None
        monkeypatch.setattr(type(partition), "append_at_once", at_once)
        monkeypatch.setattr(type(partition), "append", broken)
        assert await world.root.refused("POST", MESSAGES, GOOD) == (400, 1, None)


# ------------------------------------------------------------------------------------------------- polling


async def test_polls_start_at_the_requested_position(tmp_path: Path) -> None:
    async with with_topic(tmp_path) as world:
        for number in range(3):
            await world.root.post(MESSAGES, sent(*(message(f"{number}{i}".encode()) for i in range(5))))
            world.clock.now += 1_000_000
        everything = [f"{number}{i}".encode() for number in range(3) for i in range(5)]
        second = (await poll(world))[5]["header"]["timestamp"]
        for query, expected in (
            ("", everything[:10]),
            ("count=2", everything[:2]),
            ("count=0", []),
            ("value=13", everything[13:]),
            ("kind=offset&value=7&count=3", everything[7:10]),
            ("kind=o&value=99", []),
            (f"kind=timestamp&value={second}&count=2", everything[5:7]),
            ("kind=first&count=1", everything[:1]),
            ("kind=l&count=2", everything[13:]),
            ("kind=next&count=1&consumer_id=none", everything[:1]),
            ("partition_id=1", []),
            ("%63ount=1", everything[:1]),
        ):
            assert await payloads(world, query) == expected, query


async def test_an_empty_partition_has_offset_0_and_no_messages(tmp_path: Path) -> None:
    async with with_topic(tmp_path) as world:
        assert (await world.root.ask("GET", MESSAGES)).text == (
            '{"partition_id":0,"current_offset":0,"count":0,"messages":[]}'
        )
        await world.root.post(MESSAGES, sent(message()))
        await world.root.delete("/streams/s/topics/t/purge")
        assert await world.root.get(MESSAGES) == {"partition_id": 0, "current_offset": 0, "count": 0, "messages": []}


async def test_auto_commit_stores_the_offset_and_a_head_request_does_not(tmp_path: Path) -> None:
    async with with_topic(tmp_path) as world:
        await world.root.post(MESSAGES, sent(*(message(str(i).encode()) for i in range(5))))
        query = "kind=next&count=2&auto_commit=true&consumer_id=billing"
        assert (await world.root.ask("HEAD", f"{MESSAGES}?{query}")).status_code == 200
        assert [await payloads(world, query) for _ in range(3)] == [[b"0", b"1"], [b"2", b"3"], [b"4"]]
        assert (await world.root.get(f"{OFFSETS}?consumer_id=billing"))["stored_offset"] == 4


@pytest.mark.parametrize(
    "query",
    [
        "partition_id=",
        "partition_id=x",
        "partition_id=-1",
        "partition_id=4294967296",
        "value=18446744073709551616",
        "value=1.0",
        "kind=Offset",
        "kind=later",
        "count=",
        "auto_commit=True",
        "auto_commit=1",
        "count=1&count=2",
        "consumer_id=%FF",
    ],
)
async def test_an_invalid_poll_query_is_refused(tmp_path: Path, query: str) -> None:
    async with with_topic(tmp_path) as world:
        status, number, _ = await world.root.refused("GET", f"{MESSAGES}?{query}")
        assert (status, number) == (400, 400)


async def test_polls_of_missing_streams_topics_and_partitions_are_refused(tmp_path: Path) -> None:
    async with with_topic(tmp_path) as world:
        root = world.root
        assert await root.refused("GET", f"{MESSAGES}?partition_id=9") == (404, 3007, "partition_id")
        assert await root.refused("GET", "/streams/x/topics/t/messages") == (404, 1009, "stream_id")
        assert await root.refused("GET", "/streams/s/topics/x/messages") == (404, 2010, "topic_id")
        assert await root.refused("GET", f"{MESSAGES}?consumer_id=") == (400, 6, None)
        assert await root.refused("GET", f"{MESSAGES}?consumer_id={'x' * 256}") == (400, 6, None)


async def test_a_response_is_limited_and_has_at_least_one_message(tmp_path: Path) -> None:
    async with with_topic(tmp_path, Http(max_request_size=1 << 24, limits=HttpLimits(answer_bytes=65_536))) as world:
        for size in (10, 200_000):
            await world.root.post(MESSAGES, sent(*[message(b"x" * size)] * 6))
        first = await world.root.ask("GET", f"{MESSAGES}?count=4294967295")
        assert len(first.content) < 100_000
        assert first.json()["count"] == 6
        large = await world.root.ask("GET", f"{MESSAGES}?value=6&count=100")
        assert large.json()["count"] == 1


async def test_a_flush_accepts_both_spellings(tmp_path: Path) -> None:
    async with with_topic(tmp_path) as world:
        for path in ("0/true", "0/false", "2/fsync=true?partition_id=2&fsync=true", "0/fsync=True"):
            for method in ("GET", "POST"):
                response = await world.root.ask(method, f"{MESSAGES}/flush/{path}")
                assert (response.status_code, response.content) == (200, b""), path
        assert await world.root.refused("GET", f"{MESSAGES}/flush/0/maybe") == (400, 400, "fsync")
        assert await world.root.refused("GET", f"{MESSAGES}/flush/x/true") == (400, 400, "partition")
        assert await world.root.refused("GET", f"{MESSAGES}/flush/9/true") == (404, 3007, "partition_id")


async def test_a_long_response_is_compressed_for_clients_that_accept_it(tmp_path: Path) -> None:
    async with with_topic(tmp_path) as world:
        await world.root.post(MESSAGES, sent(*[message(b"x" * 500)] * 300))
        plain = (await world.root.ask("GET", f"{MESSAGES}?count=300", accept_encoding="identity")).content
        for accepted, encoding in (("gzip", "gzip"), ("gzip, zstd", "zstd"), ("br;q=1, *;q=0.5", "zstd")):
            response = await world.root.ask("GET", f"{MESSAGES}?count=300", accept_encoding=accepted)
            assert response.headers["content-encoding"] == encoding
            assert response.headers["vary"] == "accept, accept-encoding"
            assert int(response.headers["content-length"]) < len(plain) / 4
            if encoding == "gzip":
                assert response.content == plain
        for accepted in ("", "br", "gzip;q=0", "identity, gzip;q=0.5"):
            response = await world.root.ask("GET", f"{MESSAGES}?count=300", accept_encoding=accepted)
            assert "content-encoding" not in response.headers, accepted
            assert response.headers["vary"] == "accept, accept-encoding"


# ------------------------------------------------------------------------------------------------- stored offsets


async def test_an_offset_is_stored_read_and_deleted(tmp_path: Path) -> None:
    async with with_topic(tmp_path) as world:
        root = world.root
        await root.post(MESSAGES, sent(*[message()] * 10))
        assert await root.refused("GET", f"{OFFSETS}?consumer_id=billing") == (404, 404, None)
        await root.put(OFFSETS, {"consumer_id": "billing", "partition_id": 0, "offset": 7})
        found = (await root.ask("GET", f"{OFFSETS}?consumer_id=billing&partition_id=0")).text
        assert found == '{"partition_id":0,"current_offset":9,"stored_offset":7}'
        await root.put(OFFSETS, {"offset": 3, "partition_id": None, "consumer_id": None})
        assert (await root.get(OFFSETS))["stored_offset"] == 3
        await root.put(OFFSETS, {"consumer_id": 5, "offset": 4})
        assert (await root.get(f"{OFFSETS}?consumer_id=5"))["stored_offset"] == 4
        await root.delete(f"{OFFSETS}/billing?partition_id=0")
        await root.delete(f"{OFFSETS}/1")
        assert await root.refused("DELETE", f"{OFFSETS}/billing") == (404, 3021, None)
        assert (await root.get(f"{OFFSETS}?consumer_id=5"))["stored_offset"] == 4


async def test_invalid_offsets_are_refused_with_the_error_numbers_of_the_reference(tmp_path: Path) -> None:
    async with with_topic(tmp_path) as world:
        root = world.root
        assert await root.refused("PUT", OFFSETS, {"offset": 0}) == (400, 4100, "offset")
        await root.post(MESSAGES, sent(message()))
        refused = await root.ask("PUT", OFFSETS, {"offset": 1})
        assert '"id":4100' in refused.text
        assert await root.refused("PUT", OFFSETS, {"offset": 0, "partition_id": 9}) == (404, 3007, "partition_id")
        for body in ({}, {"offset": -1}, {"offset": "1"}, {"offset": 2**64}, {"offset": 0, "partition_id": -1}):
            assert (await root.refused("PUT", OFFSETS, body))[:2] == (422, 422), body
        assert await root.refused("PUT", OFFSETS, {"offset": 0, "consumer_id": ""}) == (400, 6, None)
        for path, expected in (
            ("/streams/x/topics/t/consumer-offsets", (404, 1009, "stream_id")),
            ("/streams/s/topics/x/consumer-offsets", (404, 2010, "topic_id")),
        ):
            assert await root.refused("GET", path) == expected
            assert await root.refused("PUT", path, {"offset": 0}) == expected
            assert await root.refused("DELETE", f"{path}/1") == expected
        assert await root.refused("GET", f"{OFFSETS}?partition_id=9") == (404, 3007, "partition_id")


async def test_a_send_to_a_full_topic_is_refused_with_its_name_and_limit(tmp_path: Path) -> None:
    async with with_topic(tmp_path, segment_bytes=1024, delete_oldest_segments=False) as world:
        await world.root.post("/streams/s/topics", {"name": "small", "partitions_count": 1, "max_topic_size": 1024})
        small = "/streams/s/topics/small/messages"
        assert (await world.root.ask("POST", small, sent(message(b"x" * 500)))).status_code == 201
        full = await world.root.ask("POST", small, sent(message(b"x" * 500)))
        assert (full.status_code, full.json()["id"], full.json()["code"]) == (400, 3009, "topic_full")
        assert "topic 'small' of stream 's' is full" in full.json()["reason"]
        assert "max_topic_size is 1024 bytes" in full.json()["reason"]
