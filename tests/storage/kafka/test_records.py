"""Batches of messages as record batches of Kafka, and back."""

from __future__ import annotations

import struct
from typing import Any

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from tests.storage.support.world import random_bytes
from tests.support.clocks import NOON
from whippet.storage import batch as batches
from whippet.storage.batch import Message, StoredMessage, build, check, header
from whippet.storage.kafka.records import Decoded, Producer, decode, encode, split

PRODUCER = Producer(7, 3)
ROOM = 1 << 20
HEADERS = struct.pack("<BI1sBI1s", 2, 1, b"k", 1, 1, b"v")


def builder_of(transactional: int, producer: int) -> DefaultRecordBatchBuilder:
    return DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=transactional,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=-1,
        batch_size=ROOM,
    )


def records(*given: tuple[int, bytes | None, list[tuple[str, bytes]]], transactional: int = 0, **more: Any) -> bytes:
    """A record batch as another program writes it."""
    builder = builder_of(transactional, more.get("producer", -1))
    for offset, value, of_record in given:
        builder.append(offset, 1000 + offset, None, value, of_record)
    return bytes(builder.build())


def moved(content: bytes, base_offset: int, *, attributes: int = 0) -> bytes:
    """The same at another place, where the broker has put it; its checksum does not cover the place."""
    changed = bytearray(content)
    struct.pack_into(">q", changed, 0, base_offset)
    struct.pack_into(">h", changed, 21, struct.unpack_from(">h", changed, 21)[0] | attributes)
    return bytes(changed)


def mark(producer: int, base_offset: int, *, commits: bool) -> bytes:
    """The mark at the end of a transaction."""
    builder = builder_of(1, producer)
    builder.append(0, 1000, struct.pack(">hh", 0, commits), b"\0" * 6, [])
    return moved(bytes(builder.build()), base_offset, attributes=0x20)


def read(content: bytes, offset: int = 0, count: int = 1000, room: int = ROOM) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    for one in split(content, None):
        decoded = decode(one, 5, offset, count, room, at_least_one=True)
        if decoded.messages:
            assert check_stored(decoded) == decoded.messages
            found += batches.messages(decoded.content)
    return found


def check_stored(decoded: Decoded) -> int:
    """The checksums are right: a batch without gaps is good as it is."""
    named = header(decoded.content)
    assert named.partition_id == 5
    content = bytearray(decoded.content)
    position = batches.HEADER_BYTES
    for number in range(named.message_count):
        fields = list(batches.FRAME.unpack_from(content, position))
        assert batches._hash(content[position + 8 : position + 48 + fields[4] + fields[5]]) == fields[0]
        struct.pack_into("<I", content, position + 24, number)
        position += 48 + fields[4] + fields[5]
    batches.seal(content, named.message_count)
    return check(content).message_count


def test_messages_come_back_as_they_were() -> None:
    sent = [
        Message(b"a", 1, HEADERS, NOON - 5),
        Message(b"b" * 1000, 2**128 - 1, b"no headers at all", NOON),
        Message(b"\0", 3),
    ]
    content = encode([build(sent[:2], NOON, random_bytes), build(sent[2:], NOON, random_bytes)], PRODUCER, 9, 1234)
    (one,) = split(content, None)
    assert (one.first_offset, one.next_offset) == (0, 3)
    found = read(moved(content, 40))
    assert [(m.offset, m.payload, m.id, m.user_headers) for m in found] == [
        (40 + number, m.payload, m.id, m.user_headers) for number, m in enumerate(sent)
    ]
    assert [m.origin_timestamp for m in found] == [NOON - 5, NOON, NOON]
    assert {m.timestamp for m in found} == {1_234_000}


def test_records_of_other_programs_are_ordinary_messages() -> None:
    content = moved(records((0, b"a", []), (1, b"b", [("k", b"v")])), 10)
    first, second = read(content)
    assert (first.payload, first.user_headers, first.origin_timestamp) == (b"a", b"", 1_000_000)
    assert (second.payload, second.user_headers, second.origin_timestamp) == (b"b", HEADERS, 1_001_000)
    assert first.id != second.id
    assert [m.id for m in read(content)] == [first.id, second.id]


def test_ids_and_times_that_no_gateway_wrote_are_not_believed() -> None:
    content = records((0, b"a", [("iggy.id", b"short"), ("iggy.origin", b"x")]))
    (found,) = read(content)
    assert (found.origin_timestamp, found.user_headers) == (1_000_000, b"")


def test_records_without_a_value_are_skipped_and_offsets_keep_their_gaps() -> None:
    content = moved(records((0, None, []), (1, b"a", []), (2, b"", []), (5, b"b", [])), 100)
    assert [(m.offset, m.payload) for m in read(content)] == [(101, b"a"), (105, b"b")]
    assert [m.offset for m in read(content, offset=102)] == [105]


def test_a_read_stops_at_its_count_and_its_room() -> None:
    (one,) = split(records(*((number, b"x" * 100, []) for number in range(10))), None)
    for wanted in (
        decode(one, 0, 2, 3, ROOM, at_least_one=True),
        decode(one, 0, 2, 1000, 256 + 3 * 148 + 147, at_least_one=False),
    ):
        assert (wanted.messages, wanted.next_offset) == (3, 5)
    assert decode(one, 0, 2, 1000, 10, at_least_one=True)[1:] == (1, 3)
    assert decode(one, 0, 2, 1000, 10, at_least_one=False) == (b"", 0, 2)


def test_a_span_of_origins_that_does_not_fit_a_batch_is_shortened() -> None:
    long_ago = struct.pack(">Q", 1)
    content = records((0, b"a", [("iggy.origin", long_ago)]), (1, b"b", []), (2, b"c", [("iggy.origin", b"\xff" * 8)]))
    found = read(content)
    assert [m.origin_timestamp for m in found] == [1, 1_001_000, 1 + batches.TIME_SPAN_MAX_US]


def test_what_a_transaction_has_aborted_is_skipped_and_the_rest_is_not() -> None:
    content = b"".join(
        (
            moved(records((0, b"kept", []), transactional=1, producer=1), 0),
            moved(records((0, b"lost", []), transactional=1, producer=2), 1),
            moved(records((0, b"plain", []), producer=2), 2),
            mark(1, 3, commits=True),
            mark(2, 4, commits=False),
            moved(records((0, b"next", []), transactional=1, producer=2), 5),
        )
    )
    found = list(split(content, [(2, 1)]))
    assert [(one.first_offset, one.next_offset, bool(one.content)) for one in found] == [
        (0, 1, True),
        (1, 2, False),
        (2, 3, True),
        (3, 4, False),
        (4, 5, False),
        (5, 6, True),
    ]


def test_a_record_batch_that_is_cut_off_is_left_for_the_next_request() -> None:
    whole = records((0, b"a", []))
    content = whole + moved(whole, 1)
    for length in range(len(whole), len(content)):
        assert len(list(split(content[:length], None))) == 1
