"""The two checklists of the reference about HTTP, on a live server.

The numbers in the names of the tests are those of the pages (0.8: section 16; 0.9: section 17).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from tests.transports.http.support.calling import Caller
from tests.transports.http.support.reference import (
    ANY_ORIGIN,
    FIRST,
    GROUPS,
    LOGIN,
    MESSAGES,
    OFFSETS,
    ONE,
    PATS,
    TOPIC,
    U64_MAX,
    Live,
    on,
)
from whippet.app.config.listeners import HttpLimits

# ------------------------------------------------------------------------------------------------- 0.8, section 16


def test_08_01_to_02_logging_in_and_requests_without_a_token(tmp_path: Path) -> None:
    async def test(live: Live) -> None:
        reply = await live.stranger.post("/users/login", LOGIN)
        assert reply["user_id"] == 0
        assert 10**9 < reply["access_token"]["expiry"] < 10**10, "in seconds"
        wrong = LOGIN | {"password": "wrong"}
        assert await live.stranger.refused("POST", "/users/login", wrong) == (400, 42, None)
        for token in (None, "garbage"):
            for path in ("/streams", "/streams/s", "/users", "/stats"):
                assert (await Caller(live.client, token).ask("GET", path)).status_code == 401

    on(tmp_path, test)


def test_08_03_to_04_creating(tmp_path: Path) -> None:
    async def test(live: Live) -> None:
        response = await live.root.ask("POST", "/streams", {"name": "s"})
        assert response.status_code == 200
        assert (response.json()["id"], response.json()["topics"]) == (0, [])
        assert await live.root.refused("POST", "/streams", {"name": "s"}) == (400, 1012, "name")
        made = await live.topic(message_expiry=0, max_topic_size=0)
        assert (made["message_expiry"], made["max_topic_size"]) == (U64_MAX, U64_MAX)

    on(tmp_path, test)


def test_08_05_to_08_messages_and_offsets(tmp_path: Path) -> None:
    async def test(live: Live) -> None:
        await live.topic()
        assert (await live.root.ask("POST", MESSAGES, ONE)).status_code == 201
        assert (await live.root.ask("POST", MESSAGES, ONE)).status_code == 201
        polled = await live.root.get(f"{MESSAGES}?kind=offset&value=0&count=10")
        assert [each["header"]["offset"] for each in polled["messages"]] == [0, 1]
        assert [each["user_headers"] for each in polled["messages"]] == [[], []]
        refused = await live.root.ask("PUT", OFFSETS, {"offset": 2})
        assert refused.status_code == 400
        assert '"id":4100' in refused.text
        assert (await live.root.refused("GET", OFFSETS))[0] == 404
        assert await live.root.refused("DELETE", f"{OFFSETS}/1") == (404, 3021, None)
        assert (await live.root.ask("POST", f"{TOPIC}/purge")).status_code == 405
        await live.root.delete(f"{TOPIC}/purge")
        polled = await live.root.get(f"{MESSAGES}?kind=offset&value=0&count=10")
        assert (polled["current_offset"], polled["count"]) == (0, 0)

    on(tmp_path, test)


def test_08_09_to_10_groups_and_partitions(tmp_path: Path) -> None:
    async def test(live: Live) -> None:
        await live.topic()
        response = await live.root.ask("POST", GROUPS, {"name": "g"})
        assert response.status_code == 201
        assert (response.json()["members"], response.json()["partitions_count"]) == ([], 3)
        assert (await live.root.refused("DELETE", f"{TOPIC}/partitions?partitions_count=4"))[:2] == (400, 2019)

    on(tmp_path, test)


def test_08_11_to_12_tokens(tmp_path: Path) -> None:
    async def test(live: Live) -> None:
        first = await live.log_in()
        body = {"token": first.token}
        assert (await live.stranger.post("/users/refresh-token", body))["user_id"] == 0
        assert await live.stranger.refused("POST", "/users/refresh-token", body) == (401, 78, None)
        await first.delete("/users/logout")
        assert (await first.ask("GET", "/streams")).status_code == 401
        response = await live.root.ask("POST", PATS, {"name": "ci-token", "expiry": 0})
        assert (response.status_code, list(response.json())) == (200, ["token"])
        assert (await live.stranger.post(f"{PATS}/login", response.json()))["user_id"] == 0
        await live.root.delete(f"{PATS}/ci-token")
        # 0.9 takes precedence: 404 with 20 before.
        assert await live.stranger.refused("POST", f"{PATS}/login", response.json()) == (401, 53, None)

    on(tmp_path, test)


def test_08_13_to_14_users(tmp_path: Path) -> None:
    async def test(live: Live) -> None:
        made = await live.root.post("/users", {"username": "alice", "password": "secret", "status": "active"})
        alice = await live.log_in(username="alice", password="secret")
        assert await alice.refused("GET", "/streams") == (403, 41, None)
        assert await alice.get(f"/users/{made['id']}") == made
        assert await live.root.refused("DELETE", "/users/0") == (400, 48, None)
        assert await live.root.refused("PUT", "/users/0/permissions", {"permissions": None}) == (400, 49, None)

    on(tmp_path, test)


def test_08_15_to_16_metrics_and_preflights(tmp_path: Path) -> None:
    async def test(live: Live) -> None:
        openmetrics = {"accept": "application/openmetrics-text; version=1.0.0"}
        text = (await live.client.get("/metrics", headers=openmetrics)).text
        assert text.endswith("# EOF\n")
        names = {line.split("{")[0].split(" ")[0] for line in text.splitlines() if not line.startswith("#")}
        gauges = {"streams", "topics", "partitions", "segments", "messages", "users", "clients"}
        assert {"http_requests_total", *gauges} <= names
        preflight = {"origin": "http://x", "access-control-request-method": "GET"}
        response = await live.client.options("/streams", headers=preflight)
        assert (response.status_code, response.content) == (200, b"")
        assert response.headers["access-control-allow-origin"] == "*"
        assert response.headers["access-control-allow-methods"] == "GET,POST,PUT,DELETE"
        assert response.headers["access-control-allow-headers"] == "content-type,authorization"
        vary = "origin, access-control-request-method, access-control-request-headers"
        assert response.headers["vary"] == vary

    on(tmp_path, test, ANY_ORIGIN)


def test_08_17_invalid_bodies(tmp_path: Path) -> None:
    async def test(live: Live) -> None:
        bearer = {"authorization": f"Bearer {live.root.token}"}
        for content, headers, status, begins in (
            (b'{"name":"s"}', {}, 415, "Expected request with `Content-Type: application/json`"),
            (b"{}", {"content-type": "application/json"}, 422, "Failed to deserialize the JSON body into the target"),
            (b"{", {"content-type": "application/json"}, 400, "Failed to parse the request body as JSON: "),
            (b" " * 2_000_001, {"content-type": "application/json"}, 413, "Failed to buffer the request body: length"),
        ):
            response = await live.client.post("/streams", content=content, headers=bearer | headers)
            assert response.status_code == status
            assert response.json()["reason"].startswith(begins)
        assert (await live.root.ask("POST", "/streams", b" " * 1_999_987 + b'{"name":"s"}')).status_code == 200

    on(tmp_path, test)


def test_08_18_to_20_numbers_and_flushing(tmp_path: Path) -> None:
    async def test(live: Live) -> None:
        made = await live.topic(message_expiry=U64_MAX, max_topic_size=U64_MAX)
        assert (made["message_expiry"], made["max_topic_size"], made["size"]) == (U64_MAX, U64_MAX, "0 B")
        ids = (2**64, 2**128 - 1, str(2**64 + 1), "0123abcd-4567-89ab-cdef-0123456789ab")
        await live.root.post(MESSAGES, {"partitioning": FIRST, "messages": [{"id": i, "payload": "eA=="} for i in ids]})
        text = (await live.root.ask("GET", MESSAGES)).text
        for number in (2**64, 2**128 - 1, 2**64 + 1, 0x0123ABCD456789ABCDEF0123456789AB):
            assert f'"id":{number},' in text
        for path in ("0/true", "0/fsync=true?partition_id=0&fsync=true"):
            response = await live.root.ask("GET", f"{MESSAGES}/flush/{path}")
            assert (response.status_code, response.content) == (200, b"")

    on(tmp_path, test)


# ------------------------------------------------------------------------------------------------- 0.9, section 17


def test_09_01_public_paths_ignore_the_header(tmp_path: Path) -> None:
    async def test(live: Live) -> None:
        pat = await live.root.post(PATS, {"name": "ci-token", "expiry": 0})
        for bearer in ("Bearer ", "Bearer", "", "Bearer x", "Basic x", "Bearer \xff"):
            # As bytes, because client libraries do not send an empty bearer.
            link = await live.world.link()
            header = f"Host: localhost\r\nAuthorization: {bearer}\r\n"
            ping = await link.ask(f"GET /ping HTTP/1.1\r\n{header}\r\n".encode("latin-1"))
            assert (ping.status, ping.body) == (200, b"pong")
            for path, reply in (("/users/login", LOGIN), (f"{PATS}/login", pat)):
                body = msgspec.json.encode(reply)
                more = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
                login = await link.ask(f"POST {path} HTTP/1.1\r\n{header}{more}".encode("latin-1") + body)
                assert login.status == 200, bearer

    on(tmp_path, test)


def test_09_02_to_05_topics_and_their_options(tmp_path: Path) -> None:
    async def test(live: Live) -> None:
        wheel = {
            **{"compression_algorithm": "none", "message_expiry": 0, "max_topic_size": 0},
            "options": {"consumer_offset_durability": "persisted", "durability": "Replicated"},
        }
        made = await live.topic(**wheel)
        assert made["replication_factor"] == 1
        assert len(made["options"]) == 9
        assert all(each["value"] and isinstance(each["value"], str) for each in made["options"].values())
        assert made["options"]["durability"] == {"value": "replicated", "explicit": True, "kind": "string"}
        assert made["options"]["consumer_offset_durability"] == {
            "value": "persisted",
            "explicit": True,
            "kind": "string",
        }
        limits = {"compression_algorithm": "gzip", "message_expiry": 5, "max_topic_size": 2**33}
        await live.root.put(TOPIC, {"name": "t", **limits})
        for keeping in (None, 0):
            kept: dict[str, Any] = {
                "compression_algorithm": None,
                "message_expiry": keeping,
                "max_topic_size": keeping,
                "options": {},
            }
            await live.root.put(TOPIC, {"name": "t", **kept})
            found = await live.root.get(TOPIC)
            assert {name: found[name] for name in limits} == limits
            assert found["options"]["message_expiry"] == {"value": "5", "explicit": True, "kind": "uint64"}
        for key in ("fsync", "", "x" * 256, "Durability"):
            body = {"name": "x", "partitions_count": 1, "options": {key: "true"}}
            assert await live.root.refused("POST", "/streams/s/topics", body) == (400, 4041, None), key

    on(tmp_path, test)


def test_09_06_to_07_sends_and_personal_tokens(tmp_path: Path) -> None:
    async def test(live: Live) -> None:
        await live.topic()
        raw = (await live.root.post(PATS, {"name": "ci-token", "expiry": 0}))["token"]
        program = Caller(live.client, raw)
        for offset in range(2):
            response = await program.ask("POST", MESSAGES, ONE)
            assert response.status_code == 201
            assert response.headers["iggy-durability"] == "replicated"
            confirmation = {"stream_id": 0, "topic_id": 0, "partition_id": 0, "base_offset": offset}
            assert response.json() == {"confirmations": [confirmation]}
        unheard = await program.ask("POST", f"{MESSAGES}?ack=none", ONE)
        assert (unheard.status_code, unheard.content, unheard.headers["iggy-durability"]) == (202, b"", "none")
        for path in ("/streams", "/stats", "/users/me", "/clients", PATS, "/metrics"):
            assert (await program.ask("GET", path)).status_code == 200
        await program.delete("/users/logout")
        assert (await program.ask("GET", "/streams")).status_code == 200

    on(tmp_path, test)


def test_09_08_to_10_polled_messages_and_offsets(tmp_path: Path) -> None:
    async def test(live: Live) -> None:
        described = {each["key"]: each for each in await live.root.get("/options/topic")}
        assert described["compression_algorithm"]["default_value"] == list(b"none")
        assert len(described["messages_required_to_save"]["default_value"]) == 4
        assert described["preallocate_segments"]["default_value"] == [0]
        assert all(list(each)[:4] == ["key", "kind", "default_value", "description"] for each in described.values())
        assert await live.root.get("/options/stream") == await live.root.get("/options/user") == []
        assert await live.root.refused("GET", "/options/nope") == (400, 3, None)
        assert (await live.root.get("/users/me"))["username"] == "root"
        assert await live.root.get("/streams/none/topics") == []
        for path in ("/streams/none", "/streams/none/topics/t", "/users/nobody", "/clients/5"):
            assert await live.root.refused("GET", path) == (404, 404, None)

    on(tmp_path, test)


def test_09_11_the_format_of_user_headers_depends_on_the_client(tmp_path: Path) -> None:
    entry = {"key": {"kind": "string", "value": "aw=="}, "value": {"kind": "bool", "value": "AQ=="}}

    async def test(live: Live) -> None:
        await live.topic()
        two = [{"payload": "eA=="}, {"payload": "eA==", "user_headers": [entry]}]
        await live.root.post(MESSAGES, {"partitioning": FIRST, "messages": two})
        old = await live.log_in(version="0.8.0", context="")
        without, having = (await old.get(MESSAGES))["messages"]
        assert "user_headers" not in without
        assert having["user_headers"] == {"k": entry["value"]}
        for version in ("0.9.0", "0.10.0", "0.11.0"):
            new = await live.log_in(version=version, context="")
            assert [each["user_headers"] for each in (await new.get(MESSAGES))["messages"]] == [[], [entry]]

    on(tmp_path, test)


def test_09_13_the_idle_time_is_longer_than_that_of_clients() -> None:
    assert HttpLimits().idle_time >= 30


def test_09_14_to_15_a_401_has_a_body_and_metrics_need_no_token(tmp_path: Path) -> None:
    async def test(live: Live) -> None:
        assert await Caller(live.client, "wrong").refused("GET", "/streams") == (401, 40, None)
        assert await live.stranger.refused("GET", "/streams") == (401, 77, None)
        for token in (None, live.root.token, "wrong"):
            assert (await Caller(live.client, token).ask("GET", "/metrics")).status_code == 200

    on(tmp_path, test)


def test_09_17_to_18_a_refreshed_token_is_valid_and_surplus_fields_are_ignored(tmp_path: Path) -> None:
    async def test(live: Live) -> None:
        first = await live.log_in()
        await live.stranger.post("/users/refresh-token", {"token": first.token, "more": 1})
        assert await first.refused("POST", "/users/refresh-token", {"token": first.token}) == (401, 78, None)
        assert await first.get("/streams") == []
        made = {"name": "s", "replication_factor": 0, "stream_id": 7, "more": [{}]}
        assert (await live.root.post("/streams", made))["id"] == 0
        assert (await live.topic(topic_id=9, stream_id=7, more=None))["id"] == 0
        assert (await live.root.post(GROUPS, {"name": "g", "group_id": 9}))["id"] == 0
        inner = {"kind": "balanced", "value": "", "more": 1}
        await live.root.post(MESSAGES, {"partitioning": inner, "messages": [{"payload": "eA==", "header": {"x": 1}}]})
        status, _, field = await live.root.refused("POST", MESSAGES, ONE | {"options": {}})
        assert (status, field) == (422, "options")

    on(tmp_path, test)
