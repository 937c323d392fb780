"""Messages from the classic form to batches and back: nothing is lost, and the batches are valid.

support/plainly.py computes what is expected in the simplest way; batch sizes cross the border between the loop for a
few messages and numpy, and between one size and mixed sizes.
"""

from __future__ import annotations

import os
import random
import struct
import uuid
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.transports.wire.classic.support.plainly import Classic, area, parse, send_body, stored
from whippet.app.commands import requests, responses
from whippet.app.errors import Code, CommandError
from whippet.storage import batch as batches
from whippet.storage.batch import TIME_SPAN_MAX_US, Readable
from whippet.transports.wire.classic import batching, message, polls, sends, unbatching, userheaders
from whippet.transports.wire.classic import responses as wire_responses
from whippet.transports.wire.classic.dialect import Dialect

fuzz = settings(deadline=None, max_examples=100)
NOW = 1_700_000_000_000_000
SIZES = [56, 64]
both_sizes = pytest.mark.parametrize("header_size", SIZES)
FOO_BAR = bytes.fromhex("0203000000666f6f0203000000626172")


@st.composite
def some_messages(draw: st.DrawFn, origins: tuple[int, ...] = ()) -> list[Classic]:
    count = draw(st.integers(1, 40))
    length = draw(st.integers(1, 600))
    uniform = draw(st.booleans())
    headers = draw(st.sampled_from([b"", FOO_BAR, b"opaque", None]))
    base = draw(st.sampled_from([0, 5, 2**32, 2**63]))
    source = random.Random(draw(st.integers(0, 2**32)))
    found = []
    for i in range(count):
        size = length if uniform else source.randint(1, length)
        block = headers if headers is not None else source.choice([b"", FOO_BAR, FOO_BAR * 2, b"\2"])
        origin = source.choice(origins) if origins else NOW + source.randint(0, TIME_SPAN_MAX_US)
        found.append(Classic(source.randint(1, 2**128 - 1), base + i, NOW, origin, source.randbytes(size), block))
    return found


def in_short_form(block: bytes) -> bytes:
    return bytes(userheaders.to_short(block))


def decode(body: bytes) -> list[batches.StoredMessage]:
    """All messages of the batches that a send becomes, after checking the batches."""
    found: list[batches.StoredMessage] = []
    for batch in sends.decode(memoryview(body), Dialect(), os.urandom).batches:
        batches.check(batch)
        found += batches.messages(batch)
    return found


@both_sizes
@fuzz
@given(sent=some_messages())
def test_what_is_sent_is_stored(header_size: int, sent: list[Classic]) -> None:
    as_sent = [m._replace(user_headers=in_short_form(m.user_headers)) if header_size == 56 else m for m in sent]
    found = decode(send_body(as_sent, header_size))
    assert [(m.id, m.origin_timestamp, m.payload, m.user_headers) for m in found] == [
        (m.id, m.origin, m.payload, m.user_headers) for m in sent
    ]


@st.composite
def in_buffers(draw: st.DrawFn, kept: list[Classic]) -> tuple[list[Readable], list[Classic]]:
    """Batches as a partition returns them to a reader: whole ones joined, and slices with separate headers."""
    buffers: list[Readable] = []
    run = b""
    expected = []
    while kept:
        count = draw(st.integers(1, len(kept)))
        some, kept = kept[:count], kept[count:]
        batch = stored(some)
        if draw(st.booleans()):
            run += batch
            expected += some
            continue
        first = draw(st.integers(0, count - 1))
        last = draw(st.integers(first + 1, count))
        expected += some[first:last]
        head, frames = batches.cut(batch, batches.frame_positions(batch), first, last)
        if draw(st.booleans()):
            run += bytes(head) + bytes(frames)
        else:
            buffers += [run, head, frames]
            run = b""
    return [*buffers, run], expected


@both_sizes
@fuzz
@given(kept=some_messages(), data=st.data())
def test_what_is_stored_is_polled(header_size: int, kept: list[Classic], data: st.DataObject) -> None:
    buffers, expected = data.draw(in_buffers(kept))
    found = parse(b"".join(unbatching.messages_of(buffers, header_size)), header_size)
    if header_size == 56:
        expected = [m._replace(user_headers=in_short_form(m.user_headers)) for m in expected]
    assert found == expected


