"""Keys that releases of Iggy have had since 0.6, or that its own files contain, and that are not fields of the schema.

None of them has an effect here. Most only tune machinery of Iggy: any value is accepted, and the log names the keys
once, at the start. Some request something that would not happen: only the values that do not request it are accepted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from whippet.app.config.error import ConfigError

NO_NODES = "this server exchanges nothing with other nodes"
NO_QUEUES = "requests do not wait in queues between threads; system.limits bounds them"
NEVER_READ = "Iggy does not read it either, although its files contain it"


class Rule(NamedTuple):
    reason: str
    """Why the key has no effect; completes both 'has no effect: ...' and 'is not supported: ...'."""
    accepted: tuple[object, ...] | None = None
    """The only values that are accepted; None: all of them."""


RULES: Mapping[str, Rule] = {
    "cluster.auth.enabled": Rule(NO_NODES, (False,)),
    "cluster.auth.previous_shared_secret": Rule(NO_NODES),
    "cluster.auth.shared_secret": Rule(NO_NODES),
    "cluster.commit_broadcast_interval": Rule(NO_NODES),
    "cluster.coordinator.skip_shard_zero_for_clients": Rule(NO_NODES),
    "cluster.coordinator.skip_shard_zero_for_replicas": Rule(NO_NODES),
    "cluster.heartbeat_timeout": Rule(NO_NODES),
    "cluster.nodes[].advertised_addresses": Rule("all clients get the same address of this node", ([],)),
    "cluster.nodes[].advertised_addresses[].address": Rule("all clients get the same address of this node", ()),
    "cluster.nodes[].advertised_addresses[].client_cidr": Rule("all clients get the same address of this node", ()),
    "cluster.nodes[].ports.tcp_replica": Rule(NO_NODES),
    "cluster.prepare_retransmit_interval": Rule(NO_NODES),
    "cluster.repair_chunk_max": Rule(NO_NODES),
    "cluster.repair_retry_interval": Rule(NO_NODES),
    "cluster.request_start_view_retransmit_interval": Rule(NO_NODES),
    "cluster.superblock_wedged_fatal_timeout": Rule(NO_NODES),
    "cluster.tls.ca_file": Rule(NO_NODES),
    "cluster.tls.cert_file": Rule(NO_NODES),
    "cluster.tls.enabled": Rule(NO_NODES, (False,)),
    "cluster.tls.key_file": Rule(NO_NODES),
    "cluster.tls.self_signed": Rule(NO_NODES),
    "cluster.view_change_retransmit_interval": Rule(NO_NODES),
    "cluster.view_change_status_timeout": Rule(NO_NODES),
    "cluster.view_probe_attempts_max": Rule(NO_NODES),
    "http.jwt.enabled": Rule("the HTTP API always uses JSON web tokens", (True,)),
    "http.jwt.refresh_token_expiry": Rule("there are no refresh tokens; an access token is renewed before it expires"),
    "message_bus.close_grace": Rule(NO_NODES),
    "message_bus.close_peer_timeout": Rule(NO_NODES),
    "message_bus.handshake_grace": Rule("system.limits.silence_before_login bounds the time of a handshake"),
    "message_bus.max_batch": Rule(NO_NODES),
    "message_bus.max_message_size": Rule("system.limits.frame_bytes bounds the size of a request"),
    "message_bus.peer_queue_capacity": Rule(NO_NODES),
    "message_bus.reconnect_period": Rule(NO_NODES),
    "metadata.clients_table_max": Rule("system.limits.connections bounds the number of clients"),
    "metadata.journal_slots": Rule(NO_NODES),
    "metadata.prepare_queue_depth": Rule(NO_QUEUES),
    "partition.evicted_ring_bytes_max": Rule(NO_NODES),
    "partition.evicted_ring_capacity": Rule(NO_NODES),
    "partition.prepare_queue_depth": Rule(NO_QUEUES),
    "partition.transfer_artifact_bytes_max": Rule(NO_NODES),
    "partition.transfer_served_cache_bytes_max": Rule(NO_NODES),
    "system.consumer_groups.path": Rule(NEVER_READ),
    "system.database.path": Rule(NEVER_READ),
    "system.database.type": Rule(NEVER_READ),
    "system.message_bus.type": Rule(NEVER_READ),
    "system.partitions.path": Rule(NEVER_READ),
    "system.personal_access_tokens.path": Rule(NEVER_READ),
    "system.segment.preallocate": Rule(
        "space is reserved for the segments of topics that are created with the option preallocate_segments"
    ),
    "system.segments.path": Rule(NEVER_READ),
    "system.sharding.inbox_capacity": Rule(NO_QUEUES),
    "system.sharding.reconcile_periodic_interval": Rule(NO_QUEUES),
    "system.sharding.reply_inbox_capacity": Rule(NO_QUEUES),
    "system.sharding.shutdown_drain_timeout": Rule("system.limits.stop_time bounds the time of a stop"),
    "system.sharding.shutdown_join_timeout": Rule("system.limits.stop_time bounds the time of a stop"),
    "system.sharding.shutdown_poll_interval": Rule("a stop begins with the signal"),
    "system.streams.path": Rule(NEVER_READ),
    "system.topics.path": Rule(NEVER_READ),
    "system.users.path": Rule(NEVER_READ),
}


class Found(NamedTuple):
    """A key of the table that was set."""

    name: str
    """The name as written in the table."""
    value: object
    where: str
    """How an error about it begins."""
    origin: str
    """The file, or the variable."""


def lines(found: Iterable[Found]) -> Iterator[str]:
    """Yields a line for the log for each reason and origin; raises ConfigError for a value that is not accepted."""
    without_effect: dict[tuple[str, str], list[str]] = {}
    for name, value, where, origin in found:
        rule = RULES[name]
        if rule.accepted is not None and _typed(value) not in rule.accepted:
            raise ConfigError(f"{where}: {name} = {_shown(value)} is not supported: {rule.reason}")
        without_effect.setdefault((origin, rule.reason), []).append(name)
    for (origin, reason), names in without_effect.items():
        have = "has" if len(names) == 1 else "have"
        yield f"{origin}: {', '.join(names)} {have} no effect: {reason}"


def _typed(value: object) -> object:
    """Variables contain text."""
    text = value.strip().lower() if isinstance(value, str) else value
    return {"true": True, "false": False}.get(text, value) if isinstance(text, str) else value


def _shown(value: object) -> str:
    typed = _typed(value)
    return str(typed).lower() if isinstance(typed, bool) else f"{typed!r:.80}"
