"""The file in which a partition keeps the results of numbered sends: FORMAT.md, section 9.

`ProducerFile` belongs to the log, and so to a shard's thread. A record is written before its batch and counts only
if the log has that batch. So a crash between the two leaves nothing that counts, and there is never a batch without its
record. Before an offset is given to another batch, the record that names it is removed. As long as that fails, nothing
is appended.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

import xxhash

from whippet.storage import recovery
from whippet.storage.errors import InvalidProducer
from whippet.storage.files import Files, read_all, read_fully, write_all, write_beside
from whippet.storage.handles import Handles
from whippet.storage.layout import PRODUCERS_FILE, producers_file
from whippet.storage.producers import Bounds, Producer, Producers, Record
from whippet.storage.segment import Damage

_log = logging.getLogger(__name__)

RECORD = struct.Struct("<QQQQQQIIB7s64s")
"""checksum of what follows, sequence, base offset, timestamp, checksum of the batch, synced offset, epoch, messages,
length of the id, owner, id"""

VOID = bytes(RECORD.size)
"""Overwrites a record that does not count."""

COMPACTED_BYTES = 4096 * RECORD.size
"""A file up to this size is not compacted."""


class Written(NamedTuple):
    """A record in the file."""

    position: int
    record: Record
    synced_offset: int
    """All batches before this offset were on the disk when the record was written."""


class Scanned(NamedTuple):
    written: list[Written]
    damaged: list[int]
    """Positions at which there is no valid record, although records follow."""
    end: int
    """Where the last record ends. Anything after it was left by a crash."""


def encode(record: Record, synced_offset: int) -> bytes:
    producer = record.producer
    content = RECORD.pack(
        0,
        producer.sequence,
        record.base_offset,
        record.timestamp,
        record.batch_checksum,
        synced_offset,
        producer.epoch,
        record.messages,
        len(producer.id),
        producer.owner,
        producer.id,
    )
    return xxhash.xxh3_64_intdigest(content[8:]).to_bytes(8, "little") + content[8:]


def decode(content: bytes) -> tuple[Record, int] | None:
    """A record and the synced offset in it; None if the bytes are not a record."""
    checksum, sequence, base, timestamp, batch, synced, epoch, messages, length, owner, identity = RECORD.unpack(
        content
    )
    if xxhash.xxh3_64_intdigest(content[8:]) != checksum:
        return None
    try:
        producer = Producer(identity[:length], epoch, sequence, owner)
    except InvalidProducer:
        return None
    return Record(producer, base, messages, timestamp, batch), synced


def scan(content: bytes) -> Scanned:
    written: list[Written] = []
    suspects: list[int] = []
    for position in range(0, len(content) - RECORD.size + 1, RECORD.size):
        piece = content[position : position + RECORD.size]
        found = decode(piece)
        if found is not None:
            written.append(Written(position, *found))
        elif piece != VOID:
            suspects.append(position)
    end = written[-1].position + RECORD.size if written else 0
    return Scanned(written, [position for position in suspects if position < end], end)


def damage_in(path: str, found: Scanned) -> list[Damage]:
    return [Damage(path, 0, 0, 0, 0, f"the record at position {position} is damaged") for position in found.damaged]


def faults_in(path: str, content: bytes) -> list[Damage]:
    """All damage in a file that no server has open."""
    found = scan(content)
    damage = damage_in(path, found)
    if found.end < len(content.rstrip(b"\0")):
        damage.append(Damage(path, 0, 0, 0, 0, f"the bytes after position {found.end} are not a record"))
    return damage


class ProducerFile:
    """See the module. A method that raises OSError has recorded nothing."""

    def __init__(self, files: Files, handles: Handles, folder: str, bounds: Bounds) -> None:
        self.path = producers_file(folder)
        self.in_doubt = False
        """The file has records after its logical end, which must go before anything is appended to the log."""
        self._files = files
        self._handles = handles
        self._folder = folder
        self._bounds = bounds
        self._end = 0
        self._is_there = False
        self._suspect = False
        """A sync has failed: the system may consider pages clean that never reached the disk."""
        self._unsynced = False
        self._cut_unsynced = False
        self._name_unsynced = False
        self._compact_at = COMPACTED_BYTES
        self._last: Sequence[Record] = ()
        """The records written last, which end where the file ends."""

    def load(self, counts: Callable[[Record, int], bool]) -> tuple[list[Record], list[Damage]]:
        """Returns the records that count, and the damage. `counts` tells whether the log has the batch of a record,
        given an offset before which all batches are known to have been synced."""
        if not self._files.exists(self.path):
            return [], []
        try:
            content = read_all(self._files, self.path)
        except OSError as error:
            kept_in = recovery.move_aside(self._files, self._folder, PRODUCERS_FILE)
            reason = f"cannot be read, so repeated sends of producers are stored again: {error}"
            return [], [Damage(self.path, 0, 0, 0, 0, reason, kept_in)]
        self._is_there = True
        found = scan(content)
        synced_offset = max((one.synced_offset for one in found.written), default=0)
        kept = [one for one in found.written if counts(one.record, synced_offset)]
        self._end = kept[-1].position + RECORD.size if kept else 0
        void = {one.position for one in found.written} - {one.position for one in kept}
        for position in sorted(void):
            if position < self._end:
                write_all(self._files, self._handle(), [VOID], position)
                self._unsynced = self._cut_unsynced = True
        if self._end < len(content):
            self._truncate()
        return [one.record for one in kept], damage_in(self.path, found)

    def write(self, records: Sequence[Record], synced_offset: int, *, sync: bool) -> None:
        """Writes records before their batches are written, and with `sync` also syncs them."""
        self.settle()
        if not records:
            return
        if self._end >= self._compact_at:
            self._compact()
        start = self._end
        content = b"".join([encode(record, synced_offset) for record in records])
        handle = self._handle()
        try:
            write_all(self._files, handle, [content], start)
            self._unsynced = True
            self._end += len(content)
            self._last = records
            if sync:
                self.sync()
        except OSError:
            self._cut(start)
            raise

    def take_back(self, next_offset: int) -> None:
        """Removes the last records whose batches start at an offset or later, because those could not be written."""
        count = sum(record.base_offset >= next_offset for record in self._last)
        if count:
            self._cut(self._end - count * RECORD.size)

    def settle(self) -> None:
        """Returns when nothing is in the file that should not be there."""
        if self._suspect:
            self.rewrite()
        elif self.in_doubt:
            self._truncate()

    def settle_for_good(self) -> None:
        """Like `settle`, and it stays so after a power failure. Called before the batches are deleted that could prove
        a record wrong."""
        self.settle()
        if self._cut_unsynced:
            self.sync()

    def sync(self) -> None:
        if self._suspect:
            self.rewrite()
        if self._unsynced:
            try:
                self._files.sync(self._handle())
            except OSError:
                self._suspect = self.in_doubt = True
                raise
            self._unsynced = self._cut_unsynced = False
        if self._name_unsynced:
            self._files.sync_folder(self._folder)
            self._name_unsynced = False

    def rewrite(self) -> None:
        """Writes everything again, and syncs it."""
        if self._is_there:
            content = read_fully(self._files, self._handle(), self._end, 0)
            self._replace(write_beside(self._files, self.path, content), len(content))

    def _compact(self) -> None:
        """Drops records that are no longer remembered. If that fails, the file keeps growing until the next attempt."""
        try:
            found = scan(read_fully(self._files, self._handle(), self._end, 0))
            synced_offset = max((one.synced_offset for one in found.written), default=0)
            kept = Producers(self._bounds, [one.record for one in found.written]).records()
            content = b"".join([encode(record, synced_offset) for record in kept])
            beside = write_beside(self._files, self.path, content)
        except OSError as error:
            _log.warning("%s: cannot be compacted, and keeps growing: %s", self.path, error)
            self._compact_at = self._end + COMPACTED_BYTES
            return
        self._replace(beside, len(content))
        self._compact_at = max(2 * self._end, COMPACTED_BYTES)

    def _replace(self, beside: str, length: int) -> None:
        # If this fails, either of the two files may have the name; its content up to the end counts.
        self._suspect = self.in_doubt = True
        self._handles.drop(self.path)
        self._last = ()
        self._files.rename(beside, self.path)
        self._files.sync_folder(self._folder)
        self._end = length
        self._suspect = self.in_doubt = False
        self._unsynced = self._cut_unsynced = self._name_unsynced = False

    def _cut(self, end: int) -> None:
        self._end = end
        self._last = ()
        try:
            self._truncate()
        except OSError as error:
            _log.warning("%s: records of batches that were not written cannot be removed yet: %s", self.path, error)
            self.in_doubt = True

    def _truncate(self) -> None:
        self._files.truncate(self._handle(), self._end)
        self._unsynced = self._cut_unsynced = True
        self.in_doubt = self._suspect

    def _handle(self) -> int:
        handle = self._handles.writing(self.path)
        if not self._is_there:
            self._is_there = self._name_unsynced = True
        return handle

    def close(self) -> None:
        self._handles.drop(self.path)

    def forget(self) -> None:
        """Called after a purge has removed the file."""
        self.close()
        self.in_doubt = self._is_there = self._suspect = False
        self._unsynced = self._cut_unsynced = self._name_unsynced = False
        self._end = 0
        self._compact_at = COMPACTED_BYTES
        self._last = ()
