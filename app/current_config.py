"""runtime/current_config.toml: the configuration of this start, with the addresses that are really listened on.

The composition root writes it once everything listens; tools and tests that asked for port 0 find the port there.
Secrets are masked: whoever may read the file need not be allowed to know them.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping

import msgspec

from whippet.app.config import Loaded, render
from whippet.app.config.formats import Address
from whippet.storage import files

logger = logging.getLogger(__name__)

NAME = "current_config.toml"
FIELDS = {"metrics": "endpoint"}
"""Where a section has its address under another name."""


async def write(loaded: Loaded, addresses: Mapping[str, Address]) -> None:
    """Replaces the file of the start before. `addresses` is by section: http, tcp and so on."""
    system = loaded.config.system
    folder = os.path.join(system.path, system.runtime.path)
    try:
        await asyncio.to_thread(_replace, folder, render.toml(_listening(loaded, addresses)))
    except OSError as error:
        # A disk that is full, say, must not keep readers from what is on it.
        logger.warning("%s cannot be written: %s", os.path.join(folder, NAME), error.strerror or error)


def _listening(loaded: Loaded, addresses: Mapping[str, Address]) -> Loaded:
    sections = {
        name: msgspec.structs.replace(getattr(loaded.config, name), **{FIELDS.get(name, "address"): address})
        for name, address in addresses.items()
    }
    return msgspec.structs.replace(loaded, config=msgspec.structs.replace(loaded.config, **sections))


def _replace(folder: str, text: str) -> None:
    disk = files.Files()
    files.make_folders(disk, folder)
    # Not synced: it describes a process, and is of no use once that is gone.
    files.replace(disk, os.path.join(folder, NAME), text.encode(), sync=False)
