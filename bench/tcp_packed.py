"""Measures topics that are compressed or encrypted over TCP, next to the same without either, in one run.

Producers and consumers share the cores with the server, as everywhere in `whippet bench tcp`. What is consumed is in no
memory tail: all of it is read from files and unpacked.
"""

from __future__ import annotations

import base64
import os
from contextlib import AsyncExitStack
from typing import NamedTuple

from whippet.bench import tcp_load
from whippet.bench.measure import Figure, Row, Target, race, rates
from whippet.bench.orders import ORDER_BYTES
from whippet.bench.tcp_contenders import BATCH, Bench, consuming, fill_tail, producing

HALF, MOST = Target("ratio", ">=", 0.5), Target("ratio", ">=", 0.6)
ZSTD = {"SYSTEM_COMPRESSION_DEFAULT_ALGORITHM": "zstd"}
AES = {"SYSTEM_ENCRYPTION_ENABLED": "true", "SYSTEM_ENCRYPTION_KEY": base64.b64encode(os.urandom(32)).decode()}
NO_TAIL = {"SYSTEM_LIMITS_TAIL_BYTES": "1"}


class Way(NamedTuple):
    """A way to store batches, the settings of a server for it, and the rates that are expected with it."""

    shown: str
    settings: dict[str, str]
    produce: Target | None = None
    consume: Target | None = None


WAYS = {
    "plain": Way("", {}),
    "zstd": Way("zstd", ZSTD, HALF, MOST),
    "aes": Way("AES-256-GCM", AES, MOST, MOST),
    "both": Way("zstd and AES", ZSTD | AES),
}
CONNECTIONS = (1, 8)


def _rows() -> list[Row]:
    return [
        Row(
            f"{action} 1,000 x 1 KB of JSON, {way.shown}, {number} connection{'s' * (number > 1)}",
            f"{action} {name} {number}",
            f"{action} plain {number}",
            way.produce if action == "produce" else way.consume,
            "the yardstick is neither compressed nor encrypted",
        )
        for action in ("produce", "consume")
        for name, way in WAYS.items()
        if way.shown
        for number in CONNECTIONS
    ]


async def packed(bench: Bench) -> list[Figure]:
    requests = max(bench.scale.round_bytes // 2 // (BATCH * ORDER_BYTES), 8)
    async with AsyncExitStack() as stack:
        contenders = {}
        for way, (_, settings, *_) in WAYS.items():
            server = await stack.enter_async_context(bench.server(f"packed-{way}", **settings))
            await fill_tail(bench, server)
            reading = await stack.enter_async_context(bench.server(f"read-{way}", **settings, **NO_TAIL))
            ids = await reading.topic("consume")
            await bench.load.run(tcp_load.Produce(reading.place(), *ids, BATCH, 0, requests))
            for number in CONNECTIONS:
                shape = BATCH, 0, requests, number
                contenders[f"produce {way} {number}"] = producing(bench, server.place(), *shape, server)
                contenders[f"consume {way} {number}"] = consuming(bench, reading.place(), ids, requests, number)
        # The contenders of one action take turns, so that they meet the same conditions.
        order = sorted(contenders, key=lambda name: (name.split()[0], name.split()[2]))
        return rates(_rows(), await race({name: contenders[name] for name in order}, bench.scale.rounds), "msg/s")
