"""Writes the audit log to its file, on a thread of its own.

The event loop only puts lines into a bounded queue. A line is written completely or not at all; while the disk refuses,
the lines wait and are tried again, and beyond the bound they are counted, and the file says how many are missing. What
was written is synced before the file counts as intact.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from whippet.app.telemetry.rotating_file import Bounds, RotatingFile

_log = logging.getLogger(__name__)

NAME = "audit.log"
WAITING_MAX = 10_000
WAITING_BYTES_MAX = 32 << 20
RETRY_S = 1.0
TIDY_S = 3_600.0

Lost = Callable[[int], bytes]
"""Makes the line that says how many are missing."""


class AuditFile:
    """`add` and the attributes are for the event loop. Started by `start`, ended by `stop`, which blocks."""

    def __init__(self, folder: str, bounds: Bounds, lost_line: Lost, clock: Callable[[], float] = time.time) -> None:
        self.problem: str | None = None
        """Why entries cannot be written at the moment."""
        self.lost = 0
        """Entries that were dropped since the start."""
        self._folder = folder
        self._bounds = bounds
        self._lost_line = lost_line
        self._clock = clock
        self._file: RotatingFile | None = None
        self._tidied_at = 0.0
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._missing = 0
        """Dropped since the last line that was taken."""
        self._writing = 0
        self._changed = threading.Condition()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="audit log", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def add(self, line: bytes) -> None:
        with self._changed:
            if len(self._waiting) >= WAITING_MAX or self._waiting_bytes >= WAITING_BYTES_MAX:
                self.lost += 1
                self._missing += 1
                return
            if self._missing:
                self._put(self._lost_line(self._missing))
                self._missing = 0
            self._put(line)
            self._changed.notify_all()

    def _put(self, line: bytes) -> None:
        self._waiting.append(line + b"\n")
        self._waiting_bytes += len(line) + 1

    def flush(self, timeout_s: float) -> bool:
        """Blocks until everything that was added is on the disk, or the time is over."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._writing, timeout_s)

    def stop(self) -> None:
        """Writes what waits, once more if the disk refuses."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        self._thread.join()

    # ------------------------------------------------------------------------------------------------------ the thread

    def _run(self) -> None:
        while self._next():
            pass
        if self._file is not None:
            self._file.close()

    def _next(self) -> bool:
        with self._changed:
            patience = TIDY_S if self.problem is None else RETRY_S
            self._changed.wait_for(lambda: self._waiting or self._is_stopping, patience)
            lines = list(self._waiting)
            self._waiting.clear()
            self._waiting_bytes = 0
            self._writing = len(lines)
        written = 0
        try:
            file = self._opened()
            for line in lines:
                file.write(line)
                written += 1
            if lines or self.problem is not None:
                file.sync()
        except Exception as error:  # noqa: BLE001 -- the thread must survive it, and says what happened
            return self._refused(lines[written:], error)
        with self._changed:
            self._writing = 0
            if self.problem is not None:
                _log.info("the audit log can be written again")
                self.problem = None
            self._changed.notify_all()
            return bool(self._waiting) or not self._is_stopping

    def _opened(self) -> RotatingFile:
        if self._file is None:
            self._file = RotatingFile(self._folder, NAME, self._bounds, self._clock, self._untidy)
        if time.monotonic() - self._tidied_at >= TIDY_S or not self._tidied_at:
            self._tidied_at = time.monotonic()
            try:
                self._file.tidy()
            except OSError as error:
                self._untidy(error)
        return self._file

    def _refused(self, lines: list[bytes], error: Exception) -> bool:
        """Puts the lines back, and waits a moment. Returns False if the server stops and cannot wait."""
        where, why = self._folder, str(error)
        if isinstance(error, OSError):
            where, why = error.filename or where, error.strerror or why
        problem = f"the audit log cannot be written: {where}: {why}"
        with self._changed:
            if self.problem is None:
                _log.error("%s; entries wait, and are tried again", problem)
            self.problem = problem
            self._writing = 0
            self._waiting.extendleft(reversed(lines))
            self._waiting_bytes += sum(map(len, lines))
            self._changed.notify_all()
            if self._is_stopping:
                if self._waiting:
                    _log.error("%d entries of the audit log could not be written and are lost", len(self._waiting))
                self._waiting.clear()
                return False
            self._changed.wait_for(lambda: self._is_stopping, RETRY_S)
            return True

    def _untidy(self, error: OSError) -> None:
        _log.warning("old files of the audit log cannot be removed: %s", error)
