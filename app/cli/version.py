"""`whippet version`: prints the version."""

from __future__ import annotations

from whippet.app.version import version


def run() -> int:
    print(f"whippet {version()}")
    return 0
