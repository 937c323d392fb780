"""How clients connect: connection strings with all options, the plain constructor, tokens, TLS."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

from tests.sdk.support.inspector import Inspector
from tests.sdk.support.program import Sdk
from tests.sdk.support.server import Server, tls_server

OPTIONS = (
    "",
    "?reconnection_retries=3",
    "?reconnection_retries=unlimited&reconnection_interval=10ms&reestablish_after=10ms",
    "?heartbeat_interval=50ms&nodelay=true",
    "?tls=false",
)


def test_every_form_of_a_connection_string_connects(sdk: Sdk, server: Server) -> None:
    prefixes = ("iggy://", "iggy+tcp://") if sdk.transport == "tcp" else (f"iggy+{sdk.transport}://",)
    options = OPTIONS if sdk.transport == "tcp" else [option for option in OPTIONS if "nodelay" not in option]
    if sdk.transport == "quic":
        options = ["", "?reconnection_max_retries=3&validate_certificate=false", "?initial_mtu=1200&send_window=50000"]
    address = server.address.over(sdk.transport)
    strings = [f"{prefix}iggy:iggy@{address}{option}" for prefix in prefixes for option in options]
    assert sdk.run("connecting", strings=strings)["answers"] == dict.fromkeys(strings)


def test_a_host_may_be_a_name(sdk: Sdk, server: Server) -> None:
    string = f"iggy://iggy:iggy@localhost:{server.port}"
    assert sdk.run("connecting", strings=[string])["answers"] == {string: None}


def test_a_client_connects_with_a_valid_personal_access_token_only(
    sdk: Sdk, server: Server, inspector: Inspector, name: str
) -> None:
    right = f"iggy://{inspector.token(name[:30])}@{server.address}"
    wrong = f"iggy://{'A' * 68}@{server.address}"
    answers = sdk.run("connecting", strings=[right, wrong])["answers"]
    assert answers[right] is None
    assert sdk.error(answers[wrong]) == ("ResourceNotFound" if sdk.release < (0, 9) else "InvalidPersonalAccessToken")


def test_the_error_for_wrong_credentials_does_not_reveal_which_part_is_wrong(sdk: Sdk, server: Server) -> None:
    strings = [f"iggy+tcp://{credentials}@{server.address}" for credentials in ("iggy:wrong-password", "nobody:iggy")]
    answers = sdk.run("connecting", strings=strings)["answers"]
    assert {sdk.error(answer) for answer in answers.values()} == {"InvalidCredentials"}


def test_the_sdk_refuses_invalid_connection_strings(sdk: Sdk, server: Server) -> None:
    strings = ["", "iggy://", f"iggy://iggy@:iggy@{server.address}", f"iggy://iggy:iggy@{server.address}?colour=red"]
    answers = sdk.run("connecting", strings=strings)["answers"]
    assert [sdk.error(answers[string]) for string in strings] == ["InvalidConnectionString"] * len(strings)


def test_the_sdk_gives_up_on_an_absent_server_after_the_configured_retries(sdk: Sdk) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    string = f"iggy://iggy:iggy@127.0.0.1:{port}?reconnection_retries=2&reconnection_interval=10ms"
    assert sdk.error(sdk.run("connecting", strings=[string])["answers"][string]) == "CannotEstablishConnection"


def test_a_client_may_only_ping_until_it_logs_in_and_a_login_may_be_retried(sdk: Sdk, server: Server) -> None:
    logins = [("iggy", "wrong-password"), ("iggy", "iggy"), ("iggy", "iggy")]
    # A plain address means TCP.
    answers = sdk.run("connecting", address=str(server.address), logins=logins)["answers"]
    expected = ["Unauthenticated", "InvalidCredentials", "Unauthenticated", None, None, None, None]
    assert [sdk.error(answer) for answer in answers] == expected


def test_a_client_connects_over_tls_and_checks_the_certificate(
    sdk: Sdk, own_server: Callable[..., Server], tmp_path: Path
) -> None:
    server, certificate = tls_server(own_server, tmp_path)
    string = f"iggy://iggy:iggy@{server.address}?reconnection_retries=0&tls=true&tls_domain=localhost"
    trusting = f"{string}&tls_ca_file={certificate}"
    answers = sdk.run("connecting", strings=[trusting, string])["answers"]
    assert answers[trusting] is None
    assert answers[string] is not None
