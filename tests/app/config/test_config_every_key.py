"""Every key is accepted from the file and from its variable, and has the documented default."""

from __future__ import annotations

import ast
import re
from operator import attrgetter
from typing import Any

import pytest

from whippet.app.config import Config, ConfigError
from whippet.app.config.aliases import ACCEPTED as ACCEPTED_NAMES
from whippet.app.config.aliases import ALIASES, NAMES, VARIABLES
from whippet.app.config.cores import Allocation
from whippet.app.config.formats import Address
from whippet.app.config.keys import KEYS, canonical, fields, sentences
from whippet.app.config.render import literal
from whippet.app.config.section import Section
from whippet.app.config.support import UNSUPPORTED

# A key, its default and another value as TOML, and the server's value for the latter. Texts are digits where possible,
# because Iggy does not accept such a text in a variable.
TABLE = """
engine.kind | "local" | "kafka" | "kafka"
engine.kafka.servers | ["127.0.0.1:9092"] | ["a", "12"] | ('a', '12')
engine.kafka.prefix | "whippet." | "12345" | "12345"
engine.kafka.client_id | "whippet" | "12345" | "12345"
engine.kafka.replication_factor | 3 | 4567 | 4567
engine.kafka.min_insync_replicas | 2 | 1 | 1
engine.kafka.timeout | "30 s" | "1m 30s" | 90.0
consumer_group.rebalancing_timeout | "30 s" | "1m 30s" | 90.0
consumer_group.rebalancing_check_interval | "5 s" | "1m 30s" | 90.0
data_maintenance.messages.cleaner_enabled | true | false | False
data_maintenance.messages.interval | "1 m" | "1m 30s" | 90.0
mcp.enabled | false | true | True
mcp.read_only | true | false | False
mcp.consumer | "mcp" | "12345" | '12345'
mcp.max_request_size | "256 KiB" | "32 MiB" | 33554432
mcp.max_response_size | "64 KiB" | "32 MiB" | 33554432
mcp.max_items | 100 | 4567 | 4567
mcp.permissions.create | true | false | False
mcp.permissions.update | true | false | False
mcp.permissions.delete | true | false | False
http.enabled | true | false | False
http.address | "127.0.0.1:3000" | "0.0.0.0:4567" | '0.0.0.0:4567'
http.max_request_size | "2 MB" | "32 MiB" | 33554432
http.allowed_hosts | [] | ["a", "12"] | ('a', '12')
http.web_ui | true | false | False
http.limits.connections | 8192 | 4567 | 4567
http.limits.first_byte_time | "20 s" | "1m 30s" | 90.0
http.limits.headers_time | "10 s" | "1m 30s" | 90.0
http.limits.body_time | "10 s" | "1m 30s" | 90.0
http.limits.body_rate | "16 KiB" | "32 MiB" | 33554432
http.limits.idle_time | "1 m 15 s" | "1m 30s" | 90.0
http.limits.answer_time | "1 m" | "1m 30s" | 90.0
http.limits.headers | 128 | 4567 | 4567
http.limits.headers_bytes | "64 KiB" | "32 MiB" | 33554432
http.limits.bodies_bytes | "256 MiB" | "32 MiB" | 33554432
http.limits.answer_bytes | "16 MiB" | "32 MiB" | 33554432
http.readers.wait_time | "1 m" | "1m 30s" | 90.0
http.readers.waiting | 4096 | 4567 | 4567
http.readers.waiting_per_user | 1024 | 4567 | 4567
http.readers.tails | 4096 | 4567 | 4567
http.readers.tails_per_user | 1024 | 4567 | 4567
http.readers.heartbeat | "15 s" | "1m 30s" | 90.0
http.readers.stall_time | "10 s" | "1m 30s" | 90.0
http.readers.ticket_time | "30 s" | "1m 30s" | 90.0
http.cors.enabled | true | false | False
http.cors.allowed_methods | ["GET", "POST", "PUT", "DELETE"] | ["GET", "PATCH"] | ('GET', 'PATCH')
http.cors.allowed_origins | [] | ["a", "12"] | ('a', '12')
http.cors.allowed_headers | ["content-type", "authorization"] | ["a", "12"] | ('a', '12')
http.cors.exposed_headers | ["iggy-view"] | ["a", "12"] | ('a', '12')
http.cors.allow_credentials | false | true | True
http.cors.allow_private_network | false | true | True
http.jwt.algorithm | "HS256" | "HS512" | 'HS512'
http.jwt.issuer | "iggy.apache.org" | "12345" | '12345'
http.jwt.audience | "iggy.apache.org" | "12345" | '12345'
http.jwt.valid_issuers | ["iggy.apache.org"] | ["a", "12"] | ('a', '12')
http.jwt.valid_audiences | ["iggy.apache.org"] | ["a", "12"] | ('a', '12')
http.jwt.access_token_expiry | "1 h" | "2 days" | 172800000000
http.jwt.clock_skew | "5 s" | "1m 30s" | 90.0
http.jwt.not_before | "0 s" | "1m 30s" | 90.0
http.jwt.encoding_secret | "" | "a secret of the thirty-two bytes." | 'a secret of the thirty-two bytes.'
http.jwt.decoding_secret | "" | "a secret of the thirty-two bytes." | 'a secret of the thirty-two bytes.'
http.jwt.use_base64_secret | false | true | True
http.jwt.trusted_issuers[].issuer | "" | "12345" | '12345'
http.jwt.trusted_issuers[].audience | "" | "12345" | '12345'
http.jwt.trusted_issuers[].jwks_url | "" | "https://a" | 'https://a'
http.jwt.trusted_issuers[].user_id | 0 | 4567 | 4567
http.metrics.enabled | true | false | False
http.metrics.endpoint | "/metrics" | "/12345" | '/12345'
http.metrics.require_token | false | true | True
http.metrics.series | 10000 | 4567 | 4567
http.leases.expiry | "30 s" | "1m 30s" | 90.0
http.leases.expiry_min | "1 s" | "20 s" | 20.0
http.leases.expiry_max | "10 m" | "1m 30s" | 90.0
http.leases.leases | 4096 | 4567 | 4567
http.leases.leases_per_user | 1024 | 4567 | 4567
http.tls.enabled | false | true | True
http.tls.cert_file | "core/certs/iggy_cert.pem" | "12345" | '12345'
http.tls.key_file | "core/certs/iggy_key.pem" | "12345" | '12345'
tcp.enabled | true | false | False
tcp.address | "127.0.0.1:8090" | "0.0.0.0:4567" | '0.0.0.0:4567'
tcp.socket_migration | true | false | False
tcp.ipv6 | false | true | True
tcp.message_header | "auto" | "56" | "56"
tcp.tls.enabled | false | true | True
tcp.tls.self_signed | true | false | False
tcp.tls.cert_file | "core/certs/iggy_cert.pem" | "12345" | '12345'
tcp.tls.key_file | "core/certs/iggy_key.pem" | "12345" | '12345'
tcp.socket.override_defaults | false | true | True
tcp.socket.recv_buffer_size | "100 KB" | "32 MiB" | 33554432
tcp.socket.send_buffer_size | "100 KB" | "32 MiB" | 33554432
tcp.socket.keepalive | false | true | True
tcp.socket.nodelay | false | true | True
tcp.socket.linger | "0 s" | "1m 30s" | 90.0
quic.enabled | true | false | False
quic.address | "127.0.0.1:3000" | "0.0.0.0:4567" | '0.0.0.0:4567'
quic.max_concurrent_bidi_streams | 100 | 4567 | 4567
quic.datagram_send_buffer_size | "100 KB" | "32 MiB" | 33554432
quic.initial_mtu | "1200 B" | "1500 B" | 1500
quic.max_datagram_size | "1452 B" | "8952 B" | 8952
quic.send_window | "1 MiB" | "32 MiB" | 33554432
quic.receive_window | "256 KiB" | "32 MiB" | 33554432
quic.stream_receive_window | "128 KiB" | "32 MiB" | 33554432
quic.keep_alive_interval | "5 s" | "1m 30s" | 90.0
quic.max_idle_timeout | "10 s" | "1m 30s" | 90.0
quic.certificate.self_signed | true | false | False
quic.certificate.cert_file | "core/certs/iggy_cert.pem" | "12345" | '12345'
quic.certificate.key_file | "core/certs/iggy_key.pem" | "12345" | '12345'
quic.socket.override_defaults | false | true | True
quic.socket.recv_buffer_size | "64 KB" | "32 MiB" | 33554432
quic.socket.send_buffer_size | "64 KB" | "32 MiB" | 33554432
quic.socket.keepalive | false | true | True
websocket.enabled | true | false | False
websocket.address | "" | "0.0.0.0:4567" | '0.0.0.0:4567'
websocket.read_buffer_size | "" | "32 MiB" | 33554432
websocket.write_buffer_size | "" | "32 MiB" | 33554432
websocket.max_write_buffer_size | "" | "32 MiB" | 33554432
websocket.max_message_size | "" | "32 MiB" | 33554432
websocket.max_frame_size | "" | "32 MiB" | 33554432
websocket.accept_unmasked_frames | false | true | True
websocket.channel.subscriptions | 100 | 7 | 7
websocket.channel.subscriptions_total | 40000 | 4567 | 4567
websocket.channel.subscriptions_per_user | 10000 | 4567 | 4567
websocket.channel.ping_time | "20 s" | "1m 30s" | 90.0
websocket.channel.silence_time | "1 m" | "1m 30s" | 90.0
websocket.tls.enabled | false | true | True
websocket.tls.self_signed | true | false | False
websocket.tls.cert_file | "core/certs/iggy_cert.pem" | "12345" | '12345'
websocket.tls.key_file | "core/certs/iggy_key.pem" | "12345" | '12345'
retention.respects_consumers | "groups" | "all" | 'all'
message_saver.enabled | true | false | False
message_saver.enforce_fsync | true | false | False
message_saver.interval | "30 s" | "1m 30s" | 90.0
personal_access_token.max_tokens_per_user | 100 | 4567 | 4567
personal_access_token.cleaner.enabled | true | false | False
personal_access_token.cleaner.interval | "1 m" | "1m 30s" | 90.0
heartbeat.enabled | false | true | True
heartbeat.interval | "5 s" | "1m 30s" | 90.0
audit.enabled | true | false | False
audit.path | "audit" | "12345" | '12345'
audit.max_file_size | "64 MiB" | "32 MiB" | 33554432
audit.max_total_size | "1 GiB" | "8 GB" | 8000000000
audit.retention | "365 days" | "1m 30s" | 90.0
audit.required | false | true | True
audit.commits | false | true | True
audit.stream | "" | "12345" | '12345'
telemetry.enabled | false | true | True
telemetry.service_name | "iggy" | "12345" | '12345'
telemetry.logs.transport | "grpc" | "http" | 'http'
telemetry.logs.endpoint | "http://localhost:7281/v1/logs" | "12345" | '12345'
telemetry.traces.transport | "grpc" | "http" | 'http'
telemetry.traces.endpoint | "http://localhost:7281/v1/traces" | "12345" | '12345'
telemetry.metrics.transport | "grpc" | "http" | 'http'
telemetry.metrics.endpoint | "http://localhost:7281/v1/metrics" | "12345" | '12345'
telemetry.metrics.interval | "1 m" | "1m 30s" | 90.0
system.path | "local_data" | "12345" | '12345'
system.backup.path | "backup" | "12345" | '12345'
system.backup.compatibility.path | "compatibility" | "12345" | '12345'
system.state.enforce_fsync | true | false | False
system.state.max_file_operation_retries | 1 | 4567 | 4567
system.state.retry_delay | "1 s" | "1m 30s" | 90.0
system.runtime.path | "runtime" | "12345" | '12345'
system.logging.path | "logs" | "12345" | '12345'
system.logging.format | "auto" | "json" | 'json'
system.logging.level | "info" | "trace" | 'trace'
system.logging.file_enabled | true | false | False
system.logging.max_file_size | "500 MB" | "32 MiB" | 33554432
system.logging.max_total_size | "4 GB" | "8 GB" | 8000000000
system.logging.rotation_check_interval | "1 h" | "1m 30s" | 90.0
system.logging.retention | "7 days" | "1m 30s" | 90.0
system.logging.sysinfo_print_interval | "10 s" | "1m 30s" | 90.0
system.encryption.enabled | false | true | True
system.encryption.key | "" | "12345" | '12345'
system.encryption.key_file | "" | "12" | '12'
system.compression.allow_override | true | false | False
system.compression.default_algorithm | "none" | "zstd" | 'zstd'
system.disk.reserve | "" | "32 MiB" | 33554432
system.stream.path | "streams" | "12345" | '12345'
system.topic.path | "topics" | "12345" | '12345'
system.topic.max_size | "unlimited" | "10 GB" | 10000000000
system.topic.message_expiry | "none" | "2 days" | 172800000000
system.partition.path | "partitions" | "12345" | '12345'
system.partition.enforce_fsync | false | true | True
system.partition.validate_checksum | false | true | True
system.partition.messages_required_to_save | 1 | 4567 | 4567
system.partition.size_of_messages_required_to_save | "1 MiB" | "32 MiB" | 33554432
system.partition.consumer_offsets_max | 4096 | 4567 | 4567
system.segment.size | "1 GiB" | "32 MiB" | 33554432
system.segment.archive_expired | false | true | True
system.segment.cache_indexes | "open_segment" | "none" | 'none'
system.message_deduplication.enabled | false | true | True
system.message_deduplication.max_entries | 10000 | 4567 | 4567
system.message_deduplication.expiry | "1 m" | "1m 30s" | 90.0
system.recovery.recreate_missing_state | false | true | True
system.memory_pool.enabled | true | false | False
system.memory_pool.size | "4 GiB" | "1 GiB" | 1073741824
system.memory_pool.bucket_capacity | 8192 | 256 | 256
system.sharding.cpu_allocation | "all" | "0..2" | '0..2'
system.sharding.pin_cores | true | false | False
cluster.enabled | false | true | True
cluster.name | "iggy-cluster" | "12345" | '12345'
cluster.node.current.name | "iggy-node-1" | "12345" | '12345'
cluster.node.current.ip | "127.0.0.1" | "12345" | '12345'
cluster.nodes[].name | "" | "12345" | '12345'
cluster.nodes[].ip | "" | "12345" | '12345'
cluster.nodes[].advertised_address | "" | "12345" | '12345'
cluster.nodes[].replica_id | 0 | 45 | 45
cluster.nodes[].ports.tcp | "" | 4567 | 4567
cluster.nodes[].ports.quic | "" | 4567 | 4567
cluster.nodes[].ports.http | "" | 4567 | 4567
cluster.nodes[].ports.websocket | "" | 4567 | 4567
cluster.node.others[].name | "" | "12345" | '12345'
cluster.node.others[].ip | "" | "12345" | '12345'
cluster.node.others[].ports.tcp | "" | 4567 | 4567
cluster.node.others[].ports.quic | "" | 4567 | 4567
cluster.node.others[].ports.http | "" | 4567 | 4567
cluster.node.others[].ports.websocket | "" | 4567 | 4567
message_cleaner.enabled | true | false | False
message_cleaner.interval | "1 m" | "1m 30s" | 90.0
data_maintenance.archiver.enabled | false | true | True
data_maintenance.archiver.kind | "disk" | "s3" | 's3'
data_maintenance.archiver.archive_expired | false | true | True
data_maintenance.archiver.path | "local_data/archive" | "12345" | '12345'
data_maintenance.archiver.disk.path | "local_data/archive" | "12345" | '12345'
data_maintenance.archiver.s3.bucket | "iggy" | "12345" | '12345'
data_maintenance.archiver.s3.endpoint | "http://localhost:9000" | "12345" | '12345'
data_maintenance.archiver.s3.region | "eu-west-1" | "12345" | '12345'
data_maintenance.archiver.s3.tmp_upload_dir | "local_data/s3_tmp" | "12345" | '12345'
data_maintenance.archiver.s3.key_id | "" | "12345" | '12345'
data_maintenance.archiver.s3.key_secret | "" | "12345" | '12345'
data_maintenance.archiver.s3.access_key_id | "" | "12345" | '12345'
data_maintenance.archiver.s3.secret_access_key | "" | "12345" | '12345'
data_maintenance.archiver.s3.key_prefix | "" | "12345" | '12345'
data_maintenance.archiver.gcs.bucket | "" | "12345" | '12345'
data_maintenance.archiver.gcs.key_prefix | "" | "12345" | '12345'
data_maintenance.archiver.gcs.service_account_file | "" | "12345" | '12345'
data_maintenance.archiver.azure.account | "" | "12345" | '12345'
data_maintenance.archiver.azure.container | "" | "12345" | '12345'
data_maintenance.archiver.azure.key_prefix | "" | "12345" | '12345'
data_maintenance.archiver.azure.access_key | "" | "12345" | '12345'
data_maintenance.archiver.azure.endpoint | "" | "12345" | '12345'
data_maintenance.messages.archiver_enabled | false | true | True
data_maintenance.state.archiver_enabled | false | true | True
data_maintenance.state.overwrite | true | false | False
data_maintenance.state.interval | "1 m" | "1m 30s" | 90.0
system.logging.max_size | "500 MB" | "32 MiB" | 33554432
system.topic.delete_oldest_segments | true | false | False
system.segment.message_expiry | "none" | "2 days" | 172800000000
system.segment.server_confirmation | "wait" | "no_wait" | 'no_wait'
system.segment.cache_time_indexes | true | false | False
system.segment.validate_checksum | false | true | True
system.partition.message_saver.enabled | true | false | False
system.partition.message_saver.enforce_fsync | true | false | False
system.partition.message_saver.interval | "30 s" | "1m 30s" | 90.0
topic.max_topic_size | "unlimited" | "10 GB" | 10000000000
topic.delete_oldest_segments | true | false | False
extra.namespace.max_partitions | 10000 | 4567 | 4567
extra.namespace.max_streams | 32768 | 4567 | 4567
extra.namespace.max_topics | 4096 | 4567 | 4567
message_bus.ws_accept_unmasked_frames | false | true | True
message_bus.ws_max_frame_size | "" | "32 MiB" | 33554432
message_bus.ws_max_message_size | "" | "32 MiB" | 33554432
message_bus.ws_write_buffer_size | "" | "32 MiB" | 33554432
archiver.enabled | false | true | True
archiver.kind | "disk" | "s3" | 's3'
archiver.interval | "" | "1m 30s" | 90.0
archiver.s3.bucket | "iggy" | "12345" | '12345'
archiver.s3.region | "eu-west-1" | "12345" | '12345'
archiver.s3.access_key_id | "" | "12345" | '12345'
archiver.s3.secret_access_key | "" | "12345" | '12345'
encryption.enabled | false | true | True
encryption.key | "" | "12345" | '12345'
metrics.enabled | false | true | True
metrics.endpoint | "0.0.0.0:9090" | "0.0.0.0:4567" | '0.0.0.0:4567'
tracing.enabled | false | true | True
tracing.endpoint | "http://localhost:7281/v1/traces" | "12345" | '12345'
system.limits.tail_bytes | "256 MiB" | "32 MiB" | 33554432
system.limits.unflushed_bytes | "256 MiB" | "128 MiB" | 134217728
system.limits.partition_unflushed_bytes | "64 MiB" | "65 MiB" | 68157440
system.limits.batch_bytes | "64 MiB" | "63 MiB" | 66060288
system.limits.batch_messages | 1000000 | 4567 | 4567
system.limits.payload_bytes | "64 MB" | "32 MiB" | 33554432
system.limits.user_headers_bytes | "100 KB" | "1 MiB" | 1048576
system.limits.loop_append_bytes | "64 KiB" | "0" | 0
system.limits.read_bytes | "128 MiB" | "32 MiB" | 33554432
system.limits.streams | 32768 | 4567 | 4567
system.limits.topics_per_stream | 4096 | 4567 | 4567
system.limits.partitions | 32768 | 4567 | 4567
system.limits.partitions_per_topic | 10000 | 4567 | 4567
system.limits.consumer_groups_per_topic | 4096 | 4567 | 4567
system.limits.open_files | 4096 | 4567 | 4567
system.limits.frame_bytes | "128 MiB" | "64 MiB" | 67108864
system.limits.frames_bytes | "512 MiB" | "64 MiB" | 67108864
system.limits.unauthenticated_bytes | "16 MiB" | "4 MiB" | 4194304
system.limits.responses_bytes | "256 MiB" | "32 MiB" | 33554432
system.limits.connections | 16384 | 17 | 17
system.limits.silence_before_login | "1 m" | "7 s" | 7.0
system.limits.frame_time | "30 s" | "7 s" | 7.0
system.limits.session_answers | 16 | 7 | 7
system.limits.session_memory | "1 m" | "7 s" | 7.0
system.limits.waiting_polls | 65536 | 7 | 7
system.limits.waiting_polls_per_user | 32768 | 7 | 7
system.limits.producers | 1000 | 7 | 7
system.limits.producer_answers | 16 | 7 | 7
system.limits.stop_time | "30 s" | "7 s" | 7.0
system.protocol.oldest | "0.11.0" | "0.10.1" | 10241
system.protocol.newest | "0.12.2" | "0.12.3" | 12291
system.limits.deduplication_bytes | "1 GiB" | "32 MiB" | 33554432
system.limits.index_cache_bytes | "64 MiB" | "32 MiB" | 33554432
data_maintenance.archiver.interval | "" | "1m 30s" | 90.0
data_maintenance.archiver.bandwidth | "0" | "32 MiB" | 33554432
data_maintenance.archiver.local_limit | "" | "32 MiB" | 33554432
data_maintenance.archiver.cache_size | "1 GiB" | "32 MiB" | 33554432
data_maintenance.archiver.request_timeout | "30 s" | "7 s" | 7.0
"""
ROWS = [tuple(part.strip() for part in line.split(" | ")) for line in TABLE.strip().splitlines()]
ACCEPTED = [row for row in ROWS if ALIASES.get(row[0], row[0]) not in UNSUPPORTED]

