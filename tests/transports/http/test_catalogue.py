"""Streams, topics, partitions, segments and consumer groups over HTTP, field by field as in the reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
import pytest
from starlette.requests import Request

from tests.transports.http.support.calling import Calling, calling, with_topic
from whippet.app.commands import requests

U64_MAX = 2**64 - 1
TOPIC = {"name": "t", "partitions_count": 2}
NO_MESSAGES = {"messages_count": 0, "first_offset": 0, "next_offset": 0}


# ------------------------------------------------------------------------------------------------- streams


async def test_a_stream_is_created_read_renamed_purged_and_deleted(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        root = world.root
        response = await root.ask("POST", "/streams", {"name": "prod"})
        now = world.clock()
        expected = (
            f'{{"id":0,"created_at":{now},"name":"prod","size":"0 B","messages_count":0,"topics_count":0,'
            f'"options":{{}},"topics":[]}}'
        )
        assert (response.status_code, response.text) == (200, expected)
        assert response.headers["iggy-view"] == "0"
        assert await root.refused("POST", "/streams", {"name": "prod"}) == (400, 1012, "name")
        for name in ("", "x" * 256, "ä" * 128):
            assert await root.refused("POST", "/streams", {"name": name}) == (400, 1013, "name")
        await root.put("/streams/prod", {"name": "live", "options": {}})
        await root.put("/streams/live", {"name": "live"})
        assert await root.refused("PUT", "/streams/9", {"name": "x"}) == (404, 1009, "stream_id")
        assert [stream["name"] for stream in await root.get("/streams")] == ["live"]
        assert (await root.get("/streams/0"))["name"] == "live"
        await root.delete("/streams/live/purge")
        await root.delete("/streams/0")
        assert await root.get("/streams") == []
        for method, path in (("DELETE", "/streams/0"), ("DELETE", "/streams/live/purge")):
            assert await root.refused(method, path) == (404, 1009, "stream_id")
        assert await root.refused("GET", "/streams/0") == (404, 404, None)


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("a/b", "a%2Fb"),
        ("a b", "a%20b"),
        ("../x", "..%2Fx"),
        ("..", ".."),
        (".", "."),
        ("é", "%C3%A9"),
        ("%2e%2e", "%252e%252e"),
        ("purge", "purge"),
        ("topics", "topics"),
        ("a+b", "a+b"),
        ("x?y#z", "x%3Fy%23z"),
        ("\x00\r\n", "%00%0D%0A"),
        ("4294967296", "4294967296"),
        ("+5", "+5"),
        ("٥", "%D9%A5"),
        ("x" * 255, "x" * 255),
    ],
)
async def test_any_name_is_one_path_segment_and_reaches_nothing_else(tmp_path: Path, name: str, path: str) -> None:
    async with calling(tmp_path) as world:
        root = world.root
        other = await root.post("/streams", {"name": "other"})
        made = await root.post("/streams", {"name": name})
        assert other["id"] == 0
        raw = await raw_path(world, f"/streams/{path}")
        assert raw["id"] == made["id"]
        assert raw["name"] == name
        assert {stream["name"] for stream in await root.get("/streams")} == {"other", name}


async def raw_path(world: Calling, path: str) -> Any:
    """Requests the exact path: the client library would normalize the dots."""
    scope = {
        "type": "http",
        "method": "GET",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"authorization", f"Bearer {world.root.token}".encode())],
        "client": ("127.0.0.1", 1),
    }
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)

    await world.application(scope, Request(scope).receive, send)
    assert messages[0]["status"] == 200, messages
    return msgspec.json.decode(messages[1]["body"])


@pytest.mark.parametrize("path", ["%FF", "%C3", "x" * 256, "%41" * 256, ""])
async def test_an_invalid_name_is_refused(tmp_path: Path, path: str) -> None:
    async with calling(tmp_path) as world:
        response = await world.root.ask("GET", f"/streams/{path}")
        assert response.status_code == (404 if path == "" else 400), response.text


# ------------------------------------------------------------------------------------------------- topics


async def test_a_topic_has_the_fields_of_both_generations_and_resolved_limits(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        root = world.root
        await root.post("/streams", {"name": "s"})
        made = await root.post("/streams/s/topics", TOPIC | {"message_expiry": 0, "max_topic_size": 0})
        options = made.pop("options")
        (incarnation,) = {each.pop("context")["incarnation"] for each in made["partitions"]}
        assert incarnation > 0
        assert {each.pop("epoch") for each in made["partitions"]} == {incarnation}
        partition = {"created_at": world.clock(), "segments_count": 1, "current_offset": 0, "size": "0 B"}
        partition |= {"disk_bytes": 0, "held_back": None}
        assert made == {
            "id": 0,
            "created_at": world.clock(),
            "name": "t",
            "size": "0 B",
            "message_expiry": U64_MAX,
            "compression_algorithm": "none",
            "max_topic_size": U64_MAX,
            "replication_factor": 1,
            "messages_count": 0,
            "partitions_count": 2,
            "disk_bytes": 0,
            "partitions": [{"id": number, **partition, **NO_MESSAGES} for number in range(2)],
        }
        assert list(options) == sorted(options)
        for value in options.values():
            assert list(value) == ["value", "explicit", "kind"]
            assert isinstance(value["value"], str)
            assert value["value"]
            assert value["explicit"] is False
        text = (await root.ask("GET", "/streams/s/topics/t")).text
        assert '"max_topic_size":18446744073709551615' in text
        assert (await root.get("/streams/s/topics"))[0]["replication_factor"] == 1
        assert (await root.get("/streams/s"))["topics"][0]["options"] == options


async def test_the_expiry_of_messages_may_have_a_unit(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        root = world.root
        await root.post("/streams", {"name": "s"})
        made = await root.post("/streams/s/topics", TOPIC | {"message_expiry": "7 days"})
        assert made["message_expiry"] == 7 * 86_400 * 1_000_000
        for body in ({"name": "t", "message_expiry": "1 h"}, {"message_expiry": "3600000000"}):
            await root.put("/streams/s/topics/t", body)
            assert (await root.get("/streams/s/topics/t"))["message_expiry"] == 3_600_000_000
            await root.put("/streams/s/topics/t", {"message_expiry": "never"})
            assert (await root.get("/streams/s/topics/t"))["message_expiry"] == U64_MAX
        for method, path in (("POST", "/streams/s/topics"), ("PUT", "/streams/s/topics/t")):
            wrong = TOPIC | {"message_expiry": "some time"}
            assert await root.refused(method, path, wrong) == (422, 422, "message_expiry")


async def test_a_topic_accepts_limits_options_and_the_fields_of_old_clients(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        root = world.root
        await root.post("/streams", {"name": "s"})
        requested = {
            "stream_id": 1,
            "topic_id": 7,
            "name": "t",
            "partitions_count": 1,
            "compression_algorithm": "GZIP",
            "message_expiry": 5_000_000,
            "max_topic_size": 2**33,
            "replication_factor": 2,
            "options": {"durability": "persisted", "segment_size": "128 MiB"},
            "unknown": [1, {"deep": None}],
        }
        made = await root.post("/streams/s/topics", requested)
        found = (made["compression_algorithm"], made["message_expiry"], made["max_topic_size"])
        assert found == ("gzip", 5_000_000, 2**33)
        assert (made["id"], made["replication_factor"]) == (0, 2)
        assert made["options"]["durability"] == {"value": "persisted", "explicit": True, "kind": "string"}
        assert made["options"]["segment_size"] == {"value": "134217728", "explicit": True, "kind": "uint64"}


async def test_invalid_topics_are_refused_with_the_error_numbers_of_the_reference(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        root = world.root
        await root.post("/streams", {"name": "s"})
        await root.post("/streams/s/topics", TOPIC)
        path = "/streams/s/topics"
        for changed, expected in (
            ({}, (400, 2013, "name")),
            ({"name": ""}, (400, 2014, "name")),
            ({"name": "x" * 256}, (400, 2014, "name")),
            ({"name": "x", "partitions_count": 1001}, (400, 2015, None)),
            ({"name": "x", "replication_factor": 0}, (400, 2018, None)),
            ({"name": "x", "max_topic_size": 1000}, (400, 1019, None)),
            ({"name": "x", "options": {"fsync": "true"}}, (400, 4041, None)),
            (
                {"name": "x", "options": {"enforce_fsync": "true", "durability": "replicated"}},
                (400, 4042, None),
            ),
            ({"name": "x", "options": {"durability": "perhaps"}}, (400, 4042, None)),
            ({"name": "x", "compression_algorithm": "lz4"}, (422, 422, None)),
            ({"name": "x", "max_topic_size": "1 GB"}, (422, 422, "max_topic_size")),
            ({"name": "x", "max_topic_size": 2**64}, (422, 422, None)),
            ({"name": "x", "message_expiry": -1}, (422, 422, "message_expiry")),
            ({"name": "x", "partitions_count": -1}, (422, 422, "partitions_count")),
            ({"name": "x", "partitions_count": 1.5}, (422, 422, "partitions_count")),
            ({"name": "x", "partitions_count": None}, (422, 422, "partitions_count")),
            ({"name": 5}, (422, 422, "name")),
        ):
            assert await root.refused("POST", path, TOPIC | changed) == expected, changed
        assert await root.refused("POST", path, {"name": "x"}) == (422, 422, "partitions_count")
        assert (await root.refused("POST", "/streams/none/topics", TOPIC | {"name": "x"}))[0] == 404
        assert len(await root.get(path)) == 1


@pytest.mark.parametrize("nothing", [{}, dict.fromkeys(("compression_algorithm", "message_expiry", "max_topic_size"))])
@pytest.mark.parametrize("zeros", [{}, {"message_expiry": 0, "max_topic_size": 0}])
async def test_an_update_keeps_absent_fields(tmp_path: Path, nothing: Any, zeros: Any) -> None:
    async with calling(tmp_path) as world:
        root = world.root
        await root.post("/streams", {"name": "s"})
        limits = {"compression_algorithm": "gzip", "message_expiry": 7, "max_topic_size": 2**33}
        await root.post("/streams/s/topics", TOPIC | limits)
        await root.put("/streams/s/topics/t", {"name": "renamed", "options": {}, **nothing, **zeros})
        found = await root.get("/streams/s/topics/renamed")
        assert {name: found[name] for name in limits} == limits
        await root.put("/streams/s/topics/renamed", {"name": "t", "message_expiry": U64_MAX})
        assert (await root.get("/streams/s/topics/t"))["message_expiry"] == U64_MAX
        assert await root.refused("PUT", "/streams/s/topics/t", {"name": "t", "options": {"k": "v"}}) == (
            400,
            4041,
            None,
        )
        assert await root.refused("PUT", "/streams/s/topics/none", {"name": "x"}) == (404, 2010, "topic_id")
        assert await root.refused("PUT", "/streams/none/topics/t", {"name": "x"}) == (404, 1009, "stream_id")


async def test_topics_are_listed_and_missing_ones_are_not_found(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        root = world.root
        assert await root.get("/streams/none/topics") == []
        await root.post("/streams", {"name": "s"})
        assert await root.get("/streams/s/topics") == []
        for path in ("/streams/none/topics/t", "/streams/s/topics/none"):
            assert await root.refused("GET", path) == (404, 404, None)
        for path in ("/streams/s/topics/none", "/streams/s/topics/none/purge"):
            assert await root.refused("DELETE", path) == (404, 2010, "topic_id")
        await root.post("/streams/s/topics", TOPIC)
        await root.delete("/streams/s/topics/t/purge")
        await root.delete("/streams/s/topics/0")
        assert await root.get("/streams/s/topics") == []


async def test_partitions_are_added_and_removed_at_the_end(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        root = world.root
        await root.post("/streams", {"name": "s"})
        await root.post("/streams/s/topics", TOPIC)
        path = "/streams/s/topics/t/partitions"
        response = await root.ask("POST", path, {"partitions_count": 3})
        assert (response.status_code, response.content) == (201, b"")
        assert (await root.get("/streams/s/topics/t"))["partitions_count"] == 5
        await root.delete(f"{path}?partitions_count=4")
        assert (await root.get("/streams/s/topics/t"))["partitions_count"] == 1
        assert await root.refused("DELETE", f"{path}?partitions_count=2") == (400, 2019, None)
        for count in (0, 1001):
            assert await root.refused("DELETE", f"{path}?partitions_count={count}") == (400, 2015, None)
            assert await root.refused("POST", path, {"partitions_count": count}) == (400, 2015, None)
        assert await root.refused("DELETE", path) == (400, 400, "partitions_count")
        for value in ("", "x", "-1", "1e3", "4294967296"):
            assert (await root.refused("DELETE", f"{path}?partitions_count={value}"))[:2] == (400, 400), value
        assert (await root.refused("DELETE", f"{path}?partitions_count=1&partitions_count=1"))[:2] == (400, 400)


async def test_as_many_segments_are_deleted_as_possible(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        root = world.root
        await root.post("/streams", {"name": "s"})
        await root.post("/streams/s/topics", TOPIC)
        path = "/streams/s/topics/t/partitions"
        await root.delete(f"{path}/0?segments_count=5")
        assert await root.refused("DELETE", f"{path}/0") == (400, 400, "segments_count")
        assert await root.refused("DELETE", f"{path}/9?segments_count=1") == (404, 3007, "partition_id")
        for partition in ("x", "-1", "4294967296", "1.0", "%31x"):
            found = await root.refused("DELETE", f"{path}/{partition}?segments_count=1")
            assert found == (400, 400, "partition"), partition


# ------------------------------------------------------------------------------------------------- consumer groups


async def test_a_group_is_created_read_and_deleted(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        root = world.root
        await root.post("/streams", {"name": "s"})
        await root.post("/streams/s/topics", TOPIC)
        path = "/streams/s/topics/t/consumer-groups"
        response = await root.ask("POST", path, {"name": "payments", "group_id": 9})
        group = '{"id":0,"name":"payments","partitions_count":2,"members_count":0'
        assert (response.status_code, response.text) == (201, group + ',"members":[]}')
        assert (await root.ask("GET", path)).text == f"[{group}}}]"
        assert await root.get(f"{path}/payments") == await root.get(f"{path}/0")
        assert await root.refused("POST", path, {"name": "payments"}) == (400, 5004, "name")
        for name in ("", "x" * 256):
            assert await root.refused("POST", path, {"name": name}) == (400, 5005, None)
        await root.delete(f"{path}/payments")
        for method in ("GET", "DELETE"):
            for missing in ("payments", "0"):
                assert await root.refused(method, f"{path}/{missing}") == (404, 5000, None)
        for method, body in (("GET", None), ("POST", {"name": "g"})):
            assert (await root.refused(method, "/streams/none/topics/t/consumer-groups", body))[:2] == (404, 1009)
            assert (await root.refused(method, "/streams/s/topics/none/consumer-groups", body))[:2] == (404, 2010)


async def test_a_group_lists_members_of_other_transports(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        root = world.root
        await root.post("/streams", {"name": "s"})
        await root.post("/streams/s/topics", TOPIC)
        await root.post("/streams/s/topics/t/consumer-groups", {"name": "g"})
        member = await world.world.root()
        await member.execute(requests.JoinConsumerGroup("s", "t", "g"))
        found = await root.get("/streams/s/topics/t/consumer-groups/g")
        assert found["members"] == [{"id": 0, "partitions_count": 2, "partitions": [0, 1]}]
        assert found["members_count"] == 1


# ------------------------------------------------------------------------------------------------- conditional requests


async def test_unchanged_metadata_is_not_sent_again(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        root = world.root
        await root.post("/streams", {"name": "s"})
        for path in ("/streams", "/streams/s", "/streams/s/topics", "/users", "/users/me", "/options/topic"):
            first = await root.ask("GET", path)
            tag = first.headers["etag"]
            assert first.headers["cache-control"] == "private, no-cache"
            for wanted in (tag, tag.removeprefix("W/"), f'"x", {tag}', "*"):
                again = await root.ask("GET", path, if_none_match=wanted)
                assert (again.status_code, again.content) == (304, b""), wanted
                assert again.headers["etag"] == tag
                assert "content-type" not in again.headers
            assert (await root.ask("GET", path, if_none_match='"x"')).status_code == 200
        tag = (await root.ask("GET", "/streams")).headers["etag"]
        await root.put("/streams/s", {"name": "renamed"})
        assert (await root.ask("GET", "/streams", if_none_match=tag)).status_code == 200


async def test_a_not_modified_response_has_the_vary_header_of_the_full_one(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        root = world.root
        await root.post("/streams", {"name": "s" * 255})
        for count, vary in ((1, None), (8, "accept-encoding")):
            for number in range(count):
                await root.post("/streams", {"name": f"{count} {number}"})
            first = await root.ask("GET", "/streams")
            again = await root.ask("GET", "/streams", if_none_match=first.headers["etag"])
            assert (first.status_code, again.status_code) == (200, 304)
            assert first.headers.get("vary") == again.headers.get("vary") == vary


async def test_only_responses_with_an_etag_may_be_cached(tmp_path: Path) -> None:
    messages = "/streams/s/topics/t/messages"
    async with with_topic(tmp_path) as world:
        for path in ("/stats", "/clients", "/limits", "/metrics", messages, f"{messages}?count=1", "/health/ready"):
            for accept in ("*/*", "application/json, text/plain"):
                response = await world.root.ask("GET", path, accept=accept)
                assert (response.status_code, response.headers["cache-control"]) == (200, "no-store"), path


async def test_metadata_requests_accept_a_consistency(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        root = world.root
        for consistency in ("serializable", "linearizable"):
            assert await root.get(f"/streams?consistency={consistency}") == []
            unknown = await root.refused("GET", f"/streams?unknown=1&consistency={consistency}")
            assert unknown == (400, 400, "unknown")
        assert await root.refused("GET", "/streams?consistency=perhaps") == (400, 400, "consistency")
