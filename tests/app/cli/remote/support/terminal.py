"""A command on a terminal of its own, which a test reads, types at and resizes."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

DEADLINE_S = 30
PROGRAM = (sys.executable, "-m", "whippet.app.cli.main")
_CONTROL = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07]*\x07|[()][A-Z0-9]|[=>])")


class Terminal:
    def __init__(self, ours: int, theirs: int, process: subprocess.Popen[bytes]) -> None:
        self.shown = ""
        """All that the command has written."""
        self.process = process
        self._ours = ours
        self._theirs = theirs
        self.settings = termios.tcgetattr(theirs)
        """As they were before the command."""

    @property
    def text(self) -> str:
        """The same without control sequences."""
        return _CONTROL.sub("", self.shown)

    def expect(self, pattern: str, *, after: int = 0) -> int:
        """Reads until the text after a position has the pattern, and returns the position after that."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            text = self.text
            if found := re.compile(pattern).search(text, after):
                return found.end()
            left = deadline - time.monotonic()
            assert left > 0 and self._read(left), f"{pattern!r} was not shown:\n{text[after:]}"

    def _read(self, seconds: float) -> bool:
        ready, _, _ = select.select([self._ours], [], [], seconds)
        if not ready:
            return False
        try:
            chunk = os.read(self._ours, 65536)
        except OSError:
            return False
        self.shown += chunk.decode(errors="replace")
        return bool(chunk)

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def resize(self, lines: int, columns: int) -> None:
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def end(self) -> int:
        """Waits for the end and returns the exit code; all output is there then."""
        deadline = time.monotonic() + DEADLINE_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"still running:\n{self.text}"
            self._read(0.1)
        while self._read(0):
            pass
        return self.process.wait()

    @property
    def is_restored(self) -> bool:
        """True if the terminal has the settings and the screen that it had before."""
        entered, left = self.shown.count("\x1b[?1049h"), self.shown.count("\x1b[?1049l")
        hidden, visible = self.shown.rfind("\x1b[?25l"), self.shown.rfind("\x1b[?25h")
        return termios.tcgetattr(self._theirs) == self.settings and entered == left and hidden <= visible


@contextmanager
def terminal(
    *words: str, program: Sequence[str] = PROGRAM, lines: int = 24, columns: int = 100, **variables: str
) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    inherited = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
    process = subprocess.Popen(
        # Only the terminal of its session sends a process Ctrl-C.
        ["setsid", "--ctty", *program, *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=inherited | {"TERM": "xterm-256color"} | variables,
    )
    try:
        yield Terminal(ours, theirs, process)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)


INTERRUPT = "\x03"
"""Ctrl-C, as the terminal turns it into a signal."""
END_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
