"""Measures `whippet check` on a data folder, next to a bare read of the same logs with XXH3 over all bytes."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import xxhash

from whippet.bench.appends import append_all
from whippet.bench.measure import Bench, Contender, Figure, Row, Target, race, rates
from whippet.bench.packed import ZSTD, documents
from whippet.bench.store_setup import new_folder, open_store
from whippet.storage.encryption import Keyring
from whippet.storage.options import StoreOptions
from whippet.storage.survey import Surveyed, survey_all

PARTITIONS = 4
FACTOR = 16
"""How many rounds of other measures are checked in one: starting the processes should not be what is measured."""
PIECE_BYTES = 1 << 20
"""The size of a read at which the yardstick is fastest."""
ENOUGH = Target("ratio", ">=", 0.7)
EVERY_CORE = "the yardstick uses one core"
ROWS = (
    Row("check 1,000 x 1 KB of JSON, plain", "plain", "bare plain", ENOUGH, EVERY_CORE),
    Row("check 1,000 x 1 KB of JSON, plain, one process", "plain, one process", "bare plain"),
    Row("check 1,000 x 1 KB of JSON, AES-256-GCM", "aes", "bare aes", ENOUGH, EVERY_CORE),
    Row("check 1,000 x 1 KB of JSON, zstd and AES", "both", "bare both", ENOUGH, EVERY_CORE),
)


async def checks(bench: Bench) -> list[Figure]:
    """The rates are those of stored bytes."""
    batch = documents()
    key = Keyring([], os.urandom(32))
    found: dict[str, float] = {}
    ways: dict[str, dict[str, Any]] = {"plain": {}, "aes": {"keyring": key}, "both": ZSTD | {"keyring": key}}
    for name, chosen in ways.items():
        with new_folder(bench) as path:
            async with open_store(bench, path, **chosen) as bench_store:
                partitions = await bench_store.topic(PARTITIONS)
                for _ in range(FACTOR):
                    copies = [bytearray(batch) for _ in range(max(bench.scale.round_bytes // len(batch), PARTITIONS))]
                    await append_all(partitions, copies, 8)
            options = StoreOptions(path=path)
            contenders = {f"bare {name}": _bare(path), name: _checking(options, os.cpu_count() or 1)}
            if name == "plain":
                contenders["plain, one process"] = _checking(options, 1)
            found |= await race(contenders, bench.scale.rounds)
    return rates(ROWS, {name: rate / 1e6 for name, rate in found.items()}, "MB/s")


def _bare(path: str) -> Contender:
    logs = sorted(Path(path).rglob("*.log"))

    async def contender() -> float:
        start, size = time.perf_counter(), 0
        for log in logs:
            hasher, position = xxhash.xxh3_64(), 0
            handle = os.open(log, os.O_RDONLY)
            while piece := os.pread(handle, PIECE_BYTES, position):
                hasher.update(piece)
                position += len(piece)
            os.close(handle)
            size += position
        return size / (time.perf_counter() - start)

    return contender


def _checking(options: StoreOptions, processes: int) -> Contender:
    async def contender() -> float:
        start, size = time.perf_counter(), 0
        for found in survey_all(options, processes=processes):
            assert not found.damage
            size += found.size_bytes if isinstance(found, Surveyed) else 0
        return size / (time.perf_counter() - start)

    return contender
