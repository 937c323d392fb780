"""A `whippet serve` process as its users start and stop it: controlled by signals, observed through its output.

Nothing sleeps here: a test waits for a line of the child's output, or for its end, both with one deadline.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

import httpx
import pytest

from tests.support.forked import Forked

DEADLINE_S = 30

MAIN = "import sys; from whippet.app.cli.main import main; sys.exit(main(['serve']))"


class Gateway:
    """A running child and its output so far."""

    def __init__(self, process: subprocess.Popen[str] | Forked) -> None:
        self.process = process
        self.out: list[str] = []
        self.err: list[str] = []
        self._changed = threading.Condition()
        assert process.stdout
        assert process.stderr
        self._readers = [
            threading.Thread(target=self._read, args=(process.stdout, self.out)),
            threading.Thread(target=self._read, args=(process.stderr, self.err)),
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: IO[str], lines: list[str]) -> None:
        with stream:
            for line in stream:
                with self._changed:
                    lines.append(line.rstrip("\n"))
                    self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def line(self, pattern: str) -> re.Match[str]:
        """Waits for the first line, on either stream, that contains the pattern."""
        deadline = time.monotonic() + DEADLINE_S
        with self._changed:
            while True:
                for line in (*self.out, *self.err):
                    if found := re.search(pattern, line):
                        return found
                alive = any(reader.is_alive() for reader in self._readers)
                assert alive, f"ended without saying {pattern!r}:\n{self}"
                assert self._changed.wait(min(1.0, deadline - time.monotonic())) or time.monotonic() < deadline, (
                    f"has not printed {pattern!r} within {DEADLINE_S} s:\n{self}"
                )

    def address(self) -> str:
        return self.line(r"http://(\S+)").group(1)

    def get(self, path: str) -> httpx.Response:
        with httpx.Client(trust_env=False, timeout=DEADLINE_S) as client:
            return client.get(f"http://{self.address()}{path}")

    def ping(self) -> str:
        return self.get("/ping").raise_for_status().text

    def connect(self) -> socket.socket:
        host, port = self.address().rsplit(":", 1)
        return socket.create_connection((host, int(port)), timeout=DEADLINE_S)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        """Waits for the end and returns the exit code; all output is available then."""
        try:
            code = self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            pytest.fail(f"still running after {DEADLINE_S} s:\n{self}")
        for reader in self._readers:
            reader.join(DEADLINE_S)
        return code

    def refusal(self) -> str:
        """The one line with which a start was refused."""
        assert "Traceback" not in str(self)
        assert self.out == [], "a refused start shows no banner"
        lines = [line for line in self.err if line.startswith("whippet: ")]
        assert len(lines) == 1, str(self)
        return lines[0]

    def __str__(self) -> str:
        return "\n".join(["stdout:", *self.out, "stderr:", *self.err])


Start = Callable[..., Gateway]


@contextlib.contextmanager
def starting(folder: Path, command: Sequence[str] = ()) -> Iterator[Start]:
    """Starts gateways on a data folder and free ports. Settings override; the child runs `first` before it. `command`
    starts a Whippet that is installed elsewhere.

    One that is `fresh`, or has something to run first, is a new interpreter, as its users start it.
    """
    started: list[Gateway] = []

    def start_one(first: str = "", *, fresh: bool = False, **settings: str) -> Gateway:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("IGGY_", "RUST_LOG"))}
        anywhere = {f"IGGY_{name}_ADDRESS": "127.0.0.1:0" for name in ("HTTP", "TCP", "QUIC")}
        anywhere["IGGY_SYSTEM_LOGGING_FORMAT"] = "text"
        environ = inherited | {"IGGY_SYSTEM_PATH": str(folder)} | anywhere | settings
        process: subprocess.Popen[str] | Forked
        if command or fresh or first:
            process = subprocess.Popen(
                [*command] or [sys.executable, "-c", first + MAIN],
                cwd=folder.parent,
                env=environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        else:
            process = Forked(MAIN, env=environ, cwd=folder.parent)
        started.append(Gateway(process))
        return started[-1]

    try:
        yield start_one
    finally:
        for gateway in started:
            gateway.process.kill()
            gateway.end()
            assert gateway.process.stdin
            gateway.process.stdin.close()