BASE64 = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDEyMzQ1Njc4OQ=="

# Other keys that must be set for the other value to be valid.
BESIDES = {
    "tcp.ipv6": {"tcp.address": "[::1]:8090"},
    "websocket.tls.enabled": {"websocket.address": "127.0.0.1:8092"},
    "http.jwt.use_base64_secret": {"http.jwt.encoding_secret": BASE64, "http.jwt.decoding_secret": BASE64},
    "http.jwt.trusted_issuers[]": {
        "http.jwt.trusted_issuers.0.issuer": "a",
        "http.jwt.trusted_issuers.0.audience": "b",
        "http.jwt.trusted_issuers.0.jwks_url": "https://c",
        "http.jwt.trusted_issuers.0.user_id": "1",
    },
    "system.segment.archive_expired": {"data_maintenance.archiver.enabled": "true"},
    "http.cors.allow_credentials": {"http.cors.allowed_origins": "[https://a]"},
}


def variable_of(name: str) -> str:
    return "IGGY_" + name.replace("[]", ".0").replace(".", "_").upper()


def besides(name: str) -> dict[str, str]:
    native = ALIASES.get(name, name)
    found = BESIDES.get(native) or BESIDES.get(native.rpartition(".")[0], {})
    return {variable_of(other): value for other, value in found.items() if other != native.replace("[]", ".0")}


