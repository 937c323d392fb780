"""Keeps the entries of the audit log as messages of a topic of this server, so that they can be queried and shipped.

The entries are appended to the partition itself, not sent by a command: there is nothing to be recorded about that.
Whatever fails is tried again; beyond a bound the oldest are dropped and counted, because the file has them. The topic
can miss the last entries before the process was killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import deque
from typing import TYPE_CHECKING

from whippet.storage.batch import Message, build
from whippet.storage.errors import InvalidBatch, StorageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from whippet.storage.engine import Partition

_log = logging.getLogger(__name__)

NAME = "entries"
"""The topic in the stream `audit.stream`."""
WAITING_MAX = 10_000
WAITING_BYTES_MAX = 32 << 20
AT_ONCE_MAX = 100
AT_ONCE_BYTES = 256 << 10
RETRY_S = 1.0
STOP_S = 5.0


class AuditTopic:
    """`partition` returns where the entries go, and creates it if necessary."""

    def __init__(self, partition: Callable[[], Awaitable[Partition]], clock: Callable[[], int]) -> None:
        self.problem: str | None = None
        self.lost = 0
        self._partition = partition
        self._clock = clock
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._arrived = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="audit topic")

    def add(self, line: bytes) -> None:
        self._waiting.append(line)
        self._waiting_bytes += len(line)
        while len(self._waiting) > WAITING_MAX or self._waiting_bytes > WAITING_BYTES_MAX:
            self._waiting_bytes -= len(self._waiting.popleft())
            self.lost += 1
        self._idle.clear()
        self._arrived.set()

    async def stop(self) -> None:
        """Appends what waits, if that does not take long."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), STOP_S if self.problem is None else 0)
        if self._waiting:
            _log.warning("%d entries of the audit log are in its file only, not in topic %r", len(self._waiting), NAME)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._waiting:
                try:
                    await self._append()
                except Exception as error:  # noqa: BLE001 -- it must survive, and says what happened
                    await self._wait(error)
            self._idle.set()

    async def _append(self) -> None:
        partition = await self._partition()
        size, lines = 0, list[bytes]()
        while self._waiting and len(lines) < AT_ONCE_MAX and size < AT_ONCE_BYTES:
            lines.append(self._waiting.popleft())
            size += len(lines[-1])
        self._waiting_bytes -= size
        try:
            await partition.append(build([Message(line) for line in lines], self._clock(), os.urandom))
        except InvalidBatch as error:
            # Trying it again would not help: the limits of messages are smaller than an entry.
            self.lost += len(lines)
            _log.error("%d entries of the audit log do not fit into a message of topic %r: %s", len(lines), NAME, error)
        except BaseException:
            self._waiting.extendleft(reversed(lines))
            self._waiting_bytes += size
            raise
        if self.problem is not None:
            self.problem = None
            _log.info("the topic of the audit log can be written again")

    async def _wait(self, error: Exception) -> None:
        problem = f"the topic of the audit log cannot be written: {error}"
        if self.problem is None:
            expected = isinstance(error, StorageError)
            _log.error("%s; entries wait, and are tried again", problem, exc_info=None if expected else error)
        self.problem = problem
        await asyncio.sleep(RETRY_S)
