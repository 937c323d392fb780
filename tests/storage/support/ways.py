"""The ways to store batches, by name, with the options of a store for each of them. All of them know the key."""

from __future__ import annotations

from typing import Any

from whippet.storage.encryption import Keyring

KEY = bytes(range(32))

WAYS: dict[str, dict[str, Any]] = {
    "plain": {"keyring": Keyring([KEY], None)},
    "gzip": {"compression": "gzip", "compression_override": False, "keyring": Keyring([KEY], None)},
    "zstd": {"compression": "zstd", "compression_override": False, "keyring": Keyring([KEY], None)},
    "encrypted": {"keyring": Keyring([], KEY)},
    "zstd, encrypted": {"compression": "zstd", "compression_override": False, "keyring": Keyring([], KEY)},
}
