"""The 256 bytes before a request and before a reply, and the section of results."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whippet.app.errors import Code, CommandError
from whippet.transports.wire.modern import frames
from whippet.transports.wire.modern.frames import HEADER_BYTES, Reason

CLIENT = bytes(range(16))


def header(size: int, kind: int = frames.REQUEST) -> bytes:
    return struct.pack("<48xI8xB195x", size, kind)


@given(
    client=st.binary(min_size=16, max_size=16),
    number=st.integers(0, 2**64 - 1),
    operation=st.integers(0, 255),
    session=st.integers(0, 2**64 - 1),
    code=st.integers(0, 2**32 - 1),
    size=st.integers(0, 2**32 - 1 - HEADER_BYTES),
    checksum=st.integers(0, 2**64 - 1),
)
def test_a_header_there_and_back_is_the_same(
    client: bytes, number: int, operation: int, session: int, code: int, size: int, checksum: int
) -> None:
    head = frames.request_head(client, number, operation, session, code, size, checksum)
    assert len(head) == HEADER_BYTES
    assert frames.measure(head) == HEADER_BYTES + size
    found = frames.request_of(head)
    assert found == frames.Request(
        HEADER_BYTES + size,
        frames.REQUEST,
        client,
        checksum.to_bytes(16, "little"),
        0,
        number,
        operation,
        session,
        code,
    )


def test_a_request_without_a_checksum_has_none() -> None:
    assert frames.request_of(frames.request_head(CLIENT, 1, 2, 3, 4, 5)).checksum == bytes(16)


@pytest.mark.parametrize("size", [0, 1, 48, 255])
def test_a_frame_too_small_for_its_header_is_refused(size: int) -> None:
    with pytest.raises(CommandError):
        frames.measure(header(size))
    assert frames.measure(header(256)) == 256
    assert frames.measure(header(256)[:-1]) == 0


@pytest.mark.parametrize("kind", [kind for kind in range(256) if kind != 5])
def test_only_requests_are_read(kind: int) -> None:
    with pytest.raises(CommandError):
        frames.measure(header(256, kind))


@given(bytes_=st.binary(min_size=256, max_size=256), status=st.integers(0, 2**32 - 1))
def test_a_reply_repeats_the_fields_that_identify_the_request_and_no_others(bytes_: bytes, status: int) -> None:
    asked = frames.request_of(bytes_)
    large = memoryview(bytearray(100))
    sent = frames.reply(asked, 7, [b"abcd", large], status)
    assert sent[2] is large
    expected = bytearray(HEADER_BYTES)
    struct.pack_into("<I", expected, 48, HEADER_BYTES + 104)
    expected[60] = frames.REPLY
    expected[128:144] = bytes_[144:160]
    expected[160:176] = bytes_[128:144]
    struct.pack_into("<QQ", expected, 176, 7, 7)
    expected[192:208] = bytes_[160:176]
    expected[208] = bytes_[176]
    struct.pack_into("<I", expected, 216, status)
    assert sent[0] == expected
    assert frames.reply_of(sent[0]) == frames.Reply(360, frames.REPLY, asked.operation, status, 0)


@pytest.mark.parametrize("reason", Reason)
def test_an_eviction_has_no_body(reason: Reason) -> None:
    (whole,) = frames.eviction(CLIENT, reason, 2, 1)
    assert len(whole) == HEADER_BYTES
    found = frames.reply_of(whole)
    assert (found.size, found.kind, found.reason) == (HEADER_BYTES, frames.EVICTION, reason)
    assert bytes(whole[128:152]) == CLIENT + struct.pack("<II", 2, 1)


def test_the_section_of_results_tells_whether_something_was_refused() -> None:
    success = b"".join(frames.results([b"what", b"follows"]))
    code, rest = frames.refused(memoryview(success))
    assert (code, bytes(rest)) == (None, b"whatfollows")
    code, rest = frames.refused(memoryview(b"".join(frames.results([]))))
    assert (code, bytes(rest)) == (None, b"")
    refusal = b"".join(frames.refusal(Code.STREAM_NAME_ALREADY_EXISTS))
    assert refusal == bytes.fromhex("01000000 00000000 f4030000")
    code, rest = frames.refused(memoryview(refusal))
    assert (code, bytes(rest)) == (Code.STREAM_NAME_ALREADY_EXISTS, b"")


@pytest.mark.parametrize("section", [b"", b"\0\0\0", b"\1\0\0\0", b"\1\0\0\0\0\0\0\0\0\0\0", b"\xff\xff\xff\xff\0"])
def test_a_truncated_section_is_refused(section: bytes) -> None:
    with pytest.raises(CommandError):
        frames.refused(memoryview(section))


def test_a_false_count_of_refusals_costs_nothing() -> None:
    found, rest = frames.refused(memoryview(b"\xff\xff\xff\xff" + bytes(4) + b"\7\0\0\0"))
    assert (found, bytes(rest)) == (7, b"")
