"""Measures appends to topics that are compressed or encrypted, and reads from them, next to the same without either."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from typing import Any

from whippet.bench.appends import KB_1, append_all, appending
from whippet.bench.measure import Bench, Contender, Figure, Row, Target, race, rates
from whippet.bench.orders import orders
from whippet.bench.reads import reading
from whippet.bench.store_setup import new_store
from whippet.storage import batch as batches
from whippet.storage.batch import Message
from whippet.storage.encryption import Keyring
from whippet.storage.store import now_us

ZSTD: dict[str, Any] = {"compression": "zstd", "compression_override": False}
GZIP: dict[str, Any] = {"compression": "gzip", "compression_override": False}

HALF = Target("ratio", ">=", 0.5)
MOST = Target("ratio", ">=", 0.6)
ROWS = (
    Row("append 1,000 x 1 KB of JSON, zstd", "append zstd", "append plain", HALF),
    Row("append 1,000 x 1 KB of JSON, gzip", "append gzip", "append plain"),
    Row("append 1,000 x 1 KB of JSON, AES-256-GCM", "append aes", "append plain", MOST),
    Row("append 1,000 x 1 KB of JSON, zstd and AES", "append both", "append plain"),
    Row("read 1,000 x 1 KB of JSON, zstd", "read zstd", "read plain", MOST),
    Row("read 1,000 x 1 KB of JSON, gzip", "read gzip", "read plain"),
    Row("read 1,000 x 1 KB of JSON, AES-256-GCM", "read aes", "read plain", MOST),
    Row("read 1,000 x 1 KB of JSON, zstd and AES", "read both", "read plain"),
)


def documents() -> bytearray:
    """A batch of 1,000 orders of 1 KB each."""
    return batches.build([Message(order) for order in orders(KB_1.messages)], now_us(), os.urandom)


async def packed(bench: Bench) -> list[Figure]:
    built = documents()
    copies = [bytearray(built) for _ in range(max(bench.scale.round_bytes // 2 // len(built), 1))]
    contenders: dict[str, Contender] = {}
    key = Keyring([], os.urandom(32))
    ways: dict[str, dict[str, Any]] = {
        "plain": {},
        "zstd": ZSTD,
        "gzip": GZIP,
        "aes": {"keyring": key},
        "both": ZSTD | {"keyring": key},
    }
    async with AsyncExitStack() as stack:
        for name, options in ways.items():
            store = await stack.enter_async_context(new_store(bench, **options))
            contenders[f"append {name}"] = appending(store, KB_1, copies, 8)
        figures = await race(contenders, bench.scale.rounds)
    contenders = {}
    async with AsyncExitStack() as stack:
        for name, options in ways.items():
            store = await stack.enter_async_context(new_store(bench, tail_bytes_max=0, **options))
            (partition,) = await store.topic()
            await append_all([partition], copies, 8)
            contenders[f"read {name}"] = reading(partition, KB_1.messages, 8)
        figures |= await race(contenders, bench.scale.rounds)
    return rates(ROWS, figures, "msg/s")
