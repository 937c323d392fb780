"""Which Whippet this is, said the same way by the banner, the command line and the OpenAPI document.

The number is written once, in pyproject.toml. Never imported where start-up time matters before it is needed.
"""

from __future__ import annotations

from importlib import metadata


def version() -> str:
    return metadata.version("whippet")
