"""The computed values of the connectors' reference. Times are those of the batch. Identifiers are hashes of what is
unique to a row, in the form of UUIDs. So a replayed batch has the same values, and nothing is taken for new."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812


@dataclass(frozen=True)
class BatchContext:
    """What computed values are derived from: only what a replay of the batch has again."""

    now: Column
    """The time of the batch, from the checkpoint."""
    unique: Column
    """A string that no other row has."""


def _date_time(_: str, context: BatchContext) -> Column:
    """RFC 3339."""
    return F.date_format(context.now, "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX")


def _uuid_v4(name: str, context: BatchContext) -> Column:
    return _as_uuid(_digits(name, context), "4")


def _uuid_v7(name: str, context: BatchContext) -> Column:
    """48 bits of time, followed by the hash."""
    time = F.lpad(F.lower(F.hex(F.unix_millis(context.now))), 12, "0")
    return _as_uuid(F.concat(time, F.substring(_digits(name, context), 1, 20)), "7")


def _digits(name: str, context: BatchContext) -> Column:
    return F.md5(F.concat_ws("|", F.lit(name), context.unique))


def _as_uuid(digits: Column, version: str) -> Column:
    """Formats 32 hexadecimal digits as a UUID of this version."""
    variant = F.translate(F.substring(digits, 17, 1), "0123456789abcdef", "89ab89ab89ab89ab")
    return F.concat(
        F.substring(digits, 1, 8),
        F.lit("-"),
        F.substring(digits, 9, 4),
        F.lit("-" + version),
        F.substring(digits, 14, 3),
        F.lit("-"),
        variant,
        F.substring(digits, 18, 3),
        F.lit("-"),
        F.substring(digits, 21, 12),
    )


COMPUTED: Mapping[str, Callable[[str, BatchContext], Column]] = {
    "date_time": _date_time,
    "timestamp_nanos": lambda _, context: F.unix_micros(context.now) * 1000,
    "timestamp_micros": lambda _, context: F.unix_micros(context.now),
    "timestamp_millis": lambda _, context: F.unix_millis(context.now),
    "timestamp_seconds": lambda _, context: F.unix_seconds(context.now),
    "uuid_v4": _uuid_v4,
    "uuid_v7": _uuid_v7,
}


def computed(kind: str, name: str, context: BatchContext) -> Column:
    return COMPUTED[kind](name, context)