def as_toml(name: str, value: str) -> str:
    """A file with only this key; a list of tables gets its first table."""
    table, listed, key = name.partition("[].")
    if listed:
        return f"[[{table}]]\n{key} = {value}\n"
    table, _, key = name.rpartition(".")
    return f"[{table}]\n{key} = {value}\n"


def as_text(value: str) -> str:
    """The text of a variable: without quotes, lists as [a,b]."""
    return value.replace('"', "").replace(", ", ",")


def value_of(config: Config, name: str) -> Any:
    native = ALIASES.get(name, name)
    table, listed, key = native.partition("[].")
    value = attrgetter(key)(attrgetter(table)(config)[0]) if listed else attrgetter(native)(config)
    return str(value) if isinstance(value, Address) else value.text if isinstance(value, Allocation) else value


def test_the_table_lists_every_accepted_name() -> None:
    assert {row[0] for row in ROWS} == set(NAMES)


@pytest.mark.parametrize(("name", "default", "_other", "_seen"), ROWS, ids=[row[0] for row in ROWS])
def test_an_unset_key_has_its_default(name: str, default: str, _other: str, _seen: str) -> None:
    key = KEYS[ALIASES.get(name, name)]
    assert literal(key.format.write(key.value)) == default


@pytest.mark.parametrize(("name", "_default", "other", "seen"), ACCEPTED, ids=[row[0] for row in ACCEPTED])
def test_a_key_takes_its_value_from_the_file(start: Any, name: str, _default: str, other: str, seen: str) -> None:
    loaded = start(as_toml(name, other), **besides(name))
    assert value_of(loaded.config, name) == ast.literal_eval(seen)
    assert loaded.origins[ALIASES.get(name, name).replace("[]", ".0")] == "server.toml"
    assert loaded.warnings == ()


