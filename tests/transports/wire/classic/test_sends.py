"""The payload of send_messages: what is accepted, and the error numbers of what is not.

A few messages, many of one size and many of mixed sizes are decoded by different code, which must agree.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from tests.transports.wire.classic.support.plainly import TO_PARTITION_10, Classic, send_body
from whippet.app.commands import requests
from whippet.app.errors import Code, CommandError
from whippet.storage import batch as batches
from whippet.storage.batch import Limits, Readable
from whippet.transports.wire.classic import sends
from whippet.transports.wire.classic.dialect import Dialect

INDEX_AT = 4 + len(TO_PARTITION_10) + 4
LIMITS = Limits(2**32, 2**32, payload_bytes=1000, user_headers_bytes=100)


def messages(count: int, mixed: bool) -> list[Classic]:
    return [Classic(i + 1, 0, 0, 10**15 + i, b"x" * (50 + i * mixed), b"h" * 7) for i in range(count)]


def decode(body: Readable, dialect: Dialect | None = None) -> requests.SendMessages:
    return sends.decode(memoryview(body), dialect or Dialect(), lambda size: b"\7" * size, LIMITS)


def refused(body: Readable) -> Code:
    with pytest.raises(CommandError) as error:
        decode(body)
    return error.value.code


WAYS = [(count, mixed, size) for count, mixed in ((3, False), (3, True), (20, False), (20, True)) for size in (56, 64)]
every_way = pytest.mark.parametrize(("count", "mixed", "size"), WAYS)


class Body:
    """A valid body, to be corrupted."""

    def __init__(self, count: int, mixed: bool, header_size: int) -> None:
        self.octets = bytearray(send_body(messages(count, mixed), header_size))
        self.count = count
        self.header_size = header_size
        self.area = INDEX_AT + 16 * count
        self.ends = [self.position(i) for i in range(count)]

    def position(self, i: int) -> int:
        found: int = struct.unpack_from("<I", self.octets, INDEX_AT + 16 * i + 4)[0]
        return found

    def index(self, i: int, offset: int = 0, position: int | None = None, timestamp: int = 0) -> None:
        end = self.ends[i] if position is None else position
        struct.pack_into("<IIQ", self.octets, INDEX_AT + 16 * i, offset, end, timestamp)

    def head(self, i: int, at: int, form: str, value: int) -> None:
        start = self.area + (self.ends[i - 1] if i else 0)
        struct.pack_into(form, self.octets, start + at, value)


@every_way
def test_good_messages_become_one_good_batch(count: int, mixed: bool, size: int) -> None:
    dialect = Dialect()
    sent = messages(count, mixed)
    request = decode(send_body(sent, size), dialect)
    assert (request.stream, request.topic) == (0, 0)
    assert request.partitioning == requests.Partitioning(requests.PartitioningKind.PARTITION_ID, 10)
    (batch,) = request.batches
    assert batches.check(batch).message_count == count
    assert dialect.header_size == size
    found = [(m.id, m.origin_timestamp, m.payload, m.user_headers) for m in batches.messages(batch)]
    assert found == [(m.id, m.origin, m.payload, m.user_headers) for m in sent]


def spoil_offset(body: Body, i: int) -> None:
    body.index(i, offset=1)


def spoil_timestamp(body: Body, i: int) -> None:
    body.index(i, timestamp=2**63)


def spoil_position(body: Body, i: int) -> None:
    body.index(i, position=2**32 - 1)


def cut_message(body: Body, i: int) -> None:
    body.head(i, 52, "<I", 2**32 - 1)


def too_long_headers(body: Body, i: int) -> None:
    body.head(i, 48, "<I", 2**31)


def short_message(body: Body, i: int) -> None:
    body.head(i, 52, "<I", 49 + i)


@every_way
@pytest.mark.parametrize(
    ("spoil", "number"),
    [
        (spoil_offset, Code.NON_ZERO_OFFSET),
        (spoil_timestamp, Code.NON_ZERO_TIMESTAMP),
        (spoil_position, Code.MISSING_INDEX),
        (cut_message, Code.MISSING_INDEX),
        (too_long_headers, Code.MISSING_INDEX),
    ],
)
@pytest.mark.parametrize("place", [0, 1, -1])
def test_an_invalid_message_is_refused_with_its_error_number(
    count: int, mixed: bool, size: int, spoil: Callable[[Body, int], None], number: Code, place: int
) -> None:
    body = Body(count, mixed, size)
    spoil(body, place % count)
    assert refused(body.octets) == number


@every_way
def test_sizes_that_do_not_add_up_are_refused(count: int, mixed: bool, size: int) -> None:
    body = Body(count, mixed, size)
    body.head(1, 52, "<I", 49)
    assert refused(body.octets) == Code.INVALID_MESSAGES_SIZE
    body = Body(count, mixed, size)
    body.octets += b"x"
    assert refused(body.octets) == Code.INVALID_MESSAGES_SIZE


@every_way
@pytest.mark.parametrize("left", [0, 1, 55])
def test_a_last_message_that_is_shorter_than_its_header_is_refused(
    count: int, mixed: bool, size: int, left: int
) -> None:
    body = Body(count, mixed, size)
    assert refused(body.octets[: body.area + body.ends[-2] + left]) == Code.MISSING_INDEX
    body.index(count - 1, position=body.ends[-2] + left)
    assert refused(body.octets[: body.area + body.ends[-2] + left]) == Code.MISSING_INDEX


@every_way
def test_decreasing_positions_are_refused(count: int, mixed: bool, size: int) -> None:
    body = Body(count, mixed, size)
    body.index(count - 1, position=body.ends[-2] - 1)
    assert refused(body.octets) == Code.CANNOT_READ_INDEX_POSITION
    body = Body(count, mixed, size)
    body.index(1, position=body.ends[0] - 1)
    assert refused(body.octets) == Code.MISSING_INDEX


def test_the_position_of_the_second_of_two_messages_must_not_go_back_either() -> None:
    body = Body(2, False, 56)
    body.index(1, position=body.ends[0] - 1)
    assert refused(body.octets) == Code.CANNOT_READ_INDEX_POSITION


@every_way
def test_offsets_of_messages_may_increase_but_not_decrease(count: int, mixed: bool, size: int) -> None:
    body = Body(count, mixed, size)
    for i in range(count):
        body.head(i, 24, "<Q", 2**64 - 1 - count + i // 2)
    assert len(decode(body.octets).batches) == 1
    body.head(count - 1, 24, "<Q", 5)
    assert refused(body.octets) == Code.INVALID_OFFSET


@every_way
def test_checksum_timestamp_and_reserved_bytes_of_a_client_are_ignored(count: int, mixed: bool, size: int) -> None:
    body = Body(count, mixed, size)
    for i in range(count):
        body.head(i, 0, "<Q", 99)
        body.head(i, 32, "<Q", 99)
        if size == 64:
            body.head(i, 56, "<Q", 99)
    expected = decode(send_body(messages(count, mixed), size))
    assert decode(body.octets) == expected


@pytest.mark.parametrize("count", [1, 3, 20])
@pytest.mark.parametrize(
    ("payload", "headers", "number"),
    [
        (b"x" * 1001, b"", Code.TOO_BIG_MESSAGE_PAYLOAD),
        (b"x", b"h" * 101, Code.TOO_BIG_USER_HEADERS),
        (b"", b"", Code.EMPTY_MESSAGE_PAYLOAD),
        (b"", b"h", Code.EMPTY_MESSAGE_PAYLOAD),
    ],
)
def test_limits_of_messages(count: int, payload: bytes, headers: bytes, number: Code) -> None:
    spoiled = Classic(1, 0, 0, 0, payload, headers)
    good = Classic(1, 0, 0, 0, b"x" * 30)
    for size in (56, 64):
        assert refused(send_body([good] * (count - 1) + [spoiled], size)) == number
        assert refused(send_body([spoiled] * count, size)) == number


def test_what_is_exactly_at_the_limits_is_accepted() -> None:
    for count in (1, 20):
        body = send_body([Classic(1, 0, 0, 0, b"x" * 1000, b"h" * 100)] * count, 64)
        batches.check(decode(body).batches[0])


def test_more_messages_than_the_limit_are_refused_before_they_are_decoded() -> None:
    body = memoryview(send_body(messages(20, False), 64))
    as_many = Limits(2**32, 20, 1000, 100)
    assert len(sends.decode(body, Dialect(), lambda size: b"\7" * size, as_many).batches) == 1
    few = Limits(2**32, 19, 1000, 100)
    with pytest.raises(CommandError) as error:
        sends.decode(body, Dialect(), lambda size: b"\7" * size, few)
    assert error.value.code == Code.INVALID_MESSAGES_COUNT


def test_a_single_message_ends_with_the_payload_whatever_its_index_says() -> None:
    body = Body(1, False, 56)
    for position in (0, 7, 2**32 - 1):
        body.index(0, position=position)
        assert len(decode(body.octets).batches) == 1


def test_an_unknown_header_size_is_refused() -> None:
    for count in (1, 3, 20):
        for size in (57, 60, 63, 65, 72, 128):
            assert refused(send_body(messages(count, False), size)) in {
                Code.MISSING_INDEX,
                Code.INVALID_MESSAGES_SIZE,
            }


HEAD = "02027331 02027431"


@pytest.mark.parametrize(
    ("metadata", "number"),
    [
        ("", Code.INVALID_IDENTIFIER),
        ("01", Code.INVALID_IDENTIFIER),
        ("0300 02027431 0100 01000000", Code.INVALID_IDENTIFIER),
        ("0200 02027431 0100 01000000", Code.INVALID_IDENTIFIER),
        ("0103 000000 02027431 0100 01000000", Code.INVALID_IDENTIFIER),
        ("02027331 0204 7431", Code.INVALID_IDENTIFIER),
        ("0201ff 02027431 0100 01000000", Code.INVALID_IDENTIFIER),
        (HEAD, Code.INVALID_COMMAND),
        (HEAD + "0000 01000000", Code.INVALID_COMMAND),
        (HEAD + "0101 00 01000000", Code.INVALID_COMMAND),
        (HEAD + "0203 000000 01000000", Code.INVALID_COMMAND),
        (HEAD + "0300 01000000", Code.INVALID_COMMAND),
        (HEAD + "0400 01000000", Code.INVALID_COMMAND),
        (HEAD + "0100", Code.INVALID_NUMBER_ENCODING),
        (HEAD + "0100 010000", Code.INVALID_NUMBER_ENCODING),
        (HEAD + "0100 01000000 00", Code.INVALID_COMMAND),
        (HEAD + "0100 00000000", Code.INVALID_MESSAGES_COUNT),
        (HEAD + "0100 01000000", Code.INVALID_COMMAND),
        (HEAD + "0100 ffffffff", Code.INVALID_COMMAND),
    ],
)
def test_an_invalid_destination_has_its_error_number(metadata: str, number: Code) -> None:
    octets = bytes.fromhex(metadata)
    assert refused(struct.pack("<I", len(octets)) + octets) == number


def test_a_destination_that_is_cut_off() -> None:
    assert refused(b"\1\0\0") == Code.INVALID_NUMBER_ENCODING
    assert refused(b"\1\0\0\0") == Code.INVALID_COMMAND
    assert refused(b"\xff\xff\xff\xff" + bytes(100)) == Code.INVALID_COMMAND


def test_a_refused_send_does_not_change_the_dialect() -> None:
    dialect = Dialect()
    body = Body(3, False, 56)
    spoil_offset(body, 1)
    with pytest.raises(CommandError):
        decode(body.octets, dialect)
    assert dialect.header_size == 64
