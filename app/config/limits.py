"""The effective settings that limit clients, as reported by GET /limits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from whippet.app.config import formats
from whippet.app.config.keys import walk
from whippet.app.config.schema import Config

TABLES = ("http.limits.", "http.leases.", "http.readers.", "system.limits.")
KEYS = frozenset(
    {
        "http.max_request_size",
        "http.jwt.access_token_expiry",
        "quic.max_concurrent_bidi_streams",
        "quic.max_idle_timeout",
        "websocket.channel.subscriptions",
        "websocket.channel.subscriptions_per_user",
        "websocket.channel.subscriptions_total",
        "websocket.channel.silence_time",
        "consumer_group.rebalancing_timeout",
        "system.partition.consumer_offsets_max",
        "personal_access_token.max_tokens_per_user",
    }
)
UNSEEN = frozenset(f"system.limits.{name}" for name in ("tail_bytes", "open_files", "index_cache_bytes", "stop_time"))
"""These cost a client nothing but time."""
UNITS = {
    formats.SIZE.needs: "bytes",
    formats.DURATION.needs: "seconds",
    formats.EXPIRY.needs: "microseconds",
    formats.INTEGER.needs: "number",
}


class Limit(msgspec.Struct, frozen=True):
    key: str
    """The setting, as in server.toml."""
    value: int | float | None
    """Null: there is no limit."""
    unit: str
    meaning: str


def limits(config: Config) -> Iterator[Limit]:
    for key in walk(config):
        if key.name in KEYS or (key.name.startswith(TABLES) and key.name not in UNSEEN):
            yield Limit(key.name, _number(key.value), UNITS[key.format.needs], key.sentence)


def _number(value: Any) -> int | float | None:
    return int(value) if isinstance(value, float) and value.is_integer() else value
