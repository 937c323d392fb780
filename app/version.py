"""The version of Whippet, for the banner, the command line and the OpenAPI document.

The number is set once, in pyproject.toml. Where the time of a start matters, import this only when it is needed.
"""

from __future__ import annotations

from importlib import metadata


def version() -> str:
    return metadata.version("whippet-gateway")


IGGY_VERSION = "0.8.0"
"""The release of Apache Iggy whose behaviour clients get, and that they are told as the server's version."""

MODERN_IGGY_VERSION = "0.9.0"
"""The same for clients of the 0.9 protocol."""


def semantic_number(text: str) -> int:
    """Three digits each for major, minor and patch, as clients compare versions."""
    major, minor, patch = (int(part) for part in text.split("."))
    return major * 1_000_000 + minor * 1_000 + patch
