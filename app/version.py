"""Which Whippet this is, said the same way by the banner, the command line and the OpenAPI document.

The number is written once, in pyproject.toml. Never imported where start-up time matters before it is needed.
"""

from __future__ import annotations

from importlib import metadata


def version() -> str:
    return metadata.version("whippet-gateway")


IGGY_VERSION = "0.8.0"
"""The release of Apache Iggy whose behaviour clients find here; what they are told as the server's version."""

MODERN_IGGY_VERSION = "0.9.0"
"""The same for those that speak its wire."""


def semantic_number(text: str) -> int:
    """As clients compare it: major, minor and patch, three digits each."""
    major, minor, patch = (int(part) for part in text.split("."))
    return major * 1_000_000 + minor * 1_000 + patch
