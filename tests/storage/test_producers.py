"""Results of numbered sends, without a disk: limits, taking back, and the records in which they are kept."""

from __future__ import annotations

import random

import pytest

from whippet.storage import producer_file
from whippet.storage.errors import (
    InvalidProducer,
    ProducerFenced,
    SequenceForgotten,
    SequenceGap,
    SequencePassed,
    UnknownProducer,
)
from whippet.storage.producers import (
    EPOCH_MAX,
    ID_BYTES_MAX,
    NOBODYS,
    SEQUENCE_MAX,
    Bounds,
    Producer,
    Producers,
    Record,
)

ALICE, BOB = b"alice's", b"bob's##"
MESSAGE_NUMBERS = 2**31
"""How many numbers of messages the 0.12 protocol has."""


def record(sequence: int, base: int, epoch: int = 1, identity: bytes = b"p") -> Record:
    return Record(Producer(identity, epoch, sequence), base, 2, 1000 + base, 2000 + base)


@pytest.mark.parametrize(
    ("identity", "epoch", "sequence", "said"),
    [
        (b"", 0, 0, "1 to 64 bytes, not 0"),
        (b"x" * 65, 0, 0, "1 to 64 bytes, not 65"),
        (b"p", -1, 0, "0 to 4294967295, not -1"),
        (b"p", EPOCH_MAX + 1, 0, "0 to 4294967295, not 4294967296"),
        (b"p", 0, -1, "0 to 18446744073709551615, not -1"),
        (b"p", 0, SEQUENCE_MAX + 1, "0 to 18446744073709551615, not 18446744073709551616"),
    ],
)
def test_an_invalid_producer_is_refused_with_the_reason(identity: bytes, epoch: int, sequence: int, said: str) -> None:
    with pytest.raises(InvalidProducer, match=said):
        Producer(identity, epoch, sequence)


def test_encoding_and_decoding_keep_records_unchanged() -> None:
    for one in (
        record(0, 0),
        Record(Producer(b"x" * ID_BYTES_MAX, EPOCH_MAX, SEQUENCE_MAX), 2**63 - 1, 2**32 - 1, 2**63, 2**64 - 1),
        record(1, 5, identity=b"\0a\0"),
        Record(Producer(b"p", 1, 1, ALICE), 0, 1, 2, 3),
    ):
        content = producer_file.encode(one, 77)
        assert len(content) == producer_file.RECORD.size
        assert producer_file.decode(content) == (one, 77)


def test_a_record_of_an_older_version_differs_only_in_having_no_owner() -> None:
    old, new = (Record(Producer(b"p", 1, 1, owner), 0, 1, 2, 3) for owner in (NOBODYS, ALICE))
    old_content, new_content = producer_file.encode(old, 0), producer_file.encode(new, 0)
    assert old_content[57:64] == bytes(7)
    assert new_content[57:64] == ALICE
    assert old_content[8:57] + old_content[64:] == new_content[8:57] + new_content[64:]


def test_an_owner_of_another_length_is_refused() -> None:
    for owner in (b"", b"x" * 6, b"x" * 8):
        with pytest.raises(InvalidProducer, match="7 bytes"):
            Producer(b"p", 1, 1, owner)


def owned(owner: bytes, sequence: int, base: int, epoch: int = 1) -> Record:
    return Record(Producer(b"p", epoch, sequence, owner), base, 2, 1000 + base, 2000 + base)


def test_the_same_id_of_two_owners_means_two_producers() -> None:
    known = Producers(Bounds())
    hers, his = owned(ALICE, 5, 0), owned(BOB, 5, 2, epoch=9)
    known.begin(hers)
    assert known.find(his.producer, 2) is None
    known.begin(his)
    assert known.find(hers.producer, 4) is hers
    assert known.find(his.producer, 4) is his
    assert (known.epoch_of(hers.producer), known.epoch_of(his.producer)) == (1, 9)


