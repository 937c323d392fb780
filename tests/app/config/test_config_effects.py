"""A setting without effect would be a broken promise: the server reads every key, and a test shows its effect; or the
start is refused with it, or the log explains why it has none.

mypy, which knows the types, determines whether code reads a key, so that no other attribute of the same name counts.
The table names the file of a test and the words in it that set the key, so tests may be renamed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mypy import build
from mypy.config_parser import parse_config_file
from mypy.modulefinder import BuildSource
from mypy.options import Options
from mypy.plugin import AttributeContext, Plugin
from mypy.types import Type

from whippet.app.config.keys import KEYS, Key
from whippet.app.config.support import DETAILS, UNSUPPORTED, WITHOUT_EFFECT
from whippet.storage.options import StoreOptions

ROOT = Path(__file__).parents[3]
TESTS = ROOT / "tests"
PACKAGES = ("app", "storage", "transports")

SHOWN_IN = """
engine.kind | storage/kafka/support/gateway.py | IGGY_ENGINE_KIND
engine.kafka.servers | storage/kafka/support/gateway.py | IGGY_ENGINE_KAFKA_SERVERS
engine.kafka.prefix | storage/kafka/test_engine.py | prefix=
engine.kafka.client_id | storage/kafka/test_cluster.py | client_id=
engine.kafka.replication_factor | storage/kafka/test_engine.py | test_more_replicas_than_brokers_are_refused
engine.kafka.min_insync_replicas | storage/kafka/test_engine.py | min.insync.replicas
engine.kafka.timeout | storage/kafka/test_engine.py | timeout_s=3.0
system.encryption.enabled | app/test_server_process.py | IGGY_SYSTEM_ENCRYPTION_ENABLED
system.encryption.key | app/test_server_process.py | IGGY_SYSTEM_ENCRYPTION_KEY
system.encryption.key_file | app/test_encryption_keys.py | IGGY_SYSTEM_ENCRYPTION_KEY_FILE
system.compression.default_algorithm | app/commands/test_compression.py | default_algorithm=
system.compression.allow_override | app/commands/test_compression.py | allow_override=
mcp.enabled | transports/http/test_assistants.py | IGGY_MCP_ENABLED
mcp.read_only | transports/http/test_assistants.py | Mcp(read_only=False)
mcp.consumer | transports/http/test_assistants.py | consumer="claude"
mcp.max_request_size | transports/http/test_assistants.py | max_request_size=8192
mcp.max_response_size | transports/http/test_assistants.py | max_response_size=4096
mcp.max_items | transports/http/test_assistants.py | max_items=2
mcp.permissions.create | transports/http/test_assistants.py | McpPermissions(create=False)
mcp.permissions.update | transports/http/test_assistants.py | McpPermissions(update=False
mcp.permissions.delete | transports/http/test_assistants.py | delete=False
http.enabled | app/test_server_process.py | IGGY_HTTP_ENABLED
http.address | app/test_server_process.py | IGGY_HTTP_ADDRESS
http.max_request_size | transports/http/test_messages.py | http.max_request_size
http.allowed_hosts | transports/http/test_system.py | http.allowed_hosts
http.web_ui | transports/http/test_dashboard.py | IGGY_HTTP_WEB_UI
http.limits.connections | transports/http/test_protocol.py | connections=2
http.limits.first_byte_time | transports/http/test_protocol.py | first_byte_time
http.limits.headers_time | transports/http/test_protocol.py | headers_time
http.limits.body_time | transports/http/test_protocol.py | body_time
http.limits.body_rate | transports/http/test_protocol.py | body_rate
http.limits.idle_time | transports/http/test_protocol.py | idle_time
http.limits.answer_time | transports/http/test_protocol.py | answer_time
http.limits.headers | transports/http/test_protocol.py | too_many_headers
http.limits.headers_bytes | transports/http/test_protocol.py | headers_bytes
http.limits.bodies_bytes | transports/http/test_protocol.py | bodies_bytes
http.limits.answer_bytes | transports/http/test_messages.py | answer_bytes
http.cors.enabled | transports/http/test_system.py | cors(enabled=False
http.cors.allowed_methods | app/test_settings.py | allowed_methods
http.cors.allowed_origins | transports/http/test_system.py | allowed_origins
http.cors.allowed_headers | app/test_settings.py | allowed_headers
http.cors.exposed_headers | app/test_settings.py | exposed_headers
http.cors.allow_credentials | transports/http/test_system.py | allow_credentials
http.cors.allow_private_network | transports/http/test_system.py | allow_private_network
http.jwt.algorithm | app/access/test_access_tokens.py | algorithm
http.jwt.issuer | app/test_settings.py | "valid_issuers": "issuer"
http.jwt.audience | app/test_settings.py | "valid_audiences": "audience"
http.jwt.valid_issuers | app/test_settings.py | valid_issuers
http.jwt.valid_audiences | app/test_settings.py | valid_audiences
http.jwt.access_token_expiry | app/access/test_access_tokens.py | access_token_expiry
http.jwt.clock_skew | app/test_settings.py | clock_skew=50.0
http.jwt.not_before | app/access/test_access_tokens.py | not_before
http.jwt.encoding_secret | app/access/test_access_tokens.py | encoding_secret
http.jwt.decoding_secret | app/access/test_access_tokens.py | decoding_secret
http.jwt.use_base64_secret | app/access/test_access_tokens.py | use_base64_secret
http.jwt.trusted_issuers[].issuer | app/access/test_trusted_issuers.py | issuer=ISSUER
http.jwt.trusted_issuers[].audience | app/access/test_trusted_issuers.py | audience="whippet"
http.jwt.trusted_issuers[].jwks_url | app/access/test_trusted_issuers.py | jwks_url=JWKS
http.jwt.trusted_issuers[].user_id | app/access/test_trusted_issuers.py | user_id=7
http.metrics.enabled | transports/http/test_metrics.py | HttpMetrics(enabled=False)
http.metrics.endpoint | transports/http/test_metrics.py | endpoint="
http.metrics.require_token | transports/http/test_metrics.py | require_token
http.metrics.series | transports/http/test_metrics.py | series
http.leases.expiry | app/test_settings.py | leasing(tmp_path, expiry=7.0)
http.leases.expiry_min | transports/http/test_leases.py | expiry_min
http.leases.expiry_max | transports/http/test_leases.py | expiry_max
http.leases.leases | transports/http/test_leases.py | http.leases.leases
http.leases.leases_per_user | transports/http/test_leases.py | http.leases.leases_per_user
http.readers.wait_time | transports/http/test_polls.py | wait_time
http.readers.waiting | transports/http/test_polls.py | waiting
http.readers.waiting_per_user | transports/http/test_polls.py | waiting_per_user
http.readers.tails | transports/http/test_tail_ends.py | tails
http.readers.tails_per_user | transports/http/test_tail_ends.py | tails_per_user
http.readers.heartbeat | transports/http/test_tail_ends.py | heartbeat
http.readers.stall_time | transports/http/test_tail_ends.py | stall_time
http.readers.ticket_time | app/test_settings.py | ticket_time
http.tls.enabled | transports/http/support/serving.py | HttpTls(enabled=True
http.tls.cert_file | transports/http/support/serving.py | cert_file=str(folder / "cert.pem")
http.tls.key_file | transports/http/support/serving.py | key_file=str(folder / "key.pem")
tcp.enabled | app/test_server_process.py | IGGY_TCP_ENABLED
tcp.address | app/test_settings.py | IGGY_TCP_ADDRESS
tcp.ipv6 | transports/test_tcp_sockets.py | tcp.ipv6
tcp.message_header | app/test_settings.py | message_header
tcp.tls.enabled | transports/test_tcp_tls.py | Tls(enabled=True
tcp.tls.self_signed | transports/test_tcp_tls.py | self_signed
tcp.tls.cert_file | transports/test_tcp_tls.py | tcp.tls.cert_file
tcp.tls.key_file | transports/test_tcp_tls.py | tcp.tls.key_file
tcp.socket.override_defaults | transports/test_tcp_sockets.py | override_defaults
tcp.socket.recv_buffer_size | transports/test_tcp_sockets.py | tcp.socket.recv_buffer_size
tcp.socket.send_buffer_size | transports/test_tcp_sockets.py | send_buffer_size
tcp.socket.keepalive | transports/test_tcp_sockets.py | keepalive
tcp.socket.nodelay | transports/test_tcp_sockets.py | nodelay
tcp.socket.linger | transports/test_tcp_sockets.py | linger
quic.enabled | app/test_server_process.py | IGGY_QUIC_ENABLED
quic.address | transports/test_quic_process.py | IGGY_QUIC_ADDRESS
quic.max_concurrent_bidi_streams | transports/test_http3.py | max_concurrent_bidi_streams
quic.initial_mtu | app/test_settings.py | initial_mtu
quic.max_datagram_size | transports/test_quic_endings.py | max_datagram_size
quic.send_window | transports/test_http3.py | quic.send_window
quic.receive_window | app/test_settings.py | receive_window
quic.stream_receive_window | app/test_settings.py | stream_receive_window
quic.keep_alive_interval | app/test_settings.py | keep_alive_interval
quic.max_idle_timeout | transports/test_quic_endings.py | max_idle_timeout
quic.certificate.self_signed | transports/test_certificates.py | self_signed
quic.certificate.cert_file | transports/test_quic_process.py | IGGY_QUIC_CERTIFICATE_CERT_FILE
quic.certificate.key_file | transports/test_quic_process.py | IGGY_QUIC_CERTIFICATE_KEY_FILE
quic.socket.override_defaults | transports/test_datagrams.py | override_defaults
quic.socket.recv_buffer_size | transports/test_datagrams.py | recv_buffer_size
quic.socket.send_buffer_size | transports/test_datagrams.py | send_buffer_size
quic.socket.keepalive | app/test_settings.py | QuicSocket(override_defaults=True, keepalive=keepalive)
websocket.enabled | transports/websocket/test_listening_process.py | IGGY_WEBSOCKET_ENABLED
websocket.address | transports/websocket/test_listening_process.py | IGGY_WEBSOCKET_ADDRESS
websocket.read_buffer_size | transports/websocket/test_binary.py | read_buffer_size
websocket.max_write_buffer_size | transports/websocket/test_binary.py | max_write_buffer_size
websocket.max_message_size | transports/websocket/test_binary.py | max_message_size
websocket.max_frame_size | transports/websocket/test_binary.py | max_frame_size
websocket.accept_unmasked_frames | transports/websocket/test_binary.py | accept_unmasked_frames
websocket.channel.subscriptions | transports/websocket/test_subscription_limits.py | websocket.channel.subscriptions
websocket.channel.subscriptions_total | transports/websocket/test_subscription_limits.py | subscriptions_total
websocket.channel.subscriptions_per_user | transports/websocket/test_subscription_limits.py | subscriptions_per_user
websocket.channel.ping_time | transports/websocket/test_text_connection.py | ping_time
websocket.channel.silence_time | transports/websocket/test_text_connection.py | silence_time
websocket.tls.enabled | app/test_settings.py | IGGY_WEBSOCKET_TLS_ENABLED
websocket.tls.self_signed | app/test_settings.py | IGGY_WEBSOCKET_TLS_SELF_SIGNED
websocket.tls.cert_file | app/test_settings.py | IGGY_WEBSOCKET_TLS_CERT_FILE
websocket.tls.key_file | app/test_settings.py | IGGY_WEBSOCKET_TLS_KEY_FILE
system.path | app/test_server_process.py | IGGY_SYSTEM_PATH
system.state.enforce_fsync | app/test_settings.py | catalog_syncs
system.state.retry_delay | storage/test_append_once_recovery.py | write_retry_s
system.runtime.path | app/test_settings.py | IGGY_SYSTEM_RUNTIME_PATH
audit.enabled | app/audit/test_trail.py | Audit(enabled=False)
audit.path | app/audit/test_trail.py | path="elsewhere"
audit.max_file_size | app/audit/test_trail.py | max_file_size=1000
audit.max_total_size | app/audit/test_trail.py | max_total_size=2000
audit.retention | app/audit/test_trail.py | retention=3600.0
audit.required | app/audit/test_trail.py | Audit(required=True)
audit.commits | app/audit/test_trail.py | Audit(commits=True)
audit.stream | app/audit/test_audit_topic.py | Audit(stream="audit")
telemetry.enabled | app/test_telemetry_process.py | IGGY_TELEMETRY_ENABLED
telemetry.service_name | app/test_telemetry_process.py | IGGY_TELEMETRY_SERVICE_NAME
telemetry.logs.transport | app/test_telemetry_process.py | IGGY_TELEMETRY_LOGS_TRANSPORT
telemetry.logs.endpoint | app/test_telemetry_process.py | IGGY_TELEMETRY_LOGS_ENDPOINT
telemetry.traces.transport | app/test_telemetry_process.py | IGGY_TELEMETRY_TRACES_TRANSPORT
telemetry.traces.endpoint | app/test_telemetry_process.py | IGGY_TELEMETRY_TRACES_ENDPOINT
telemetry.metrics.transport | app/test_telemetry_process.py | IGGY_TELEMETRY_METRICS_TRANSPORT
telemetry.metrics.endpoint | app/test_telemetry_process.py | IGGY_TELEMETRY_METRICS_ENDPOINT
telemetry.metrics.interval | app/test_telemetry_process.py | IGGY_TELEMETRY_METRICS_INTERVAL
system.logging.path | app/test_settings.py | IGGY_SYSTEM_LOGGING_PATH
system.logging.format | app/test_command_log_process.py | IGGY_SYSTEM_LOGGING_FORMAT
system.logging.level | app/telemetry/test_logs.py | logs.configure(level)
system.logging.file_enabled | app/test_server_process.py | IGGY_SYSTEM_LOGGING_FILE_ENABLED
system.logging.max_file_size | app/telemetry/test_log_files.py | max_file_size
system.logging.max_total_size | app/telemetry/test_log_files.py | max_total_size
system.logging.rotation_check_interval | app/test_settings.py | system.logging.rotation_check_interval
system.logging.retention | app/telemetry/test_log_files.py | retention
system.logging.sysinfo_print_interval | app/test_server_process.py | IGGY_SYSTEM_LOGGING_SYSINFO_PRINT_INTERVAL
system.stream.path | storage/test_layout.py | streams_folder
system.topic.path | storage/test_layout.py | topics_folder
system.topic.max_size | app/model/test_topic_options.py | system.topic, max_size=
system.topic.message_expiry | app/model/test_topic_options.py | message_expiry
system.topic.delete_oldest_segments | storage/test_full_topics.py | system.topic.delete_oldest_segments
system.partition.path | storage/test_layout.py | partitions_folder
system.partition.enforce_fsync | app/config/test_config_store_options.py | durability
system.partition.validate_checksum | storage/test_damaged_segments.py | validate_checksum
system.partition.messages_required_to_save | storage/test_write_pipeline.py | messages_required_to_save
system.partition.size_of_messages_required_to_save | storage/test_write_pipeline.py | bytes_required_to_save
system.partition.consumer_offsets_max | transports/test_catalogue_limits.py | consumer_offsets_max
system.segment.size | storage/test_log.py | segment_bytes
system.segment.cache_indexes | app/test_settings.py | index_cache
system.segment.server_confirmation | app/config/test_config_store_options.py | SEGMENT_SERVER_CONFIRMATION
system.message_deduplication.enabled | app/commands/test_deduplication.py | MessageDeduplication(enabled=True)
system.message_deduplication.max_entries | app/commands/test_deduplication.py | max_entries
system.message_deduplication.expiry | app/commands/test_deduplication.py | MessageDeduplication(max_entries=5, expiry=2)
system.recovery.recreate_missing_state | storage/test_catalog.py | recreate_missing_state
system.sharding.pin_cores | app/config/test_config_store_options.py | IGGY_SYSTEM_SHARDING_PIN_CORES
system.sharding.cpu_allocation | app/config/test_config_store_options.py | IGGY_SYSTEM_SHARDING_CPU_ALLOCATION
system.protocol.oldest | transports/test_modern_logins.py | oldest
system.protocol.newest | transports/test_modern_logins.py | newest
system.limits.tail_bytes | storage/test_reading.py | tail_bytes_max
system.limits.unflushed_bytes | storage/test_backpressure.py | unflushed_bytes_max
system.limits.partition_unflushed_bytes | storage/test_backpressure.py | partition_unflushed_bytes_max
system.limits.batch_bytes | storage/test_batch_refusals.py | batch_bytes
system.limits.batch_messages | storage/test_batch_refusals.py | batch_messages
system.limits.payload_bytes | storage/test_batch_refusals.py | payload_bytes
system.limits.user_headers_bytes | storage/test_batch_refusals.py | user_headers_bytes
system.limits.loop_append_bytes | storage/test_loop_appends.py | loop_append_bytes_max
system.limits.read_bytes | storage/test_reading.py | read_bytes_max
system.limits.open_files | app/test_settings.py | IGGY_SYSTEM_LIMITS_OPEN_FILES
system.limits.frame_bytes | transports/test_tcp.py | frame_bytes
system.limits.frames_bytes | transports/test_tcp_backpressure.py | frames_bytes
system.limits.unauthenticated_bytes | app/test_settings.py | IGGY_SYSTEM_LIMITS_UNAUTHENTICATED_BYTES
system.limits.responses_bytes | transports/test_tcp_backpressure.py | responses_bytes=8 * MIB
system.limits.streams | transports/test_catalogue_limits.py | streams=2
system.limits.topics_per_stream | transports/test_catalogue_limits.py | topics_per_stream=2
system.limits.partitions | transports/test_catalogue_limits.py | system.limits.partitions
system.limits.partitions_per_topic | transports/test_catalogue_limits.py | partitions_per_topic
system.limits.consumer_groups_per_topic | transports/test_catalogue_limits.py | consumer_groups_per_topic
system.limits.connections | transports/test_tcp.py | system.limits.connections = 3
system.limits.silence_before_login | transports/test_tcp_tls.py | silence_before_login
system.limits.frame_time | app/test_settings.py | frame_time=7.0
system.limits.session_answers | transports/test_modern_sessions.py | session_answers
system.disk.reserve | app/test_full_disk.py | IGGY_SYSTEM_DISK_RESERVE
system.limits.session_memory | transports/test_modern_sessions.py | session_memory
system.limits.waiting_polls | transports/test_next_deferred_polls.py | waiting_polls=9
system.limits.waiting_polls_per_user | transports/test_next_deferred_polls.py | waiting_polls_per_user=5
system.limits.producers | storage/test_append_once.py | producers_max
system.limits.producer_answers | storage/test_append_once.py | producer_answers_max
system.limits.stop_time | app/test_settings.py | IGGY_SYSTEM_LIMITS_STOP_TIME
system.limits.deduplication_bytes | app/commands/test_deduplication.py | system.limits.deduplication_bytes
system.limits.index_cache_bytes | app/test_settings.py | index_cache_bytes
message_saver.enabled | app/test_settings.py | IGGY_MESSAGE_SAVER_ENABLED
message_saver.enforce_fsync | app/test_settings.py | saver_syncs
message_saver.interval | app/test_settings.py | saver_interval_s
data_maintenance.messages.cleaner_enabled | app/test_settings.py | data_maintenance.messages.cleaner_enabled
retention.respects_consumers | storage/test_store.py | respects_consumers
data_maintenance.messages.interval | app/test_settings.py | data_maintenance.messages.interval
system.segment.archive_expired | app/test_archiving_process.py | IGGY_SYSTEM_SEGMENT_ARCHIVE_EXPIRED
data_maintenance.archiver.enabled | app/test_archiving_process.py | IGGY_DATA_MAINTENANCE_ARCHIVER_ENABLED
data_maintenance.archiver.kind | storage/archive/test_objects.py | kind="s3"
data_maintenance.archiver.interval | app/test_archiving_process.py | IGGY_DATA_MAINTENANCE_ARCHIVER_INTERVAL
data_maintenance.archiver.bandwidth | storage/archive/test_pacing.py | bytes_per_second
data_maintenance.archiver.local_limit | storage/archive/test_archiver.py | local_limit_bytes
data_maintenance.archiver.cache_size | storage/archive/test_histories.py | cache_bytes
data_maintenance.archiver.request_timeout | storage/archive/test_objects.py | timeout_s=0.2
data_maintenance.archiver.disk.path | app/test_archiving_process.py | IGGY_DATA_MAINTENANCE_ARCHIVER_DISK_PATH
data_maintenance.archiver.s3.bucket | storage/archive/test_objects.py | bucket="none"
data_maintenance.archiver.s3.endpoint | storage/archive/test_objects.py | endpoint=
data_maintenance.archiver.s3.region | storage/archive/test_objects.py | region=
data_maintenance.archiver.s3.access_key_id | storage/archive/test_objects.py | Credential=key/
data_maintenance.archiver.s3.secret_access_key | storage/archive/support/buckets.py | secret_access_key
data_maintenance.archiver.s3.key_prefix | storage/archive/test_objects.py | key_prefix
data_maintenance.archiver.gcs.bucket | storage/archive/test_services.py | bucket="b"
data_maintenance.archiver.gcs.key_prefix | storage/archive/test_services.py | key_prefix=
data_maintenance.archiver.gcs.service_account_file | storage/archive/test_services.py | service_account_file=
data_maintenance.archiver.azure.account | storage/archive/support/services.py | account=AZURITE_ACCOUNT
data_maintenance.archiver.azure.container | storage/archive/test_services.py | bucket="c"
data_maintenance.archiver.azure.key_prefix | storage/archive/test_services.py | key_prefix=
data_maintenance.archiver.azure.access_key | storage/archive/test_services.py | secret_access_key="not base64!"
data_maintenance.archiver.azure.endpoint | storage/archive/support/services.py | endpoint=endpoint
consumer_group.rebalancing_timeout | app/test_settings.py | rebalancing_timeout
consumer_group.rebalancing_check_interval | app/test_settings.py | consumer_group.rebalancing_check_interval
personal_access_token.max_tokens_per_user | app/test_settings.py | IGGY_PERSONAL_ACCESS_TOKEN_MAX_TOKENS_PER_USER
personal_access_token.cleaner.enabled | app/test_settings.py | personal_access_token.cleaner.enabled
personal_access_token.cleaner.interval | app/test_settings.py | personal_access_token.cleaner.interval
heartbeat.enabled | app/test_settings.py | IGGY_HEARTBEAT_ENABLED
heartbeat.interval | app/test_settings.py | IGGY_HEARTBEAT_INTERVAL
metrics.enabled | transports/http/test_metrics.py | IGGY_METRICS_ENABLED
metrics.endpoint | transports/http/test_metrics.py | IGGY_METRICS_ENDPOINT
cluster.enabled | transports/http/test_system.py | Cluster(enabled=True
cluster.name | transports/http/test_system.py | name="my-cluster"
cluster.node.current.name | transports/http/test_system.py | CurrentNode(name=
cluster.node.current.ip | transports/http/test_system.py | ip="192.0.2.7"
cluster.nodes[].name | app/config/test_config_roster.py | NODES_0_NAME
cluster.nodes[].ip | app/config/test_config_roster.py | NODES_0_IP
cluster.nodes[].advertised_address | app/config/test_config_roster.py | advertised_address
cluster.nodes[].replica_id | app/config/test_config_roster.py | NODES_0_REPLICA_ID
cluster.nodes[].ports.tcp | app/config/test_config_roster.py | NODES_0_PORTS_TCP
cluster.nodes[].ports.quic | app/config/test_config_roster.py | NODES_0_PORTS_QUIC
cluster.nodes[].ports.http | app/config/test_config_roster.py | NODES_0_PORTS_HTTP
cluster.nodes[].ports.websocket | app/config/test_config_roster.py | NODES_0_PORTS_WEBSOCKET
"""
"""A key, the file of the test that shows its effect, and the words that set it there: its variable, the name of its
field, or that of the option of the store that is made of it."""

EFFECTS = {key: (file, words) for key, file, words in (line.split(" | ") for line in SHOWN_IN.strip().splitlines())}

ABOUT_KEYS = {f"app/config/{name}.py" for name in ("checks", "keys", "limits", "listeners", "load", "render", "schema")}
ABOUT_KEYS |= {f"app/config/{name}.py" for name in ("support", "system")}
"""Where keys are declared, checked and printed: that is no effect."""


# ------------------------------------------------------------------------------------------------- a test for each


def test_every_key_has_an_effect_or_is_refused_or_is_logged_as_one_without() -> None:
    explained = [*EFFECTS, *UNSUPPORTED, *DETAILS, *WITHOUT_EFFECT]
    assert sorted(explained) == sorted(KEYS), "each key in exactly one of the tables"


@pytest.mark.parametrize("key", EFFECTS)
def test_some_test_sets_the_key(key: str) -> None:
    file, words = EFFECTS[key]
    assert words in (TESTS / file).read_text(), (
        f"{file} does not set {key} any more: name the test that shows its effect"
    )


def test_no_key_about_data_security_or_the_network_is_without_effect() -> None:
    tuning = ("tcp.socket_migration", "buffer_size", "memory_pool.", "cache_time_indexes", "max_file_operation_retries")
    assert [key for key in WITHOUT_EFFECT if not any(word in key for word in tuning)] == []


@pytest.mark.parametrize("key", DETAILS)
def test_a_detail_belongs_to_a_switch_that_is_off_by_default_and_refused_when_on(key: str) -> None:
    switch = DETAILS[key]
    assert KEYS[switch].value is False
    assert switch in UNSUPPORTED or switch == "cluster.enabled"


@pytest.mark.parametrize("key", WITHOUT_EFFECT)
def test_a_key_without_effect_is_logged_once_if_it_is_set(start: Any, key: str) -> None:
    loaded = start(**{f"IGGY_{key.replace('.', '_').upper()}": str(written(KEYS[key]))})
    (line,) = loaded.without_effect
    assert f"{key} has no effect: {WITHOUT_EFFECT[key]}" in line
    assert start().without_effect == ()


def written(key: Key) -> object:
    value = key.format.write(key.value)
    return str(value).lower() if isinstance(value, bool) else value or "1 MiB"


# ------------------------------------------------------------------------------------------------- code that reads it


class Reads(Plugin):
    """Records which file reads which field of the classes of interest."""

    found: dict[str, set[str]]

    def get_attribute_hook(self, fullname: str) -> Callable[[AttributeContext], Type] | None:
        if not fullname.startswith(("whippet.app.config.", f"{StoreOptions.__module__}.StoreOptions.")):
            return None

        def note(context: AttributeContext) -> Type:
            path = getattr(context.api, "path", "")
            self.found.setdefault(fullname, set()).add(os.path.relpath(path, ROOT))
            return context.default_attr_type

        return note


@pytest.fixture(scope="module")
def reads() -> dict[str, set[str]]:
    options = Options()
    parse_config_file(options, lambda: None, str(ROOT / "pyproject.toml"), sys.stdout, sys.stderr)
    options.packages, options.incremental, options.cache_dir = [], False, os.devnull
    # The types of other packages take two thirds of the time and do not matter here.
    options.follow_imports = "skip"
    sources = [BuildSource(str(ROOT / "whippet/__init__.py"), "whippet")]
    for path in sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        module = path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
        sources.append(BuildSource(str(path), f"whippet.{module.removesuffix('.__init__')}"))
    plugin = Reads(options)
    plugin.found = {}
    build.build(sources, options, extra_plugins=[plugin])
    return plugin.found


def test_code_reads_every_key_that_has_an_effect(reads: dict[str, set[str]]) -> None:
    def is_read(key: Key) -> bool:
        section, field = key.section, key.name.rpartition(".")[2]
        return bool(reads.get(f"{section.__module__}.{section.__qualname__}.{field}", set()) - ABOUT_KEYS)

    assert [name for name in EFFECTS if not is_read(KEYS[name])] == []


def test_the_store_reads_every_option_that_settings_are_converted_to(reads: dict[str, set[str]]) -> None:
    name = f"{StoreOptions.__module__}.StoreOptions"
    elsewhere = {"storage/options.py", "app/config/store.py"}
    assert [
        field for field in StoreOptions.__struct_fields__ if not reads.get(f"{name}.{field}", set()) - elsewhere
    ] == []
