"""The base of every section of the configuration: a frozen struct whose fields are keys or further sections."""

from __future__ import annotations

import msgspec


class Section(msgspec.Struct, frozen=True):
    """A table of `server.toml`."""