def test_records_without_owner_count_for_each_owner_until_they_send() -> None:
    old = [owned(NOBODYS, sequence, 2 * sequence) for sequence in range(3)]
    new = owned(ALICE, 3, 6)
    known = Producers(Bounds(), old)
    assert known.find(Producer(b"p", 1, 2, ALICE), 6) is old[2]
    assert known.find(new.producer, 6) is None
    known.begin(new)
    for again in (known, Producers(Bounds(), known.records())):
        assert again.find(Producer(b"p", 1, 2, ALICE), 8) == old[2]
        assert again.find(new.producer, 8) == new
        assert again.find(Producer(b"p", 1, 2, BOB), 8) == old[2]
        assert again.find(Producer(b"p", 1, 3, BOB), 8) is None
    higher = owned(BOB, 0, 8, epoch=2)
    known.begin(higher)
    with pytest.raises(ProducerFenced):
        known.find(Producer(b"p", 1, 3, BOB), 10)
    assert known.find(Producer(b"p", 1, 3, ALICE), 10) == new
    known = Producers(Bounds(), old)
    known.begin(higher)
    known.take_back(6)
    assert known.find(Producer(b"p", 1, 2, BOB), 6) == old[2]


def test_a_record_with_any_changed_byte_is_invalid() -> None:
    content = producer_file.encode(record(3, 4), 5)
    for position in range(len(content)):
        changed = bytearray(content)
        changed[position] ^= 0x10
        assert producer_file.decode(bytes(changed)) is None
    assert producer_file.decode(producer_file.VOID) is None


def test_a_scan_of_any_file_finds_its_valid_records_and_where_they_end() -> None:
    whole = [producer_file.encode(record(i, 2 * i), 0) for i in range(3)]
    void, size = producer_file.VOID, producer_file.RECORD.size
    found = producer_file.scan(whole[0] + b"?" * size + whole[1] + void + whole[2] + b"?" * size + void + b"?" * 9)
    assert [one.record for one in found.written] == [record(i, 2 * i) for i in range(3)]
    assert (found.damaged, found.end) == ([size], 5 * size)
    assert producer_file.scan(b"?" * 1000) == ([], [], 0)
    for left in (1, size - 1):
        assert producer_file.scan(whole[0] + whole[1][:left]) == producer_file.scan(whole[0])


REMEMBERED = [record(sequence, 2 * sequence, epoch=2) for sequence in (3, 5, 6, 9)]


@pytest.mark.parametrize(
    ("identity", "epoch", "sequence", "remembered", "passed"),
    [
        (b"p", 2, 2, False, True),
        (b"p", 2, 3, True, True),
        (b"p", 2, 4, False, True),
        (b"p", 2, 9, True, False),
        (b"p", 2, 10, False, False),
        (b"p", 1, 3, False, False),  # another epoch
        (b"p", 3, 3, False, False),
        (b"q", 2, 3, False, False),  # another producer
    ],
)
def test_a_send_is_distinguished_from_those_of_other_producers_and_epochs(
    identity: bytes, epoch: int, sequence: int, remembered: bool, passed: bool
) -> None:
    known = Producers(Bounds(), REMEMBERED)
    producer = Producer(identity, epoch, sequence)
    assert known.remembers(producer) is remembered
    assert known.has_passed(producer) is passed
    assert known.epoch_of(Producer(identity, 1, 1)) == (2 if identity == b"p" else None)


@pytest.mark.parametrize(
    ("answers", "sequence", "refusal"),
    [
        (4, 2, SequenceForgotten),  # its result may have been forgotten
        (5, 2, SequencePassed),  # nothing was forgotten yet
        (4, 4, SequencePassed),
        (4, 8, SequencePassed),
        (4, 3, None),
        (4, 5, None),
        (4, 9, None),
    ],
)
def test_an_old_sequence_gets_its_result_or_is_refused_with_the_reason(
    answers: int, sequence: int, refusal: type[Exception] | None
) -> None:
    known = Producers(Bounds(answers=answers), REMEMBERED)
    again = Producer(b"p", 2, sequence)
    if refusal is None:
        assert known.find(again, 0) == record(sequence, 2 * sequence, epoch=2)
    else:
        with pytest.raises(refusal):
            known.find(again, 0)


