"""What the producers that number their sends were answered in one partition, so that a repetition appends nothing.

    1. A producer has an id, which is its owner's alone, and numbers its sends: an epoch, which it raises when it starts
       anew, and in it a sequence that rises from send to send. Gaps are allowed.
    2. A sequence that was answered is answered the same way again; one that is older than the newest and is not among
       the answers that are remembered is refused, because whether it is in the log can no longer be told, or because
       it is surely not and would come out of its order.
    3. A higher epoch ends those below it from the moment at which its first batch is appended.
    4. The state is the one as of everything appended. What could not be written is taken back, and what it took the
       place of is there again.
    5. Of a producer that counts its messages (clients of the 0.12 protocol) each send has to follow the one before it.
    6. What older versions have kept has no owner. It counts for whoever sends under the id, until they have sent
       something themselves, which goes on from there.

Pure state; the event loop has one for each partition, and the file of producer_file.py is made anew through it. The
partition asks it in the same step in which it appends, so that nothing can come in between.
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
"""As many there are until they begin anew."""
NOBODYS = bytes(OWNER_BYTES)
"""The owner of what was kept before there were owners."""


class Producer(msgspec.Struct, frozen=True, gc=False):
    """Who sends, and which of its sends this is."""

    id: bytes
    epoch: int
    sequence: int
    owner: bytes = NOBODYS
    """Whose id it is: two owners may use the same one, and do not know of each other."""
    counts_messages: bool = False
    """The sequence is the number of the first message: the next send has to follow without a gap. It has 31 bits, and
    begins anew with 0 after the highest."""

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
        """The id, for people."""
        return repr(self.id.decode(errors="replace"))


class Record(msgspec.Struct, frozen=True, gc=False):
    """An answer: where the batch of a send went, and the checksum by which that batch is known."""

    producer: Producer
    base_offset: int
    messages: int
    timestamp: int
    batch_checksum: int

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.messages


class Bounds(NamedTuple):
    """How much is remembered in a partition; what was used longest ago is forgotten first."""

    producers: int = 1000
    answers: int = 16
    """For each producer, those of its newest sequences."""


class _Known:
    """One producer in its newest epoch."""

    __slots__ = ("answers", "before", "epoch", "unwritten")

    def __init__(self, epoch: int, before: _Known | None) -> None:
        self.epoch = epoch
        self.answers: dict[int, Record] = {}
        self.unwritten = 0
        """Answers that may have to be taken back; none that was written is forgotten for their sake."""
        self.before = before
        """The epoch before this one, until a batch of this one is written."""


class Producers:
    """See the module."""

    __slots__ = ("_answers_max", "_known", "_producers_max", "_under_way", "_unwritten", "due")

    def __init__(self, bounds: Bounds, records: Iterable[Record] = ()) -> None:
        self._producers_max, self._answers_max = bounds
        self._known: OrderedDict[bytes, _Known] = OrderedDict()
        self._unwritten: deque[Record] = deque()
        self._under_way: dict[Producer, asyncio.Future[None]] = {}
        self.due: list[Record] = []
        """What the file has not been given yet."""
        self._load(records)

    def _load(self, records: Iterable[Record]) -> None:
        for record in records:
            known = self._add(record)
            if known is not None:
                known.before = None
                self._forget_oldest(known)

    def records(self) -> list[Record]:
        """All that is remembered, the producers in the order in which they are forgotten."""
        return [known.answers[sequence] for known in self._known.values() for sequence in sorted(known.answers)]

    # --------------------------------------------------------------------------------------------------------- asking

    def epoch_of(self, producer: Producer) -> int | None:
        """The newest one."""
        known = self._of(producer)
        return None if known is None else known.epoch

    def remembers(self, producer: Producer) -> bool:
        """Whether this very send was answered, or is on its way."""
        known = self._of(producer)
        return known is not None and known.epoch == producer.epoch and producer.sequence in known.answers

    def has_passed(self, producer: Producer) -> bool:
        """Whether a newer sequence of the same epoch was answered."""
        known = self._of(producer)
        return known is not None and known.epoch == producer.epoch and producer.sequence < max(known.answers)

    def in_order(self, producer: Producer) -> Producer:
        """The producer with the sequence that is kept: one that counts messages begins anew on the wire, and does not
        here. Refuses one that has left something out."""
        if not producer.counts_messages:
            return producer
        known = self._of(producer)
        if known is not None and known.epoch > producer.epoch:
            # Which is refused for that.
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
            # It begins inside of a send that was another one.
            raise SequencePassed(producer.name, producer.sequence, newest.producer.sequence)
        return msgspec.structs.replace(producer, sequence=expected - behind)

    def find(self, producer: Producer, written: int) -> Record | None:
        """The answer that this send was given; None when it is a new one. Refuses what is neither."""
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
        """Of those who bring the same send at the same time one comes after the other."""
        while (other := self._under_way.get(producer)) is not None:
            await asyncio.shield(other)
        done = self._under_way[producer] = asyncio.get_running_loop().create_future()
        try:
            yield
        finally:
            del self._under_way[producer]
            done.set_result(None)

    # ------------------------------------------------------------------------------------------------------- changing

    def begin(self, record: Record) -> None:
        """The batch of a new send was appended."""
        known = self._add(record)
        assert known is not None
        known.unwritten += 1
        self._unwritten.append(record)
        self.due.append(record)
        self._forget_oldest(known)
        if len(self._known) > self._producers_max:
            self._known.popitem(last=False)

    def take_back(self, written: int) -> None:
        """What was appended after `written` is not in the log and will not be."""
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
        """What was appended after `written` could not be written, and will be tried again."""
        self._settle(written)
        self.due = list(self._unwritten)

    def restore(self, records: Iterable[Record], kept_from: int | None) -> None:
        """Takes up what the file has; what was appended from an offset on is still to be written (None: it is lost)."""
        kept = [] if kept_from is None else [one for one in self._unwritten if one.base_offset >= kept_from]
        self.forget()
        self._load(records)
        for record in kept:
            self.begin(record)

    def forget(self) -> None:
        """After a purge. What is on its way comes after it."""
        self._known.clear()
        self._unwritten.clear()
        self.due = []

    def _add(self, record: Record) -> _Known | None:
        """None: a higher epoch has been there."""
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
