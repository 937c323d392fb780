"""Which size of message headers a client is answered in."""

from __future__ import annotations

import pytest

from app.commands import requests as ask
from transports.wire.classic.dialect import EARLY_PING_US, Dialect

NOW = 1_700_000_000_000_000
SECOND = 1_000_000


@pytest.mark.parametrize(
    ("version", "context", "size"),
    [
        ("", "", 64),
        ("0.8.0", "", 64),
        ("0.9.0", "", 64),
        ("0.10.0", "", 64),
        ("0.5.0", "csharp-sdk", 64),
        ("0.8.0", "csharp-sdk", 64),
        ("0.6.30", "java-sdk", 56),
        ("iggy-java-sdk/0.7.0", "built somewhere", 64),
        ("0.80.0", "", 64),
    ],
)
def test_the_names_of_a_login_say_what_they_can(version: str, context: str, size: int) -> None:
    dialect = Dialect(NOW)
    assert dialect.header_size == 64
    dialect.on_request(ask.LoginUser("iggy", "iggy", version, context), NOW)
    assert dialect.header_size == size


@pytest.mark.parametrize("version", ["0.8.0", "0.8.17"])
def test_a_name_that_two_sdks_share_is_the_short_one_when_it_pings_at_once(version: str) -> None:
    after_login, before_login, late = Dialect(NOW), Dialect(NOW), Dialect(NOW)
    after_login.on_login(version, "", NOW + 9 * SECOND)
    after_login.on_ping(NOW + 9 * SECOND + 10)
    assert after_login.header_size == 56

    before_login.on_request(ask.Ping(), NOW + 10)
    before_login.on_login(version, "", NOW + 20 * SECOND)
    assert before_login.header_size == 56

    late.on_login(version, "", NOW + 10)
    late.on_request(ask.Ping(), NOW + 10 + EARLY_PING_US + 1)
    late.on_request(ask.Ping(), NOW + 10 + 5 * SECOND)
    assert late.header_size == 64


def test_an_early_ping_means_nothing_for_other_names() -> None:
    dialect = Dialect(NOW)
    dialect.on_ping(NOW + 10)
    assert dialect.header_size == 64
    dialect.on_login("0.10.0", "", NOW + 20)
    dialect.on_ping(NOW + 30)
    assert dialect.header_size == 64


def test_what_a_client_sends_is_believed_before_what_it_says() -> None:
    dialect = Dialect(NOW)
    dialect.on_login("0.6.30", "java-sdk", NOW)
    dialect.on_send(64)
    assert dialect.header_size == 64
    dialect.on_send(56)
    dialect.on_login("0.10.0", "", NOW)
    assert dialect.header_size == 56


def test_the_setting_of_the_operator_is_stronger_than_everything() -> None:
    dialect = Dialect(NOW, forced=56)
    dialect.on_login("0.10.0", "", NOW)
    dialect.on_send(64)
    assert dialect.header_size == 56


def test_a_token_says_nothing_of_the_client() -> None:
    dialect = Dialect(NOW)
    dialect.on_request(ask.LoginWithPersonalAccessToken("token"), NOW)
    assert dialect.header_size == 64