def test_a_new_sequence_or_epoch_is_a_new_send() -> None:
    known = Producers(Bounds(answers=4), REMEMBERED)
    assert known.find(Producer(b"p", 2, 10), 0) is None
    assert known.find(Producer(b"p", 3, 0), 0) is None
    assert known.find(Producer(b"q", 0, 0), 0) is None


def counting(sequence: int, identity: bytes = b"p", epoch: int = 1) -> Producer:
    return Producer(identity, epoch, sequence, counts_messages=True)


@pytest.mark.parametrize(
    ("sequence", "kept"),
    [
        (0, MESSAGE_NUMBERS),  # the next one: numbers on the wire start over, stored ones do not
        (MESSAGE_NUMBERS - 2, MESSAGE_NUMBERS - 2),
        (MESSAGE_NUMBERS // 2 + 1, MESSAGE_NUMBERS // 2 + 1),  # the oldest that cannot be a later one
        (MESSAGE_NUMBERS - 1, SequencePassed),  # inside a stored send
        (1, SequenceGap),
        (MESSAGE_NUMBERS // 2, SequenceGap),
    ],
)
def test_numbers_of_messages_start_over_after_the_highest(sequence: int, kept: int | type[Exception]) -> None:
    known = Producers(Bounds(), [record(MESSAGE_NUMBERS - 2, 0)])
    if isinstance(kept, int):
        assert known.in_order(counting(sequence)).sequence == kept
    else:
        with pytest.raises(kept):
            known.in_order(counting(sequence))


def test_a_producer_that_counts_messages_begins_at_0_in_each_epoch() -> None:
    known = Producers(Bounds(), [record(6, 0)])
    assert known.in_order(counting(8)).sequence == 8
    assert known.in_order(counting(0, epoch=2)).sequence == 0
    assert known.in_order(counting(0, b"q")).sequence == 0
    for stranger in (counting(8, epoch=2), counting(8, b"q")):
        with pytest.raises(UnknownProducer):
            known.in_order(stranger)
    with pytest.raises(ProducerFenced):
        known.find(known.in_order(counting(8, epoch=0)), 0)


def test_a_repeated_first_message_is_distinguished_from_one_that_was_skipped() -> None:
    known = Producers(Bounds(), [record(0, 0), record(2, 2)])
    assert known.in_order(counting(0)).sequence == 0
    with pytest.raises(SequenceGap, match="'p'"):
        known.in_order(counting(MESSAGE_NUMBERS - 1))


class Sender:
    """Two producers that send in turn, and now and then begin a new epoch."""

    def __init__(self, known: Producers, chance: random.Random) -> None:
        self.known = known
        self.offset = 0
        self._chance = chance
        self._epoch = {b"p": 1, b"q": 1}
        self._sequence = 0

    def send(self, most: int) -> None:
        for _ in range(self._chance.randrange(most)):
            identity = self._chance.choice((b"p", b"q"))
            self._epoch[identity] += self._chance.random() < 0.2
            self._sequence += 1
            self.known.begin(record(self._sequence, self.offset, self._epoch[identity], identity))
            self.offset += 2


def test_a_record_that_cannot_be_written_leaves_everything_as_before() -> None:
    """Whatever was appended in between. No written result is forgotten because of it."""
    chance = random.Random(1)
    for _ in range(300):
        known = Producers(Bounds(50, 3))
        sender = Sender(known, chance)
        sender.send(8)
        written = sender.offset
        known.take_back(written)
        before = sorted(known.records(), key=lambda one: one.base_offset)
        sender.send(12)
        known.take_back(written)
        assert sorted(known.records(), key=lambda one: one.base_offset) == before
        assert known.due == []


def test_only_the_newest_results_of_the_newest_producers_in_a_file_are_remembered() -> None:
    known = Producers(Bounds(answers=2), [record(sequence, 2 * sequence) for sequence in range(5)])
    assert known.records() == [record(3, 6), record(4, 8)]
    known = Producers(Bounds())
    for i in range(1001):
        known.begin(record(0, 2 * i, identity=str(i).encode()))
    assert len(known.records()) == 1000
    assert known.records()[0].producer.id == b"1"


def test_the_producer_that_sent_longest_ago_is_forgotten_first() -> None:
    records = [record(0, 0), record(0, 2, identity=b"q"), record(1, 4)]
    known = Producers(Bounds(), records)
    assert [one.producer.id for one in known.records()] == [b"q", b"p", b"p"]
    known = Producers(Bounds(producers=2))
    for one in (*records, record(0, 6, identity=b"r")):
        known.begin(one)
    assert known.records() == [records[0], records[2], record(0, 6, identity=b"r")]


def test_sends_that_were_taken_back_make_no_room_for_more_results() -> None:
    known = Producers(Bounds(answers=2))
    for sequence in range(4):
        known.begin(record(sequence, 2 * sequence))
    known.take_back(4)
    for sequence in range(2, 6):
        known.begin(record(sequence, 2 * sequence))
    assert known.find(Producer(b"p", 1, 5), 12) == record(5, 10)
    assert known.records() == [record(4, 8), record(5, 10)]


def test_a_send_of_a_producer_that_was_forgotten_meanwhile_is_taken_back() -> None:
    known = Producers(Bounds(producers=1))
    for one in (record(0, 0), record(0, 2, identity=b"q"), record(1, 4)):
        known.begin(one)
    known.take_back(0)
    assert (known.records(), known.due) == ([], [])


def test_a_producer_that_is_forgotten_before_its_batch_is_written_stays_forgotten() -> None:
    known = Producers(Bounds(producers=1))
    known.begin(record(0, 0))
    known.begin(record(0, 2, identity=b"q"))
    assert known.find(Producer(b"p", 1, 0), 4) is None
    assert known.records() == [record(0, 2, identity=b"q")]


def test_only_what_is_not_written_yet_is_handed_over_again() -> None:
    known = Producers(Bounds())
    for sequence in range(3):
        known.begin(record(sequence, 2 * sequence))
    known.due = []
    known.hand_over_again(2)
    assert known.due == [record(1, 2), record(2, 4)]
    known.forget()
    known.hand_over_again(0)
    assert known.due == []


def test_only_the_highest_epoch_in_a_file_counts() -> None:
    known = Producers(Bounds(), [record(1, 0, 1), record(1, 2, 3), record(9, 4, 2)])
    assert known.records() == [record(1, 2, 3)]
    assert known.find(Producer(b"p", 3, 1), 0) == record(1, 2, 3)
    with pytest.raises(ProducerFenced):
        known.find(Producer(b"p", 2, 9), 0)
    known.take_back(0)
    assert known.records() == [record(1, 2, 3)]


def test_records_not_yet_written_are_kept_in_addition_to_those_of_the_file() -> None:
    known = Producers(Bounds())
    for sequence in range(4):
        known.begin(record(sequence, 2 * sequence))
    known.restore([record(0, 0), record(1, 2)], 4)
    assert known.records() == [record(i, 2 * i) for i in range(4)]
    assert known.due == [record(2, 4), record(3, 6)]
    known.restore([record(0, 0)], None)
    assert known.records() == [record(0, 0)]
    with pytest.raises(SequencePassed):
        Producers(Bounds(), [record(5, 0)]).find(Producer(b"p", 1, 4), 0)
