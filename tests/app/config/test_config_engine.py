"""The engine is chosen by one key, and keys that only another engine has are refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from whippet.app.config import ConfigError
from whippet.app.config.engine import LOCAL_ONLY, kafka_options
from whippet.app.config.keys import KEYS
from whippet.storage.kafka.options import KafkaOptions

KAFKA = {"IGGY_ENGINE_KIND": "kafka"}


def test_every_setting_of_the_cluster_arrives(start: Any) -> None:
    assert kafka_options(start(**KAFKA).config) == KafkaOptions()
    toml = """
    [engine.kafka]
    servers = ["a:1", "b:2"]
    prefix = "p-1_2."
    client_id = "c"
    replication_factor = 5
    min_insync_replicas = 4
    timeout = "7 s"
    """
    assert kafka_options(start(toml).config) == KafkaOptions(
        servers=("a:1", "b:2"),
        prefix="p-1_2.",
        client_id="c",
        replication_factor=5,
        min_insync_replicas=4,
        timeout_s=7.0,
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("SERVERS", "[]"),
        ("SERVERS", "a:1"),
        ("PREFIX", "a/b"),
        ("PREFIX", "p" * 101),
        ("REPLICATION_FACTOR", "0"),
        ("MIN_INSYNC_REPLICAS", "0"),
        ("TIMEOUT", "0"),
    ],
)
def test_values_that_kafka_could_not_have_are_refused(start: Any, key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"IGGY_ENGINE_KAFKA_{key}"):
        start(**{f"IGGY_ENGINE_KAFKA_{key}": value})


def test_more_replicas_in_sync_than_replicas_are_refused_with_this_engine(start: Any) -> None:
    settings = {"IGGY_ENGINE_KAFKA_REPLICATION_FACTOR": "1"}
    start(**settings)
    with pytest.raises(ConfigError, match=r"engine\.kafka\.min_insync_replicas must be at most"):
        start(**settings, **KAFKA)


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("system.partition.enforce_fsync", "true", "true"),
        ("system.segment.size", "1 MiB", "1 MiB"),
        ("system.message_deduplication.enabled", "true", "true"),
        ("data_maintenance.archiver.enabled", "true", "true"),
        ("system.encryption.key", "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=", r"\*+"),
        ("retention.respects_consumers", "all", "all"),
    ],
)
def test_keys_of_the_local_engine_are_refused_with_another_one(start: Any, key: str, value: str, shown: str) -> None:
    variable = {f"IGGY_{key.replace('.', '_').upper()}": value}
    start(**variable)
    with pytest.raises(ConfigError, match=f"{key} = {shown} is not supported while engine.kind is kafka"):
        start(**variable, **KAFKA)


def test_every_key_of_the_local_engine_exists() -> None:
    assert [start for start in LOCAL_ONLY if not any(key.startswith(start) for key in KEYS)] == []
