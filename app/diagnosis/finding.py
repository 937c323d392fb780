"""What a check has found."""

from __future__ import annotations

import enum

import msgspec


class Status(enum.StrEnum):
    OK = "ok"
    WARN = "warn"
    """The server works, but not as well or as safely as it could."""
    FAIL = "fail"
    """The server does not start, or loses something."""


class Finding(msgspec.Struct, frozen=True):
    status: Status
    check: str
    """What was looked at: configuration, memory, disk and so on."""
    found: str
    advice: str = ""
    """What to change; empty if all is well."""


def ok(check: str, found: str) -> Finding:
    return Finding(Status.OK, check, found)


def warn(check: str, found: str, advice: str) -> Finding:
    return Finding(Status.WARN, check, found, advice)


def fail(check: str, found: str, advice: str) -> Finding:
    return Finding(Status.FAIL, check, found, advice)
