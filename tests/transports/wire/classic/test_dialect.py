"""The size of the message headers that a client gets."""

from __future__ import annotations

import pytest

from whippet.app.commands import requests
from whippet.transports.wire.classic.dialect import Dialect

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
        ("0.6.30", "another-sdk", 64),
        ("0.7.0", "java-sdk", 64),
        ("iggy-java-sdk/0.7.0", "built somewhere", 64),
        ("0.80.0", "", 64),
    ],
)
def test_the_names_of_a_login_decide_where_they_can(version: str, context: str, size: int) -> None:
    dialect = Dialect(NOW)
    assert dialect.header_size == 64
    dialect.on_request(requests.LoginUser("iggy", "iggy", version, context), NOW)
    assert dialect.header_size == size


@pytest.mark.parametrize("version", ["0.8.0", "0.8.17"])
def test_a_name_that_two_sdks_share_is_the_short_one_when_it_pings_at_once(version: str) -> None:
    after_login, before_login, late = Dialect(NOW), Dialect(NOW), Dialect(NOW)
    after_login.on_login(version, "", NOW + 9 * SECOND)
    after_login.on_ping(NOW + 9 * SECOND + 10)
    assert after_login.header_size == 56

    before_login.on_request(requests.Ping(), NOW + 10)
    before_login.on_login(version, "", NOW + 20 * SECOND)
    assert before_login.header_size == 56

    late.on_login(version, "", NOW + 10)
    late.on_request(requests.Ping(), NOW + 10 + 2 * SECOND + 1)
    late.on_request(requests.Ping(), NOW + 10 + 5 * SECOND)
    assert late.header_size == 64
    late.on_login(version, "", NOW + 20 * SECOND)
    late.on_request(requests.Ping(), NOW + 22 * SECOND)
    assert late.header_size == 56


@pytest.mark.parametrize(("version", "context"), [("0.10.0", ""), ("0.8.0", "csharp-sdk"), ("", "")])
def test_an_early_ping_means_nothing_for_other_names(version: str, context: str) -> None:
    dialect = Dialect(NOW)
    dialect.on_ping(NOW + 10)
    assert dialect.header_size == 64
    dialect.on_login(version, context, NOW + 20)
    dialect.on_ping(NOW + 30)
    assert dialect.header_size == 64


@pytest.mark.parametrize(
    ("request_", "size"),
    [(requests.LoginWithPersonalAccessToken("token"), 56), (requests.GetStats(), 64), (requests.Ping(), 64)],
)
def test_a_ping_is_early_after_a_login_of_either_kind_and_after_nothing_else(
    request_: requests.Request, size: int
) -> None:
    dialect = Dialect(NOW)
    dialect.on_login("0.8.0", "", NOW)
    dialect.on_request(request_, NOW + 9 * SECOND)
    dialect.on_request(requests.Ping(), NOW + 9 * SECOND + 10)
    assert dialect.header_size == size


@pytest.mark.parametrize(("later_us", "size"), [(-1, 64), (0, 56), (2 * SECOND, 56), (2 * SECOND + 1, 64)])
def test_a_ping_is_early_for_two_seconds(later_us: int, size: int) -> None:
    dialect = Dialect(NOW)
    dialect.on_login("0.8.0", "", NOW)
    dialect.on_ping(NOW + later_us)
    assert dialect.header_size == size


def test_sent_messages_take_precedence_over_the_login() -> None:
    dialect = Dialect(NOW)
    dialect.on_login("0.6.30", "java-sdk", NOW)
    dialect.on_send(64)
    assert dialect.header_size == 64
    dialect.on_send(56)
    dialect.on_login("0.10.0", "", NOW)
    assert dialect.header_size == 56


def test_the_configured_size_overrides_everything() -> None:
    dialect = Dialect(NOW, forced=56)
    dialect.on_login("0.10.0", "", NOW)
    dialect.on_send(64)
    assert dialect.header_size == 56


def test_a_token_reveals_nothing_about_the_client() -> None:
    dialect = Dialect(NOW)
    dialect.on_request(requests.LoginWithPersonalAccessToken("token"), NOW)
    assert dialect.header_size == 64


class Remembered:
    """The clients that are remembered, and how many connections each has."""

    def __init__(self) -> None:
        self.connections: dict[str, int] = {}

    def expects(self, who: str) -> bool:
        return who in self.connections

    def arrived(self, who: str) -> None:
        self.connections[who] = self.connections.get(who, 0) + 1

    def left(self, who: str) -> None:
        self.connections[who] -= 1


def login(dialect: Dialect, username: str = "iggy", version: str = "0.8.0") -> None:
    dialect.on_request(requests.LoginUser(username, "iggy", version, ""), NOW)


@pytest.mark.parametrize("shown", ["a ping", "a send"])
def test_a_recognised_client_is_recognised_again_when_it_returns(shown: str) -> None:
    remembered = Remembered()
    first = Dialect(NOW, returning=remembered, host="10.0.0.1")
    login(first)
    assert first.header_size == 64
    if shown == "a ping":
        first.on_ping(NOW + 10)
    else:
        first.on_send(56)
    assert first.header_size == 56
    assert remembered.connections == {"10.0.0.1 iggy": 1}
    first.close()
    assert remembered.connections == {"10.0.0.1 iggy": 0}

    again = Dialect(NOW, returning=remembered, host="10.0.0.1")
    login(again)
    assert again.header_size == 56
    again.on_send(64)
    assert again.header_size == 64, "it is somebody else"
    again.close()
    assert remembered.connections == {"10.0.0.1 iggy": 0}


def test_a_ping_before_the_login_counts_for_the_login() -> None:
    remembered = Remembered()
    dialect = Dialect(NOW, returning=remembered, host="10.0.0.1")
    dialect.on_ping(NOW + 10)
    assert remembered.connections == {}
    login(dialect)
    assert remembered.connections == {"10.0.0.1 iggy": 1}


@pytest.mark.parametrize(
    ("host", "username", "version"),
    [("10.0.0.2", "iggy", "0.8.0"), ("10.0.0.1", "else", "0.8.0"), ("10.0.0.1", "iggy", "0.10.0")],
)
def test_other_clients_are_not_mistaken_for_a_returning_one(host: str, username: str, version: str) -> None:
    remembered = Remembered()
    first = Dialect(NOW, returning=remembered, host="10.0.0.1")
    login(first)
    first.on_ping(NOW)
    other = Dialect(NOW, returning=remembered, host=host)
    login(other, username, version)
    assert other.header_size == 64


def test_a_connection_is_counted_once_and_not_after_its_end() -> None:
    remembered = Remembered()
    dialect = Dialect(NOW, returning=remembered, host="10.0.0.1")
    dialect.on_ping(NOW)
    for _ in range(2):
        login(dialect)
        dialect.on_ping(NOW)
        dialect.on_send(56)
    assert remembered.connections == {"10.0.0.1 iggy": 1}
    dialect.close()
    dialect.on_ping(NOW)
    dialect.close()
    assert remembered.connections == {"10.0.0.1 iggy": 0}
