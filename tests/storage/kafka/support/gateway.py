"""Settings of a gateway process on a broker."""

from __future__ import annotations


def on(server: str, prefix: str) -> dict[str, str]:
    return {
        "IGGY_ENGINE_KIND": "kafka",
        "IGGY_ENGINE_KAFKA_SERVERS": f"[{server}]",
        "IGGY_ENGINE_KAFKA_PREFIX": prefix,
        "IGGY_ENGINE_KAFKA_CLIENT_ID": "whippet of a test",
        "IGGY_ENGINE_KAFKA_REPLICATION_FACTOR": "1",
        "IGGY_ENGINE_KAFKA_MIN_INSYNC_REPLICAS": "1",
        "IGGY_ENGINE_KAFKA_TIMEOUT": "15 s",
        "IGGY_QUIC_ENABLED": "false",
        "IGGY_ROOT_USERNAME": "root",
        "IGGY_ROOT_PASSWORD": "secret",
    }
