"""Converts the configuration to the options of the store; no other module does."""

from __future__ import annotations

from whippet.app.config.cores import Machine, resolve, this_machine
from whippet.app.config.error import ConfigError
from whippet.app.config.schema import Archiver, Config
from whippet.storage.options import ArchiveOptions, Durability, StoreOptions


def durability(config: Config) -> Durability:
    partition = config.system.partition
    if partition.enforce_fsync:
        return Durability.SYNCED
    waits = config.system.segment.server_confirmation == "wait"
    return Durability.WRITTEN if partition.messages_required_to_save == 1 and waits else Durability.MEMORY


def store_options(config: Config, machine: Machine | None = None) -> StoreOptions:
    system, saver, limits = config.system, config.message_saver, config.system.limits
    allocation = system.sharding.cpu_allocation
    try:
        shards, cpus = resolve(allocation, machine or this_machine())
    except ValueError as error:
        raise ConfigError(f"system.sharding.cpu_allocation: {allocation.text!r}: {error}") from error
    return StoreOptions(
        path=system.path,
        streams_folder=system.stream.path,
        topics_folder=system.topic.path,
        partitions_folder=system.partition.path,
        durability=durability(config),
        messages_required_to_save=system.partition.messages_required_to_save,
        bytes_required_to_save=system.partition.size_of_messages_required_to_save,
        respects_consumers=config.retention.respects_consumers,
        saver_interval_s=saver.interval if saver.enabled else None,
        saver_syncs=saver.enforce_fsync,
        catalog_syncs=system.state.enforce_fsync,
        segment_bytes=system.segment.size,
        delete_oldest_segments=system.topic.delete_oldest_segments,
        index_cache=system.segment.cache_indexes,
        index_cache_bytes=limits.index_cache_bytes,
        compression=system.compression.default_algorithm,
        compression_override=system.compression.allow_override,
        validate_checksum=system.partition.validate_checksum,
        recreate_missing_state=system.recovery.recreate_missing_state,
        shards=shards,
        cpus=cpus if system.sharding.pin_cores else (),
        tail_bytes_max=limits.tail_bytes,
        unflushed_bytes_max=limits.unflushed_bytes,
        partition_unflushed_bytes_max=limits.partition_unflushed_bytes,
        batch_bytes_max=limits.batch_bytes,
        batch_messages_max=limits.batch_messages,
        payload_bytes_max=limits.payload_bytes,
        user_headers_bytes_max=limits.user_headers_bytes,
        loop_append_bytes_max=limits.loop_append_bytes,
        read_bytes_max=limits.read_bytes,
        open_files_max=limits.open_files,
        consumer_offsets_max=system.partition.consumer_offsets_max,
        producers_max=limits.producers,
        producer_answers_max=limits.producer_answers,
        disk_reserve=system.disk.reserve,
        write_retry_s=system.state.retry_delay,
        archive=archive_options(config) if config.data_maintenance.archiver.enabled else None,
    )


def _bucket(archiver: Archiver) -> dict[str, str]:
    """The options of the kind that is configured."""
    s3, gcs, azure = archiver.s3, archiver.gcs, archiver.azure
    if archiver.kind == "gcs":
        return {
            "bucket": gcs.bucket,
            "key_prefix": gcs.key_prefix,
            "service_account_file": gcs.service_account_file,
        }
    if archiver.kind == "azure":
        return {
            "account": azure.account,
            "bucket": azure.container,
            "key_prefix": azure.key_prefix,
            "endpoint": azure.endpoint,
            "secret_access_key": azure.access_key,
        }
    return {
        "bucket": s3.bucket,
        "key_prefix": s3.key_prefix,
        "endpoint": s3.endpoint,
        "region": s3.region,
        "access_key_id": s3.access_key_id,
        "secret_access_key": s3.secret_access_key,
    }


def archive_options(config: Config) -> ArchiveOptions:
    """The archive that is configured, enabled or not."""
    archiver = config.data_maintenance.archiver
    return ArchiveOptions(
        kind=archiver.kind,
        path=archiver.disk.path,
        **_bucket(archiver),
        request_timeout_s=archiver.request_timeout,
        interval_s=60.0 if archiver.interval is None else archiver.interval,
        bytes_per_second=archiver.bandwidth,
        local_limit_bytes=archiver.local_limit,
        cache_bytes=archiver.cache_size,
        protects_expired=config.system.segment.archive_expired,
    )
