"""The HTTP application, called without a socket: what it serves and what it refuses."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.transports.http.support.calling import calling
from whippet.transports.http import routes
from whippet.transports.http.operation import Call, Operation


async def test_ping_and_index_return_their_texts_without_checking_a_token(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        for path, text in (("/ping", "pong"), ("/", "Iggy API")):
            for bearer in (None, "Bearer ", "Bearer nonsense"):
                headers = {} if bearer is None else {"authorization": bearer}
                response = await world.stranger.ask("GET", path, **headers)
                assert (response.status_code, response.text) == (200, text)
                assert response.headers["content-type"] == "text/plain; charset=utf-8"
                assert "iggy-view" not in response.headers


async def test_head_is_served_wherever_get_is(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        for path in ("/ping", "/streams", "/stats", "/users/me"):
            assert (await world.root.ask("HEAD", path)).status_code == 200


@pytest.mark.parametrize(
    "path", ["/nothing", "/ping/", "/%00", "/ping%2F", "/streams/", "//streams", "/streams//topics"]
)
async def test_an_unknown_path_is_not_found_with_or_without_a_token(tmp_path: Path, path: str) -> None:
    async with calling(tmp_path) as world:
        for caller in (world.stranger, world.root):
            response = await caller.ask("GET", f"http://localhost{path}")
            assert response.status_code == 404
            assert response.headers["content-type"] == "application/json"
            assert response.content == b'{"id":404,"code":"not_found","reason":"Resource not found","field":null}'


async def test_a_wrong_method_is_refused_with_the_allowed_ones(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        response = await world.stranger.ask("POST", "/ping")
        assert response.status_code == 405
        assert response.headers["allow"] == "GET, HEAD"
        body = {"id": 405, "code": "method_not_allowed", "reason": "Method Not Allowed", "field": None}
        assert response.json() == body
        response = await world.stranger.ask("PATCH", "/streams/s/topics/t/partitions")
        assert response.headers["allow"] == "DELETE, POST"


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        *(
            ("/users/login", "POST"),
            ("/users/logout", "DELETE"),
            ("/users/me", "GET, HEAD"),
            ("/users/bob", "DELETE, GET, HEAD, PUT"),
        ),
        *(("/personal-access-tokens/login", "POST"), ("/personal-access-tokens/mine", "DELETE")),
    ],
)
async def test_a_literal_path_does_not_allow_the_methods_of_a_name(tmp_path: Path, path: str, allowed: str) -> None:
    """The methods of users or tokens with that name do not count."""
    async with calling(tmp_path) as world:
        response = await world.stranger.ask("PATCH", path)
        assert (response.status_code, response.headers["allow"]) == (405, allowed)


async def test_a_bug_in_a_handler_is_logged_and_reveals_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(call: Call) -> None:
        raise RuntimeError("a secret")

    operation = Operation(
        name="broken", method="GET", path="/broken", summary="Fails", subject="x", handler=broken, public=True
    )

    with caplog.at_level(logging.ERROR):
        async with calling(tmp_path, operations=(*routes.OPERATIONS, operation)) as world:
            response = await world.stranger.ask("GET", "/broken")
            assert response.status_code == 500
            assert response.json() == {"id": 1, "code": "error", "reason": "Internal server error", "field": None}
    assert [record.message for record in caplog.records if "broken" in record.message]


async def test_a_stop_waits_for_work_whose_request_was_answered_already(tmp_path: Path) -> None:
    async with calling(tmp_path) as world:
        await world.root.post("/streams", {"name": "s"})
        await world.root.post("/streams/s/topics", {"name": "t", "partitions_count": 1})
        body = {"partitioning": {"kind": "balanced", "value": ""}, "messages": [{"payload": "aGk="}]}
        response = await world.root.ask("POST", "/streams/s/topics/t/messages?ack=none", body)
        assert (response.status_code, response.content) == (202, b"")
        assert response.headers["iggy-durability"] == "none"
        await world.api.close()
        assert (await world.root.get("/streams/s/topics/t"))["messages_count"] == 1
