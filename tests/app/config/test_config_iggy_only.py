"""Keys of Iggy without a field here: accepted and logged once, or refused because their request would not be
fulfilled."""

from __future__ import annotations

from typing import Any

import pytest

from whippet.app.config import ConfigError
from whippet.app.config.aliases import NAMES, VARIABLES
from whippet.app.config.iggy_only import RULES
from whippet.app.config.keys import canonical, variable

SECURITY = ("auth", "tls", "jwt", "secret", "encryption", "key", "certificate")


def test_no_key_is_both_in_the_table_and_a_field() -> None:
    assert RULES.keys().isdisjoint(NAMES)


@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if rule.accepted is None])
def test_a_key_that_only_tunes_iggy_is_logged_once(start: Any, name: str) -> None:
    (line,) = start(**{variable(name): "5 s"}).without_effect
    assert line == f"{variable(name)}: {name} has no effect: {RULES[name].reason}"


def test_keys_with_the_same_reason_are_logged_in_one_line(start: Any) -> None:
    loaded = start(
        '[message_bus]\nmax_batch = 256\nreconnect_period = "5 s"\n[system.sharding]\ninbox_capacity = 1024\n'
        "[cluster]\nview_probe_attempts_max = 5"
    )
    assert loaded.without_effect == (
        "server.toml: message_bus.max_batch, message_bus.reconnect_period, cluster.view_probe_attempts_max have no "
        "effect: this server exchanges nothing with other nodes",
        "server.toml: system.sharding.inbox_capacity has no effect: requests do not wait in queues between threads; "
        "system.limits bounds them",
    )


@pytest.mark.parametrize(
    ("toml", "refused"),
    [
        ("[http.jwt]\nenabled = false", "http.jwt.enabled = false is not supported: the HTTP API always uses JSON web"),
        (
            "[cluster.auth]\nenabled = true",
            "cluster.auth.enabled = true is not supported: this server exchanges nothing",
        ),
        ("[cluster.tls]\nenabled = true", "cluster.tls.enabled = true is not supported: this server exchanges nothing"),
        ('[http.jwt]\nenabled = "perhaps"', "http.jwt.enabled = 'perhaps' is not supported"),
        (
            '[[cluster.nodes]]\nadvertised_addresses = [{ client_cidr = "10.0.0.0/8", address = "a" }]',
            "cluster.nodes[].advertised_addresses = [",
        ),
    ],
)
def test_a_value_whose_request_would_not_be_fulfilled_is_refused(start: Any, toml: str, refused: str) -> None:
    with pytest.raises(ConfigError) as caught:
        start(toml)
    assert refused in str(caught.value)
    assert str(caught.value).startswith("server.toml: ")


@pytest.mark.parametrize("toml", ["[http.jwt]\nenabled = true", "[cluster.auth]\nenabled = false"])
def test_a_value_that_requests_nothing_is_accepted(start: Any, toml: str) -> None:
    assert len(start(toml).without_effect) == 1


def test_an_address_for_some_clients_is_also_refused_in_a_variable(start: Any) -> None:
    name = "IGGY_CLUSTER_NODES_0_ADVERTISED_ADDRESSES_1_CLIENT_CIDR"
    assert canonical(VARIABLES[name]) in RULES
    with pytest.raises(ConfigError, match=f"^{name}: "):
        start(**{name: "10.0.0.0/8"})


def test_a_switch_about_security_is_never_ignored() -> None:
    switches = {name for name in RULES if name.endswith(".enabled")}
    assert switches == {name for name in switches if any(word in name for word in SECURITY)}
    assert all(RULES[name].accepted is not None for name in switches)


def test_no_secret_is_shown(start: Any) -> None:
    loaded = start(IGGY_CLUSTER_AUTH_SHARED_SECRET="hush", IGGY_CLUSTER_AUTH_PREVIOUS_SHARED_SECRET="hush")
    assert len(loaded.without_effect) == 2
    assert "hush" not in repr(loaded)


def test_a_self_signed_certificate_needs_no_files_as_in_the_file_of_iggy_0_9(start: Any) -> None:
    certificate = start('[quic.certificate]\nself_signed = true\ncert_file = ""\nkey_file = ""').config.quic.certificate
    assert (certificate.cert_file, certificate.key_file) == ("", "")


def test_an_issuer_without_a_user_as_in_the_file_of_iggy_0_8_causes_a_warning(start: Any) -> None:
    issuer = 'issuer = "test-issuer"\njwks_url = "http://127.0.0.1:8081/keys"\naudience = "iggy.apache.org"'
    (warning,) = start(f"[[http.jwt.trusted_issuers]]\n{issuer}").warnings
    assert warning == ("http.jwt.trusted_issuers.0 has no user_id, or 0, the root user: all its tokens are refused")


def test_a_key_that_no_release_has_had_is_refused(start: Any) -> None:
    with pytest.raises(ConfigError, match=r"cluster.heartbeat_timeouts: unknown key; did you mean"):
        start('[cluster]\nheartbeat_timeouts = "5 s"')


def test_the_two_variables_of_the_data_folder_must_agree(start: Any) -> None:
    assert start(IGGY_PATH="there").config.system.path == "there"
    assert start(IGGY_PATH="there", IGGY_SYSTEM_PATH="there").config.system.path == "there"
    with pytest.raises(ConfigError, match=r"^IGGY_PATH \(here\) and IGGY_SYSTEM_PATH \(there\) name different"):
        start(IGGY_PATH="here", IGGY_SYSTEM_PATH="there")
