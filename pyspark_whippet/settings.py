"""The decoded options: frozen values that are pickled to executors and never show a secret."""

from __future__ import annotations

from dataclasses import dataclass, field
from zlib import crc32

EARLIEST, LATEST = -2, -1
"""Used instead of an offset, as in Kafka's source."""

Offsets = dict[str, dict[str, int]]
"""Keyed by topic (`stream/topic`) and partition number as a string: the format of checkpoints."""


class Secret:
    """A string that is not shown by accident."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return "******"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __reduce__(self) -> tuple[type[Secret], tuple[str]]:
        return Secret, (self.text,)


@dataclass(frozen=True)
class Access:
    """How to reach the gateway, and as which user."""

    urls: tuple[str, ...]
    token: Secret | None = None
    username: str | None = None
    password: Secret | None = None
    timeout_ms: int = 30_000
    retry_for_ms: int = 120_000
    retries: int | None = None
    verify: bool = True
    ca_file: str | None = None


@dataclass(frozen=True)
class Location:
    """The place of an archive: a folder, or a prefix of a bucket."""

    folder: str | None
    bucket: str = ""
    prefix: str = ""

    def __str__(self) -> str:
        return self.folder or "/".join(filter(None, (f"s3://{self.bucket}", self.prefix)))


@dataclass(frozen=True)
class Point:
    """A position in all partitions: one time, a time per partition, or offsets; exactly one is not None."""

    timestamp_us: int | None = None
    timestamps_us: Offsets | None = None
    offsets: str | Offsets | None = None
    """`earliest`, `latest`, or for each partition an offset, EARLIEST or LATEST."""


@dataclass(frozen=True)
class Settings:
    """All options, decoded. None if an option was not given."""

    access: Access
    names: frozenset[str] = frozenset()
    """The options that were given, as documented."""
    backend: str = "gateway"
    path: str | None = None
    archive: Location | None = None
    s3_region: str | None = None
    s3_endpoint: str | None = None
    s3_access_key_id: Secret | None = None
    s3_secret_access_key: Secret | None = None
    s3_session_token: Secret | None = None
    keys: tuple[Secret, ...] = ()
    """The keys that may be needed to decrypt messages, in base64."""
    stream: str | None = None
    topic: str | None = None
    subscribe: tuple[str, ...] | None = None
    subscribe_pattern: str | None = None
    assign: dict[str, list[int]] | None = None
    starting: Point | None = None
    ending: Point | None = None
    timestamps_without_match: str = "error"
    fail_on_data_loss: bool = True
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = 15 * 60 * 1000
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    include_headers: bool = False
    consumer_name: str | None = None
    group_id_prefix: str | None = None
    page_size: int = 5_000
    poll_interval_ms: int = 250
    value_format: str = "binary"
    value_schema: str | None = None
    batch_size: int = 5_000
    max_batch_bytes: int = 1_000_000
    in_flight: int = 1
    id_columns: tuple[str, ...] = ()
    id_namespace: str | None = None
    id_batch: str | None = None
    id_mode: str = "auto"
    partitioning: str = "auto"
    create_topic: int = 0
    marker: bool = True
    checkpoint: str | None = field(default=None, repr=False)

    @property
    def stored_as(self) -> str | None:
        """The name under which a stream stores its offsets. With a prefix, what is read tells queries apart."""
        if self.consumer_name is not None or self.group_id_prefix is None:
            return self.consumer_name
        read = repr((self.topics, self.subscribe_pattern, self.assign)).encode()
        return f"{self.group_id_prefix}-{crc32(read):08x}"

    @property
    def topics(self) -> tuple[str, ...] | None:
        """The topics that are named one by one, as `stream/topic`; None for a pattern."""
        if self.assign is not None:
            return tuple(sorted(self.assign))
        if self.subscribe is not None:
            return self.subscribe
        return None if self.subscribe_pattern is not None else (f"{self.stream}/{self.topic}",)
