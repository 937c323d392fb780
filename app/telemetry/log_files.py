"""The log in files: one that grows, and older ones beside it until they are too old or too many.

Whoever logs never waits for a disk: records go through a queue with a bound to a thread of their own. The queue takes
records from the first moment, and the thread begins when the data folder is locked, so that a server whose start is
refused writes nothing into the folder of another one. A disk that refuses lines is no reason to fail.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from collections.abc import Callable
from logging.handlers import QueueHandler, QueueListener
from queue import Full, Queue
from typing import Any

from whippet.app.config.system import Logging

NAME = "iggy-server.log"
"""The name that Iggy's server has, because programs that collect logs look for it and for what follows."""
OLDER = re.compile(r"iggy-server\.log\.\d{20}")
"""With the time at which it ended, to the microsecond."""
WAITING_MAX = 10_000
"""Lines that wait for a slow disk; more are left out, and counted."""
OWNER_ALONE = 0o600


class LogFiles:
    """Made before anything is opened, begun by `start`, ended by `stop`. `handler` is for the root logger."""

    def __init__(self, formatter: logging.Formatter, clock: Callable[[], float] = time.time) -> None:
        self.handler = _Queueing(Queue(WAITING_MAX))
        self._formatter = formatter
        self._clock = clock
        self._listener: QueueListener | None = None
        self._file: _File | None = None
        self.folder: str | None = None
        """The files are in this folder. None until `start` has been called."""

    def start(self, data_folder: str, settings: Logging) -> None:
        """Writes what has been logged so far and what will be. OSError if the folder cannot be used. Blocks."""
        folder = os.path.join(data_folder, settings.path)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        self._file = _File(folder, settings, self._clock)
        self._file.setFormatter(self._formatter)
        self._file.tidy()
        self._listener = _Listener(self.handler.queue, self._file)
        self._listener.start()
        self.folder = folder

    def tidy(self) -> None:
        """Begins a new file if the present one is too old, and removes those that are too old or too many. Blocks."""
        if self._file is not None:
            self._file.tidy()

    def stop(self) -> None:
        """Returns when all that was logged is written."""
        if self._listener is not None and self._file is not None:
            self._listener.stop()
            self._file.close()
        self._listener = self._file = None


class _Queueing(QueueHandler):
    """Leaves out what the queue has no room for, and says how much that was when there is room again."""

    queue: Queue[Any]

    def __init__(self, queue: Queue[Any]) -> None:
        super().__init__(queue)
        self._left_out = 0

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            if self._left_out:
                text = f"{self._left_out} lines were left out here, because the disk was too slow for them"
                self.queue.put_nowait(logging.LogRecord(__name__, logging.WARNING, "", 0, text, None, None))
                self._left_out = 0
            self.queue.put_nowait(record)
        except Full:
            self._left_out += 1


class _Listener(QueueListener):
    queue: Queue[Any]

    def enqueue_sentinel(self) -> None:
        """Waits for room where the queue is full. None is what ends the thread."""
        self.queue.put(None)


class _File(logging.Handler):
    """The file that grows. One thread writes."""

    def __init__(self, folder: str, settings: Logging, clock: Callable[[], float]) -> None:
        super().__init__()
        self._folder = folder
        self._path = os.path.join(folder, NAME)
        self._settings = settings
        self._clock = clock
        self._refused = False
        self._open()

    def _open(self) -> None:
        handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, OWNER_ALONE)
        self._stream = os.fdopen(handle, "ab", buffering=0)
        found = os.fstat(handle)
        self._size = found.st_size
        self._begun_at = min(self._clock(), found.st_mtime) if found.st_size else self._clock()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = f"{self.format(record)}\n".encode(errors="backslashreplace")
            if self._size and 0 < self._settings.max_file_size < self._size + len(line):
                self._begin_another()
                self.tidy()
            self._size += self._stream.write(line)
            self._refused = False
        except OSError as error:
            self._say(f"{self._path} cannot be written: {error.strerror or error}")

    def _begin_another(self) -> None:
        moment = self._clock()
        stamp = time.strftime("%Y%m%d%H%M%S", time.gmtime(moment)) + f"{int(moment % 1 * 1e6):06}"
        os.rename(self._path, f"{self._path}.{stamp}")
        self._stream.close()
        self._open()

    def tidy(self) -> None:
        """On any thread."""
        self.acquire()
        try:
            if self._size and self._clock() - self._begun_at >= self._settings.retention:
                self._begin_another()
            self._remove_old()
        except OSError as error:
            self._say(f"{self._folder} cannot be tidied up: {error.strerror or error}")
        finally:
            self.release()

    def _remove_old(self) -> None:
        settings = self._settings
        # What grows is counted as what it may become, so that the sum holds until the next time.
        total = max(self._size, settings.max_file_size)
        for name in sorted(filter(OLDER.fullmatch, os.listdir(self._folder)), reverse=True):
            path = os.path.join(self._folder, name)
            found = os.stat(path)
            total += found.st_size
            if self._clock() - found.st_mtime >= settings.retention or 0 < settings.max_total_size < total:
                os.remove(path)

    def _say(self, problem: str) -> None:
        """Once, until a line can be written again; not to the log, which would come back here."""
        if not self._refused:
            self._refused = True
            sys.stderr.write(f"whippet: {problem}\n")

    def close(self) -> None:
        super().close()
        self._stream.close()
