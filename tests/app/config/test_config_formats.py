"""Formats of values: every form that Iggy accepts, and what is refused."""

from __future__ import annotations

import pytest

from whippet.app.config import formats
from whippet.app.config.cores import CPU_ALLOCATION, Allocation
from whippet.app.config.formats import Address, Format, choice, integer, list_of, optional, size

DAY = 86_400

ACCEPTED: list[tuple[Format, object, object]] = [
    (formats.BOOLEAN, True, True),
    (formats.INTEGER, 7, 7),
    (formats.TEXT, "7", "7"),
    (formats.TEXTS, ["a", "b"], ("a", "b")),
    (formats.SIZE, 1024, 1024),
    (formats.SIZE, "1024", 1024),
    (formats.SIZE, "100 KB", 100_000),
    (formats.SIZE, "100kb", 100_000),
    (formats.SIZE, "1 GB", 10**9),
    (formats.SIZE, "1 MiB", 2**20),
    (formats.SIZE, "1.5 GiB", 3 * 2**29),
    (formats.SIZE, "2 TB", 2 * 10**12),
    (formats.SIZE, "0", 0),
    (formats.SIZE, "Unlimited", 0),
    (formats.SIZE, "none", 0),
    (size(at_least=512, multiple=512), "5120", 5120),
    (formats.TOPIC_SIZE, "unlimited", None),
    (formats.TOPIC_SIZE, "10 GB", 10**10),
    (formats.DURATION, "5 s", 5.0),
    (formats.DURATION, "1m 30s", 90.0),
    (formats.DURATION, "1m30s", 90.0),
    (formats.DURATION, "1 min 30 sec", 90.0),
    (formats.DURATION, "7 days", 7.0 * DAY),
    (formats.DURATION, "1 h", 3600.0),
    (formats.DURATION, "2weeks", 14.0 * DAY),
    (formats.DURATION, "1M", 30.44 * DAY),
    (formats.DURATION, "1y", 365.25 * DAY),
    (formats.DURATION, "250 ms", 0.25),
    (formats.DURATION, "0", 0.0),
    (formats.DURATION, 0, 0.0),
    (formats.DURATION, "Disabled", 0.0),
    (formats.DURATION, "unlimited", 0.0),
    (formats.DURATION, "NONE", 0.0),
    (formats.EXPIRY, "none", None),
    (formats.EXPIRY, "Unlimited", None),
    (formats.EXPIRY, "never_expire", None),
    (formats.EXPIRY, "1 h", 3_600_000_000),
    (formats.ADDRESS, "127.0.0.1:0", Address("127.0.0.1", 0)),
    (formats.ADDRESS, "localhost:65535", Address("localhost", 65_535)),
    (formats.ADDRESS, "[::1]:8090", Address("::1", 8090)),
    (formats.LEVEL, "WARN", "warn"),
    (formats.LEVEL, "info,server=trace", "info"),
    (choice("none", "gzip"), "GZip", "gzip"),
    (optional(integer(1, 5)), "", None),
    (optional(integer(1, 5)), 5, 5),
    (CPU_ALLOCATION, "all", Allocation("all")),
    (CPU_ALLOCATION, "numa:auto", Allocation("numa:auto")),
    (CPU_ALLOCATION, 4, Allocation("4", count=4)),
    (CPU_ALLOCATION, "4", Allocation("4", count=4)),
    (CPU_ALLOCATION, "2..6", Allocation("2..6", span=(2, 6))),
    (
        CPU_ALLOCATION,
        "numa:nodes=0,1;cores=4;no_ht=true",
        Allocation("numa:nodes=0,1;cores=4;no_ht=true", nodes=(0, 1), cores_per_node=4, one_per_core=True),
    ),
]

