"""Options as bytes."""

from __future__ import annotations

import struct
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.transports.wire.modern.support import worlds
from whippet.app.errors import Code, CommandError
from whippet.app.model.options import Option, ValueKind
from whippet.transports.wire.modern import tlv
from whippet.transports.wire.primitives import Reader


def entry(key: bytes, value: bytes, key_kind: int = 2, kind: int = 1) -> bytes:
    return struct.pack("<BI", key_kind, len(key)) + key + struct.pack("<BI", kind, len(value)) + value


def read(octets: bytes) -> tuple[Option, ...]:
    return tlv.read(memoryview(octets))


def refused(octets: bytes) -> Code:
    with pytest.raises(CommandError) as error:
        read(octets)
    return error.value.code


@settings(deadline=None)
@given(options=worlds.OPTIONS)
def test_options_there_and_back_are_the_same_in_the_same_order(options: tuple[Option, ...]) -> None:
    octets = tlv.write(options)
    assert read(octets) == options
    assert tlv.SIZED.read(Reader(memoryview(bytes(tlv.SIZED.write(options)) + b"what follows"))) == options


@settings(deadline=None, max_examples=300)
@given(octets=st.binary(max_size=200))
def test_any_bytes_are_refused_or_options(octets: bytes) -> None:
    try:
        found = read(octets)
    except CommandError:
        return
    assert tlv.write(found) == octets


@pytest.mark.parametrize("kind", range(1, 16))
def test_all_kinds_of_values_are_known(kind: int) -> None:
    assert read(entry(b"key", b"value", kind=kind)) == (Option("key", ValueKind(kind), b"value"),)


@pytest.mark.parametrize(
    ("octets", "code"),
    [
        (entry(b"key", b"value", kind=0), Code.INVALID_FORMAT),
        (entry(b"key", b"value", kind=16), Code.INVALID_FORMAT),
        (entry(b"key", b"value", key_kind=1), Code.INVALID_FORMAT),
        (entry(b"key", b"value", key_kind=0), Code.INVALID_FORMAT),
        (entry(b"", b"value"), Code.INVALID_FORMAT),
        (entry(b"key", b""), Code.INVALID_FORMAT),
        (entry(b"k" * 256, b"value"), Code.INVALID_FORMAT),
        (entry(b"key", b"v" * 256), Code.INVALID_FORMAT),
        (entry(b"\xff", b"value"), Code.INVALID_FORMAT),
        (entry(b"key", b"value")[:-1], Code.INVALID_COMMAND),
        (entry(b"key", b"value")[:7], Code.INVALID_COMMAND),
        (entry(b"key", b"value") + b"\2", Code.INVALID_COMMAND),
        (b"\2\xff\xff\xff\xffkey", Code.INVALID_FORMAT),
        (entry(b"key", b"one") + entry(b"other", b"two") + entry(b"key", b"three"), Code.INVALID_OPTION_VALUE),
    ],
)
def test_invalid_options_are_refused(octets: bytes, code: Code) -> None:
    assert refused(octets) == code


def test_there_are_no_more_than_1024_options_and_no_more_than_100_000_bytes() -> None:
    keys = [b"%05d" % number for number in range(1025)]
    assert len(read(b"".join(entry(key, b"v") for key in keys[:1024]))) == 1024
    assert refused(b"".join(entry(key, b"v") for key in keys)) == Code.OPTIONS_BLOCK_TOO_LARGE
    full = b"".join(entry(b"%05d" % number, b"v" * 255) for number in range(370))
    full += entry(b"last", b"v" * (100_000 - len(full) - 14))
    assert len(full) == 100_000
    assert len(read(full)) == 371
    assert refused(full + b"\2") == Code.OPTIONS_BLOCK_TOO_LARGE


def test_a_block_in_an_answer_is_not_longer_than_what_follows() -> None:
    with pytest.raises(CommandError):
        tlv.SIZED.read(Reader(memoryview(b"\xff\xff\xff\xff" + entry(b"key", b"value"))))


def test_the_largest_block_is_decoded_quickly() -> None:
    octets = b"".join(entry(b"%05d" % number, b"v" * 80) for number in range(1024))
    started = time.process_time()
    read(octets)
    assert time.process_time() - started < 0.5