@both_sizes
@fuzz
@given(kept=some_messages(), data=st.data())
def test_our_client_gets_what_was_stored(header_size: int, kept: list[Classic], data: st.DataObject) -> None:
    buffers, expected = data.draw(in_buffers(kept))
    answer = responses.Polled(3, 2**63, len(expected), tuple(buffers))
    payload = b"".join(wire_responses.encode(100, answer, Dialect(forced=header_size)))
    polled = wire_responses.decode_response(100, memoryview(payload), Dialect(forced=header_size))
    assert (polled.partition_id, polled.current_offset, polled.messages_count) == (3, 2**63, len(expected))
    found: list[Classic] = []
    for batch in polled.batches:
        batches.check(batch)
        found += [
            Classic(m.id, m.offset, m.timestamp, m.origin_timestamp, m.payload, m.user_headers)
            for m in batches.messages(batch)
        ]
    assert found == expected


@both_sizes
@fuzz
@given(kept=some_messages())
def test_a_whole_batch_polled_by_our_client_is_the_batch(header_size: int, kept: list[Classic]) -> None:
    batch = stored(kept, partition_id=3)
    payload = b"".join(
        wire_responses.encode(100, responses.Polled(3, 0, len(kept), (batch,)), Dialect(forced=header_size))
    )
    polled = wire_responses.decode_response(100, memoryview(payload), Dialect(forced=header_size))
    assert polled == responses.Polled(3, 0, len(kept), (batch,))


# ---------------------------------------------------------------------------------------------------------------- time


ORIGINS = (0, 1, 1_700_000_000_000, NOW, NOW + 1, NOW + TIME_SPAN_MAX_US, 2**64 - 1)


@fuzz
@given(sent=some_messages(origins=ORIGINS))
def test_origin_times_of_any_span_are_kept_exactly_and_in_order(sent: list[Classic]) -> None:
    found = decode(send_body(sent, 64))
    assert [(m.origin_timestamp, m.id, m.payload) for m in found] == [(m.origin, m.id, m.payload) for m in sent]


