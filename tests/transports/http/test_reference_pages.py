"""The pages of the reference about HTTP, on a live server: what no other test covers."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
import xxhash

from tests.app.access.support.world import ROOT
from tests.transports.http.support.reference import (
    ANY_ORIGIN,
    GROUPS,
    LOGIN,
    MESSAGES,
    OFFSETS,
    ONE,
    PATS,
    TOPIC,
    Live,
    on,
)
from whippet.app.access.access_tokens import AccessTokens
from whippet.app.commands import requests
from whippet.app.config.listeners import Http, HttpJwt
from whippet.app.errors import TABLE

# ------------------------------------------------------------------------------------------------- order of checks


def test_a_request_is_checked_in_order_from_path_to_operation(tmp_path: Path) -> None:
    """Token, path, query or body, values of fields, existence, permission: the first error is reported."""

    async def test(live: Live) -> None:
        await live.root.post("/users", {"username": "alice", "password": "secret", "status": "active"})
        alice = await live.log_in(username="alice", password="secret")
        await live.topic()
        nowhere = "/streams/nowhere/topics/t"
        assert (await live.stranger.ask("DELETE", f"{nowhere}/partitions/x")).status_code == 401
        assert (await alice.refused("DELETE", f"{nowhere}/partitions/x"))[2] == "partition"
        assert (await alice.refused("DELETE", f"{nowhere}/partitions/0"))[2] == "segments_count"
        assert (await alice.refused("POST", f"{nowhere}/partitions", {}))[0] == 422
        assert (await alice.refused("POST", "/streams/nowhere/topics", {"name": "", "partitions_count": 1}))[1] == 2014
        assert (await alice.refused("POST", f"{nowhere}/partitions", {"partitions_count": 1}))[1] == 1009
        assert (await alice.refused("POST", f"{TOPIC}/partitions", {"partitions_count": 1}))[0] == 403
        assert (await live.root.refused("POST", f"{TOPIC}/partitions", {"partitions_count": 0}))[1] == 2015

    on(tmp_path, test)


# ------------------------------------------------------------------------------------------------- headers of responses


def test_every_success_of_the_api_has_the_view_header_and_nothing_else_does(tmp_path: Path) -> None:
    async def test(live: Live) -> None:
        await live.topic()
        for method, path, body in (
            ("GET", "/streams", None),
            ("PUT", "/streams/s", {"name": "s"}),
            ("POST", MESSAGES, ONE),
            ("POST", f"{MESSAGES}?ack=none", ONE),
            ("GET", f"{MESSAGES}/flush/0/true", None),
            ("POST", GROUPS, {"name": "g"}),
            ("POST", "/users/login", LOGIN),
            ("POST", PATS, {"name": "ci-token", "expiry": 0}),
            ("POST", "/snapshot", {"compression": "Stored", "snapshot_types": ["Test"]}),
        ):
            response = await live.root.ask(method, path, body)
            assert response.is_success
            assert response.headers["iggy-view"] == "0", path
        for method, path, body in (
            ("GET", "/ping", None),
            ("GET", "/streams/nowhere", None),
            ("POST", "/streams", {"name": "s"}),
            ("GET", "/nowhere", None),
        ):
            assert "iggy-view" not in (await live.root.ask(method, path, body)).headers, path
        other = await live.root.ask("GET", "/streams", origin="http://x")
        assert other.headers["access-control-expose-headers"] == "iggy-view"

    on(tmp_path, test, ANY_ORIGIN)


def test_allowed_methods_are_returned_without_a_token(tmp_path: Path) -> None:
    async def test(live: Live) -> None:
        for method, path, allowed in (
            ("PATCH", "/streams", "GET, HEAD, POST"),
            ("POST", "/streams/s/purge", "DELETE"),
            ("GET", "/users/login", None),
            ("PUT", MESSAGES, "GET, HEAD, POST"),
        ):
            response = await live.stranger.ask(method, path)
            if allowed is None:
                assert response.status_code == 401, "which is the user called login"
            else:
                assert (response.status_code, response.headers["allow"]) == (405, allowed)

    on(tmp_path, test)


# ------------------------------------------------------------------------------------------------- refreshing


def test_failed_refreshes_have_the_error_numbers_of_the_reference(tmp_path: Path) -> None:
    """2.5, and 3.4 of 0.9 for the empty one."""

    async def test(live: Live) -> None:
        token = (await live.log_in()).token or ""
        head, claims, signature = token.split(".")
        sha512 = Http(jwt=HttpJwt(algorithm="HS512"))
        gateway = live.world.world.gateway
        other = await AccessTokens.open(sha512.jwt, live.world.world.store.options.path, gateway.users, gateway.clock)
        pat = (await live.root.post(PATS, {"name": "ci-token", "expiry": 0}))["token"]
        for text, expected in (
            ("", (401, 40)),
            ("x", (401, 78)),
            ("x.y.z", (401, 78)),
            (pat, (401, 78)),
            (f"{head}.{claims}.{signature[:-4]}AAAA", (401, 40)),
            (other.issue(gateway.users.root).text, (400, 73)),
        ):
            assert (await live.stranger.refused("POST", "/users/refresh-token", {"token": text}))[:2] == expected, text
        live.world.world.clock.now += 3_606 * 1_000_000
        body = {"token": token}
        assert (await live.stranger.refused("POST", "/users/refresh-token", body))[:2] == (401, 40)
        await other.close()

    on(tmp_path, test)


# ------------------------------------------------------------------------------------------------- topics


def test_a_top_level_field_wins_over_an_option_unless_it_is_a_default(tmp_path: Path) -> None:
    """0.9, 5.3 and 6.3."""

    async def test(live: Live) -> None:
        options = {"compression_algorithm": "gzip", "message_expiry": "7 days", "max_topic_size": "2 GiB"}
        nothing = {"compression_algorithm": "none", "message_expiry": 0, "max_topic_size": 0}
        made = await live.topic(**nothing, options=options)
        assert (made["compression_algorithm"], made["message_expiry"]) == ("gzip", 604_800_000_000)
        assert made["max_topic_size"] == 2**31
        assert made["options"]["message_expiry"] == {"value": "604800000000", "explicit": True, "kind": "uint64"}
        body = {"name": "u", "partitions_count": 1, "message_expiry": 5, "max_topic_size": 2**33, "options": options}
        other = await live.root.post("/streams/s/topics", body)
        assert (other["message_expiry"], other["max_topic_size"]) == (5, 2**33)
        await live.root.put(TOPIC, {"name": "t", "options": {"message_expiry": "1 day"}})
        assert (await live.root.get(TOPIC))["message_expiry"] == 86_400_000_000
        for size in (1, 2**30 - 1):
            for method, path, more in (("PUT", TOPIC, {}), ("POST", "/streams/s/topics", {"partitions_count": 1})):
                body = {"name": "x", "max_topic_size": size, **more}
                assert await live.root.refused(method, path, body) == (400, 1019, None)
        for key in ("segment_size", "durability", "preallocate_segments"):
            changed = {"name": "t", "options": {key: "1"}}
            assert await live.root.refused("PUT", TOPIC, changed) == (400, 4041, None)

    on(tmp_path, test)


@pytest.mark.parametrize(
    ("option", "code"),
    [
        ({"durability": ""}, 4042),
        ({"durability": "x" * 256}, 4042),
        ({"durability": "synced"}, 4042),
        ({"segment_size": "513"}, 4042),
        ({"segment_size": str(2**30 + 512)}, 4042),
        ({"messages_required_to_save": "0"}, 4042),
        ({"messages_required_to_save": "16777217"}, 4042),
        ({"size_of_messages_required_to_save": str(2**30 + 1)}, 4042),
        ({"preallocate_segments": "perhaps"}, 4042),
        ({"message_expiry": "soon"}, 4042),
        ({"compression_algorithm": "lz4"}, 4042),
        ({f"key {i}": "x" for i in range(1025)}, 4043),
    ],
)
def test_options_have_limits(tmp_path: Path, option: dict[str, str], code: int) -> None:
    async def test(live: Live) -> None:
        await live.topic()
        body = {"name": "x", "partitions_count": 1, "options": option}
        assert await live.root.refused("POST", "/streams/s/topics", body) == (400, code, None)
        unknown = {"options": {"k": "v"}}
        assert await live.root.refused("PUT", "/streams/s", {"name": "s", **unknown}) == (400, 4041, None)
        assert await live.root.refused("PUT", "/users/root", unknown) == (400, 4041, None)

    on(tmp_path, test)


def test_an_algorithm_that_sdks_do_not_know_is_returned_as_gzip(tmp_path: Path) -> None:
    """0.9, section 11: with any other name, every wheel refuses the whole response."""

    async def test(live: Live) -> None:
        await live.topic(compression_algorithm="gzip")
        root = await live.world.world.root()
        await root.execute(requests.CreateTopic("s", "other", 1, compression_algorithm=3))
        for found in (await live.root.get("/streams/s/topics"), (await live.root.get("/streams/s"))["topics"]):
            assert [each["compression_algorithm"] for each in found] == ["gzip", "gzip"]
        other = await live.root.get("/streams/s/topics/other")
        assert other["compression_algorithm"] == "gzip"

    on(tmp_path, test)


def test_preallocation_is_limited_over_all_partitions(tmp_path: Path) -> None:
    async def test(live: Live) -> None:
        await live.topic()
        options = {"preallocate_segments": "true", "segment_size": "1 GiB"}
        body = {"name": "x", "partitions_count": 65, "options": options}
        assert await live.root.refused("POST", "/streams/s/topics", body) == (400, 4042, None)

    on(tmp_path, test)


# ------------------------------------------------------------------------------------------------- messages


def test_a_key_and_a_name_of_a_consumer_are_hashed_as_sdks_do(tmp_path: Path) -> None:
    async def test(live: Live) -> None:
        await live.topic()
        for key in (b"user-1", b"\xff\x00", b"k" * 255, b"x"):
            to = {"kind": "messages_key", "value": base64.b64encode(key).decode()}
            reply = await live.root.post(MESSAGES, ONE | {"partitioning": to})
            assert reply["confirmations"][0]["partition_id"] == xxhash.xxh32_intdigest(key, 0) % 3
        await live.root.post(MESSAGES, ONE)
        await live.root.put(OFFSETS, {"consumer_id": "billing", "offset": 0})
        number = xxhash.xxh32_intdigest(b"billing", 0)
        assert (await live.root.get(f"{OFFSETS}?consumer_id={number}"))["stored_offset"] == 0
        await live.root.delete(f"{OFFSETS}/{number}")
        assert (await live.root.refused("GET", f"{OFFSETS}?consumer_id=billing"))[0] == 404

    on(tmp_path, test)


def test_auto_commit_never_lowers_an_offset_and_storing_may(tmp_path: Path) -> None:
    """0.9, 14.4."""

    async def test(live: Live) -> None:
        await live.topic()
        for _ in range(3):
            await live.root.post(MESSAGES, ONE)
        await live.root.put(OFFSETS, {"offset": 2})
        await live.root.get(f"{MESSAGES}?kind=first&count=1&auto_commit=true")
        assert (await live.root.get(OFFSETS))["stored_offset"] == 2
        await live.root.put(OFFSETS, {"offset": 1})
        assert (await live.root.get(OFFSETS))["stored_offset"] == 1

    on(tmp_path, test)


def test_messages_of_one_request_share_their_time_and_are_contiguous(tmp_path: Path) -> None:
    async def test(live: Live) -> None:
        await live.topic()
        many = {"partitioning": {"kind": "balanced", "value": ""}, "messages": [{"payload": "eA=="}] * 50}
        partition = (await live.root.post(MESSAGES, many))["confirmations"][0]["partition_id"]
        found = (await live.root.get(f"{MESSAGES}?partition_id={partition}&count=50"))["messages"]
        assert [each["header"]["offset"] for each in found] == list(range(50))
        assert len({each["header"]["timestamp"] for each in found}) == 1

    on(tmp_path, test)


# ------------------------------------------------------------------------------------------------- others


def test_renaming_to_the_same_name_is_allowed_and_to_another_existing_one_is_not(tmp_path: Path) -> None:
    async def test(live: Live) -> None:
        await live.topic()
        await live.root.post("/streams", {"name": "other"})
        await live.root.post("/streams/s/topics", {"name": "other", "partitions_count": 1})
        for name in ("alice", "bob"):
            await live.root.post("/users", {"username": name, "password": "secret", "status": "active"})
        for path, own, another, code in (
            ("/streams/s", {"name": "s"}, {"name": "other"}, 1012),
            (TOPIC, {"name": "t"}, {"name": "other"}, 2013),
            ("/users/alice", {"username": "alice"}, {"username": "bob"}, 46),
        ):
            await live.root.put(path, own)
            assert (await live.root.refused("PUT", path, another))[:2] == (400, code)

    on(tmp_path, test)


def test_the_number_of_tokens_per_user_is_limited(tmp_path: Path) -> None:
    async def test(live: Live) -> None:
        for name in ("one", "two"):
            await live.root.post(PATS, {"name": name, "expiry": 0})
        # The number is checked before the name (0.9, section 9).
        for name in ("three", "one"):
            assert await live.root.refused("POST", PATS, {"name": name, "expiry": 0}) == (400, 52, None)

    on(tmp_path, test, tokens_max=2)


def test_the_number_of_users_is_limited(tmp_path: Path) -> None:
    async def test(live: Live) -> None:
        body = {"username": "alice", "password": "secret", "status": "active"}
        assert await live.root.refused("POST", "/users", body) == (400, 55, None)

    on(tmp_path, test, users_max=1)


def test_a_snapshot_has_a_text_for_each_type(tmp_path: Path) -> None:
    async def test(live: Live) -> None:
        types = ("FilesystemOverview", "ProcessList", "ResourceUsage", "Test", "ServerLogs", "ServerConfig")
        for compression in ("Stored", "Deflated", "Bzip2", "Zstd", "Lzma", "Xz"):
            body = {"compression": compression, "snapshot_types": list(types)}
            response = await live.root.ask("POST", "/snapshot", body)
            assert response.status_code == 200, compression
            for name in (
                "filesystem_overview",
                "process_list",
                "resource_usage",
                "test",
                "server_logs",
                "server_config",
            ):
                assert f"{name}.txt".encode() in response.content
            assert ROOT["IGGY_ROOT_PASSWORD"].encode() not in response.content

    on(tmp_path, test)


FIELDS = {
    "stream_id": (1009, 1014),
    "topic_id": (2010, 2016),
    "partition_id": (3007,),
    "segment_id": (4000,),
    "client_id": (100,),
    "name": (1013, 1012, 2014, 2013, 5004, 51),
    "offset": (4100,),
    "consumer_group_id": (5002,),
    "username": (46,),
}
"""3.3"""
NOT_FOUND = (1009, 2010, 3007, 4000, 100, 5000, 5003, 5006, 3021, 20)
UNAUTHORIZED = (40, 77, 78, 53)
SINCE_0_9 = {85, 87, 90, 92, 93, 94, 95, 4103, 4104, 4105, 4106, 4108}
"""Numbers that the page does not have yet."""
LAST = 14_003
"""The last number of the reference; higher ones are those of Whippet."""


def test_every_error_has_the_status_and_the_field_of_the_reference() -> None:
    fields = {number: name for name, numbers in FIELDS.items() for number in numbers}
    for code, row in TABLE.items():
        assert row.field == fields.get(code), code
        if code in SINCE_0_9 or code == 59 or code > LAST:
            # 59 is 400 on the page; here it refuses a numbered send whose response is forgotten.
            continue
        status = 404 if code in NOT_FOUND else 401 if code in UNAUTHORIZED else 403 if code == 41 else 400
        assert row.status == (503 if code in (57, 58) else status), code
