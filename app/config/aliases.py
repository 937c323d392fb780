"""Older and other spellings of keys, each with today's key.

Files and variables may use them like the key itself, with the same values. Where both are given in the same place,
today's key takes precedence.
"""

from __future__ import annotations

from whippet.app.config.iggy_only import RULES
from whippet.app.config.keys import KEYS, numbered, variable

ALIASES = {
    "extra.namespace.max_partitions": "system.limits.partitions_per_topic",
    "extra.namespace.max_streams": "system.limits.streams",
    "extra.namespace.max_topics": "system.limits.topics_per_stream",
    "message_bus.ws_accept_unmasked_frames": "websocket.accept_unmasked_frames",
    "message_bus.ws_max_frame_size": "websocket.max_frame_size",
    "message_bus.ws_max_message_size": "websocket.max_message_size",
    "message_bus.ws_write_buffer_size": "websocket.write_buffer_size",
    "message_cleaner.enabled": "data_maintenance.messages.cleaner_enabled",
    "message_cleaner.interval": "data_maintenance.messages.interval",
    "data_maintenance.archiver.archive_expired": "system.segment.archive_expired",
    "data_maintenance.archiver.path": "data_maintenance.archiver.disk.path",
    "data_maintenance.archiver.s3.key_id": "data_maintenance.archiver.s3.access_key_id",
    "data_maintenance.archiver.s3.key_secret": "data_maintenance.archiver.s3.secret_access_key",
    "system.logging.max_size": "system.logging.max_file_size",
    "system.segment.message_expiry": "system.topic.message_expiry",
    "system.segment.validate_checksum": "system.partition.validate_checksum",
    "system.partition.message_saver.enabled": "message_saver.enabled",
    "system.partition.message_saver.enforce_fsync": "message_saver.enforce_fsync",
    "system.partition.message_saver.interval": "message_saver.interval",
    "topic.max_topic_size": "system.topic.max_size",
    "topic.delete_oldest_segments": "system.topic.delete_oldest_segments",
    "archiver.enabled": "data_maintenance.archiver.enabled",
    "archiver.kind": "data_maintenance.archiver.kind",
    "archiver.interval": "data_maintenance.archiver.interval",
    "archiver.s3.bucket": "data_maintenance.archiver.s3.bucket",
    "archiver.s3.region": "data_maintenance.archiver.s3.region",
    "archiver.s3.access_key_id": "data_maintenance.archiver.s3.access_key_id",
    "archiver.s3.secret_access_key": "data_maintenance.archiver.s3.secret_access_key",
    "encryption.enabled": "system.encryption.enabled",
    "encryption.key": "system.encryption.key",
    "tracing.enabled": "telemetry.enabled",
    "tracing.endpoint": "telemetry.traces.endpoint",
}

NAMES = (*KEYS, *ALIASES)
"""Every dotted name with an effect, and those that support.py names."""

ACCEPTED = (*NAMES, *RULES)
"""Every dotted name that a file may contain."""

TABLES = {name[:dot] for name in ACCEPTED for dot in range(len(name)) if name[dot] == "."}
"""Every name that a file may have a table for; the elements of a list end in `[]`."""

VARIABLES = {variable(each): each for name in ACCEPTED for each in numbered(name)} | {"IGGY_PATH": "system.path"}
"""The dotted name of every variable, with the table's number if it is in a list."""
