"""The only exception of the configuration. Its text is the line that an operator sees when the start is refused."""

from __future__ import annotations


class ConfigError(Exception):
    """Names where a setting was found, which key it is, and what would be valid."""
