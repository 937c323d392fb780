"""The eight bytes before a request and before a response."""

from __future__ import annotations

import struct

import pytest

from whippet.transports.wire.classic import frames


def header(length: int, code: int) -> bytes:
    return struct.pack("<II", length, code)


def test_the_length_of_a_request_counts_its_code() -> None:
    assert frames.measure(header(4, 1)) == 8
    assert frames.measure(header(12, 200) + bytes(100)) == 16
    assert frames.code_of(header(12, 200)) == 200
    assert frames.request(200, b"\1" * 8)[:8] == header(12, 200)
    assert frames.measure(header(2**32 - 1, 1)) == 2**32 + 3


@pytest.mark.parametrize("size", range(8))
def test_a_frame_is_not_measured_before_its_header_is_there(size: int) -> None:
    assert frames.measure(header(4, 1)[:size]) == 0


@pytest.mark.parametrize("length", range(4))
def test_a_length_too_small_for_a_code_is_the_whole_frame(length: int) -> None:
    assert frames.measure(header(length, 1)) == frames.measure(header(length, 1)[:4]) == 4


def test_a_response_is_its_header_and_its_buffers_as_they_are() -> None:
    large = memoryview(bytearray(100))
    sent = frames.success([b"abcd", large])
    assert sent[0] == header(0, 104)
    assert sent[2] is large
    assert frames.success([]) == [bytes(8)]
    assert frames.response_header(sent[0]) == (0, 104)


def test_a_payload_of_one_byte_is_never_sent() -> None:
    with pytest.raises(AssertionError):
        frames.success([b"a"])


def test_a_request_may_have_ten_mebibytes_besides_its_code() -> None:
    assert frames.PAYLOAD_BYTES_MAX == 10_485_760
    assert (frames.HEADER_BYTES, frames.LENGTH_BYTES, frames.CODE_BYTES) == (8, 4, 4)
