"""runtime/current_config.toml: the effective configuration, with the addresses that the listeners are bound to.

It is written once everything listens. Tools and tests that configured port 0 find the real port there. Secrets are
masked, because a reader of the file may not be allowed to know them.
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
"""Sections whose address has another key."""


async def write(loaded: Loaded, addresses: Mapping[str, Address]) -> None:
    """Replaces the file of the previous start. `addresses` is by section: http, tcp and so on."""
    system = loaded.config.system
    folder = os.path.join(system.path, system.runtime.path)
    try:
        await asyncio.to_thread(_replace, folder, render.toml(_listening(loaded, addresses)))
    except OSError as error:
        # For example, a full disk must not keep clients from reading what is on it.
        logger.warning("%s was not written: %s", os.path.join(folder, NAME), error.strerror or error)


def _listening(loaded: Loaded, addresses: Mapping[str, Address]) -> Loaded:
    sections = {
        name: msgspec.structs.replace(getattr(loaded.config, name), **{FIELDS.get(name, "address"): address})
        for name, address in addresses.items()
    }
    return msgspec.structs.replace(loaded, config=msgspec.structs.replace(loaded.config, **sections))


def _replace(folder: str, text: str) -> None:
    disk = files.Files()
    files.make_folders(disk, folder)
    # Not synced: it describes a process, and is useless once that is gone.
    files.replace(disk, os.path.join(folder, NAME), text.encode(), sync=False)
