"""Access over HTTP: logging in and out, tokens of both kinds, users, permissions, and requests without a token."""

from __future__ import annotations

import base64
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from tests.app.access.support.world import ROOT
from tests.transports.http.support.calling import Caller, calling, permissions
from whippet.transports.http import routes

PASSWORD = ROOT["IGGY_ROOT_PASSWORD"]


# ------------------------------------------------------------------------------------------------- logging in


async def test_a_login_returns_a_token_with_its_expiry_in_seconds(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        response = await world.stranger.ask(
            "POST", "/users/login", {"username": "root", "password": PASSWORD, "version": None, "context": "", "x": 1}
        )
        assert response.status_code == 200
        reply = response.json()
        assert list(reply) == ["user_id", "access_token"]
        assert reply["user_id"] == 0
        assert list(reply["access_token"]) == ["token", "expiry"]
        assert reply["access_token"]["expiry"] == world.clock() // 1_000_000 + 3600
        assert response.headers["cache-control"] == "no-store"
        claims = json.loads(base64.urlsafe_b64decode(reply["access_token"]["token"].split(".")[1] + "=="))
        assert claims["sub"] == "0"


async def test_a_failed_login_does_not_reveal_the_reason(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        await world.user("alice")
        await world.root.put("/users/alice", {"status": "inactive"})
        for username, password in (
            ("root", "wrong password"),
            ("nobody", PASSWORD),
            ("0", PASSWORD),
            ("", PASSWORD),
            ("ab", PASSWORD),
            ("x" * 300, PASSWORD),
            ("root", ""),
            ("root", "x" * 101),
            ("alice", "alicealice"),
            ("root\0", PASSWORD),
        ):
            body = {"username": username, "password": password}
            assert await world.stranger.refused("POST", "/users/login", body) == (400, 42, None), username
        malformed: tuple[object, ...] = (
            {},
            {"username": "root"},
            {"username": 1, "password": "x"},
            [],
            {"username": None, "password": "x"},
        )
        for wrong in malformed:
            assert (await world.stranger.refused("POST", "/users/login", wrong))[:2] == (422, 422)
        twice = f'{{"username":"root","password":"wrong","password":"{PASSWORD}"}}'.encode()
        assert await world.stranger.refused("POST", "/users/login", twice) == (422, 422, "password")
        huge = {"username": "root", "password": PASSWORD, "context": "x" * 70_000}
        assert (await world.stranger.refused("POST", "/users/login", huge))[0] == 413


async def test_logins_ignore_the_empty_bearer_that_sdks_send(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        body = {"username": "root", "password": PASSWORD}
        for bearer in ("Bearer ", "Bearer nonsense", "Basic x"):
            response = await world.stranger.ask("POST", "/users/login", body, authorization=bearer)
            assert response.status_code == 200


# ------------------------------------------------------------------------------------------------- bearers


async def test_every_route_that_is_not_public_checks_the_token_first(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        public = set()
        for operation in routes.OPERATIONS:
            path = operation.path
            for name in ("stream", "topic", "group", "user", "consumer", "name", "scope", "fsync", "lease"):
                path = path.replace(f"{{{name}}}", "x")
            path = path.replace("{partition}", "x").replace("{client}", "x")
            response = await world.stranger.ask(operation.method, path, b"no json")
            if operation.public:
                public.add(path)
                assert response.status_code != 401
                continue
            assert response.status_code == 401, path
            assert response.json()["id"] == 77
            assert response.headers["www-authenticate"] == "Bearer"
        logins = {"/users/login", "/users/refresh-token", "/personal-access-tokens/login"}
        assert public == {"/", "/ping", "/metrics", "/health/live", "/health/ready", "/openapi.json", "/docs"} | logins


@pytest.mark.parametrize(
    ("header", "number"),
    [
        ("", 77),
        ("Basic cm9vdDpyb290", 77),
        ("bearer {token}", 77),
        ("BEARER {token}", 77),
        ("Bearer", 77),
        ("Bearer\t{token}", 77),
        ("Token {token}", 77),
        ("Bearer ", 40),
        ("Bearer  {token}", 40),
        ("Bearer {token} ", 40),
        ("Bearer {token},", 40),
        ("Bearer {token}x", 40),
        ("Bearer x.y.z", 40),
        ("Bearer nonsense", 40),
        ("Bearer null", 40),
        ("Bearer ..", 40),
    ],
)
async def test_only_the_exact_bearer_scheme_is_accepted(tmp_path: Path, header: str, number: int) -> None:
    async with calling(tmp_path) as world:
        sent = header.format(token=world.root.token)
        assert await world.stranger.refused("GET", "/streams", authorization=sent) == (401, number, None)


async def test_a_request_with_two_authorization_headers_is_refused(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        twice = [("authorization", f"Bearer {world.root.token}"), ("authorization", "Bearer x")]
        response = await world.client.get("/streams", headers=twice)
        assert response.status_code == 400
        assert response.json()["field"] == "authorization"


async def test_a_token_is_not_accepted_anywhere_else(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        token = world.root.token
        for path, headers in (
            (f"/streams?access_token={token}", {}),
            (f"/streams?token={token}", {}),
            ("/streams", {"cookie": f"access_token={token}"}),
            ("/streams", {"x-access-token": str(token)}),
        ):
            response = await world.client.get(path, headers=headers)
            assert response.status_code == 401


async def test_logging_out_ends_the_token_and_refreshing_renews_it_once(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        first = await world.log_in("root", PASSWORD)
        second = await first.post("/users/refresh-token", {"token": first.token})
        renewed = Caller(world.client, second["access_token"]["token"])
        assert second["user_id"] == 0
        assert await first.refused("POST", "/users/refresh-token", {"token": first.token}) == (401, 78, None)
        assert await first.get("/streams") == await renewed.get("/streams") == []
        await first.delete("/users/logout")
        assert await first.refused("GET", "/streams") == (401, 40, None)
        assert await first.refused("DELETE", "/users/logout") == (401, 40, None)
        assert await renewed.get("/streams") == []
        for token, expected in (("", (401, 40, None)), ("x", (401, 78, None)), ("x.y.z", (401, 78, None))):
            assert await world.stranger.refused("POST", "/users/refresh-token", {"token": token}) == expected


# ------------------------------------------------------------------------------------------ personal access tokens


async def test_a_personal_access_token_logs_in_and_is_a_bearer_itself(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        root = world.root
        response = await root.ask("POST", "/personal-access-tokens", {"name": "build", "expiry": 3_600_000_000})
        assert response.headers["cache-control"] == "no-store"
        raw = response.json()["token"]
        assert await root.get("/personal-access-tokens") == [
            {"name": "build", "expiry_at": world.clock() + 3_600_000_000}
        ]
        reply = await world.stranger.post("/personal-access-tokens/login", {"token": raw})
        assert await Caller(world.client, reply["access_token"]["token"]).get("/streams") == []
        program = Caller(world.client, raw)
        assert (await program.get("/users/me"))["username"] == "root"
        await program.delete("/users/logout")
        assert await program.get("/streams") == [], "logging out leaves it as it is"
        world.clock.now += 3_600_000_001
        assert await program.refused("GET", "/streams") == (401, 40, None)
        body = {"token": raw}
        assert await world.stranger.refused("POST", "/personal-access-tokens/login", body) == (401, 53, None)


@pytest.mark.parametrize(
    ("expiry", "seconds"),
    [("1 h", 3600), ("30 days", 30 * 86_400), ("2000000", 2), ("never", None), ("0", None), (0, None)],
)
async def test_the_expiry_of_a_token_may_have_a_unit(tmp_path: Path, expiry: int | str, seconds: int | None) -> None:
    async with calling(tmp_path) as world:
        await world.root.post("/personal-access-tokens", {"name": "build", "expiry": expiry})
        (found,) = await world.root.get("/personal-access-tokens")
        assert found["expiry_at"] == (None if seconds is None else world.clock() + seconds * 1_000_000)


@pytest.mark.parametrize("expiry", ["1 parsec", "", "-5", "0 s", "1h!", 2**64, str(2**64), None, 1.5])
async def test_an_expiry_that_is_no_time_is_refused_with_what_is_needed(tmp_path: Path, expiry: Any) -> None:
    async with calling(tmp_path) as world:
        body = {"name": "build", "expiry": expiry}
        assert await world.root.refused("POST", "/personal-access-tokens", body) == (422, 422, "expiry")
        if expiry == "1 parsec":
            response = await world.root.ask("POST", "/personal-access-tokens", body)
            assert "a duration such as `1 h`, `never`, or a number of microseconds" in response.json()["reason"]
        assert await world.root.get("/personal-access-tokens") == []


async def test_personal_access_tokens_belong_to_their_owner_and_are_validated(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        root = world.root
        path = "/personal-access-tokens"
        raw = (await root.post(path, {"name": "never", "expiry": 0}))["token"]
        await root.post(path, {"name": "eternal", "expiry": 2**64 - 1})
        listed = await root.get(path)
        assert listed == [{"name": "eternal", "expiry_at": None}, {"name": "never", "expiry_at": None}]
        assert await root.refused("POST", path, {"name": "never", "expiry": 0}) == (400, 51, "name")
        for name in ("", "ab", "x" * 31):
            assert await root.refused("POST", path, {"name": name, "expiry": 0}) == (400, 50, None)
        for body in ({"name": "abc"}, {"expiry": 0}, {"name": "abc", "expiry": -1}, {"name": "abc", "expiry": 2**64}):
            assert (await root.refused("POST", path, body))[:2] == (422, 422)
        alice = await world.user("alice")
        assert await alice.get(path) == []
        assert await alice.refused("DELETE", f"{path}/never") == (404, 20, None)
        await root.delete(f"{path}/never")
        refused = await world.stranger.ask("POST", f"{path}/login", {"token": raw})
        assert (refused.status_code, refused.json()["id"]) == (401, 53)
        assert raw not in refused.text
        assert await Caller(world.client, raw).refused("GET", "/streams") == (401, 40, None)


async def test_the_tokens_of_an_inactive_user_are_refused(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        alice = await world.user("alice")
        raw = (await alice.post("/personal-access-tokens", {"name": "abc", "expiry": 0}))["token"]
        await world.root.put("/users/alice", {"status": "inactive"})
        for status in ("inactive", "active"):
            await world.root.put("/users/alice", {"status": status})
            for token in (alice.token, raw):
                assert await Caller(world.client, token).refused("GET", "/users/me") == (401, 40, None)
            body = {"token": raw}
            assert await world.stranger.refused("POST", "/personal-access-tokens/login", body) == (401, 53, None)


# ------------------------------------------------------------------------------------------------- users


async def test_a_user_is_created_read_changed_and_deleted(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        root = world.root
        body = {"username": "alice", "password": "secret", "status": "active"}
        response = await root.ask("POST", "/users", body)
        user = f'{{"id":1,"created_at":{world.clock()},"status":"active","username":"alice","options":{{}}'
        assert (response.status_code, response.text) == (200, user + ',"permissions":null}')
        assert (await root.ask("GET", "/users/alice")).text == user + ',"permissions":null}'
        assert user + "}" in (await root.ask("GET", "/users")).text
        assert await root.refused("POST", "/users", body) == (400, 46, "username")
        for changed, expected in (
            ({"username": "ab"}, (400, 43, None)),
            ({"username": "x" * 51}, (400, 43, None)),
            ({"username": "bob", "password": "ab"}, (400, 44, None)),
            ({"username": "bob", "status": "perhaps"}, (422, 422, "status")),
            ({"username": "bob", "status": None}, (422, 422, "status")),
        ):
            assert await root.refused("POST", "/users", body | changed) == expected, changed
        await root.put("/users/alice", {"username": "bob", "status": None, "options": {}})
        await root.put("/users/bob", {"user_status": "inactive"})
        assert (await root.get("/users/1"))["status"] == "inactive"
        assert (await root.get("/users/bob"))["username"] == "bob"
        await root.delete("/users/bob")
        assert await root.refused("GET", "/users/bob") == (404, 404, None)
        for method, path, sent in (
            ("DELETE", "/users/bob", None),
            ("PUT", "/users/bob", {"username": "xyz"}),
            ("PUT", "/users/bob/permissions", {"permissions": None}),
            ("PUT", "/users/bob/password", {"current_password": "abc", "new_password": "abc"}),
        ):
            assert await root.refused(method, path, sent) == (404, 20, None), path


async def test_the_root_user_cannot_be_deleted_or_lose_permissions(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        assert await world.root.refused("DELETE", "/users/0") == (400, 48, None)
        assert await world.root.refused("PUT", "/users/root/permissions", {}) == (400, 49, None)
        me = await world.root.get("/users/me")
        assert me == await world.root.get("/users/0")
        assert all(me["permissions"]["global"].values())


async def test_me_means_the_caller_for_get_and_is_a_name_otherwise(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        root = world.root
        await root.post("/users", {"username": "me1", "password": "secret", "status": "active"})
        await root.put("/users/me1", {"username": "mee"})
        assert await root.refused("PUT", "/users/me", {"username": "xyz"}) == (404, 20, None)
        assert await root.refused("DELETE", "/users/me") == (404, 20, None)
        assert (await root.get("/users/me"))["id"] == 0


async def test_changing_a_password_needs_the_current_one(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        alice = await world.user("alice")
        path = "/users/alice/password"
        wrong = {"current_password": "wrong", "new_password": "another"}
        assert await alice.refused("PUT", path, wrong) == (400, 42, None)
        short = {"current_password": "alicealice", "new_password": "ab"}
        assert await alice.refused("PUT", path, short) == (400, 44, None)
        await alice.put(path, {"current_password": "alicealice", "new_password": "another"})
        alice = await world.log_in("alice", "another")
        assert await alice.refused("PUT", "/users/root/password", wrong) == (403, 41, None)


async def test_a_user_may_log_out_with_a_token_that_ended_with_the_old_password(tmp_path: Path) -> None:
    """Official clients do so before they log in with the new one."""
    async with calling(tmp_path) as world:
        alice, forged = await world.user("alice"), "a.b.c"
        await alice.put("/users/alice/password", {"current_password": "alicealice", "new_password": "another"})
        assert (await alice.refused("GET", "/streams"))[:2] == (401, 40)
        for _ in range(2):
            assert (await alice.ask("DELETE", "/users/logout")).status_code == 204
        assert (await alice.refused("GET", "/streams"))[:2] == (401, 40)
        for token in (forged, "Bearer", ""):
            assert (await Caller(world.client, token).ask("DELETE", "/users/logout")).status_code == 401
        alice = await world.log_in("alice", "another")
        assert (await alice.ask("DELETE", "/users/logout")).status_code == 204
        assert (await alice.ask("DELETE", "/users/logout")).status_code == 401


async def test_permissions_are_returned_as_they_were_set(tmp_path: Path) -> None:
    topic = {"manage_topic": False, "read_topic": True, "poll_messages": True, "send_messages": False}
    stream = {
        **{"manage_stream": False, "read_stream": True, "manage_topics": True, "read_topics": False},
        **{"poll_messages": False, "send_messages": True},
    }
    whole = permissions(
        "read_servers", streams={"0": {**stream, "topics": {"0": topic, "7": topic}}, "12": {**stream, "topics": None}}
    )

    async with calling(tmp_path) as world:
        root = world.root
        await world.user("alice", whole)
        assert (await root.get("/users/alice"))["permissions"] == whole
        without = permissions(streams={"3": stream})
        await root.put("/users/alice/permissions", {"permissions": without})
        found = (await root.get("/users/alice"))["permissions"]
        assert found == permissions(streams={"3": {**stream, "topics": None}})
        await root.put("/users/alice/permissions", {})
        assert (await root.get("/users/alice"))["permissions"] is None
        missing_flag = permissions()
        del missing_flag["global"]["read_users"]
        for wrong in (
            missing_flag,
            {"streams": None},
            permissions(streams={"x": stream}),
            permissions(streams={"-1": stream}),
            permissions(streams={"4294967296": stream}),
            permissions(streams={"1": {"manage_stream": True}}),
            permissions(streams=[stream]),
            {**permissions(), "global": {**permissions()["global"], "read_users": 1}},
        ):
            found = await root.refused("PUT", "/users/alice/permissions", {"permissions": wrong})
            assert found[:2] == (422, 422), wrong


async def test_a_user_without_permission_gets_403_and_no_details(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        root = world.root
        await root.post("/streams", {"name": "s"})
        await root.post("/streams/s/topics", {"name": "t", "partitions_count": 1})
        alice = await world.user("alice")
        message = {"partitioning": {"kind": "balanced", "value": ""}, "messages": [{"payload": "eA=="}]}
        for method, path, body in (
            ("GET", "/streams", None),
            ("POST", "/streams", {"name": "x"}),
            ("GET", "/streams/s", None),
            ("PUT", "/streams/s", {"name": "x"}),
            ("DELETE", "/streams/s", None),
            ("GET", "/streams/s/topics", None),
            ("POST", "/streams/s/topics/t/messages", message),
            ("GET", "/streams/s/topics/t/messages", None),
            ("GET", "/streams/s/topics/t/messages/flush/0/true", None),
            ("GET", "/streams/s/topics/t/consumer-offsets", None),
            ("POST", "/streams/s/topics/t/consumer-groups", {"name": "g"}),
            ("GET", "/streams/s/topics/t/consumer-groups/g", None),
            ("GET", "/stats", None),
            ("GET", "/clients", None),
            ("GET", "/clients/1", None),
            ("GET", "/users", None),
            ("GET", "/users/none", None),
            ("POST", "/users", {"username": "bob", "password": "secret", "status": "active"}),
            ("PUT", "/users/none", {}),
            ("DELETE", "/users/none", None),
            ("POST", "/snapshot", {"compression": "Stored", "snapshot_types": ["Test"]}),
        ):
            assert await alice.refused(method, path, body) == (403, 41, None), path
        assert (await alice.get("/users/alice"))["username"] == "alice"
        assert (await alice.get("/users/me"))["username"] == "alice"
        assert (await alice.get("/cluster/metadata"))["name"] == "single-node"
        assert await alice.get("/personal-access-tokens") == []
        reader = await world.user("reader", permissions("read_streams"))
        assert len(await reader.get("/streams")) == 1
        assert await reader.get("/streams/s/topics/t/messages") is not None
        assert await reader.refused("POST", "/streams/s/topics/t/messages", message) == (403, 41, None)


async def test_no_secret_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        async with calling(tmp_path) as world:
            alice = await world.user("alice")
            raw = (await alice.post("/personal-access-tokens", {"name": "abc", "expiry": 0}))["token"]
            await world.stranger.ask("POST", "/users/login", {"username": "alice", "password": "a wrong one"})
            await world.stranger.ask("POST", "/personal-access-tokens/login", {"token": raw + "x"})
            await alice.ask(
                "PUT", "/users/alice/password", {"current_password": "a wrong one", "new_password": "another"}
            )
            for secret in (alice.token, raw, "alicealice", "a wrong one"):
                assert str(secret) not in caplog.text
