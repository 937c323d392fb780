"""The default options of the store, and what a topic without options gets."""

from __future__ import annotations

import msgspec

from whippet.storage.options import Durability, StoreOptions, TopicOptions, settings_of

MIB = 1 << 20


def test_the_store_has_limits_and_a_durability_level_by_default() -> None:
    assert msgspec.structs.asdict(StoreOptions(path="data")) == {
        "path": "data",
        "streams_folder": "streams",
        "topics_folder": "topics",
        "partitions_folder": "partitions",
        "durability": Durability.WRITTEN,
        "messages_required_to_save": 1,
        "bytes_required_to_save": 1 * MIB,
        "saver_interval_s": 30.0,
        "saver_syncs": True,
        "catalog_syncs": True,
        "segment_bytes": 1024 * MIB,
        "index_cache": "open_segment",
        "index_cache_bytes": 64 * MIB,
        "delete_oldest_segments": True,
        "respects_consumers": "groups",
        "compression": "none",
        "compression_override": True,
        "keyring": None,
        "validate_checksum": False,
        "recreate_missing_state": False,
        "shards": 1,
        "cpus": (),
        "tail_bytes_max": 256 * MIB,
        "unflushed_bytes_max": 256 * MIB,
        "partition_unflushed_bytes_max": 64 * MIB,
        "batch_bytes_max": 64 * MIB,
        "batch_messages_max": 1_000_000,
        "payload_bytes_max": 64_000_000,
        "user_headers_bytes_max": 100_000,
        "loop_append_bytes_max": 64 << 10,
        "read_bytes_max": 128 * MIB,
        "open_files_max": 4096,
        "consumer_offsets_max": 4096,
        "producers_max": 1000,
        "producer_answers_max": 16,
        "disk_reserve": 0,
        "write_retry_s": 1.0,
        "archive": None,
    }


def test_a_topic_without_options_uses_those_of_the_store() -> None:
    store = StoreOptions(path="data")
    settings = settings_of(TopicOptions(), store)
    assert (settings.durability, settings.offset_durability) == (Durability.WRITTEN, Durability.WRITTEN)
    assert (settings.messages_required_to_save, settings.bytes_required_to_save) == (1, 1 * MIB)
    assert (settings.segment_bytes, settings.preallocates) == (1024 * MIB, False)


def test_durability_levels_are_ordered_by_what_they_survive() -> None:
    assert [(level.name, level.value) for level in Durability] == [("MEMORY", 0), ("WRITTEN", 1), ("SYNCED", 2)]
