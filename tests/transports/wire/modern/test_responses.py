"""Responses to 0.9 clients, encoded and decoded."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.transports.wire.classic.support.worlds import U32, U64
from tests.transports.wire.modern.support import worlds
from whippet.app.commands import responses
from whippet.app.errors import Code, CommandError
from whippet.app.model.identity import UserStatus
from whippet.storage import batch as batches
from whippet.storage.batch import Readable
from whippet.storage.options import Durability
from whippet.transports.wire.classic import responses as classic
from whippet.transports.wire.modern import polls
from whippet.transports.wire.modern import responses as wire_responses

fuzz = settings(deadline=None, max_examples=40)


def encode(code: int, answer: Any) -> bytes:
    return b"".join(wire_responses.encode(code, answer))


def decode(code: int, body: bytes) -> Any:
    return wire_responses.decode(code, memoryview(body))


def test_every_kind_of_answer_is_made_up() -> None:
    assert set(wire_responses.LAYOUTS) == set(worlds.ANSWERS) - {1}


@pytest.mark.parametrize("code", worlds.ANSWERS)
@fuzz
@given(data=st.data())
def test_an_answer_there_and_back_is_the_same(code: int, data: st.DataObject) -> None:
    answer = data.draw(worlds.ANSWERS[code])
    assert decode(code, encode(code, answer)) == answer


@pytest.mark.parametrize("code", [1, 14, 34, 39, 102, 121, 122, 203, 304, 402, 503, 604])
def test_a_command_without_a_result_has_an_empty_body(code: int) -> None:
    assert wire_responses.encode(code, None) == []
    assert decode(code, b"") is None


@pytest.mark.parametrize("code", sorted(wire_responses.LISTS))
def test_the_list_of_a_missing_object_is_empty(code: int) -> None:
    assert encode(code, None) == b""
    assert decode(code, b"") == decode(code, encode(code, ())) == ()


def test_an_answer_that_the_protocol_has_no_layout_for_has_an_empty_body() -> None:
    assert wire_responses.encode(503, ("something",)) == []
    assert decode(503, b"something") is None


CHANGED = {10, 13, 31, 32, 33, 103, 123, 200, 201, 202, 300, 301, 302, 606}


def test_only_changed_commands_have_a_new_layout() -> None:
    anew = {code for code, layout in wire_responses.LAYOUTS.items() if layout is not classic.LAYOUTS.get(code)}
    assert anew == CHANGED


def test_every_user_of_a_list_is_followed_by_no_options() -> None:
    users = (responses.UserInfo(1, 2, UserStatus.ACTIVE, "abc"), responses.UserInfo(3, 4, UserStatus.INACTIVE, "d"))
    assert encode(32, users) == bytes.fromhex(
        "01000000 0200000000000000 01 03616263 00000000 03000000 0400000000000000 02 0164 00000000"
    )


def test_clients_without_membership_or_partitions_get_an_empty_assignment() -> None:
    assert encode(606, None) == b""
    assert encode(606, responses.GroupAssignment(7, ())) == bytes.fromhex("0700000000000000 00000000")
    assert decode(606, b"") is None


@pytest.mark.parametrize(("algorithm", "shown"), [(0, 1), (3, 2), (255, 1)])
def test_zstd_is_shown_as_gzip_and_a_compression_that_nobody_knows_as_none(algorithm: int, shown: int) -> None:
    topic = responses.TopicInfo(0, 0, 0, 0, algorithm, 0, 1, 0, 0, "t")
    assert decode(301, encode(301, (topic,))) == (msgspec.structs.replace(topic, compression_algorithm=shown),)


@given(stream_id=U32, topic_id=U32, partition_id=U32, offset=U64, count=st.integers(1, 1000))
def test_a_send_is_confirmed_with_its_position(
    stream_id: int, topic_id: int, partition_id: int, offset: int, count: int
) -> None:
    sent = responses.Sent(stream_id, topic_id, partition_id, offset, count, Durability.WRITTEN)
    body = encode(101, sent)
    assert len(body) == 24
    assert decode(101, body) == (responses.Confirmation(stream_id, topic_id, partition_id, offset),)


# --------------------------------------------------------------------------------------------------------------- polls


def stored(count: int, base: int) -> bytearray:
    batch = batches.build([batches.Message(b"%d" % number, number + 1) for number in range(count)], 1, bytes)
    batches.stamp(batch, 3, base, 10, batches.check(batch).checksums)
    return batch


@pytest.mark.parametrize("code", [100, 104])
def test_a_poll_is_batches_as_they_lie_and_nothing_is_copied(code: int) -> None:
    whole, other = stored(3, 10), stored(20, 13)
    slice_of = batches.cut(other, batches.frame_positions(other), 5, 20)
    buffers: tuple[Readable, ...] = (memoryview(whole), *slice_of)
    sent = wire_responses.encode(code, responses.Polled(3, 40, 18, buffers))
    assert [one is other for one, other in zip(sent[1:], buffers, strict=True)] == [True] * 3
    found = decode(code, b"".join(sent))
    assert (found.partition_id, found.current_offset, found.messages_count, found.owned) == (3, 40, 18, True)
    offsets = [message.offset for batch in found.batches for message in batches.messages(batch)]
    assert offsets == [10, 11, 12, *range(18, 33)]


def test_a_poll_that_finds_nothing_names_the_partition() -> None:
    body = encode(100, responses.Polled(3, 40, 0, ()))
    assert body == polls.PREFIX.pack(3, 40, 0)
    assert decode(100, body) == responses.Polled(3, 40, 0, ())


@pytest.mark.parametrize("code", [100, 104])
def test_the_partition_of_another_member_has_no_number(code: int) -> None:
    assert encode(code, responses.Polled(3, 40, 0, (), owned=False)) == bytes.fromhex("ffffffff") + bytes(12)


def test_our_client_refuses_a_poll_cut_off_anywhere() -> None:
    body = encode(100, responses.Polled(3, 40, 5, (stored(3, 10), stored(2, 13))))
    ends = {16, 16 + len(stored(3, 10)), len(body)}
    for size in range(len(body)):
        if size in ends:
            continue
        with pytest.raises(CommandError) as refused:
            decode(100, body[:size])
        assert refused.value.code in (Code.INVALID_FORMAT, Code.INVALID_MESSAGE_PAYLOAD_LENGTH)


@fuzz
@given(data=st.data(), code=st.sampled_from(sorted({*worlds.ANSWERS, 100, 101})), octets=st.binary(max_size=300))
def test_our_client_refuses_any_bytes_or_understands_them(data: st.DataObject, code: int, octets: bytes) -> None:
    with contextlib.suppress(CommandError, ValueError, IndexError):
        decode(code, octets)
