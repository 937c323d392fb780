"""Python programs that start in a process that has already imported the server.

A new interpreter takes a second of a core to import the server, and the tests start some two hundred servers. So they
are forked from a process that has imported everything and does nothing else. tests/app/test_server_process.py starts
the server as its users do.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO

IMPORTED = ["whippet.app.cli.main", "whippet.app.cli.serve"]


class Forked:
    """The part of `subprocess.Popen` that tests need, with its pipes as text. `errors` is a pipe unless a file is
    given."""

    def __init__(self, code: str, *, env: Mapping[str, str], cwd: Path, errors: IO[str] | None = None) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(IMPORTED)
        child_in, stdin = os.pipe()
        stdout, child_out = os.pipe()
        self.stdin, self.stdout, self.stderr = open(stdin, "w"), open(stdout), None  # noqa: SIM115 -- its user closes them
        if errors is None:
            stderr, child_err = os.pipe()
            self.stderr = open(stderr)  # noqa: SIM115
        else:
            child_err = os.dup(errors.fileno())
        streams = [Connection(number) for number in (child_in, child_out, child_err)]
        self.returncode: int | None = None
        self._process = context.Process(target=_run, args=(code, dict(env), str(cwd), streams), daemon=True)
        self._process.start()
        for stream in streams:
            stream.close()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._process.exitcode
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._process.join(timeout)
        code = self.poll()
        if code is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired("a forked program", timeout)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run(code: str, env: dict[str, str], cwd: str, streams: list[Connection]) -> None:
    for number, stream in enumerate(streams):
        os.dup2(stream.fileno(), number)
        stream.close()
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115 -- until its end
    sys.argv = ["-c"]
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    exec(code, {"__name__": "__main__"})
