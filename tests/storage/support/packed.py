"""Ways to store batches, for tests that run with each of them: plain, and packed in every way.

`usually` runs a test with some of the ways, and
with all of them in `make test-long`.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.storage.support.ways import WAYS
from tests.support.sizes import mostly_long
from whippet.storage import packing
from whippet.storage.encryption import Seal
from whippet.storage.packing import Compression

PACKED = [name for name in WAYS if name != "plain"]


def usually(*names: str) -> list[Any]:
    return mostly_long(WAYS, usual=names)


def compression_of(way: str) -> Compression:
    return Compression[WAYS[way].get("compression", "none").upper()]


def pack_everything(patch: pytest.MonkeyPatch) -> None:
    """From now on even the smallest batches are packed, if that makes them any smaller."""
    patch.setattr(packing, "SMALLEST_BYTES", 0)
    patch.setattr(packing, "SAVED_MIN", 1 << 40)


def seal_of(way: str) -> Seal:
    """The same place for all batches in a test without a store."""
    return Seal(WAYS[way]["keyring"], b"a place")


def stored(batch: bytes, way: str) -> bytes:
    """A plain batch as it is in the log."""
    return b"".join(packing.pack(batch, compression_of(way), seal_of(way)))
