"""The eight bytes before a request and before a response."""

from __future__ import annotations

import struct

import pytest

from app.errors import Code, CommandError
from transports.wire.classic import frames

MIB = 1024 * 1024


def header(length: int, code: int) -> bytes:
    return struct.pack("<II", length, code)


def test_the_length_of_a_request_counts_its_code() -> None:
    assert frames.request_header(header(4, 1), 0) == (1, 0)
    assert frames.request_header(header(12, 200), 0) == (200, 8)
    assert frames.request(200, b"\1" * 8)[:8] == header(12, 200)


@pytest.mark.parametrize("length", range(4))
def test_a_length_without_room_for_the_code_is_refused(length: int) -> None:
    with pytest.raises(CommandError) as refused:
        frames.request_header(header(length, 1), 0)
    assert refused.value.code == Code.INVALID_COMMAND


@pytest.mark.parametrize(("code", "limit"), [(100, 10 * MIB), (101, 64 * MIB), (12345, 10 * MIB)])
def test_a_payload_over_the_limit_is_refused_before_it_is_read(code: int, limit: int) -> None:
    assert frames.request_header(header(limit + 4, code), 64 * MIB).payload_bytes == limit
    with pytest.raises(CommandError) as refused:
        frames.request_header(header(limit + 5, code), 64 * MIB)
    assert refused.value.code == Code.INVALID_COMMAND


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