@pytest.mark.parametrize(("name", "_default", "other", "seen"), ACCEPTED, ids=[row[0] for row in ACCEPTED])
def test_a_key_takes_its_value_from_its_variable(start: Any, name: str, _default: str, other: str, seen: str) -> None:
    variable = variable_of(name)
    loaded = start(**besides(name) | {variable: as_text(other)})
    assert value_of(loaded.config, name) == ast.literal_eval(seen)
    assert loaded.origins[ALIASES.get(name, name).replace("[]", ".0")] == variable
    assert loaded.warnings == ()


@pytest.mark.parametrize("name", [row[0] for row in ROWS if row not in ACCEPTED])
def test_an_unsupported_value_is_refused_with_the_key_and_the_reason(start: Any, name: str) -> None:
    (other,) = [row[2] for row in ROWS if row[0] == name]
    key = ALIASES.get(name, name)
    where, reason = re.escape(f"{variable_of(name)}: {key}"), re.escape(UNSUPPORTED[key])
    with pytest.raises(ConfigError, match=rf"^{where} = .+ is not supported: {reason}$"):
        start(**{variable_of(name): as_text(other)})
    (default,) = [row[1] for row in ROWS if row[0] == name]
    assert start(as_toml(name, default)).config == Config()


def test_a_printed_value_reads_back_the_same() -> None:
    for name, _, other, _ in ROWS:
        form = KEYS[ALIASES.get(name, name)].format
        value = form.parse(ast.literal_eval(other.replace("true", "True").replace("false", "False")))
        assert form.secret or form.parse(form.write(value)) == value, name


def test_every_key_has_one_complete_sentence() -> None:
    for name, key in KEYS.items():
        assert re.fullmatch(r"[A-Z].*[.]", key.sentence), name


def test_every_section_has_a_description() -> None:
    def check(section: type[Section]) -> None:
        assert section.__doc__, section
        assert set(sentences(section)) == set(fields(section).formats), section
        for inner in (*fields(section).sections.values(), *fields(section).lists.values()):
            check(inner)

    check(Config)


def test_no_two_keys_share_a_variable() -> None:
    spellings = sum(10 ** name.count("[]") for name in ACCEPTED_NAMES)
    assert len(VARIABLES.keys() - {"IGGY_PATH"}) == spellings
    assert {canonical(name) for name in VARIABLES.values()} == set(ACCEPTED_NAMES)


def test_every_alias_stands_for_a_key() -> None:
    assert set(ALIASES.values()) <= set(KEYS)
    assert not set(ALIASES) & set(KEYS)


def test_the_configuration_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Config().http.enabled = False  # type: ignore[misc]
