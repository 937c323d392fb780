"""Connection strings: what they contain, and how invalid ones are reported."""

from __future__ import annotations

import ssl

import pytest

from whippet.app.client.address import parse
from whippet.app.client.client import Reconnect
from whippet.app.commands.requests import LoginUser, LoginWithPersonalAccessToken


@pytest.mark.parametrize("scheme", ["iggy", "iggy+tcp"])
def test_a_connection_string_has_a_user_a_password_and_an_address(scheme: str) -> None:
    found = parse(f"{scheme}://iggy:s:e@c/r?e#t%40@example.com:8091")
    assert isinstance(found.login, LoginUser)
    assert (found.login.username, found.login.password) == ("iggy", "s:e@c/r?e#t%40")
    assert (found.transport, found.address) == ("tcp", "example.com:8091")
    assert (found.tls, found.reconnect, found.heartbeat_s) == (None, None, 5.0)


def test_a_token_has_no_colon() -> None:
    assert parse("iggy://iggypat-a/b@[::1]:1").login == LoginWithPersonalAccessToken("iggypat-a/b")
    assert parse("iggy://iggypat-abc@[::1]:1").address == "[::1]:1"


def test_credentials_and_port_are_optional() -> None:
    assert parse("iggy://localhost").login is None
    assert parse("iggy://localhost/").address == "localhost:8090"


def test_options_are_parsed() -> None:
    found = parse(
        "iggy://h?heartbeat_interval=0&reconnection_retries=3&reconnection_interval=250ms&tls=true&tls_domain=d"
    )
    assert found.heartbeat_s == 0
    assert found.reconnect == Reconnect(3, 0.25)
    assert found.tls is not None
    assert found.tls_domain == "d"
    assert parse("iggy://h?reconnection_retries=unlimited").reconnect == Reconnect(None, 1.0)
    assert parse("iggy://h?reconnection_retries=0").reconnect is None
    quick = parse("iggy://h?reconnection_retries=9&reconnection_interval=1s&reconnection_interval_max=5s").reconnect
    assert quick is not None
    assert [quick.pause_s(failed) for failed in (1, 2, 3, 4, 5, 5000)] == [1, 2, 4, 5, 5, 5]


@pytest.mark.parametrize(
    ("scheme", "transport", "port", "is_encrypted"),
    [
        ("iggy", "tcp", 8090, False),
        ("iggy+quic", "quic", 8080, False),
        ("iggy+ws", "ws", 8092, False),
        ("iggy+http", "http", 3000, False),
        ("iggy+https", "http", 3000, True),
    ],
)
def test_each_transport_has_its_port(scheme: str, transport: str, port: int, is_encrypted: bool) -> None:
    found = parse(f"{scheme}://h")
    assert (found.transport, found.port, found.tls is not None) == (transport, port, is_encrypted)


def test_the_context_of_a_program_replaces_the_options_of_tls() -> None:
    context = ssl.create_default_context()
    assert parse("iggy://h?tls_domain=d", context).tls is context
    for option in ("tls=false", "tls_ca_file=f"):
        with pytest.raises(ValueError, match="have no effect beside the context"):
            parse(f"iggy://h?{option}", context)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", "iggy://"),
        ("localhost:8090", "iggy://"),
        ("http://user:hidden@h", "iggy+tcp://"),
        ("iggy+gopher://user:hidden@h", "iggy+quic://"),
        ("iggy://user:hidden@", "no host"),
        ("iggy://user:hidden@h:port", "port"),
        ("iggy://user:hidden@h:65536", "port"),
        ("iggy://user:hidden@h/path", "follows"),
        ("iggy://user:hidden@h#part", "follows"),
        ("iggy://user:hidden@h?colour=red&shape=round", "colour, shape"),
        ("iggy://user:hidden@h?tls=perhaps", "perhaps"),
        ("iggy://user:hidden@h?reconnection_retries=-1", "reconnection_retries"),
        ("iggy://user:hidden@h?heartbeat_interval=soon", "heartbeat_interval"),
        ("iggy://user:hidden@h?wire=ancient", "ancient"),
        ("iggy+http://user:hidden@h?wire=modern", "wire has no effect over HTTP"),
        ("iggy+http://user:hidden@h?compression=lz4", "compression is gzip or zstd, not 'lz4'"),
        ("iggy+quic://user:hidden@h?compression=zstd", "compression has an effect over HTTP only"),
        ("iggy+https://user:hidden@h?tls=false", "iggy+https://"),
        ("iggy://user:hidden@h?tls_domain=d", "tls_domain has no effect"),
        ("iggy://user:hidden@h?tls=false&tls_ca_file=f", "tls_ca_file has no effect"),
        ("iggy://user:hidden@h?tls=true&tls_ca_file=no.pem", "no.pem"),
        ("iggy://user:hidden@h?reconnection_interval=1s", "without reconnection_retries"),
        ("iggy://user:hidden@h?reconnection_interval_max=1s", "without reconnection_retries"),
        (
            "iggy://user:hidden@h?reconnection_retries=1&reconnection_interval=2s&reconnection_interval_max=1s",
            "shorter",
        ),
    ],
)
def test_errors_name_the_problem_and_contain_no_secret(text: str, names: str) -> None:
    with pytest.raises(ValueError) as raised:
        parse(text)
    assert names in str(raised.value)
    assert "hidden" not in str(raised.value)
