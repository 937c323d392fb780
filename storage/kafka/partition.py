"""A partition in Kafka, as commands see it (storage/engine.py)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from whippet.storage import batch as batches
from whippet.storage.appended import Appended
from whippet.storage.errors import InvalidOffset, PartitionClosed, Unsupported
from whippet.storage.fetched import Fetched
from whippet.storage.kafka import names, offsets
from whippet.storage.kafka.producing import Appends
from whippet.storage.kafka.watching import Log
from whippet.storage.offsets import Key, Kind
from whippet.storage.options import Durability

if TYPE_CHECKING:
    from whippet.storage.kafka.engine import Shared
    from whippet.storage.layout import PartitionId
    from whippet.storage.long_reads import LongRead
    from whippet.storage.producers import Producer
    from whippet.storage.retention import HeldBack
    from whippet.storage.single_batch import Single
    from whippet.storage.waiting import Awaiting

NUMBERED = "numbered sends"


class KafkaPartition:
    """See the module."""

    durability = Durability.WRITTEN
    """All replicas in sync have the message: clients see `replicated`."""
    emptied = 0

    def __init__(self, place: PartitionId, topic: str, epoch: int, shared: Shared) -> None:
        self.place = place
        self.epoch = epoch
        self.topic = topic
        self.held_back: HeldBack | None = None
        self.failed: PartitionClosed | None = None
        self._shared = shared
        self._log = Log(shared.cluster, topic, place.partition, shared.recent)
        self._appends = Appends(shared.cluster, topic, place.partition, shared.unsent)
        self._offsets: dict[Key, int] = {}

    # ------------------------------------------------------------------------------------------------------------ state

    @property
    def readable(self) -> int:
        return self._log.readable

    appended = readable

    @property
    def first_offset(self) -> int:
        return self._log.first_offset

    @property
    def messages_count(self) -> int:
        """Gaps count as messages."""
        return max(self._log.readable - self._log.first_offset, 0)

    segments_count = size_bytes = disk_bytes = message_bytes = 0
    """Not asked of the brokers."""

    async def catch_up(self) -> None:
        await self._log.refresh()

    async def here(self, reader: Key | None = None) -> None:
        if reader is None:
            await self._log.refresh()
        else:
            await asyncio.gather(self._log.refresh(), self._find_offset(reader))

    # -------------------------------------------------------------------------------------------------------- appending

    def check(self, batch: batches.Readable) -> batches.Checked:
        return batches.check(batch, self._shared.limits)

    def check_room(self, size: int) -> None:
        """Kafka deletes the oldest messages of a topic that is too large."""

    async def append(
        self,
        batch: batches.Writable,
        durability: Durability | None = None,
        *,
        checked: batches.Checked | None = None,
    ) -> Appended:
        if checked is None:
            checked = batches.check(batch, self._shared.limits)
        elif len(batch) > self._shared.limits.batch_bytes:
            batches.refuse(batch, self._shared.limits)
        _check_durability(durability)
        placed = await self._appends.append(batch, checked.message_count)
        return Appended(placed.base_offset, checked.message_count, placed.timestamp_us, self.durability)

    def append_at_once(
        self, content: Single | tuple[batches.Writable, batches.Checked], size: int, waiting: Awaiting
    ) -> int | None:
        return None

    async def append_once(
        self,
        batch: batches.Writable,
        producer: Producer,
        durability: Durability | None = None,
        *,
        checked: batches.Checked | None = None,
    ) -> Appended:
        raise Unsupported(NUMBERED)

    async def result_of(self, producer: Producer, durability: Durability | None = None) -> Appended | None:
        raise Unsupported(NUMBERED)

    def remembers(self, producer: Producer) -> bool:
        return False

    def has_passed(self, producer: Producer) -> bool:
        return False

    def epoch_of(self, producer: Producer) -> int | None:
        return None

    async def flush(self, *, sync: bool = False) -> Durability:
        """Nothing is buffered that was acknowledged."""
        if sync:
            _check_durability(Durability.SYNCED)
        return self.durability

    # --------------------------------------------------------------------------------------------- waiting and reading

    async def until(self, offset: int, durability: Durability | None = None) -> None:
        future = self._log.wait(offset)
        try:
            await future
        except asyncio.CancelledError:
            self._log.readers.end(future)
            raise

    def readable_at(self, offset: int) -> asyncio.Future[None]:
        return self._log.wait(offset)

    def stop_waiting(self, future: asyncio.Future[None]) -> None:
        self._log.readers.end(future)

    async def read(self, offset: int, count: int, room: int | None = None) -> Fetched:
        limit = self._shared.options.read_bytes_max
        return await self._log.read(offset, count, limit if room is None else min(room, limit))

    async def read_long(self, offset: int, count: int, room: int) -> LongRead | None:
        return None

    async def offset_at(self, timestamp: int) -> int:
        return await self._log.offset_at(timestamp)

    # -------------------------------------------------------------------------------------------------- stored offsets

    def offset_of(self, kind: Kind, identity: int) -> int | None:
        return self._offsets.get((kind, identity))

    def readers(self, kind: Kind) -> list[int]:
        """Those that this gateway has met."""
        return [identity for known, identity in self._offsets if known is kind]

    def reader_name(self, kind: Kind, identity: int) -> str | None:
        return None

    async def store_offset(self, kind: Kind, identity: int, offset: int, name: str | None = None) -> None:
        if offset >= self._log.readable:
            await self._log.refresh()
        if offset < 0 or offset >= self._log.readable:
            newest = f"the newest message has {self.readable - 1}" if self.readable else "the partition is empty"
            raise InvalidOffset(f"{self.place}: offset {offset} cannot be stored, {newest}")
        await offsets.store(self._shared.cluster, self._group(kind, identity), self.topic, self.place.partition, offset)
        self._remember((kind, identity), offset)

    async def delete_offset(self, kind: Kind, identity: int) -> bool:
        await self._find_offset((kind, identity))
        if self._offsets.pop((kind, identity), None) is None:
            return False
        await offsets.delete(self._shared.cluster, self._group(kind, identity), self.topic, self.place.partition)
        return True

    async def _find_offset(self, reader: Key) -> None:
        group = self._group(*reader)
        self._remember(reader, await offsets.stored(self._shared.cluster, group, self.topic, self.place.partition))

    def _remember(self, reader: Key, offset: int | None) -> None:
        """Keeps what was found, for as many readers as may be kept; it is asked for again whenever it matters."""
        self._offsets.pop(reader, None)
        if offset is not None:
            self._offsets[reader] = offset
            if len(self._offsets) > self._shared.options.consumer_offsets_max:
                del self._offsets[next(iter(self._offsets))]

    def _group(self, kind: Kind, identity: int) -> str:
        return names.group(self.topic, kind, str(identity))

    # ----------------------------------------------------------------------------------------------------------- ending

    async def close(self, reason: str) -> None:
        closed = self.failed = PartitionClosed(f"{self.place}: {reason}")
        await asyncio.gather(self._appends.close(closed), self._log.close(closed))


def _check_durability(wanted: Durability | None) -> None:
    if wanted is Durability.SYNCED:
        raise Unsupported("to wait for disks; a message is acknowledged when all replicas in sync have it (replicated)")
