"""The ways to store batches, by name, with the options of a store for each of them."""

from __future__ import annotations

from typing import Any

WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "gzip": {"compression": "gzip", "compression_override": False},
    "zstd": {"compression": "zstd", "compression_override": False},
}
