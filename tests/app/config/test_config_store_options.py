"""The conversion of settings to options of the store, and to the cores of a machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from whippet.app.config import ConfigError
from whippet.app.config.cores import Machine, parse_allocation, resolve, this_machine
from whippet.app.config.store import store_options
from whippet.storage.options import MIB, ArchiveOptions, Durability, StoreOptions

ONE_CORE = Machine((0,), {})
# Two nodes of four cores, of which 4 to 7 are second threads of 0 to 3.
BIG = Machine(tuple(range(8)), {0: (0, 1, 4, 5), 1: (2, 3, 6, 7)}, frozenset({4, 5, 6, 7}))


def test_without_settings_the_store_has_its_own_defaults(start: Any) -> None:
    # A store watches the disk only if somebody wants it to, and the gateway does.
    assert store_options(start().config, ONE_CORE) == StoreOptions(path="local_data", disk_reserve=None)


@pytest.mark.parametrize(
    ("settings", "level"),
    [
        ({}, Durability.WRITTEN),
        ({"PARTITION_ENFORCE_FSYNC": "true"}, Durability.SYNCED),
        ({"PARTITION_ENFORCE_FSYNC": "true", "PARTITION_MESSAGES_REQUIRED_TO_SAVE": "1024"}, Durability.SYNCED),
        ({"PARTITION_ENFORCE_FSYNC": "true", "SEGMENT_SERVER_CONFIRMATION": "no_wait"}, Durability.SYNCED),
        ({"PARTITION_MESSAGES_REQUIRED_TO_SAVE": "2"}, Durability.MEMORY),
        ({"SEGMENT_SERVER_CONFIRMATION": "no_wait"}, Durability.MEMORY),
    ],
)
def test_the_durability_level_follows_from_the_settings(
    start: Any, settings: dict[str, str], level: Durability
) -> None:
    config = start(**{f"IGGY_SYSTEM_{name}": value for name, value in settings.items()}).config
    assert store_options(config, ONE_CORE).durability is level


MAPPED: list[tuple[str, str, str, object]] = [
    ("PATH", "data/here", "path", "data/here"),
    ("STREAM_PATH", "s", "streams_folder", "s"),
    ("TOPIC_PATH", "t", "topics_folder", "t"),
    ("PARTITION_PATH", "p", "partitions_folder", "p"),
    ("PARTITION_ENFORCE_FSYNC", "true", "durability", Durability.SYNCED),
    ("PARTITION_MESSAGES_REQUIRED_TO_SAVE", "7", "messages_required_to_save", 7),
    ("PARTITION_SIZE_OF_MESSAGES_REQUIRED_TO_SAVE", "2 MiB", "bytes_required_to_save", 2 * MIB),
    ("PARTITION_MESSAGE_SAVER_INTERVAL", "1s", "saver_interval_s", 1.0),
    ("PARTITION_MESSAGE_SAVER_ENABLED", "false", "saver_interval_s", None),
    ("RETENTION_RESPECTS_CONSUMERS", "all", "respects_consumers", "all"),
    ("PARTITION_MESSAGE_SAVER_ENFORCE_FSYNC", "false", "saver_syncs", False),
    ("STATE_ENFORCE_FSYNC", "false", "catalog_syncs", False),
    ("STATE_RETRY_DELAY", "2 s", "write_retry_s", 2.0),
    ("DISK_RESERVE", "", "disk_reserve", None),
    ("DISK_RESERVE", "0", "disk_reserve", 0),
    ("DISK_RESERVE", "1 GiB", "disk_reserve", 1024 * MIB),
    ("COMPRESSION_DEFAULT_ALGORITHM", "zstd", "compression", "zstd"),
    ("COMPRESSION_ALLOW_OVERRIDE", "false", "compression_override", False),
    ("SEGMENT_SIZE", "5120", "segment_bytes", 5120),
    ("SEGMENT_CACHE_INDEXES", "true", "index_cache", "all"),
    ("SEGMENT_CACHE_INDEXES", "false", "index_cache", "none"),
    ("SEGMENT_VALIDATE_CHECKSUM", "true", "validate_checksum", True),
    ("TOPIC_DELETE_OLDEST_SEGMENTS", "false", "delete_oldest_segments", False),
    ("RECOVERY_RECREATE_MISSING_STATE", "true", "recreate_missing_state", True),
    ("SHARDING_CPU_ALLOCATION", "3", "shards", 3),
    ("SHARDING_CPU_ALLOCATION", "2..4", "cpus", (2, 3)),
    ("LIMITS_TAIL_BYTES", "1 MiB", "tail_bytes_max", MIB),
    ("LIMITS_UNFLUSHED_BYTES", "1 GiB", "unflushed_bytes_max", 1024 * MIB),
    ("LIMITS_PARTITION_UNFLUSHED_BYTES", "65 MiB", "partition_unflushed_bytes_max", 65 * MIB),
    ("LIMITS_BATCH_BYTES", "63 MiB", "batch_bytes_max", 63 * MIB),
    ("LIMITS_BATCH_MESSAGES", "7", "batch_messages_max", 7),
    ("LIMITS_PAYLOAD_BYTES", "1 MiB", "payload_bytes_max", MIB),
    ("LIMITS_USER_HEADERS_BYTES", "1 KiB", "user_headers_bytes_max", 1024),
    ("LIMITS_LOOP_APPEND_BYTES", "0", "loop_append_bytes_max", 0),
    ("LIMITS_READ_BYTES", "1 MiB", "read_bytes_max", MIB),
    ("LIMITS_OPEN_FILES", "17", "open_files_max", 17),
    ("PARTITION_CONSUMER_OFFSETS_MAX", "7", "consumer_offsets_max", 7),
    ("LIMITS_PRODUCERS", "7", "producers_max", 7),
    ("LIMITS_PRODUCER_ANSWERS", "7", "producer_answers_max", 7),
    ("LIMITS_INDEX_CACHE_BYTES", "1 MiB", "index_cache_bytes", MIB),
]


@pytest.mark.parametrize(("name", "text", "option", "value"), MAPPED)
def test_every_setting_of_the_store_reaches_it(start: Any, name: str, text: str, option: str, value: object) -> None:
    variable = f"IGGY_{name}" if name.startswith("RETENTION_") else f"IGGY_SYSTEM_{name}"
    assert getattr(store_options(start(**{variable: text}).config, BIG), option) == value


def test_every_option_of_the_store_can_be_set() -> None:
    assert {row[2] for row in MAPPED} | {"archive", "keyring"} == {
        field.name for field in msgspec.structs.fields(StoreOptions)
    }


ARCHIVE: list[tuple[str, str, str, object]] = [
    ("KIND", "s3", "kind", "s3"),
    ("INTERVAL", "7 s", "interval_s", 7.0),
    ("BANDWIDTH", "1 MiB", "bytes_per_second", MIB),
    ("LOCAL_LIMIT", "1 MiB", "local_limit_bytes", MIB),
    ("CACHE_SIZE", "1 MiB", "cache_bytes", MIB),
    ("REQUEST_TIMEOUT", "7 s", "request_timeout_s", 7.0),
    ("ARCHIVE_EXPIRED", "true", "protects_expired", True),
    ("DISK_PATH", "elsewhere", "path", "elsewhere"),
    ("S3_BUCKET", "b", "bucket", "b"),
    ("S3_KEY_PREFIX", "p", "key_prefix", "p"),
    ("S3_REGION", "r", "region", "r"),
    ("S3_ENDPOINT", "https://e", "endpoint", "https://e"),
    ("S3_ACCESS_KEY_ID", "k", "access_key_id", "k"),
    ("S3_SECRET_ACCESS_KEY", "very secret", "secret_access_key", "very secret"),
    ("GCS_BUCKET", "g", "bucket", "g"),
    ("GCS_KEY_PREFIX", "p", "key_prefix", "p"),
    ("GCS_SERVICE_ACCOUNT_FILE", "f", "service_account_file", "f"),
    ("AZURE_ACCOUNT", "a", "account", "a"),
    ("AZURE_CONTAINER", "c", "bucket", "c"),
    ("AZURE_KEY_PREFIX", "p", "key_prefix", "p"),
    ("AZURE_ACCESS_KEY", "very secret", "secret_access_key", "very secret"),
    ("AZURE_ENDPOINT", "https://e", "endpoint", "https://e"),
]


@pytest.mark.parametrize(("name", "text", "option", "value"), ARCHIVE)
def test_every_setting_of_the_archive_reaches_the_store(
    start: Any, name: str, text: str, option: str, value: object
) -> None:
    table = "IGGY_DATA_MAINTENANCE_ARCHIVER"
    keys = {f"{table}_S3_{each}": "very secret" for each in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY")}
    needed = {f"{table}_{each}": "x" for each in ("GCS_BUCKET", "AZURE_ACCOUNT", "AZURE_CONTAINER")}
    kind = name.partition("_")[0].lower()
    chosen = {f"{table}_KIND": kind} if kind in ("gcs", "azure") else {}
    chosen |= {f"{table}_ENABLED": "true", **keys, **needed, f"{table}_{name}": text}
    archive = store_options(start(**chosen).config, BIG).archive
    assert archive is not None
    assert getattr(archive, option) == value
    assert "very secret" not in repr(archive)


def test_every_option_of_the_archive_can_be_set() -> None:
    assert {row[2] for row in ARCHIVE} == {field.name for field in msgspec.structs.fields(ArchiveOptions)}


def test_nothing_is_archived_unless_that_is_enabled(start: Any) -> None:
    assert store_options(start(IGGY_DATA_MAINTENANCE_ARCHIVER_KIND="s3").config, BIG).archive is None


@pytest.mark.parametrize(
    ("text", "shards", "cpus"),
    [
        ("all", 8, tuple(range(8))),
        ("numa:auto", 8, tuple(range(8))),
        ("3", 3, (0, 1, 2)),
        ("2..6", 4, (2, 3, 4, 5)),
        ("numa:nodes=1", 4, (2, 3, 6, 7)),
        ("numa:nodes=0,1;cores=1", 2, (0, 2)),
        ("numa:nodes=0;cores=9;no_ht=true", 2, (0, 1)),
        ("numa:nodes=0,1;cores=4;no_ht=true", 4, (0, 1, 2, 3)),
        ("numa:nodes=0,0", 4, (0, 1, 4, 5)),
        ("numa:nodes=9", 8, tuple(range(8))),
    ],
)
def test_an_allocation_uses_the_cores_that_it_names(text: str, shards: int, cpus: tuple[int, ...]) -> None:
    assert resolve(parse_allocation(text), BIG) == (shards, cpus)


def test_no_core_is_pinned_if_pinning_is_disabled(start: Any) -> None:
    loaded = start(IGGY_SYSTEM_SHARDING_CPU_ALLOCATION="2..4", IGGY_SYSTEM_SHARDING_PIN_CORES="false")
    options = store_options(loaded.config, BIG)
    assert (options.shards, options.cpus) == (2, ())


@pytest.mark.parametrize(("text", "cpus"), [("all", ()), ("2", ()), ("0..2", (0, 1))])
def test_only_cores_that_were_named_are_pinned(text: str, cpus: tuple[int, ...]) -> None:
    assert resolve(parse_allocation(text), Machine((0, 1), {})) == (2, cpus)


@pytest.mark.parametrize("text", ["9", "7..9"])
def test_more_cores_than_the_machine_has_are_refused(start: Any, text: str) -> None:
    config = start(IGGY_SYSTEM_SHARDING_CPU_ALLOCATION=text).config
    with pytest.raises(ConfigError, match=rf"^system.sharding.cpu_allocation: '{text}': "):
        store_options(config, BIG)


def test_numa_nodes_and_hardware_threads_are_read_from_the_system_folder(tmp_path: Path) -> None:
    for node, cores in (("node0", "0-1,4-5\n"), ("node1", "2-3\n"), ("node2", "nonsense\n")):
        (tmp_path / "node" / node).mkdir(parents=True)
        (tmp_path / "node" / node / "cpulist").write_text(cores)
    for core, siblings in (("cpu0", "0,4\n"), ("cpu4", "0,4\n"), ("cpu1", "1\n")):
        (tmp_path / "cpu" / core / "topology").mkdir(parents=True)
        (tmp_path / "cpu" / core / "topology" / "thread_siblings_list").write_text(siblings)
    machine = this_machine(str(tmp_path))
    assert machine.nodes == {0: (0, 1, 4, 5), 1: (2, 3), 2: ()}
    assert machine.second_threads == {4}
    assert machine.available


def test_a_machine_without_a_system_folder_still_has_cores(tmp_path: Path) -> None:
    machine = this_machine(str(tmp_path))
    assert machine.nodes == {}
    assert resolve(parse_allocation("numa:nodes=0"), machine) == (len(machine.available), ())