REFUSED: list[tuple[Format, object]] = [
    (formats.BOOLEAN, "yes"),
    (formats.BOOLEAN, 1),
    (formats.INTEGER, True),
    (formats.INTEGER, 1.5),
    (formats.INTEGER, "7"),
    (integer(1), 0),
    (integer(1, 5), 6),
    (formats.TEXT, 7),
    (formats.NAME, " "),
    (formats.FOLDER, "a/b"),
    (formats.FOLDER, ".."),
    (formats.ROUTE, "metrics"),
    (formats.TEXTS, "a"),
    (formats.TEXTS, [1]),
    (formats.SIZE, "banana"),
    (formats.SIZE, "1 XB"),
    (formats.SIZE, "-1"),
    (formats.SIZE, -1),
    (formats.SIZE, 1.5),
    (formats.SIZE, True),
    (formats.SIZE, "99999999999 EB"),
    (size(at_least=512, multiple=512), "513 B"),
    (size(), "unlimited"),
    (formats.TOPIC_SIZE, "server_default"),
    (formats.DURATION, "5"),
    (formats.DURATION, 5),
    (formats.DURATION, "5 parsecs"),
    (formats.DURATION, "s"),
    (formats.DURATION, ""),
    (formats.DURATION, False),
    (formats.DURATION, "137 years"),
    (formats.PERIOD, "0"),
    (formats.SECONDS_OR_MORE, "999 ms"),
    (formats.EXPIRY, "server_default"),
    (formats.EXPIRY, "default"),
    (formats.EXPIRY, "0 s"),
    (formats.EXPIRY, "0"),
    (formats.ADDRESS, "127.0.0.1"),
    (formats.ADDRESS, ":8090"),
    (formats.ADDRESS, "::1:8090"),
    (formats.ADDRESS, "127.0.0.1:65536"),
    (formats.ADDRESS, 8090),
    (formats.LEVEL, ""),
    (formats.LEVEL, "loud"),
    (formats.LEVEL, "server=trace"),
    (choice("none", "gzip"), "lz4"),
    (choice("none", "gzip"), ["gzip"]),
    (choice("none", "gzip"), {}),
    (choice("all", "none", spellings={True: "all"}), 1),
    (list_of(choice("GET", "PUT"), "a list"), ["GET", "LOOK"]),
    (CPU_ALLOCATION, "0"),
    (CPU_ALLOCATION, "4..4"),
    (CPU_ALLOCATION, "some"),
    (CPU_ALLOCATION, "numa:"),
    (CPU_ALLOCATION, "numa:cores=4"),
    (CPU_ALLOCATION, "numa:nodes=a"),
    (CPU_ALLOCATION, "numa:nodes=0;no_ht=perhaps"),
    (CPU_ALLOCATION, "numa:nodes=0;threads=2"),
    (CPU_ALLOCATION, True),
]

WRITTEN: list[tuple[Format, object, object]] = [
    (formats.SIZE, 0, "0"),
    (formats.SIZE, 1000, "1 KB"),
    (formats.SIZE, 1024, "1 KiB"),
    (formats.SIZE, 64_000_000, "64 MB"),
    (formats.SIZE, 2**30, "1 GiB"),
    (formats.SIZE, 1001, "1001 B"),
    (formats.TOPIC_SIZE, None, "unlimited"),
    (formats.DURATION, 0.0, "0 s"),
    (formats.DURATION, 90.0, "1 m 30 s"),
    (formats.DURATION, 0.25, "250 ms"),
    (formats.DURATION, 86_400.0, "1 day"),
    (formats.DURATION, 7.0 * DAY, "7 days"),
    (formats.EXPIRY, None, "none"),
    (formats.EXPIRY, 1, "1 us"),
    (formats.TEXTS, ("a",), ["a"]),
    (formats.ADDRESS, Address("::1", 1), "[::1]:1"),
    (formats.SECRET, formats.Secret("hush"), "******"),
    (formats.SECRET, formats.Secret(""), ""),
]

FROM_TEXT: list[tuple[Format, str, object]] = [
    (formats.BOOLEAN, "true", True),
    (formats.BOOLEAN, "False", False),
    (formats.INTEGER, "7", 7),
    (formats.TEXT, "7", "7"),
    (formats.TEXT, "true", "true"),
    (formats.SECRET, "12345", "12345"),
    (formats.TEXTS, "[a,b, c]", ("a", "b", "c")),
    (formats.TEXTS, '["a", "b"]', ("a", "b")),
    (formats.TEXTS, "[]", ()),
    (formats.SIZE, "5120", 5120),
    (optional(integer(1, 65_535)), "8091", 8091),
]


@pytest.mark.parametrize(("form", "value", "seen"), ACCEPTED)
def test_a_valid_value_is_parsed(form: Format, value: object, seen: object) -> None:
    assert form.parse(value) == seen
    assert type(form.parse(value)) is type(seen)


@pytest.mark.parametrize(("form", "value"), REFUSED)
def test_an_invalid_value_is_refused(form: Format, value: object) -> None:
    with pytest.raises(ValueError):
        form.parse(value)


@pytest.mark.parametrize(("form", "value", "written"), WRITTEN)
def test_a_written_value_is_readable(form: Format, value: object, written: object) -> None:
    assert form.write(value) == written
    assert form.secret or form.parse(written) == value


@pytest.mark.parametrize(("form", "text", "seen"), FROM_TEXT)
def test_a_value_means_the_same_in_a_variable_and_in_the_file(form: Format, text: str, seen: object) -> None:
    assert form.parse(form.from_text(text)) == seen
