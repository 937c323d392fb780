"""The failures of commands, and the exit code and the line that each of them becomes."""

from __future__ import annotations

from whippet.app.cli import exit_codes


class Failure(Exception):
    """Ends a command with one line, which says what to do."""

    code = exit_codes.FAILED


class UsageFailure(Failure):
    code = exit_codes.USAGE


class NotFound(Failure):
    code = exit_codes.NOT_FOUND


class Refused(Failure):
    code = exit_codes.REFUSED


class Unreachable(Failure):
    code = exit_codes.UNREACHABLE
