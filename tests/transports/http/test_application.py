"""The HTTP application, called without a socket: what it serves, and how it refuses."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response

from transports.http import application, routes


def answer(method: str, path: str, headers: dict[str, str] | None = None) -> httpx.Response:
    async def call() -> httpx.Response:
        transport = httpx.ASGITransport(application.create(), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://whippet") as client:
            return await client.request(method, path, headers=headers)

    return asyncio.run(call())


def test_ping_answers_pong_as_plain_text() -> None:
    response = answer("GET", "/ping")
    assert (response.status_code, response.text) == (200, "pong")
    assert response.headers["content-type"] == "text/plain; charset=utf-8"


def test_every_operation_answers_the_text_it_declares() -> None:
    for operation in routes.OPERATIONS:
        response = answer(operation.method, operation.path)
        assert (response.status_code, response.text) == (200, operation.text)


def test_ping_ignores_the_empty_bearer_that_sdks_send_before_they_have_a_token() -> None:
    assert answer("GET", "/ping", {"Authorization": "Bearer "}).status_code == 200


def test_head_is_served_wherever_get_is() -> None:
    assert answer("HEAD", "/ping").status_code == 200


@pytest.mark.parametrize("path", ["/nothing", "/ping/", "/health", "/%00", "/ping%2F"])
def test_an_unknown_path_is_not_found_in_iggys_shape(path: str) -> None:
    response = answer("GET", path)
    assert response.status_code == 404
    assert response.headers["content-type"] == "application/json"
    assert response.content == b'{"id":404,"code":"not_found","reason":"Resource not found","field":null}'


def test_a_wrong_method_says_which_are_allowed() -> None:
    response = answer("POST", "/ping")
    assert response.status_code == 405
    assert set(response.headers["allow"].split(", ")) == {"GET", "HEAD"}
    assert response.json() == {
        "id": 405,
        "code": "method_not_allowed",
        "reason": "Method Not Allowed",
        "field": None,
    }


def test_a_bug_in_a_handler_is_an_error_of_the_same_shape_that_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(request: Request) -> Response:
        raise RuntimeError("a secret")

    operation = routes.Operation(
        name="broken", method="GET", path="/broken", summary="Fails", handler=broken, text="never"
    )
    monkeypatch.setattr(routes, "OPERATIONS", (operation,))
    response = answer("GET", "/broken")
    assert response.status_code == 500
    assert response.json() == {"id": 1, "code": "error", "reason": "Internal server error", "field": None}
