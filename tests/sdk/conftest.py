"""The official SDKs as published, against a server process as users start it."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.sdk.support import environments
from tests.sdk.support.inspector import Inspector
from tests.sdk.support.program import Program, Sdk
from tests.sdk.support.server import Server
from tests.support.sizes import mostly_long

_numbers = itertools.count()


WAYS = [(version, transport) for version in environments.VERSIONS for transport in ("tcp", "ws")]
WAYS.append((environments.NEWEST, "quic"))
"""Older versions offer no QUIC in Python."""
USUAL = {("0.6.0", "tcp"), ("0.8.0", "ws"), *(way for way in WAYS if way[0] == environments.NEWEST)}
"""Each released wire over each transport. The other combinations are for `make test-long`."""


@pytest.fixture(scope="session", params=mostly_long(WAYS, USUAL), ids="-".join)
def sdk(request: pytest.FixtureRequest) -> Sdk:
    """The official Python SDK, in each version, over each of its transports."""
    version, transport = request.param
    environments.interpreter(version)
    return Sdk(version, transport)


@pytest.fixture(scope="session")
def sdks() -> dict[str, Sdk]:
    """All versions, for tests that combine them."""
    for version in environments.VERSIONS:
        environments.interpreter(version)
    return {version: Sdk(version) for version in environments.VERSIONS}


@pytest.fixture(scope="session")
def newest() -> Sdk:
    """The version that has a call for everything."""
    environments.interpreter(environments.NEWEST)
    return Sdk(environments.NEWEST)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all tests that leave it running."""
    running = Server(tmp_path_factory.mktemp("server")).start()
    yield running
    running.stop()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts a server for a single test, which may stop and kill it."""
    with contextlib.ExitStack() as ends:

        def start(**settings: str) -> Server:
            server = Server(tmp_path / "server", **settings)
            ends.callback(server.stop)
            return server.start()

        yield start


@pytest.fixture
def inspector(server: Server) -> Iterator[Inspector]:
    inspector = Inspector(server.address)
    yield inspector
    inspector.close()


@pytest.fixture
def name() -> str:
    """A name that is unique on the shared server."""
    return f"orders-{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def start() -> Iterator[Callable[..., Program]]:
    """Starts a program that runs concurrently with the test, and ends it with the test."""
    with contextlib.ExitStack() as ends:

        def start_one(sdk: Sdk, program: str, **task: object) -> Program:
            program_started = sdk.start(program, **task)
            ends.callback(program_started.close)
            return program_started

        yield start_one
