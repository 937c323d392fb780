"""The engine that keeps the messages, and the keys that have a meaning only with the store of this machine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Literal

from whippet.app.config.formats import MASK, NAME, TEXT, choice, integer, list_of, restrict
from whippet.app.config.listeners import Text
from whippet.app.config.section import Section
from whippet.app.config.system import Period

if TYPE_CHECKING:
    from whippet.app.config.keys import Key
    from whippet.app.config.schema import Config
    from whippet.storage.kafka.options import KafkaOptions

KAFKA = "kafka"
Servers = Annotated[
    tuple[str, ...],
    restrict(list_of(NAME, "a list of host:port such as [a:9092, b:9092]"), "not empty", bool),
]
Prefix = Annotated[
    str,
    restrict(
        TEXT,
        "at most 100 letters, digits, dots, hyphens and underscores",
        lambda text: re.fullmatch(r"[A-Za-z0-9._-]{0,100}", text, re.ASCII) is not None,
    ),
]
Replicas = Annotated[int, integer(1, 32_767)]


class Kafka(Section, frozen=True):
    """A cluster that speaks Kafka's protocol. [Kafka](engines/kafka.md) describes what is kept in it, and how."""

    servers: Servers = ("127.0.0.1:9092",)
    """Some brokers of the cluster, each as host:port; the others are found through them."""
    prefix: Prefix = "whippet."
    """Text put before the names of all topics, groups and transactions. Gateways with the same prefix use the
    same catalogue, and one does not see the changes of another before it starts again."""
    client_id: Text = "whippet"
    """Name under which the brokers log and count what this gateway does."""
    replication_factor: Replicas = 3
    """Number of replicas of each partition of a new topic."""
    min_insync_replicas: Replicas = 2
    """Number of in-sync replicas that must have a message before it is acknowledged; for new topics."""
    timeout: Period = 30.0
    """How long a request is retried while brokers are unavailable, before it fails."""


class Engine(Section, frozen=True):
    """What keeps messages, stored offsets and the catalogue."""

    kind: Annotated[Literal["local", "kafka"], choice("local", KAFKA)] = "local"
    """Where everything is kept: `local` is the data folder on this machine; `kafka` is a cluster of Kafka, and needs
    the extra `kafka`. [The page about Kafka](engines/kafka.md) lists the limitations."""
    kafka: Kafka = Kafka()


LOCAL_ONLY = (
    "data_maintenance.archiver.",
    "message_saver.",
    "retention.",
    "system.disk.",
    "system.encryption.",
    "system.limits.deduplication_bytes",
    "system.limits.index_cache_bytes",
    "system.limits.loop_append_bytes",
    "system.limits.open_files",
    "system.limits.partition_unflushed_bytes",
    "system.limits.producer",
    "system.message_deduplication.",
    "system.partition.",
    "system.recovery.",
    "system.segment.",
    "system.sharding.",
    "system.state.",
    "system.topic.delete_oldest_segments",
)
"""Beginnings of keys about files, retention and numbered sends of the local engine."""


def problems(config: Config, keys: Iterator[Key], defaults: dict[str, Key]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yields problems, as app/config/checks.py does."""
    if config.engine.kind != KAFKA:
        return
    for key in keys:
        if key.name.startswith(LOCAL_ONLY) and key.value != defaults[key.name].value:
            value = MASK if key.format.secret else key.format.write(key.value)
            value = str(value).lower() if isinstance(value, bool) else value
            yield (
                (key.name, "engine.kind"),
                f"{key.name} = {value} is not supported while engine.kind is {KAFKA}: it is about the engine local",
            )
    replicas, least = "engine.kafka.replication_factor", "engine.kafka.min_insync_replicas"
    if attrgetter(least)(config) > attrgetter(replicas)(config):
        yield (least, replicas), f"{least} must be at most {replicas}, or no message would ever be acknowledged"


def kafka_options(config: Config) -> KafkaOptions:
    from whippet.storage.kafka.options import KafkaOptions  # noqa: PLC0415 -- for those who need it

    kafka = config.engine.kafka
    return KafkaOptions(
        servers=kafka.servers,
        prefix=kafka.prefix,
        client_id=kafka.client_id,
        replication_factor=kafka.replication_factor,
        min_insync_replicas=kafka.min_insync_replicas,
        timeout_s=kafka.timeout,
    )
