"""The results of numbered sends in one partition, so that repeating a send appends nothing.

    1. A producer has an id that belongs to its owner. It numbers its sends with an epoch, which it raises when it
       restarts, and a sequence that rises from send to send. Gaps are allowed.
    2. A sequence that has a result gets the same result again. One that is older than the newest and has no remembered
       result is refused: either it is no longer known whether it is in the log, or it is certainly not and would be out
       of order.
    3. A higher epoch ends all lower ones from the moment its first batch is appended.
    4. The state covers everything appended. Results of batches that could not be written are taken back, and what they
       replaced is restored.
    5. Each send of a producer that counts its messages (clients of the 0.12 protocol) has to follow the one before it.
    6. Records of older versions have no owner. They count for every owner of that producer id, until the owner sends
       something, which continues from there.

This is pure state: the event loop has one for each partition, and producer_file.py compacts its file with one. The
partition consults it in the same step in which it appends, so nothing can come in between.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Iterable
from typing import NamedTuple

import msgspec

from whippet.storage.errors import (
    InvalidProducer,
    ProducerFenced,
    SequenceForgotten,
    SequenceGap,
    SequencePassed,
    UnknownProducer,
)

ID_BYTES_MAX = 64
EPOCH_MAX = 2**32 - 1
SEQUENCE_MAX = 2**64 - 1
OWNER_BYTES = 7
MESSAGE_NUMBERS = 2**31
"""After this many messages, numbers start over with 0."""
NOBODYS = bytes(OWNER_BYTES)
"""The owner in records from before there were owners."""


class Producer(msgspec.Struct, frozen=True, gc=False):
    """The sender of a batch, and which of its sends this is."""

    id: bytes
    epoch: int
    sequence: int
    owner: bytes = NOBODYS
    """Whose id it is. Two owners may use the same id without affecting each other."""
    counts_messages: bool = False
    """The sequence is the number of the first message, and the next send has to follow without a gap. It has 31 bits,
    and starts over with 0 after the highest."""

    def __post_init__(self) -> None:
        if len(self.owner) != OWNER_BYTES:
            raise InvalidProducer(f"the owner of a producer must have {OWNER_BYTES} bytes, not {len(self.owner)}")
        if not 1 <= len(self.id) <= ID_BYTES_MAX:
            raise InvalidProducer(f"the id of a producer must have 1 to {ID_BYTES_MAX} bytes, not {len(self.id)}")
        if not 0 <= self.epoch <= EPOCH_MAX:
            raise InvalidProducer(f"the epoch of a producer must be a number from 0 to {EPOCH_MAX}, not {self.epoch}")
        if not 0 <= self.sequence <= SEQUENCE_MAX:
            raise InvalidProducer(
                f"the sequence of a producer must be a number from 0 to {SEQUENCE_MAX}, not {self.sequence}"
            )

    @property
    def key(self) -> bytes:
        return self.owner + self.id

    @property
    def name(self) -> str:
        """The id as text for error messages."""
        return repr(self.id.decode(errors="replace"))


class Record(msgspec.Struct, frozen=True, gc=False):
    """The result of a send: the place of its batch, and the checksum that identifies the batch."""

    producer: Producer
    base_offset: int
    messages: int
    timestamp: int
    batch_checksum: int

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.messages


class Bounds(NamedTuple):
    """How much is remembered in a partition. What was used longest ago is forgotten first."""

    producers: int = 1000
    answers: int = 16
    """The results of each producer's newest sequences."""


class _Known:
    """One producer in its newest epoch."""

    __slots__ = ("answers", "before", "epoch", "unwritten")

    def __init__(self, epoch: int, before: _Known | None) -> None:
        self.epoch = epoch
        self.answers: dict[int, Record] = {}
        self.unwritten = 0
        """How many results may have to be taken back. No written one is forgotten to make room for them."""
        self.before = before
        """The previous epoch, until a batch of this one is written."""


