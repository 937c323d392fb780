"""The audit log as the rest of the server sees it: it takes what happened, and sees to it that it is kept.

For the event loop, which never waits here. Whatever is to become of logins and changes while the file cannot be written
is decided in `check`: by default they go on and the entries wait; with `audit.required` they are refused.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from whippet.app.audit.audit_file import AuditFile
from whippet.app.audit.audit_topic import AuditTopic
from whippet.app.audit.entry import Entry, encode, shown_time
from whippet.app.audit.repetitions import Repetitions
from whippet.app.errors import Code, CommandError
from whippet.app.telemetry.rotating_file import Bounds

if TYPE_CHECKING:
    from whippet.app.config.schema import Audit
    from whippet.storage.engine import Partition

SETTLE_S = 5.0


class Trail:
    def __init__(self, config: Audit, data_folder: str, clock: Callable[[], int]) -> None:
        self.entries = 0
        self._config = config
        self._clock = clock
        self._topic: AuditTopic | None = None
        self._repetitions = Repetitions(self._keep)
        self._settling: asyncio.TimerHandle | None = None
        bounds = Bounds(config.max_file_size, config.max_total_size, config.retention)
        self._file = AuditFile(os.path.join(data_folder, config.path), bounds, self._lost_line)

    @property
    def commits(self) -> bool:
        """True if each stored offset is recorded."""
        return self._config.commits

    @property
    def lost(self) -> int:
        """Entries that are missing in the file or in the topic."""
        return self._file.lost + (0 if self._topic is None else self._topic.lost)

    @property
    def is_failing(self) -> bool:
        return self.problem() is not None

    def problem(self) -> str | None:
        """Returns what is wrong, in words that anybody may read; None if nothing is."""
        if self._file.problem is not None:
            return "the audit log cannot be written"
        if self._topic is not None and self._topic.problem is not None:
            return "the topic of the audit log cannot be written"
        return None

    def start(self, partition: Callable[[], Awaitable[Partition]] | None) -> None:
        """`partition` returns where the entries are to be kept as messages, if they are."""
        self._file.start()
        if partition is not None:
            self._topic = AuditTopic(partition, self._clock)
            self._topic.start()

    async def stop(self) -> None:
        """Returns when everything is written that can be. Called before the store is closed."""
        self._repetitions.flush()
        if self._settling is not None:
            self._settling.cancel()
        if self._topic is not None:
            await self._topic.stop()
        await asyncio.to_thread(self._file.stop)

    async def flush(self) -> None:
        """Returns when the file has everything that was recorded so far."""
        await asyncio.to_thread(self._file.flush, 10.0)

    def check(self) -> None:
        """Refuses what would have to be recorded, if that is impossible and required."""
        if self._config.required and self._file.problem is not None:
            raise CommandError(Code.AUDIT_UNAVAILABLE)

    def record(self, *, may_repeat: bool = False, **fields: Any) -> None:
        """Records what has just happened; the fields are those of an entry. Entries that may repeat each other are
        taken together."""
        now = self._clock()
        entry = Entry(time=shown_time(now), number=0, **fields)
        if may_repeat:
            if self._settling is None:
                self._settling = asyncio.get_running_loop().call_later(SETTLE_S, self._settle)
            if not self._repetitions.admit(entry, now):
                return
        self._keep(entry)

    def _settle(self) -> None:
        self._repetitions.settle(self._clock())
        self._settling = None
        if not self._repetitions.is_settled:
            self._settling = asyncio.get_running_loop().call_later(SETTLE_S, self._settle)

    def _keep(self, entry: Entry) -> None:
        self.entries += 1
        line = encode(entry.numbered(self.entries))
        self._file.add(line)
        if self._topic is not None:
            self._topic.add(line)

    def _lost_line(self, count: int) -> bytes:
        entry = Entry(
            time=shown_time(self._clock()), number=0, command="audit", outcome="lost", user=None, repeated=count
        )
        return encode(entry)
