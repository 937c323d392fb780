"""What `whippet send --producer NAME` has sent: a file of one line, which the next run of the same command reads.

Before a batch is sent, the line says how many messages it has, and how many requests they become; after each response,
that this request is done. So a run that was killed at any point leaves at most one request whose fate is unknown, and
the next run repeats exactly that one, under its number: the server stores it once. The checksum of the messages that
are done tells whether the input is the same again.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator

import msgspec
import xxhash

from whippet.app.cli.remote import contexts
from whippet.app.cli.remote.failures import Failure, UsageFailure
from whippet.app.cli.remote.messages import batches_of

LINE_BYTES = 512
"""Each write replaces the whole line, in one call."""


class Record(msgspec.Struct, frozen=True):
    messages: int = 0
    """All requests of these first messages of the input are done."""
    checksum: str = ""
    sequence: int = 0
    """The number of the next request."""
    batch: int = 0
    """Messages of the batch after them, of which some requests may be done; 0: none was begun."""
    done: int = 0
    """How many requests of this batch are done."""


class Journal:
    """Locked while it is open."""

    def __init__(self, name: str, *place: object) -> None:
        folder = os.path.join(os.path.dirname(contexts.path()), "sends")
        os.makedirs(folder, mode=0o700, exist_ok=True)
        self.name = name
        key = xxhash.xxh3_128_hexdigest(msgspec.json.encode([name, *map(str, place)]))
        self.path = os.path.join(folder, f"{key}.json")
        self._handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._handle)
            raise Failure(f"another `whippet send --producer {name}` to this topic is running") from None
        line = os.pread(self._handle, LINE_BYTES, 0)
        try:
            self.record = msgspec.json.decode(line, type=Record) if line else Record()
        except msgspec.MsgspecError:
            raise Failure(f"{self.path} is damaged: remove it, and use another name instead of {name}") from None

    def write(self, record: Record) -> None:
        os.pwrite(self._handle, msgspec.json.encode(record).ljust(LINE_BYTES - 1) + b"\n", 0)
        self.record = record

    def close(self) -> None:
        os.close(self._handle)


class Remaining:
    """Cuts the input into the batches that are still to be sent: as the journal has begun them, and then as usual."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._sum = xxhash.xxh3_64()
        self._skip = journal.record.messages
        self._expected = journal.record.checksum
        self._begun = journal.record.batch
        self._held: list[bytes] = []
        self.skipped = self._skip
        self.was_begun = bool(self._begun)
        """A request of an earlier run may be stored, although its response is not noted."""

    def of(self, payloads: Iterable[bytes]) -> Iterator[list[bytes]]:
        """Yields batches; what belongs to an unfinished one is held until the rest of it comes."""
        left = [payload for payload in payloads if payload]
        if self._skip:
            known, left = left[: self._skip], left[self._skip :]
            self._add(known)
            self._skip -= len(known)
            if self._skip:
                return
            if self._sum.hexdigest() != self._expected:
                raise self._other_input("it does not begin with")
        if self._begun:
            missing = self._begun - len(self._held)
            self._held += left[:missing]
            left = left[missing:]
            if len(self._held) < self._begun:
                return
            begun, self._held, self._begun = self._held, [], 0
            yield begun
        yield from batches_of(left)

    def finish(self) -> None:
        """Called at the end of the input."""
        if self._skip or self._begun:
            raise self._other_input("it has less than")

    def begin(self, batch: list[bytes]) -> int:
        """Notes a batch before its first request, and returns how many of its requests are done already."""
        record = self._journal.record
        if record.batch:
            return record.done
        self._journal.write(msgspec.structs.replace(record, batch=len(batch), done=0))
        return 0

    def done(self) -> None:
        """Notes that a request is done."""
        record = self._journal.record
        self._journal.write(msgspec.structs.replace(record, sequence=record.sequence + 1, done=record.done + 1))

    def end(self, batch: list[bytes]) -> None:
        """Notes that all requests of a batch are done."""
        record = self._journal.record
        self._add(batch)
        self._journal.write(Record(record.messages + len(batch), self._sum.hexdigest(), record.sequence))

    def _add(self, payloads: list[bytes]) -> None:
        if payloads:
            self._sum.update(b"\n".join(payloads) + b"\n")

    def _other_input(self, what: str) -> UsageFailure:
        name = self._journal.name
        return UsageFailure(
            f"this is not the input that --producer {name} was sending: {what} the {self._journal.record.messages} "
            "messages that are sent already; use another name for another input"
        )
