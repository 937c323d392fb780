"""How the cluster is reached, and how topics are created in it. Built once from the configuration."""

from __future__ import annotations

import msgspec


class KafkaOptions(msgspec.Struct, frozen=True, kw_only=True):
    servers: tuple[str, ...] = ("127.0.0.1:9092",)
    """Some brokers of the cluster, each as host:port."""
    prefix: str = "whippet."
    """The beginning of the names of all topics and groups that belong to this gateway."""
    client_id: str = "whippet"
    """The name under which brokers log and count what this gateway does."""
    replication_factor: int = 3
    """On how many brokers each partition of a new topic is."""
    min_insync_replicas: int = 2
    """How many of them must have a message of a new topic before it is acknowledged."""
    timeout_s: float = 30.0
    """How long something is tried, while brokers are unavailable, before it fails."""
