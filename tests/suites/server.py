"""A gateway on free ports with a folder of its own, as someone who runs a suite by hand would start it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

FREE = {"tcp": 0, "http": 0, "quic": 0, "websocket": 0}
USUAL = {"tcp": 8090, "http": 3000, "quic": 8080, "websocket": 8092}
"""Iggy's default ports, for suites that cannot be given others."""
START_SECONDS_MAX = 60
COMMAND = [sys.executable, "-m", "whippet.app.cli.main", "serve"]


class NotStarted(Exception):
    """For example because the ports are in use."""


@contextmanager
def served(folder: Path, ports: Mapping[str, int] = FREE) -> Iterator[dict[str, str]]:
    """Yields the address of each listener."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("IGGY_", "RUST_LOG"))}
    settings = {f"IGGY_{section.upper()}_ADDRESS": f"127.0.0.1:{port}" for section, port in ports.items()}
    settings |= {"IGGY_SYSTEM_PATH": str(folder / "data"), "IGGY_SYSTEM_LOGGING_LEVEL": "warn"}
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(
            [*COMMAND, "--with-default-root-credentials"], env=inherited | settings, stdout=log, stderr=log
        )
        try:
            yield _addresses(process, folder / "data" / "runtime" / "current_config.toml")
        finally:
            process.terminate()
            process.wait()


def _addresses(process: subprocess.Popen[bytes], said: Path) -> dict[str, str]:
    deadline = time.monotonic() + START_SECONDS_MAX
    while not said.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            lines = (said.parents[2] / "server.log").read_text().splitlines()
            raise NotStarted(f"the gateway did not start: {lines[-1] if lines else 'it said nothing'}")
        time.sleep(0.05)
    config = tomllib.loads(said.read_text())
    return {section: config[section]["address"] for section in FREE}
