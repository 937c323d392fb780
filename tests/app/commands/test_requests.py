"""Requests and responses with secrets can be printed without revealing them."""

from __future__ import annotations

import pytest

from whippet.app.commands import requests, responses

SECRETS = [
    requests.LoginUser("iggy", "hunter22"),
    requests.CreateUser("bob", "hunter22", requests.UserStatus.ACTIVE, None),
    requests.ChangePassword("bob", "hunter22", "hunter22"),
    requests.LoginWithPersonalAccessToken("hunter22"),
    responses.RawToken("hunter22"),
]


@pytest.mark.parametrize("value", SECRETS, ids=lambda value: type(value).__name__)
def test_the_repr_of_a_request_contains_no_secret(value: object) -> None:
    assert "hunter22" not in f"{value!r} {value}"
