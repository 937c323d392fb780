"""Log files: the current one, and older ones next to it until they are too old or too many.

Logging never waits for a disk: records go through a bounded queue to a separate thread. The queue accepts records from
the first moment, and the thread starts when the data folder is locked, so that a server that may not start writes
nothing into the folder of another one. Disk errors do not stop the server.
"""

from __future__ import annotations

import copy
import logging
import os
import sys
import time
from collections.abc import Callable
from logging.handlers import QueueHandler, QueueListener
from queue import Full, Queue
from typing import Any

from whippet.app.config.system import Logging
from whippet.app.telemetry.rotating_file import Bounds, RotatingFile, older_than

NAME = "iggy-server.log"
"""The name of Iggy's log file, which log collectors look for, including rotated files."""
OLDER = older_than(NAME)
WAITING_MAX = 10_000
"""Lines that wait for a slow disk; more are dropped, and counted."""


class LogFiles:
    """Created before anything is opened, started by `start`, ended by `stop`. `handler` is for the root logger."""

    def __init__(self, formatter: logging.Formatter, clock: Callable[[], float] = time.time) -> None:
        self.handler = _Queueing(Queue(WAITING_MAX))
        self._formatter = formatter
        self._clock = clock
        self._listener: QueueListener | None = None
        self._file: _File | None = None
        self.folder: str | None = None
        """The folder of the files. None until `start` was called."""

    def start(self, data_folder: str, settings: Logging) -> None:
        """Writes what was logged so far and what will be. Raises OSError if the folder cannot be used. Blocks."""
        folder = os.path.join(data_folder, settings.path)
        self._file = _File(folder, settings, self._clock)
        self._file.setFormatter(self._formatter)
        self._file.tidy()
        self._listener = _Listener(self.handler.queue, self._file)
        self._listener.start()
        self.folder = folder

    def tidy(self) -> None:
        """Begins a new file if the current one is too old, and removes files that are too old or too many. Blocks."""
        if self._file is not None:
            self._file.tidy()

    def stop(self) -> None:
        """Returns when everything logged is written."""
        if self._listener is not None and self._file is not None:
            self._listener.stop()
            self._file.close()
        self._listener = self._file = None


class _Queueing(QueueHandler):
    """Drops records that do not fit into the queue, and reports their number when there is room again."""

    queue: Queue[Any]

    def __init__(self, queue: Queue[Any]) -> None:
        super().__init__(queue)
        self._dropped = 0

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """Arguments may change before the thread formats the line. The trace of an error stays apart from it."""
        record = copy.copy(record)
        record.msg, record.args = record.getMessage(), None
        if record.exc_info:
            record.exc_text = record.exc_text or logging.Formatter().formatException(record.exc_info)
            record.exc_info = None
        return record

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            if self._dropped:
                text = f"{self._dropped} lines were dropped here, because the disk was too slow"
                self.queue.put_nowait(logging.LogRecord(__name__, logging.WARNING, "", 0, text, None, None))
                self._dropped = 0
            self.queue.put_nowait(record)
        except Full:
            self._dropped += 1


class _Listener(QueueListener):
    queue: Queue[Any]

    def enqueue_sentinel(self) -> None:
        """Waits for room if the queue is full. None ends the thread."""
        self.queue.put(None)


class _File(logging.Handler):
    """The growing file. One thread writes."""

    def __init__(self, folder: str, settings: Logging, clock: Callable[[], float]) -> None:
        super().__init__()
        self._folder = folder
        self._is_failing = False
        bounds = Bounds(settings.max_file_size, settings.max_total_size, settings.retention)
        self.lines = RotatingFile(folder, NAME, bounds, clock, self._report_untidy)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.lines.write(f"{self.format(record)}\n".encode(errors="backslashreplace"))
            self._is_failing = False
        except OSError as error:
            self._report(f"{self.lines.path} cannot be written: {error.strerror or error}")

    def tidy(self) -> None:
        """May be called on any thread."""
        self.acquire()
        try:
            self.lines.tidy()
        except OSError as error:
            self._report_untidy(error)
        finally:
            self.release()

    def _report_untidy(self, error: OSError) -> None:
        self._report(f"{self._folder} cannot be tidied up: {error.strerror or error}")

    def _report(self, problem: str) -> None:
        """Reports once, until a line can be written again; not to the log, which would come back here."""
        if not self._is_failing:
            self._is_failing = True
            sys.stderr.write(f"whippet: {problem}\n")

    def close(self) -> None:
        super().close()
        self.lines.close()
