"""Long polls: waiting for messages before a poll or a fetch is executed, over any transport.

The wait ends when all partitions together have enough messages, when the time is over, or when the client no longer
waits. The messages are then read by an ordinary command, which checks the caller again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from whippet.app.commands import requests
from whippet.app.commands.messages import ReadPositions
from whippet.app.commands.registry import execute
from whippet.storage.errors import StorageError

if TYPE_CHECKING:
    from whippet.app.gateway import Gateway
    from whippet.app.model.sessions import Session

PAUSE_SECONDS = 0.0005
"""Per partition, if there are many: new messages gather for this long before all partitions are checked again."""

Deferred = requests.PollMessagesDeferred | requests.FetchMessages | requests.AwaitMessages


class LongPoll:
    """One wait. Created before it begins, so that it can be ended at any time."""

    __slots__ = ("_deadline", "_emptied", "_gateway", "_request", "_session", "ended", "positions")

    def __init__(self, gateway: Gateway, session: Session, request: Deferred) -> None:
        loop = asyncio.get_running_loop()
        self._gateway = gateway
        self._session = session
        self._request = request
        self._deadline = loop.time() + request.wait_us / 1_000_000
        self.ended: asyncio.Future[None] = loop.create_future()
        """Done when the client no longer waits."""
        self.positions = ReadPositions((), ())
        self._emptied: list[int] = []

    def end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    async def is_needed(self) -> bool:
        """Returns True if there are fewer messages than wanted. Refuses a caller who may not read."""
        request = self._request
        if not request.wait_us:
            return False
        located = requests.LocateMessages(
            request.consumer, request.stream, request.topic, _starts(request), _incarnations(request)
        )
        self.positions = await execute(self._gateway, self._session, located)
        self._emptied = [partition.emptied for partition in self.positions.partitions]
        if self.partitions_count < len(located.starts):
            # A partition does not exist, or was recreated: the read reports that at once.
            return False
        return self._missing() > 0

    @property
    def commits(self) -> bool:
        """Whether what it finds is committed when it is read."""
        return not isinstance(self._request, requests.AwaitMessages) and self._request.auto_commit

    @property
    def partitions_count(self) -> int:
        return len(self.positions.partitions)

    async def until_ready(self) -> None:
        """Returns when there is enough, or nothing more to wait for."""
        loop = asyncio.get_running_loop()
        while not self.ended.done() and (missing := self._missing()) > 0 and loop.time() < self._deadline:
            partitions, starts = self.positions
            awaited: list[asyncio.Future[None]] = []
            try:
                for partition, start in zip(partitions, starts, strict=True):
                    # Several partitions may have what is missing together, so each is awaited for one message.
                    end = max(partition.readable, start)
                    awaited.append(partition.readable_at(end + (missing if len(partitions) == 1 else 1) - 1))
                await asyncio.wait(
                    (self.ended, *awaited),
                    timeout=max(self._deadline - loop.time(), 0),
                    return_when=asyncio.FIRST_COMPLETED,
                )
            except StorageError:
                # A partition is being removed; the read reports that.
                return
            finally:
                is_gone = any(future.done() and future.exception() is not None for future in awaited)
                for partition, future in zip(partitions, awaited, strict=False):
                    if not future.done():
                        partition.stop_waiting(future)
            if len(partitions) > 1 and not is_gone and self._missing() > 0:
                # A wait for many messages in many partitions does not check all of them after each message.
                pause = min(PAUSE_SECONDS * len(partitions), self._deadline - loop.time())
                await asyncio.wait((self.ended,), timeout=max(pause, 0))
            if is_gone or self._was_purged():
                return

    def _missing(self) -> int:
        available = sum(
            max(partition.readable - start, 0)
            for partition, start in zip(self.positions.partitions, self.positions.start, strict=True)
        )
        return self._request.min_count - available

    def _was_purged(self) -> bool:
        """After a purge the offsets start from 0 again: a client that waits for a later one gets an empty response."""
        return [partition.emptied for partition in self.positions.partitions] != self._emptied


def _starts(request: Deferred) -> tuple[tuple[int | None, requests.Strategy], ...]:
    if isinstance(request, requests.FetchMessages):
        return tuple((target.partition_id, target.strategy) for target in request.targets)
    if isinstance(request, requests.AwaitMessages):
        return request.starts
    strategy = request.strategy
    if strategy.kind is requests.StrategyKind.LAST:
        strategy = requests.Strategy(strategy.kind, request.count)
    return ((request.partition_id, strategy),)


def _incarnations(request: Deferred) -> tuple[int, ...]:
    """Those of a fetch, which names one for each partition; that of a poll is in the frame's header."""
    if isinstance(request, requests.FetchMessages):
        return tuple(target.incarnation for target in request.targets)
    return ()
