"""The computed values of the connectors reference. Times are that of the batch; identifiers are hashes of what is
unique to a row, shaped as UUIDs: a batch that is replayed after a crash has them again, so that nothing is taken for
new."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from whippet.pipelines.transforms.moment import Moment


def _date_time(_: str, moment: Moment) -> Column:
    """RFC 3339."""
    return F.date_format(moment.now, "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX")


def _uuid_v4(name: str, moment: Moment) -> Column:
    return _shaped(_digits(name, moment), "4")


def _uuid_v7(name: str, moment: Moment) -> Column:
    """48 bits of time, then the hash."""
    time = F.lpad(F.lower(F.hex(F.unix_millis(moment.now))), 12, "0")
    return _shaped(F.concat(time, F.substring(_digits(name, moment), 1, 20)), "7")


def _digits(name: str, moment: Moment) -> Column:
    return F.md5(F.concat_ws("|", F.lit(name), moment.unique))


def _shaped(digits: Column, version: str) -> Column:
    """32 hexadecimal digits as a UUID of this version."""
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


COMPUTED: Mapping[str, Callable[[str, Moment], Column]] = {
    "date_time": _date_time,
    "timestamp_nanos": lambda _, moment: F.unix_micros(moment.now) * 1000,
    "timestamp_micros": lambda _, moment: F.unix_micros(moment.now),
    "timestamp_millis": lambda _, moment: F.unix_millis(moment.now),
    "timestamp_seconds": lambda _, moment: F.unix_seconds(moment.now),
    "uuid_v4": _uuid_v4,
    "uuid_v7": _uuid_v7,
}


def computed(kind: str, name: str, moment: Moment) -> Column:
    return COMPUTED[kind](name, moment)