@pytest.mark.parametrize("count", [2, 20])
def test_messages_go_into_one_batch_as_long_as_their_times_fit(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fitting = [Classic(1, 0, 0, NOW + TIME_SPAN_MAX_US * (i % 2), b"x") for i in range(count)]
    with monkeypatch.context() as patched:
        # Then no change of batch has to be searched, which costs time.
        patched.delattr(batching, "_runs")
        assert len(sends.decode(memoryview(send_body(fitting, 64)), Dialect(), os.urandom).batches) == 1
    apart = [*fitting, Classic(1, 0, 0, NOW + TIME_SPAN_MAX_US + 1, b"x"), *fitting]
    several = sends.decode(memoryview(send_body(apart, 64)), Dialect(), os.urandom).batches
    assert [batches.header(batch).message_count for batch in several] == [count, 1, count]


@pytest.mark.parametrize("count", [64, 65, 200, 500])
def test_a_change_of_batch_is_found_at_any_position(count: int) -> None:
    sent = [Classic(1, 0, 0, NOW, b"x")] * count + [Classic(1, 0, 0, NOW + TIME_SPAN_MAX_US + 1, b"x")] * count
    several = sends.decode(memoryview(send_body(sent, 64)), Dialect(), os.urandom).batches
    assert [batches.header(batch).message_count for batch in several] == [count, count]


def test_a_request_becomes_at_most_1024_batches() -> None:
    apart = [Classic(1, 0, 0, NOW + (TIME_SPAN_MAX_US + 1) * (i % 2), b"x") for i in range(1025)]
    several = sends.decode(memoryview(send_body(apart[:1024], 64)), Dialect(), os.urandom).batches
    assert len(several) == 1024
    with pytest.raises(CommandError, match="more than 1024 batches") as refused:
        sends.decode(memoryview(send_body(apart, 64)), Dialect(), os.urandom)
    assert refused.value.code == Code.INVALID_MESSAGES_COUNT


# ----------------------------------------------------------------------------------------------------------------- ids


@pytest.mark.parametrize("count", [1, 3, 20])
@pytest.mark.parametrize("mixed", [False, True])
def test_messages_without_an_id_get_a_random_uuid_and_the_others_keep_theirs(count: int, mixed: bool) -> None:
    sent = [Classic(0 if i % 3 == 0 else i, 0, 0, NOW, b"x" * (1 + i * mixed)) for i in range(count)]
    for messages in (sent, [m._replace(id=0) for m in sent]):
        found = [m.id for m in decode(send_body(messages, 64))]
        assert len(set(found)) == count
        for one, identity in zip(messages, found, strict=True):
            octets = identity.to_bytes(16, "little")
            if one.id:
                assert identity == one.id
            else:
                assert octets[6] >> 4 == 4
                assert octets[8] >> 6 == 0b10


@pytest.mark.parametrize("count", [1, 3, 12, 13, 40])
def test_every_id_is_made_of_16_random_bytes_of_its_own(count: int) -> None:
    source = random.Random(1).randbytes(16 * count)
    body = memoryview(send_body([Classic(0, 0, 0, NOW, b"x")] * count, 64))

    def random_bytes(size: int) -> bytes:
        assert size == len(source), "each of them is used"
        return source

    (batch,) = sends.decode(body, Dialect(), random_bytes).batches
    for i, sent in enumerate(batches.messages(batch)):
        expected = uuid.UUID(bytes=source[16 * i : 16 * i + 16], version=4)
        assert sent.id.to_bytes(16, "little") == expected.bytes


@pytest.mark.parametrize("count", [1, 20])
def test_the_random_source_decides_the_ids(count: int) -> None:
    body = memoryview(send_body([Classic(0, 0, 0, NOW, b"x")] * count, 64))
    first, second = (sends.decode(body, Dialect(), random.Random(1).randbytes) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("count", [1, 20])
def test_no_random_bytes_are_drawn_if_all_messages_have_an_id(count: int, mixed: bool) -> None:
    sent = [Classic(i + 1, 0, 0, NOW, b"x" * (1 + i * mixed)) for i in range(count)]

    def random_bytes(size: int) -> bytes:
        raise AssertionError

    (batch,) = sends.decode(memoryview(send_body(sent, 64)), Dialect(), random_bytes).batches
    assert [m.id for m in batches.messages(batch)] == [m.id for m in sent]


@both_sizes
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("count", [1, 3, 20])
def test_our_client_invents_no_ids_for_stored_messages_without_one(header_size: int, count: int, mixed: bool) -> None:
    kept = [Classic(i % 2, i, NOW, NOW, b"x" * (1 + i * mixed)) for i in range(count)]
    payload = memoryview(struct.pack("<IQI", 3, 0, count) + area(kept, header_size))
    (batch,) = polls.decode(payload, header_size).batches
    assert [m.id for m in batches.messages(batch)] == [m.id for m in kept]


# ---------------------------------------------------------------------------------------------------------------- ways


@both_sizes
@pytest.mark.parametrize(
    ("sizes", "way"),
    [
        ([30] * 12, "one by one"),
        ([*range(1, 13)], "one by one"),
        ([30] * 13, "uniform"),
        ([30] * 2000, "uniform"),
        ([*range(1, 14)], "mixed"),
        ([*range(13, 0, -1)], "mixed"),
    ],
)
@pytest.mark.parametrize("headers", [b"", b"opaque"])
def test_numpy_handles_many_messages_and_a_loop_handles_a_few(
    header_size: int, sizes: list[int], way: str, headers: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All paths produce the same bytes: the wrong one costs time, with every batch."""
    kept = [Classic(i + 1, i, NOW, NOW, b"x" * size, headers) for i, size in enumerate(sizes)]
    assert isinstance(sends._ends(area(kept, header_size), header_size), np.ndarray) is (way == "uniform")
    if headers and header_size == 56:
        way = "one by one"  # User headers of the short form are translated.
    else:
        monkeypatch.delattr(userheaders, "from_short")
        monkeypatch.delattr(userheaders, "to_short")
    body, batch, count = memoryview(send_body(kept, header_size)), stored(kept), len(kept)
    payload = memoryview(b"".join(polls.encode(responses.Polled(3, 0, count, (batch,)), header_size)))
    for other, functions in WAYS.items():
        for module, name in functions if other != way else ():
            monkeypatch.delattr(module, name)
    sends.decode(body, Dialect(), os.urandom)
    unbatching.messages_of([batch], header_size)
    unbatching.unsent([batch], header_size)
    polls.decode(payload, header_size)


WAYS: dict[str, list[tuple[ModuleType, str]]] = {
    "one by one": [(batching, "plain"), (sends, "_one_by_one"), (unbatching, "_one_by_one")],
    "uniform": [(batching, "uniform"), (unbatching, "_uniform")],
    "mixed": [(batching, "mixed"), (unbatching, "_mixed")],
}


@both_sizes
@pytest.mark.parametrize(("length", "one_by_one"), [(-1, False), (0, True)])
def test_messages_that_are_long_on_average_are_not_copied_by_numpy(
    header_size: int, length: int, one_by_one: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    length += unbatching.LONG_BODY_BYTES - batches.FRAME_BYTES
    batch = stored([Classic(i + 1, i, NOW, NOW, b"x" * length) for i in range(13)])
    monkeypatch.delattr(unbatching, "_many" if one_by_one else "_one_by_one")
    unbatching.messages_of([batch], header_size)


# --------------------------------------------------------------------------------------------------------- other bodies


@both_sizes
@pytest.mark.parametrize("headers", [b"", FOO_BAR])
def test_different_sizes_with_the_sum_of_equal_ones_are_not_mistaken_for_them(header_size: int, headers: bytes) -> None:
    """The first has the mean size."""
    sizes = (5, 4, 6, *([5] * 12))
    kept = [Classic(i + 1, i, NOW, NOW, bytes([65 + i]) * size, headers) for i, size in enumerate(sizes)]
    as_sent = [m._replace(user_headers=in_short_form(headers)) if header_size == 56 else m for m in kept]
    batch = stored(kept, partition_id=3)
    assert parse(b"".join(unbatching.messages_of([batch], header_size)), header_size) == as_sent
    found = decode(send_body(as_sent, header_size))
    assert [(m.payload, m.user_headers) for m in found] == [(m.payload, m.user_headers) for m in kept]
    payload = b"".join(polls.encode(responses.Polled(3, 0, len(kept), (batch,)), header_size))
    assert polls.decode(memoryview(payload), header_size).batches == (batch,)
    request = requests.SendMessages(0, 0, requests.Partitioning(requests.PartitioningKind.PARTITION_ID, 10), (batch,))
    assert sends.encode(request, header_size) == send_body(
        [m._replace(offset=0, timestamp=0) for m in as_sent], header_size
    )


@both_sizes
def test_long_bodies_are_sent_where_they_lie(header_size: int) -> None:
    kept = [Classic(i + 1, i, NOW, NOW, bytes([i]) * unbatching.LONG_BODY_BYTES, FOO_BAR * (i % 2)) for i in range(20)]
    batch = stored(kept)
    buffers = unbatching.messages_of([batch], header_size)
    views = [buffer for buffer in buffers if isinstance(buffer, memoryview)]
    assert len(views) == 20
    assert all(view.obj is batch for view in views)
    expected = [m._replace(user_headers=in_short_form(m.user_headers)) if header_size == 56 else m for m in kept]
    assert parse(b"".join(buffers), header_size) == expected


@both_sizes
def test_a_response_to_a_poll_fits_the_size_that_was_calculated(header_size: int) -> None:
    kept = [Classic(i + 1, i, NOW, NOW, b"x") for i in range(5000)]
    batch = stored(kept)
    for response_bytes in (400, 10_000, 65_000):
        space = polls.room(response_bytes)
        fits = batches.fitting(batches.frame_positions(batch), 0, 5000, space - batches.HEADER_BYTES)
        head, frames = batches.cut(batch, batches.frame_positions(batch), 0, max(fits, 1))
        assert sum(map(len, polls.encode(responses.Polled(0, 0, fits, (head, frames)), header_size))) <= response_bytes


@pytest.mark.parametrize(
    ("response_bytes", "room"),
    [(0, 0), (16, 0), (17, 0), (18, 1), (16 + 65, 49), (16 + 2 * 65 - 1, 97), (16 + 130, 98)],
)
def test_the_size_of_a_response_allows_for_frames_of_one_byte(response_bytes: int, room: int) -> None:
    assert polls.room(response_bytes) == room


@both_sizes
@pytest.mark.parametrize("count", [1, 2, 20])
def test_an_answer_with_fewer_bytes_than_its_number_of_messages_takes_is_refused(header_size: int, count: int) -> None:
    kept = [Classic(i + 1, i, NOW, NOW, b"x") for i in range(count)]
    payload = b"".join(polls.encode(responses.Polled(3, 0, count, (stored(kept),)), header_size))
    assert len(payload) == 16 + count * (header_size + 1)
    assert polls.decode(memoryview(payload), header_size).messages_count == count
    for changed, code in (
        (payload[:-1], Code.INVALID_MESSAGES_COUNT),
        (payload[:12] + bytes(4) + payload[16:], Code.INVALID_MESSAGES_COUNT),
        (payload + b"x", Code.INVALID_MESSAGE_PAYLOAD_LENGTH),
        (payload[:15], Code.INVALID_FORMAT),
    ):
        with pytest.raises(CommandError) as refused:
            polls.decode(memoryview(changed), header_size)
        assert refused.value.code == code
    assert polls.decode(memoryview(payload[:12] + bytes(4)), header_size).messages_count == 0


@both_sizes
def test_a_message_without_a_payload_is_refused_wherever_it_is_in_an_answer(header_size: int) -> None:
    for sizes in ((0, 3), (3, 0), (2, 0, 2)):
        kept = [Classic(i + 1, i, NOW, NOW, b"x" * size) for i, size in enumerate(sizes)]
        payload = memoryview(struct.pack("<IQI", 3, 0, len(kept)) + area(kept, header_size))
        with pytest.raises(CommandError) as refused:
            polls.decode(payload, header_size)
        assert refused.value.code == Code.EMPTY_MESSAGE_PAYLOAD


@both_sizes
def test_huge_numbers_of_messages_are_gathered_in_steps(header_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message, "PIECES_MAX", 7)
    for count in (13, 14, 15, 22):
        kept = [Classic(i + 1, i, NOW, NOW, b"x" * (1 + i)) for i in range(count)]
        assert parse(b"".join(unbatching.messages_of([stored(kept)], header_size)), header_size) == kept
        assert [m.payload for m in decode(send_body(kept, header_size))] == [m.payload for m in kept]


@pytest.mark.parametrize("count", [1, 12, 13, 40])
def test_damage_in_the_store_is_an_error_with_a_number(count: int) -> None:
    batch = bytes(stored([Classic(i + 1, i, NOW, NOW, b"x" * (20 + i)) for i in range(count)]))
    longer = bytearray(batch)
    longer[256 + 36 : 256 + 40] = b"\xff\xff\xff\xff"
    shorter = bytearray(batch)
    shorter[256 + 36] -= 1
    nothing = bytearray(batch)
    nothing[32:40] = bytes(8)
    headers_cut_off = [bytearray(batch + bytes(left)) for left in (10, 47)]
    for each in headers_cut_off:
        struct.pack_into("<QQI", each, 32, len(each), 0, count + 1)
    wrong: list[bytes | bytearray] = [longer, shorter, nothing, *headers_cut_off]
    for damaged in (*wrong, batch[:-1], batch[:256], batch[:100], batch + b"x"):
        with pytest.raises(CommandError):
            unbatching.messages_of([damaged], 64)


@pytest.mark.parametrize("length", [30, unbatching.LONG_BODY_BYTES])
@pytest.mark.parametrize("several", [False, True])
@both_sizes
def test_our_client_sends_messages_unchanged(header_size: int, several: bool, length: int) -> None:
    sent = [Classic(i + 1, 0, 0, NOW + i, b"x" * length, FOO_BAR) for i in range(20)]
    given_ = (stored(sent[:5]), stored(sent[5:])) if several else (stored(sent),)
    request = requests.SendMessages(0, 0, requests.Partitioning(requests.PartitioningKind.PARTITION_ID, 10), given_)
    as_sent = [m._replace(user_headers=in_short_form(m.user_headers)) if header_size == 56 else m for m in sent]
    assert sends.encode(request, header_size) == send_body(as_sent, header_size)