class Producers:
    """See the module."""

    __slots__ = ("_answers_max", "_in_progress", "_known", "_producers_max", "_unwritten", "due")

    def __init__(self, bounds: Bounds, records: Iterable[Record] = ()) -> None:
        self._producers_max, self._answers_max = bounds
        self._known: OrderedDict[bytes, _Known] = OrderedDict()
        self._unwritten: deque[Record] = deque()
        self._in_progress: dict[Producer, asyncio.Future[None]] = {}
        self.due: list[Record] = []
        """Records not yet handed over to the file."""
        self._load(records)

    def _load(self, records: Iterable[Record]) -> None:
        for record in records:
            known = self._add(record)
            if known is not None:
                known.before = None
                self._forget_oldest(known)

    def records(self) -> list[Record]:
        """Everything remembered, producers in the order in which they would be forgotten."""
        return [known.answers[sequence] for known in self._known.values() for sequence in sorted(known.answers)]

    # ------------------------------------------------------------------------------------------------------- looking up

    def epoch_of(self, producer: Producer) -> int | None:
        """The newest epoch of a producer; None if the producer is unknown."""
        known = self._of(producer)
        return None if known is None else known.epoch

    def remembers(self, producer: Producer) -> bool:
        """Whether this send has a result, or is in progress."""
        known = self._of(producer)
        return known is not None and known.epoch == producer.epoch and producer.sequence in known.answers

    def has_passed(self, producer: Producer) -> bool:
        """Whether a newer sequence of the same epoch has a result, or is in progress."""
        known = self._of(producer)
        return known is not None and known.epoch == producer.epoch and producer.sequence < max(known.answers)

    def in_order(self, producer: Producer) -> Producer:
        """The producer with the sequence that is stored. Where messages are counted, numbers start over on the wire but
        not here. Refuses a producer that has skipped messages."""
        if not producer.counts_messages:
            return producer
        known = self._of(producer)
        if known is not None and known.epoch > producer.epoch:
            # `find` refuses it for that.
            return producer
        if known is None or known.epoch < producer.epoch:
            if producer.sequence:
                raise UnknownProducer(producer.name, producer.sequence)
            return producer
        newest = known.answers[max(known.answers)]
        expected = newest.producer.sequence + newest.messages
        behind = (expected - producer.sequence) % MESSAGE_NUMBERS
        if behind >= MESSAGE_NUMBERS // 2 or behind > expected:
            raise SequenceGap(producer.name, producer.sequence, expected % MESSAGE_NUMBERS)
        if newest.producer.sequence < expected - behind < expected:
            # It begins inside another send.
            raise SequencePassed(producer.name, producer.sequence, newest.producer.sequence)
        return msgspec.structs.replace(producer, sequence=expected - behind)

    def find(self, producer: Producer, written: int) -> Record | None:
        """The result of this send; None if it is new. Refuses a send that is neither."""
        self._settle(written)
        known = self._of(producer)
        if known is None or known.epoch < producer.epoch:
            return None
        if known.epoch > producer.epoch:
            raise ProducerFenced(producer.name, producer.epoch, known.epoch)
        record = known.answers.get(producer.sequence)
        if record is None and producer.sequence < (newest := max(known.answers)):
            if len(known.answers) >= self._answers_max and producer.sequence < min(known.answers):
                raise SequenceForgotten(producer.name, producer.sequence, newest)
            raise SequencePassed(producer.name, producer.sequence, newest)
        self._known.move_to_end(producer.key if producer.key in self._known else NOBODYS + producer.id)
        return record

    def _of(self, producer: Producer) -> _Known | None:
        return self._known.get(producer.key) or self._known.get(NOBODYS + producer.id)

    @contextlib.asynccontextmanager
    async def alone(self, producer: Producer) -> AsyncIterator[None]:
        """Lets concurrent copies of the same send in one at a time."""
        while (other := self._in_progress.get(producer)) is not None:
            await asyncio.shield(other)
        done = self._in_progress[producer] = asyncio.get_running_loop().create_future()
        try:
            yield
        finally:
            del self._in_progress[producer]
            done.set_result(None)

    # --------------------------------------------------------------------------------------------------------- changing

    def begin(self, record: Record) -> None:
        """Remembers a new send whose batch is being appended."""
        known = self._add(record)
        assert known is not None
        known.unwritten += 1
        self._unwritten.append(record)
        self.due.append(record)
        if len(self._known) > self._producers_max:
            self._known.popitem(last=False)

    def take_back(self, written: int) -> None:
        """Forgets sends whose batches end after `written`: they are not in the log and never will be."""
        self._settle(written)
        while self._unwritten:
            record = self._unwritten.pop()
            identity, sequence = record.producer.key, record.producer.sequence
            known = self._known.get(identity)
            if known is None or known.answers.get(sequence) is not record:
                continue
            del known.answers[sequence]
            known.unwritten -= 1
            if not known.answers:
                if known.before is not None:
                    self._known[identity] = known.before
                else:
                    del self._known[identity]
        self.due = []

    def hand_over_again(self, written: int) -> None:
        """Makes the records due again whose batches end after `written`: those will be written again."""
        self._settle(written)
        self.due = list(self._unwritten)

    def restore(self, records: Iterable[Record], kept_from: int | None) -> None:
        """Starts over with the records of the file. Sends from offset `kept_from` on are still to be written; with None
        they are lost."""
        kept = [] if kept_from is None else [one for one in self._unwritten if one.base_offset >= kept_from]
        self.forget()
        self._load(records)
        for record in kept:
            self.begin(record)

    def forget(self) -> None:
        """Called after a purge. Sends in progress come after it."""
        self._known.clear()
        self._unwritten.clear()
        self.due = []

    def _add(self, record: Record) -> _Known | None:
        """None: there has been a higher epoch."""
        producer = record.producer
        known = self._known.get(producer.key)
        if known is None or known.epoch < producer.epoch:
            without_owner = None if known is not None else self._known.get(NOBODYS + producer.id)
            known = self._known[producer.key] = _Known(producer.epoch, known)
            if without_owner is not None and without_owner.epoch == producer.epoch:
                known.answers.update(without_owner.answers)
        elif known.epoch > producer.epoch:
            return None
        known.answers[producer.sequence] = record
        self._known.move_to_end(producer.key)
        return known

    def _settle(self, written: int) -> None:
        unwritten = self._unwritten
        while unwritten and unwritten[0].next_offset <= written:
            record = unwritten.popleft()
            known = self._known.get(record.producer.key)
            if known is not None and known.answers.get(record.producer.sequence) is record:
                known.unwritten -= 1
                known.before = None
                self._forget_oldest(known)

    def _forget_oldest(self, known: _Known) -> None:
        while len(known.answers) > self._answers_max + known.unwritten:
            del known.answers[min(known.answers)]
