"""Values of options in bytes and as texts, and the rules for all options of a request."""

from __future__ import annotations

import pytest

from whippet.app.errors import Code, CommandError
from whippet.app.model.options import (
    LENGTH_MAX,
    OPTIONS_MAX,
    Option,
    OptionScope,
    Value,
    ValueKind,
    check,
    decode,
    encode,
    from_text,
    refuse_any,
)

K = ValueKind

VALUES: list[tuple[ValueKind, Value, bytes]] = [
    (K.RAW, b"\x01\xff", b"\x01\xff"),
    (K.STRING, "grün", b"gr\xc3\xbcn"),
    (K.BOOL, True, b"\x01"),
    (K.BOOL, False, b"\x00"),
    (K.INT8, -2, b"\xfe"),
    (K.INT16, -2, b"\xfe\xff"),
    (K.INT32, 258, b"\x02\x01\x00\x00"),
    (K.INT64, -1, b"\xff" * 8),
    (K.INT128, -1, b"\xff" * 16),
    (K.UINT8, 255, b"\xff"),
    (K.UINT16, 258, b"\x02\x01"),
    (K.UINT32, 1024, b"\x00\x04\x00\x00"),
    (K.UINT64, 2**64 - 1, b"\xff" * 8),
    (K.UINT128, 1, b"\x01" + bytes(15)),
    (K.FLOAT32, 0.5, b"\x00\x00\x00\x3f"),
    (K.FLOAT64, -0.5, b"\x00" * 6 + b"\xe0\xbf"),
]


@pytest.mark.parametrize(("kind", "value", "octets"), VALUES)
def test_a_value_of_every_kind_is_the_same_after_encoding_and_decoding(
    kind: ValueKind, value: Value, octets: bytes
) -> None:
    option = Option("k", kind, octets)
    assert encode(kind, value) == octets
    assert decode(option) == value
    assert type(decode(option)) is type(value)


def test_every_kind_is_tested() -> None:
    assert {kind for kind, *_ in VALUES} == set(ValueKind)


@pytest.mark.parametrize(
    "option",
    [
        *(Option("k", kind, b"\x01" * 3) for kind in K if kind not in (K.RAW, K.STRING)),
        Option("k", K.BOOL, b"\x02"),
        Option("k", K.STRING, b"\xff"),
    ],
    ids=lambda option: f"{option.kind.name} {option.value.hex()}",
)
def test_bytes_that_are_no_value_of_their_kind_are_refused(option: Option) -> None:
    with pytest.raises(ValueError):
        decode(option)


def test_a_text_becomes_an_option_of_kind_string() -> None:
    assert from_text("k", "7 days") == Option("k", K.STRING, b"7 days")


@pytest.mark.parametrize(
    ("given", "code", "sentence"),
    [
        ([from_text("", "v")], Code.UNSUPPORTED_OPTION_KEY, "1 to 255 bytes"),
        ([from_text("ä" * 128, "v")], Code.UNSUPPORTED_OPTION_KEY, "ääää"),
        ([from_text("k", "")], Code.INVALID_OPTION_VALUE, "'k': its value has 0 bytes"),
        ([from_text("k", "ä" * 128)], Code.INVALID_OPTION_VALUE, "'k': its value has 256 bytes"),
        ([from_text("k", "v"), from_text("k", "v")], Code.INVALID_OPTION_VALUE, "'k' is given twice"),
        ([from_text(f"{i}", "v") for i in range(OPTIONS_MAX + 1)], Code.OPTIONS_BLOCK_TOO_LARGE, "1025 options"),
        ([from_text(f"{i}".zfill(100), "v" * 255) for i in range(275)], Code.OPTIONS_BLOCK_TOO_LARGE, "100375 bytes"),
    ],
    ids=["no key", "long key", "no value", "long value", "twice", "many", "large"],
)
def test_invalid_options_of_a_request_are_named(given: list[Option], code: Code, sentence: str) -> None:
    with pytest.raises(CommandError, match=sentence) as refused:
        check(given)
    assert refused.value.code == code


def test_the_largest_valid_options_are_accepted() -> None:
    check([from_text(f"{i}", "v") for i in range(OPTIONS_MAX)])
    check([from_text("k" * LENGTH_MAX, "v" * LENGTH_MAX)])
    check([from_text(f"{i}".zfill(100), "v" * 255) for i in range(273)])


@pytest.mark.parametrize("scope", [OptionScope.STREAM, OptionScope.USER])
def test_streams_and_users_have_no_options(scope: OptionScope) -> None:
    refuse_any((), scope)
    with pytest.raises(CommandError, match=f"'segment_size': a {scope.name.lower()} has no options") as refused:
        refuse_any([from_text("segment_size", "1 MiB")], scope)
    assert refused.value.code == Code.UNSUPPORTED_OPTION_KEY
