"""Formats of values: how they are written in the file or a variable, and what the server gets for them.

A `Format` reads a TOML value (a variable's text is first turned into one) and writes it back in the form that `whippet
config` shows, so that reading it again returns the same value. This module knows no keys.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

U32_MAX = 2**32 - 1
SIZE_MAX = 2**63 - 1
MASK = "******"


class Invalid(ValueError):
    """Raised for a value that the format does not allow."""


class Format(msgspec.Struct, frozen=True, kw_only=True):
    needs: str
    """What a valid value looks like; completes '... is needed'."""
    parse: Callable[[object], Any]
    """Converts a TOML value to the server's value; raises ValueError (Invalid) if it is not valid."""
    write: Callable[[Any], object] = lambda value: value
    """Converts the server's value back to a TOML value."""
    from_text: Callable[[str], object] = lambda text: text
    """Converts a variable's text to the TOML value it stands for; anything else stays text, for `parse` to refuse."""
    rule: str = ""
    """A restriction beyond the form, such as a range."""
    words: tuple[str, ...] = ()
    """All valid values, if they are a few words."""
    secret: bool = False

    @property
    def needed(self) -> str:
        return f"{self.needs}, {self.rule}, is needed" if self.rule else f"{self.needs} is needed"


class Secret(str):
    """Text whose repr is a mask, so that structs and traces do not reveal it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(MASK if self else "")


class Address(msgspec.Struct, frozen=True):
    """The address that a listener binds to; port 0 lets the operating system choose."""

    host: str
    port: int

    @property
    def is_ipv4(self) -> bool:
        """Whether it is written as an IPv4 address; names are not resolved."""
        return re.fullmatch(r"\d+(\.\d+){3}", self.host, re.ASCII) is not None

    def __str__(self) -> str:
        return host_and_port(self.host, self.port)


def host_and_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


# Formats made from other formats.


def restrict(base: Format, rule: str, holds: Callable[[Any], bool]) -> Format:
    """Returns the base format, restricted to the values for which `holds` is true."""

    def parse(value: object) -> Any:
        result = base.parse(value)
        if not holds(result):
            raise Invalid(rule)
        return result

    return msgspec.structs.replace(base, parse=parse, rule=rule)


def optional(base: Format) -> Format:
    """Returns the base format with the empty text as an additional value, which means None: not set."""
    return msgspec.structs.replace(
        base,
        needs=f"{base.needs} or an empty text",
        parse=lambda value: None if value == "" else base.parse(value),
        write=lambda value: "" if value is None else base.write(value),
    )


# Booleans, integers, text.


def _parse_boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise Invalid(value)
    return value


def _parse_integer(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise Invalid(value)
    return value


def _parse_text(value: object) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise Invalid(value)
    return value


def _boolean_from_text(text: str) -> object:
    return {"true": True, "false": False}.get(text.strip().lower(), text)


def _integer_from_text(text: str) -> object:
    return int(text) if re.fullmatch(r"\s*[+-]?\d{1,20}\s*", text, re.ASCII) else text


BOOLEAN = Format(needs="true or false", parse=_parse_boolean, from_text=_boolean_from_text)
INTEGER = Format(needs="an integer", parse=_parse_integer, from_text=_integer_from_text)
TEXT = Format(needs="a text", parse=_parse_text)
SECRET = Format(
    needs="a text",
    parse=lambda value: Secret(_parse_text(value)),
    write=lambda value: MASK if value else "",
    secret=True,
)
NAME = restrict(TEXT, "not empty", lambda text: bool(text.strip()))
FOLDER = restrict(
    TEXT, "the name of one folder", lambda text: bool(text.strip()) and text not in {".", ".."} and "/" not in text
)
ROUTE = restrict(TEXT, "beginning with /", lambda text: text.startswith("/"))


def integer(low: int, high: int | None = None) -> Format:
    rule = f"at least {low}" if high is None else f"from {low} to {high}"
    return restrict(INTEGER, rule, lambda number: low <= number and (high is None or number <= high))


# Choices and lists.


def choice(*words: str, spellings: dict[object, str] | None = None) -> Format:
    """One of the words, in any case; `spellings` are other TOML values that mean one of them."""
    meanings: dict[object, str] = {word.lower(): word for word in words} | (spellings or {})

    def parse(value: object) -> str:
        spelled = value.strip().lower() if isinstance(value, str) else value
        if not isinstance(spelled, str | bool) or spelled not in meanings:
            raise Invalid(value)
        return meanings[spelled]

    return Format(needs=_one_of(words), parse=parse, words=words)


def _one_of(words: tuple[str, ...]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"


def list_of(element: Format, needs: str) -> Format:
    def parse(value: object) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise Invalid(value)
        return tuple(element.parse(each) for each in value)

    return Format(
        needs=needs, parse=parse, write=lambda value: [element.write(each) for each in value], from_text=_list_from_text
    )


def _list_from_text(text: str) -> object:
    inner = re.fullmatch(r"\s*\[(.*)\]\s*", text, re.DOTALL)
    if inner is None:
        return text
    return [each.strip().strip("\"'") for each in inner[1].split(",")] if inner[1].strip() else []


TEXTS = list_of(TEXT, "a list of texts such as [a, b]")

# Sizes.

_SIZE_UNITS = {"B": 1}
for _power, _letter in enumerate("KMGTPE", start=1):
    _SIZE_UNITS[f"{_letter}B"] = 1000**_power
    _SIZE_UNITS[f"{_letter}iB"] = 1024**_power
_SIZE_FACTORS = {unit.lower(): factor for unit, factor in _SIZE_UNITS.items()}
_NO_SIZE = {"unlimited", "none"}


def parse_size(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= SIZE_MAX:
        return value
    if not isinstance(value, str):
        raise Invalid(value)
    text = value.strip().lower()
    if text in _NO_SIZE:
        return 0
    match = re.fullmatch(r"(\d{1,19})(?:\.(\d{1,9}))?\s*([a-z]*)", text, re.ASCII)
    if match is None:
        raise Invalid(value)
    whole, fraction, unit = match[1], match[2] or "", match[3]
    factor = 1 if not unit else _SIZE_FACTORS.get(unit) or _SIZE_FACTORS.get(f"{unit}b")
    if factor is None:
        raise Invalid(value)
    size: int = int(whole + fraction) * factor // 10 ** len(fraction)
    if size > SIZE_MAX:
        raise Invalid(value)
    return size


def write_size(size: int) -> str:
    """Writes a size in the unit that gives the smallest whole number."""
    exact = [(size // factor, unit) for unit, factor in _SIZE_UNITS.items() if size % factor == 0]
    return "0" if size == 0 else "{} {}".format(*min(exact, key=lambda pair: pair[0]))


SIZE = Format(needs="a size such as 512 MiB or 1 GiB", parse=parse_size, write=write_size)
TOPIC_SIZE = Format(
    needs="a size such as 10 GB, or unlimited,",
    parse=lambda value: None if isinstance(value, str) and value.strip().lower() == "unlimited" else parse_size(value),
    write=lambda size: "unlimited" if size is None else write_size(size),
)


def size(at_least: int = 1, at_most: int = SIZE_MAX, multiple: int = 1) -> Format:
    rule = "above 0" if at_least == 1 else f"at least {_bytes(at_least)}"
    if at_most < SIZE_MAX:
        rule += f", at most {_bytes(at_most)}"
    if multiple > 1:
        rule += f" and a multiple of {_bytes(multiple)}"
    return restrict(SIZE, rule, lambda value: at_least <= value <= at_most and value % multiple == 0)


def _bytes(number: int) -> str:
    return f"{number} bytes" if number % 1024 and number % 1000 else write_size(number)


# Durations and expiries.

_NANOSECONDS = {
    ("nsec", "ns"): 1,
    ("usec", "us", "µs"): 1_000,
    ("msec", "ms"): 1_000_000,
    ("seconds", "second", "secs", "sec", "s"): 1_000_000_000,
    ("minutes", "minute", "mins", "min", "m"): 60 * 1_000_000_000,
    ("hours", "hour", "hrs", "hr", "h"): 3_600 * 1_000_000_000,
    ("days", "day", "d"): 86_400 * 1_000_000_000,
    ("weeks", "week", "wks", "wk", "w"): 7 * 86_400 * 1_000_000_000,
    ("months", "month", "M"): 2_630_016 * 1_000_000_000,  # 30.44 days
    ("years", "year", "yrs", "yr", "y"): 31_557_600 * 1_000_000_000,  # 365.25 days
}
_UNIT_NANOSECONDS = {unit: factor for units, factor in _NANOSECONDS.items() for unit in units}
_WRITTEN_UNITS = (("days", "d"), ("h", "h"), ("m", "m"), ("s", "s"), ("ms", "ms"), ("us", "us"), ("ns", "ns"))
_NO_DURATION = {"0", "unlimited", "disabled", "none"}
_NEVER = {"none", "unlimited", "never_expire"}
_DURATION = re.compile(r"(?:(\d{1,19})\s*([a-zA-Zµ]+)\s*)", re.ASCII)


def _parse_nanoseconds(value: object) -> int:
    if not isinstance(value, str) or not re.fullmatch(rf"\s*{_DURATION.pattern}+", value, re.ASCII):
        raise Invalid(value)
    parts = _DURATION.findall(value)
    if any(unit not in _UNIT_NANOSECONDS for _, unit in parts):
        raise Invalid(value)
    total = sum(int(number) * _UNIT_NANOSECONDS[unit] for number, unit in parts)
    if total > U32_MAX * 1_000_000_000:
        raise Invalid(value)
    return total


def _write_nanoseconds(rest: int) -> str:
    parts = []
    for written, unit in _WRITTEN_UNITS:
        number, rest = divmod(rest, _UNIT_NANOSECONDS[unit])
        if number:
            parts.append(f"{number} {'day' if written == 'days' and number == 1 else written}")
    return " ".join(parts) or "0 s"


def parse_duration(value: object) -> float:
    if value == 0 and not isinstance(value, bool):
        return 0.0
    if isinstance(value, str) and value.strip().lower() in _NO_DURATION:
        return 0.0
    return _parse_nanoseconds(value) / 1e9


def parse_expiry(value: object) -> int | None:
    """Returns microseconds, or None for never. Zero is refused: on the wire it means the server's default, which is
    what this sets."""
    if isinstance(value, str) and value.strip().lower() in _NEVER:
        return None
    microseconds = _parse_nanoseconds(value) // 1_000
    if microseconds == 0:
        raise Invalid(value)
    return microseconds


DURATION = Format(
    needs="a duration such as 5 s, 1m 30s or 7 days",
    parse=parse_duration,
    write=lambda seconds: _write_nanoseconds(round(seconds * 1e9)),
)
PERIOD = restrict(DURATION, "above 0", lambda seconds: seconds > 0)
SECONDS_OR_MORE = restrict(DURATION, "at least 1 s", lambda seconds: seconds >= 1)
EXPIRY = Format(
    needs="a duration such as 1 h or 7 days, or none for never,",
    parse=parse_expiry,
    write=lambda microseconds: "none" if microseconds is None else _write_nanoseconds(microseconds * 1_000),
)

# Addresses, versions and log levels.

_ADDRESS = re.compile(r"(?:\[([0-9a-fA-F:.]+(?:%\w+)?)\]|([^\[\]:\s/]+)):(\d{1,5})", re.ASCII)


def parse_address(value: object) -> Address:
    match = _ADDRESS.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or int(match[3]) > 65_535:
        raise Invalid(value)
    return Address(match[1] or match[2], int(match[3]))


ADDRESS = Format(needs="an address such as 127.0.0.1:8090 or [::1]:8090", parse=parse_address, write=str)


def _parse_protocol_version(value: object) -> int:
    found = re.fullmatch(r"(\d{1,4})\.(\d{1,4})\.(\d{1,4})", value, re.ASCII) if isinstance(value, str) else None
    parts = [int(part) for part in found.groups()] if found else []
    if not parts or max(parts) > PROTOCOL_PART_MAX:
        raise Invalid(value)
    major, minor, patch = parts
    return major << 20 | minor << 10 | patch


def write_protocol_version(version: int) -> str:
    return f"{version >> 20}.{version >> 10 & PROTOCOL_PART_MAX}.{version & PROTOCOL_PART_MAX}"


PROTOCOL_PART_MAX = 1023
PROTOCOL_VERSION = Format(
    needs=f"a version such as 0.11.0, each part at most {PROTOCOL_PART_MAX}",
    parse=_parse_protocol_version,
    write=write_protocol_version,
)

LEVELS = ("off", "error", "warn", "info", "debug", "trace")


def _parse_level(value: object) -> str:
    """Iggy accepts filters such as `warn,server=trace`; the level without a target is the one that applies here."""
    words = [word.strip().lower() for word in value.split(",")] if isinstance(value, str) else []
    plain = [word for word in words if "=" not in word]
    if not plain or plain[-1] not in LEVELS:
        raise Invalid(value)
    return plain[-1]


LEVEL = Format(needs=_one_of(LEVELS), parse=_parse_level, words=LEVELS)
