"""Runs the programs of tests/sdk/programs as users would: each in a process of its own, with the SDK's interpreter.

A program gets its task as JSON in its first argument, reports findings as lines of JSON, and reads words from its
stdin.
"""

from __future__ import annotations

import contextlib
import json
import queue
import signal
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.sdk.support import environments, refusals
from tests.sdk.support.server import Reachable

PROGRAMS = Path(__file__).parents[1] / "programs"
SECONDS_MAX = 45
Finding = dict[str, Any]


class Program:
    """A running program, with all its findings so far."""

    def __init__(self, command: list[str], name: str) -> None:
        self.name = name
        self.said: list[Finding] = []
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 -- closed by `close`
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, cwd=PROGRAMS
        )
        self._heard: queue.SimpleQueue[Finding | None] = queue.SimpleQueue()
        self._listener = threading.Thread(target=self._listen)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout
        with self._process.stdout as lines:
            for line in lines:
                try:
                    self._heard.put(json.loads(line))
                except ValueError:  # it was killed in the middle of a line
                    break
        self._heard.put(None)

    def until(self, *keys: str) -> Finding:
        """Waits for the next finding that has all these keys."""
        deadline = time.monotonic() + SECONDS_MAX
        while True:
            try:
                finding = self._heard.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                self.kill()
                raise AssertionError(f"has not said {keys} in {SECONDS_MAX} s: {self}") from None
            assert finding is not None, f"ended without saying {keys}: {self}"
            self.said.append(finding)
            if all(key in finding for key in keys):
                return finding

    def all(self, key: str) -> list[Any]:
        """Returns its findings under a key, in order."""
        self.hear()
        return [finding[key] for finding in self.said if key in finding]

    def findings(self) -> Finding:
        """Merges all findings; of a repeated key the last one counts."""
        return {key: value for finding in self.said for key, value in finding.items()}

    def hear(self) -> None:
        """Reads the findings that have arrived in the meantime."""
        while not self._heard.empty():
            finding = self._heard.get()
            if finding is None:
                self._heard.put(None)
                return
            self.said.append(finding)

    def tell(self, word: str) -> None:
        assert self._process.stdin
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()

    def end(self) -> Finding:
        """Waits for a successful end and returns the last finding."""
        try:
            code = self._process.wait(SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"has not ended in {SECONDS_MAX} s: {self}") from None
        self._listener.join()
        self.hear()
        assert code == 0, f"ended with {code}: {self}"
        self.close()
        return self.said[-1] if self.said else {}

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._listener.join()
        self.hear()

    def close(self) -> None:
        """Ends the process and its threads."""
        if self._process.poll() is None:
            self.kill()
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._listener.join()
        self._errors.close()

    def __str__(self) -> str:
        self._errors.seek(0)
        return f"{self.name}\nlast said: {self.said[-5:]}\nstderr:\n{self._errors.read()[-4000:]}"


@dataclass(frozen=True)
class Sdk:
    """One version of the official Python SDK, whose programs connect over one transport."""

    version: str
    transport: str = "tcp"
    """As in connection strings."""

    @property
    def release(self) -> tuple[int, ...]:
        return tuple(map(int, self.version.split(".")))

    def error(self, answer: str | None) -> str | None:
        """Returns the name of the error in a response."""
        return answer and refusals.name_of(answer)

    def start(self, program: str, **task: Any) -> Program:
        python = environments.interpreter(self.version)
        if isinstance(address := task.get("address"), Reachable):
            task |= {"address": address.over(self.transport), "transport": self.transport}
        script = str(PROGRAMS / f"{program}.py")
        return Program(
            [str(python), "-EsB", script, json.dumps(task)],
            f"{program} {task} with {self.version} over {self.transport}",
        )

    def finished(self, program: str, **task: Any) -> Program:
        """Returns a program that has ended, with all its findings."""
        running = self.start(program, **task)
        try:
            running.end()
        finally:
            running.close()
        return running

    def run(self, program: str, **task: Any) -> Finding:
        """Runs a program to its end and returns the last finding."""
        said = self.finished(program, **task).said
        return said[-1] if said else {}
