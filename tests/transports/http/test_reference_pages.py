"""The pages of the reference about HTTP, on a live server: both checklists, and what no other test states.

The numbers in front of the checklists' tests are those of the pages (0.8: section 16; 0.9: section 17).
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import xxhash

from tests.app.access.support.world import ROOT
from tests.support.running import run
from tests.transports.http.support.calling import Caller
from tests.transports.http.support.serving import Serving, serving
from whippet.app.access.access_tokens import AccessTokens
from whippet.app.commands import requests
from whippet.app.config.listeners import Http, HttpCors, HttpJwt, HttpLimits
from whippet.app.errors import TABLE

U64_MAX = 2**64 - 1
TOPIC = "/streams/s/topics/t"
MESSAGES, OFFSETS, GROUPS = f"{TOPIC}/messages", f"{TOPIC}/consumer-offsets", f"{TOPIC}/consumer-groups"
PATS = "/personal-access-tokens"
LOGIN = {"username": ROOT["IGGY_ROOT_USERNAME"], "password": ROOT["IGGY_ROOT_PASSWORD"]}
FIRST = {"kind": "partition_id", "value": "AAAAAA=="}
ONE = {"partitioning": FIRST, "messages": [{"payload": "aGVsbG8="}]}
Test = Callable[["Live"], Awaitable[None]]
ANY_ORIGIN = Http(cors=HttpCors(allowed_origins=("*",)))
"""As Iggy has it by default."""


class Live:
    """Root and a stranger, by a real client on real connections."""

    def __init__(self, world: Serving, client: httpx.AsyncClient) -> None:
        self.world = world
        self.client = client
        self.root = Caller(client, world.token)
        self.stranger = Caller(client)

    async def log_in(self, **login: str) -> Caller:
        said = await self.stranger.post("/users/login", LOGIN | login)
        return Caller(self.client, said["access_token"]["token"])

    async def topic(self, **more: Any) -> dict[str, Any]:
        await self.root.ask("POST", "/streams", {"name": "s"})
        body = {"name": "t", "partitions_count": 3, **more}
        found: dict[str, Any] = await self.root.post("/streams/s/topics", body)
        return found


@contextlib.asynccontextmanager
async def living(path: Path, config: Http | None = None, **store: Any) -> AsyncIterator[Live]:
    async with serving(path, config, store=store) as world:
        base = f"http://127.0.0.1:{world.server.address.port}"
        async with httpx.AsyncClient(base_url=base, trust_env=False) as client:
            yield Live(world, client)


def on(tmp_path: Path, test: Test, config: Http | None = None, **store: Any) -> None:
    async def main() -> None:
        async with living(tmp_path, config, **store) as live:
            await test(live)

    run(main())


# ------------------------------------------------------------------------------------------------- 0.8, section 16


def test_08_01_to_02_logging_in_and_what_is_told_without_a_token(tmp_path: Path) -> None:
    async def test(live: Live) -> None:
        said = await live.stranger.post("/users/login", LOGIN)
        assert said["user_id"] == 0
        assert 10**9 < said["access_token"]["expiry"] < 10**10, "in seconds"
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
        # 0.9 wins: 404 with 20 before.
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
        asked = {"origin": "http://x", "access-control-request-method": "GET"}
        response = await live.client.options("/streams", headers=asked)
        assert (response.status_code, response.content) == (200, b"")
        assert response.headers["access-control-allow-origin"] == "*"
        assert response.headers["access-control-allow-methods"] == "GET,POST,PUT,DELETE"
        assert response.headers["access-control-allow-headers"] == "content-type,authorization"
        vary = "origin, access-control-request-method, access-control-request-headers"
        assert response.headers["vary"] == vary

    on(tmp_path, test, ANY_ORIGIN)


def test_08_17_what_is_wrong_with_a_body(tmp_path: Path) -> None:
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


def test_09_01_public_paths_do_not_look_at_the_header(tmp_path: Path) -> None:
    async def test(live: Live) -> None:
        pat = await live.root.post(PATS, {"name": "ci-token", "expiry": 0})
        for bearer in ("Bearer ", "Bearer", "", "Bearer x", "Basic x", "Bearer \xff"):
            # As bytes: a client library sends no empty bearer.
            link = await live.world.link()
            header = f"Host: localhost\r\nAuthorization: {bearer}\r\n"
            ping = await link.ask(f"GET /ping HTTP/1.1\r\n{header}\r\n".encode("latin-1"))
            assert (ping.status, ping.body) == (200, b"pong")
            for path, said in (("/users/login", LOGIN), (f"{PATS}/login", pat)):
                body = msgspec.json.encode(said)
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


def test_09_08_to_10_what_there_is_to_be_read(tmp_path: Path) -> None:
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


def test_09_11_who_is_handed_which_form_of_user_headers(tmp_path: Path) -> None:
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


def test_09_13_a_connection_rests_longer_than_clients_do() -> None:
    assert HttpLimits().idle_time >= 30


def test_09_14_to_15_a_401_has_a_body_and_metrics_need_no_token(tmp_path: Path) -> None:
    async def test(live: Live) -> None:
        assert await Caller(live.client, "wrong").refused("GET", "/streams") == (401, 40, None)
        assert await live.stranger.refused("GET", "/streams") == (401, 77, None)
        for token in (None, live.root.token, "wrong"):
            assert (await Caller(live.client, token).ask("GET", "/metrics")).status_code == 200

    on(tmp_path, test)


def test_09_17_to_18_a_refreshed_token_lives_on_and_what_is_surplus_is_ignored(tmp_path: Path) -> None:
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


# ------------------------------------------------------------------------------------------------- in what order


def test_a_request_is_looked_at_from_its_path_to_its_operation(tmp_path: Path) -> None:
    """Token, path, query or body, what a field may be, what there is, who may: the first that is wrong is told."""

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


# ------------------------------------------------------------------------------------------------- headers of answers


def test_every_success_of_the_api_says_its_view_and_nothing_else_does(tmp_path: Path) -> None:
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


def test_what_a_method_may_be_is_told_without_a_token(tmp_path: Path) -> None:
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


def test_why_a_token_cannot_be_refreshed_has_the_numbers_of_the_reference(tmp_path: Path) -> None:
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


def test_what_stands_at_the_top_wins_over_an_option_unless_it_says_nothing(tmp_path: Path) -> None:
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
        ({"compression_algorithm": "zstd"}, 4042),
        ({f"key {i}": "x" for i in range(1025)}, 4043),
    ],
)
def test_options_have_bounds(tmp_path: Path, option: dict[str, str], code: int) -> None:
    async def test(live: Live) -> None:
        await live.topic()
        body = {"name": "x", "partitions_count": 1, "options": option}
        assert await live.root.refused("POST", "/streams/s/topics", body) == (400, code, None)
        unknown = {"options": {"k": "v"}}
        assert await live.root.refused("PUT", "/streams/s", {"name": "s", **unknown}) == (400, 4041, None)
        assert await live.root.refused("PUT", "/users/root", unknown) == (400, 4041, None)

    on(tmp_path, test)


def test_an_algorithm_that_sdks_cannot_read_is_none_to_them(tmp_path: Path) -> None:
    """0.9, section 11: another name than those two makes every wheel refuse the whole answer."""

    async def test(live: Live) -> None:
        await live.topic(compression_algorithm="gzip")
        root = await live.world.world.root()
        await root.ask(requests.CreateTopic("s", "other", 1, compression_algorithm=3))
        for found in (await live.root.get("/streams/s/topics"), (await live.root.get("/streams/s"))["topics"]):
            assert [each["compression_algorithm"] for each in found] == ["gzip", "none"]
        assert (await live.root.get("/streams/s/topics/other"))["compression_algorithm"] == "none"

    on(tmp_path, test)


def test_preallocation_has_a_bound_over_all_partitions(tmp_path: Path) -> None:
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
            said = await live.root.post(MESSAGES, ONE | {"partitioning": to})
            assert said["confirmations"][0]["partition_id"] == xxhash.xxh32_intdigest(key, 0) % 3
        await live.root.post(MESSAGES, ONE)
        await live.root.put(OFFSETS, {"consumer_id": "billing", "offset": 0})
        number = xxhash.xxh32_intdigest(b"billing", 0)
        assert (await live.root.get(f"{OFFSETS}?consumer_id={number}"))["stored_offset"] == 0
        await live.root.delete(f"{OFFSETS}/{number}")
        assert (await live.root.refused("GET", f"{OFFSETS}?consumer_id=billing"))[0] == 404

    on(tmp_path, test)


def test_auto_commit_never_goes_back_and_storing_may(tmp_path: Path) -> None:
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


def test_messages_of_one_request_have_one_time_and_follow_each_other(tmp_path: Path) -> None:
    async def test(live: Live) -> None:
        await live.topic()
        many = {"partitioning": {"kind": "balanced", "value": ""}, "messages": [{"payload": "eA=="}] * 50}
        partition = (await live.root.post(MESSAGES, many))["confirmations"][0]["partition_id"]
        found = (await live.root.get(f"{MESSAGES}?partition_id={partition}&count=50"))["messages"]
        assert [each["header"]["offset"] for each in found] == list(range(50))
        assert len({each["header"]["timestamp"] for each in found}) == 1

    on(tmp_path, test)


# ------------------------------------------------------------------------------------------------- the rest


def test_renaming_to_the_own_name_is_no_conflict_and_to_anothers_is(tmp_path: Path) -> None:
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


def test_a_user_has_so_many_tokens(tmp_path: Path) -> None:
    async def test(live: Live) -> None:
        for name in ("one", "two"):
            await live.root.post(PATS, {"name": name, "expiry": 0})
        # The number is checked before the name (0.9, section 9).
        for name in ("three", "one"):
            assert await live.root.refused("POST", PATS, {"name": name, "expiry": 0}) == (400, 52, None)

    on(tmp_path, test, tokens_max=2)


def test_there_are_so_many_users(tmp_path: Path) -> None:
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
"""Numbers that the page does not know yet."""
LAST = 14_003
"""Of the reference; what is beyond is ours."""


def test_every_error_has_the_status_and_the_field_of_the_page() -> None:
    fields = {number: name for name, numbers in FIELDS.items() for number in numbers}
    for code, row in TABLE.items():
        assert row.field == fields.get(code), code
        if code in SINCE_0_9 or code == 59 or code > LAST:
            # 59 is 400 on the page; here it is what a numbered send is told whose answer is forgotten.
            continue
        status = 404 if code in NOT_FOUND else 401 if code in UNAUTHORIZED else 403 if code == 41 else 400
        assert row.status == (503 if code in (57, 58) else status), code
