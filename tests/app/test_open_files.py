"""Limits that do not fit into the open files of the process are lowered in proportion."""

from __future__ import annotations

import msgspec
import pytest

from whippet.app.config import Config
from whippet.app.config.formats import Address
from whippet.app.config.listeners import Http, Metrics, Tcp, Websocket
from whippet.app.open_files import OTHER, fit_limits, needed


def test_the_connections_of_every_listener_are_counted() -> None:
    config = Config()
    binary, http = config.system.limits.connections, config.http.limits.connections
    files = config.system.limits.open_files + OTHER
    change = msgspec.structs.replace
    assert needed(config) == 2 * binary + http + files
    assert needed(change(config, tcp=Tcp(enabled=False))) == binary + http + files
    assert needed(change(config, websocket=Websocket(enabled=False))) == binary + http + files
    assert needed(change(config, metrics=Metrics(enabled=True))) == 2 * binary + 2 * http + files
    own = Websocket(address=Address("127.0.0.1", 8092))
    assert needed(change(config, websocket=own)) == 2 * binary + 2 * http + files
    assert needed(change(config, http=Http(enabled=False))) == binary + files


@pytest.mark.parametrize("allowed", [500, 1000, 10_000, 40_000])
def test_limits_that_do_not_fit_are_lowered(allowed: int) -> None:
    config, warning = fit_limits(Config(), allowed)
    assert needed(config) <= allowed
    assert needed(config) > 0.9 * allowed
    assert warning is not None
    assert f"allows {allowed} open files" in warning
    assert f"system.limits.connections = 16384 counts as {config.system.limits.connections}," in warning


def test_limits_that_fit_are_kept() -> None:
    assert fit_limits(Config(), needed(Config())) == (Config(), None)


def test_even_with_very_few_files_every_limit_stays_positive() -> None:
    config, _ = fit_limits(Config(), 10)
    assert (config.system.limits.connections, config.http.limits.connections) == (1, 1)
    config, _ = fit_limits(Config(), 48)
    assert config.system.limits.connections > 4
    assert config.system.limits.open_files == 16
