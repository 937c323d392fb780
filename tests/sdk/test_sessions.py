"""Logging in and out by hand and by configuration, with and without TLS, and across a restart of the server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.sdk.support.inspector import Inspector
from tests.sdk.support.program import Program, Sdk
from tests.sdk.support.server import Server, tls_server

UNAUTHENTICATED, WRONG = "Unauthenticated", "InvalidCredentials"


def test_a_client_may_log_in_log_out_and_log_in_again(newest: Sdk, server: Server) -> None:
    said = newest.finished("sessions", acts=["by_hand"], address=server.address).findings()
    assert [newest.error(answer) for answer in said["before"]] == ["NotConnected"] * 2
    assert [newest.error(answer) for answer in said["by_hand"]] == [
        None,
        UNAUTHENTICATED,
        UNAUTHENTICATED,
        WRONG,
        "InvalidUsername",
        None,
        None,
        None,
        None,
        None,
        UNAUTHENTICATED,
        None,
        None,
    ]


def test_a_configuration_sets_the_credentials(newest: Sdk, server: Server, inspector: Inspector, name: str) -> None:
    token = inspector.token(name[:30])
    answers = newest.run("sessions", acts=["configured"], address=server.address, token=token)["configured"]
    named = {who: [newest.error(answer) for answer in of_one] for who, of_one in answers.items()}
    assert named["password"] == named["token"] == [None, None]
    assert named["wrong"][0] == WRONG
    assert named["wrong token"][0] == "InvalidPersonalAccessToken"
    assert named["nobody"] == [None, UNAUTHENTICATED]


def test_tls_clients_connect_if_they_trust_the_certificate_or_do_not_verify_it(
    newest: Sdk, own_server: Callable[..., Server], tmp_path: Path
) -> None:
    server, certificate = tls_server(own_server, tmp_path)
    task = {"acts": ["over_tls"], "tls_address": server.address, "certificate": str(certificate)}
    answers = newest.run("sessions", **task)["tls"]
    welcome = {who for who, of_one in answers.items() if of_one == [None, None]}
    assert welcome == {"trusting", "by address", "careless"}
    assert all(answers[who][0] is not None for who in answers.keys() - welcome)


def test_clients_wait_for_a_stopped_server_as_long_as_configured(
    newest: Sdk, own_server: Callable[..., Server], start: Callable[..., Program]
) -> None:
    server = own_server()
    program = start(newest, "sessions", acts=["restarted"], address=server.address)
    program.until("ready")
    server.stop()
    program.tell("stopped")
    assert program.until("given_up")["given_up"] is not None
    server.start()
    program.tell("started")
    program.end()
    said = program.findings()
    assert said["read"] == "kept"
    assert said["by_hand"][0] is None
    # Logged in again with the new password; statistics need a permission.
    assert newest.error(said["by_hand"][1]) == "Unauthorized"
    assert said["made"] is None
