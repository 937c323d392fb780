"""An invalid setting stops the start with one line: where it is, which key, and what would be valid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from whippet.app.config import ConfigError, load

IN_A_FILE = {
    "[system.segment]\nsise = 1": "server.toml: system.segment.sise: unknown key; did you mean system.segment.size?",
    "[system.segmnt]\nsize = 1": "server.toml: system.segmnt: unknown section; did you mean system.segment?",
    "[system.segmnt]": "server.toml: system.segmnt: unknown section; did you mean system.segment?",
    "zzz = 1": "server.toml: zzz: unknown key; `whippet config --docs` lists all keys",
    '"a\\nb" = 1': "server.toml: a b: unknown key; `whippet config --docs` lists all keys",
    "[topic]\nmax_topic_sise = 1": "server.toml: topic.max_topic_sise: unknown key; did you mean topic.max_topic_size?",
    "[http]\nenabled = 'yes'": "server.toml: http.enabled: 'yes': true or false is needed",
    "[http]\nenabled = 1": "server.toml: http.enabled: 1: true or false is needed",
    "[http.jwt]\nissuer = 3": "server.toml: http.jwt.issuer: 3: a text is needed",
    "[system]\npath = ''": "server.toml: system.path: '': a text, not empty, is needed",
    "[system.segment]\nsize = '2 GiB'": "server.toml: system.segment.size: '2 GiB': a size such as 512 MiB or 1 GiB, "
    "at least 512 bytes, at most 1 GiB and a multiple of 512 bytes, is needed",
    "[system.segment.size]\na = 1": "server.toml: system.segment.size: {'a': 1}: a size such as 512 MiB or 1 GiB, "
    "at least 512 bytes, at most 1 GiB and a multiple of 512 bytes, is needed",
    "[topic]\nmax_topic_size = 'x'": "server.toml: topic.max_topic_size: 'x': "
    "a size such as 10 GB, or unlimited, is needed",
    "[system.compression]\ndefault_algorithm = 'lz4'": "server.toml: system.compression.default_algorithm: 'lz4': "
    "none, gzip or zstd is needed",
    "[system.partition]\nmessages_required_to_save = 0": "server.toml: system.partition.messages_required_to_save: 0: "
    "an integer, at least 1, is needed",
    "[encryption]\nkey = 12345": "server.toml: encryption.key: ******: a text is needed",
    "http = 1": "server.toml: http: must be a table headed [http]",
    "[http.jwt]\ntrusted_issuers = 'x'": "server.toml: http.jwt.trusted_issuers: "
    "must be tables headed [[http.jwt.trusted_issuers]]",
    "[[http.jwt.trusted_issuers]]\nisuer = 'x'": "server.toml: http.jwt.trusted_issuers.0.isuer: unknown key; "
    "did you mean http.jwt.trusted_issuers[].issuer?",
}

# Python's own sentence follows, which differs between versions.
NOT_TOML = {
    "[http\nenabled = true": "server.toml: line 1, column 6: ",
    "[http]\nenabled = true\nenabled = false": "server.toml: line 3, column 16: ",
    "a = [\n1,": "server.toml: line 2, column 3: ",
}

IN_A_VARIABLE = {
    ("IGGY_SYSTEM_SEGMENT_SIZE", "banana"): "IGGY_SYSTEM_SEGMENT_SIZE: 'banana': a size such as 512 MiB or 1 GiB, "
    "at least 512 bytes, at most 1 GiB and a multiple of 512 bytes, is needed",
    ("IGGY_TOPIC_MAX_TOPIC_SIZE", "big"): "IGGY_TOPIC_MAX_TOPIC_SIZE: 'big': "
    "a size such as 10 GB, or unlimited, is needed",
    ("IGGY_HTTP_ENABLED", "1"): "IGGY_HTTP_ENABLED: '1': true or false is needed",
    ("IGGY_HTTP_JWT_VALID_ISSUERS", "a"): "IGGY_HTTP_JWT_VALID_ISSUERS: 'a': a list of texts such as [a, b] is needed",
    ("IGGY_CLUSTER_NODE_OTHERS_0_PORTS_TCP", "0"): "IGGY_CLUSTER_NODE_OTHERS_0_PORTS_TCP: 0: "
    "an integer or an empty text, from 1 to 65535, is needed",
    ("IGGY_CLUSTER_NODE_OTHERS_1_NAME", "b"): "IGGY_CLUSTER_NODE_OTHERS_1_NAME: cluster.node.others.0 is missing; "
    "number them from 0 without gaps",
    ("IGGY_SYSTEM_SEGMENT_SISE", "1"): "IGGY_SYSTEM_SEGMENT_SISE: unknown variable; "
    "did you mean IGGY_SYSTEM_SEGMENT_SIZE?",
    ("IGGY_ROOT_PASWORD", "x"): "IGGY_ROOT_PASWORD: unknown variable; did you mean IGGY_ROOT_PASSWORD?",
    ("IGGY_SYSTEM_TOPIC_MESSAGE_EXPIRY", "server_default"): "IGGY_SYSTEM_TOPIC_MESSAGE_EXPIRY: 'server_default': "
    "a duration such as 1 h or 7 days, or none for never, is needed",
}

# Settings that are valid one by one, the variable that the error names, and what its sentence must contain.
COMBINATIONS: list[tuple[dict[str, str], str, str]] = [
    ({"MESSAGE_SAVER_INTERVAL": "0"}, "MESSAGE_SAVER_INTERVAL", "message_saver.enabled"),
    ({"DATA_MAINTENANCE_MESSAGES_INTERVAL": "0"}, "DATA_MAINTENANCE_MESSAGES_INTERVAL", "cleaner_enabled"),
    ({"MESSAGE_CLEANER_INTERVAL": "0"}, "MESSAGE_CLEANER_INTERVAL", "data_maintenance.messages.interval"),
    ({"PERSONAL_ACCESS_TOKEN_CLEANER_INTERVAL": "0"}, "PERSONAL_ACCESS_TOKEN_CLEANER_INTERVAL", "cleaner.enabled"),
    ({"HEARTBEAT_INTERVAL": "0", "HEARTBEAT_ENABLED": "true"}, "HEARTBEAT_INTERVAL", "heartbeat.enabled"),
    ({"SYSTEM_TOPIC_MAX_SIZE": "1 MiB"}, "SYSTEM_TOPIC_MAX_SIZE", "system.segment.size (1 GiB)"),
    ({"SYSTEM_LOGGING_MAX_TOTAL_SIZE": "1 MB"}, "SYSTEM_LOGGING_MAX_TOTAL_SIZE", "max_file_size (500 MB)"),
    ({"SYSTEM_LOGGING_MAX_FILE_SIZE": "5 GB"}, "SYSTEM_LOGGING_MAX_FILE_SIZE", "system.logging.max_total_size"),
    ({"SYSTEM_MEMORY_POOL_SIZE": "1 MiB"}, "SYSTEM_MEMORY_POOL_SIZE", "512 MiB"),
    ({"SYSTEM_MEMORY_POOL_SIZE": "536870913"}, "SYSTEM_MEMORY_POOL_SIZE", "4 KiB"),
    ({"SYSTEM_MEMORY_POOL_BUCKET_CAPACITY": "64"}, "SYSTEM_MEMORY_POOL_BUCKET_CAPACITY", "power of two"),
    ({"SYSTEM_MEMORY_POOL_BUCKET_CAPACITY": "129"}, "SYSTEM_MEMORY_POOL_BUCKET_CAPACITY", "power of two"),
    ({"SYSTEM_LIMITS_BATCH_BYTES": "1 MiB"}, "SYSTEM_LIMITS_BATCH_BYTES", "system.limits.payload_bytes"),
    ({"SYSTEM_LIMITS_PAYLOAD_BYTES": "1 GiB"}, "SYSTEM_LIMITS_PAYLOAD_BYTES", "system.limits.batch_bytes"),
    ({"SYSTEM_LIMITS_BATCH_BYTES": "65 MiB"}, "SYSTEM_LIMITS_BATCH_BYTES", "partition_unflushed_bytes"),
    ({"SYSTEM_LIMITS_UNFLUSHED_BYTES": "1 MiB"}, "SYSTEM_LIMITS_UNFLUSHED_BYTES", "partition_unflushed_bytes"),
    (
        {"HTTP_JWT_ENCODING_SECRET": "a!", "HTTP_JWT_USE_BASE64_SECRET": "true"},
        "HTTP_JWT_ENCODING_SECRET",
        "must be base64",
    ),
    ({"HTTP_LEASES_EXPIRY": "11 m"}, "HTTP_LEASES_EXPIRY", "to http.leases.expiry_max (10 m)"),
    ({"HTTP_LEASES_EXPIRY_MIN": "31 s"}, "HTTP_LEASES_EXPIRY_MIN", "http.leases.expiry (30 s)"),
    ({"WEBSOCKET_TLS_ENABLED": "true"}, "WEBSOCKET_TLS_ENABLED", "websocket.address"),
    ({"TCP_IPV6": "true"}, "TCP_IPV6", "tcp.address is 127.0.0.1:8090"),
    ({"TCP_ADDRESS": "127.0.0.1:3000"}, "TCP_ADDRESS", "http.address"),
    ({"TCP_ADDRESS": "0.0.0.0:3000"}, "TCP_ADDRESS", "http.address"),
    ({"WEBSOCKET_ADDRESS": "127.0.0.1:8090"}, "WEBSOCKET_ADDRESS", "tcp.address"),
    ({"METRICS_ENABLED": "true", "METRICS_ENDPOINT": "0.0.0.0:3000"}, "METRICS_ENDPOINT", "http.address"),
    ({"HTTP_WEB_UI": "true", "HTTP_METRICS_ENDPOINT": "/ui/metrics"}, "HTTP_METRICS_ENDPOINT", "the dashboard"),
    (
        {"HTTP_JWT_TRUSTED_ISSUERS_0_ISSUER": "https://a.example"},
        "HTTP_JWT_TRUSTED_ISSUERS_0_ISSUER",
        "trusted_issuers.0.audience",
    ),
    (
        {
            "HTTP_JWT_TRUSTED_ISSUERS_0_ISSUER": "https://a.example",
            "HTTP_JWT_TRUSTED_ISSUERS_0_AUDIENCE": "a",
            "HTTP_JWT_TRUSTED_ISSUERS_0_JWKS_URL": "file:///etc/passwd",
            "HTTP_JWT_TRUSTED_ISSUERS_0_USER_ID": "1",
        },
        "HTTP_JWT_TRUSTED_ISSUERS_0_JWKS_URL",
        "https://",
    ),
    (
        {"HTTP_CORS_ALLOW_CREDENTIALS": "true", "HTTP_CORS_ALLOWED_ORIGINS": "[*]"},
        "HTTP_CORS_ALLOW_CREDENTIALS",
        "http.cors.allowed_origins",
    ),
    ({"HTTP_JWT_ENCODING_SECRET": "a"}, "HTTP_JWT_ENCODING_SECRET", "too short: it has 1 bytes and needs 32"),
    ({"HTTP_JWT_DECODING_SECRET": "x" * 31}, "HTTP_JWT_DECODING_SECRET", "too short"),
    (
        {"HTTP_JWT_ENCODING_SECRET": "QUJD" * 10, "HTTP_JWT_USE_BASE64_SECRET": "true"},
        "HTTP_JWT_ENCODING_SECRET",
        "it has 30 bytes",
    ),
    ({"HTTP_CORS_ALLOWED_ORIGINS": "[a, *]"}, "HTTP_CORS_ALLOWED_ORIGINS", "the first entry"),
    (
        {"CLUSTER_ENABLED": "true", "CLUSTER_NODE_OTHERS_0_NAME": "b"},
        "CLUSTER_NODE_OTHERS_0_NAME",
        "cluster.node.others is not supported while cluster.enabled is true",
    ),
    *(
        (
            {"DATA_MAINTENANCE_ARCHIVER_ENABLED": "true", "DATA_MAINTENANCE_ARCHIVER_KIND": kind, **more},
            blamed,
            f"data_maintenance.archiver.{named}",
        )
        for kind, more, blamed, named in (
            ("gcs", {}, "DATA_MAINTENANCE_ARCHIVER_KIND", "gcs.bucket is needed"),
            (
                "azure",
                {"DATA_MAINTENANCE_ARCHIVER_AZURE_CONTAINER": "c"},
                "DATA_MAINTENANCE_ARCHIVER_KIND",
                "azure.account is needed",
            ),
            (
                "azure",
                {"DATA_MAINTENANCE_ARCHIVER_AZURE_ACCOUNT": "a"},
                "DATA_MAINTENANCE_ARCHIVER_KIND",
                "azure.container is needed",
            ),
            (
                "azure",
                {
                    "DATA_MAINTENANCE_ARCHIVER_AZURE_ACCOUNT": "a",
                    "DATA_MAINTENANCE_ARCHIVER_AZURE_CONTAINER": "c",
                    "DATA_MAINTENANCE_ARCHIVER_AZURE_ENDPOINT": "e",
                },
                "DATA_MAINTENANCE_ARCHIVER_AZURE_ENDPOINT",
                "azure.endpoint must be empty, or begin with http",
            ),
        )
    ),
]

EMPTIED = {
    '[quic.certificate]\nself_signed = false\ncert_file = ""': "server.toml: quic.certificate.cert_file: "
    "quic.certificate.cert_file is needed while quic.certificate.self_signed is false",
    '[quic.certificate]\nself_signed = false\nkey_file = " "': "server.toml: quic.certificate.key_file: "
    "quic.certificate.key_file is needed",
    '[cluster]\nenabled = true\nname = ""': "server.toml: cluster.name: cluster.name must not be empty",
    '[cluster]\nenabled = true\nnode.current.ip = ""': "server.toml: cluster.node.current.ip: cluster.node.current.ip",
}

POSSIBLE = [
    {"TCP_IPV6": "true", "TCP_ADDRESS": "[::]:8090"},
    {"TCP_IPV6": "true", "TCP_ADDRESS": "localhost:8090"},
    {"TCP_IPV6": "true", "TCP_ENABLED": "false"},
    {"WEBSOCKET_ADDRESS": "127.0.0.1:3000"},
    {"HTTP_ENABLED": "false", "TCP_ADDRESS": "127.0.0.1:8091"},
    {"WEBSOCKET_TLS_ENABLED": "true", "HTTP_TLS_ENABLED": "true"},
    {"TCP_ADDRESS": "127.0.0.1:0", "HTTP_ADDRESS": "127.0.0.1:0", "METRICS_ENABLED": "true"},
    {"TCP_ADDRESS": "10.0.0.1:3000"},
    {"MESSAGE_SAVER_ENABLED": "false", "MESSAGE_SAVER_INTERVAL": "0"},
    {"SYSTEM_MEMORY_POOL_ENABLED": "false", "SYSTEM_MEMORY_POOL_SIZE": "1"},
    {"SYSTEM_LOGGING_MAX_TOTAL_SIZE": "0"},
    {"SYSTEM_SEGMENT_SIZE": "5120", "SYSTEM_TOPIC_MAX_SIZE": "5120"},
]


def refusal(folder: Path, toml: str = "", **variables: str) -> str:
    if toml:
        (folder / "server.toml").write_text(toml)
    with pytest.raises(ConfigError) as caught:
        load(variables, str(folder))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(("toml", "line"), IN_A_FILE.items())
def test_an_invalid_file_is_refused_with_its_name_the_key_and_what_would_be_valid(
    tmp_path: Path, toml: str, line: str
) -> None:
    assert refusal(tmp_path, toml) == line


@pytest.mark.parametrize(("toml", "beginning"), NOT_TOML.items())
def test_a_file_that_is_not_toml_is_refused_with_line_and_column(tmp_path: Path, toml: str, beginning: str) -> None:
    line = refusal(tmp_path, toml)
    assert line.startswith(beginning)
    assert len(line) > len(beginning)


@pytest.mark.parametrize(("variable", "line"), IN_A_VARIABLE.items(), ids=str)
def test_an_invalid_variable_is_refused_with_its_name_and_what_would_be_valid(
    tmp_path: Path, variable: tuple[str, str], line: str
) -> None:
    assert refusal(tmp_path, **dict([variable])) == line


@pytest.mark.parametrize(("settings", "blamed", "named"), COMBINATIONS)
def test_an_impossible_combination_names_the_key_that_was_set(
    tmp_path: Path, settings: dict[str, str], blamed: str, named: str
) -> None:
    line = refusal(tmp_path, **{f"IGGY_{name}": value for name, value in settings.items()})
    assert line.startswith(f"IGGY_{blamed}: ")
    assert named in line
    assert "c2hvcnQ=" not in line


@pytest.mark.parametrize(("toml", "beginning"), EMPTIED.items())
def test_an_empty_text_is_refused_where_text_is_required(tmp_path: Path, toml: str, beginning: str) -> None:
    assert refusal(tmp_path, toml).startswith(beginning)


@pytest.mark.parametrize("settings", POSSIBLE)
def test_an_unusual_but_valid_combination_is_accepted(start: Any, settings: dict[str, str]) -> None:
    start(**{f"IGGY_{name}": value for name, value in settings.items()})


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "server.toml").write_bytes(b"[http]\n\xff")
    assert refusal(tmp_path) == "server.toml: byte 7 is not UTF-8"


def test_the_refusal_of_a_long_value_does_not_repeat_all_of_it(tmp_path: Path) -> None:
    assert len(refusal(tmp_path, IGGY_HTTP_ENABLED="x" * 10_000)) < 200


def test_an_invalid_variable_in_a_dotenv_file_is_refused_with_the_name_of_the_file(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("IGGY_HTTP_ENABLED=perhaps")
    assert refusal(tmp_path) == f"IGGY_HTTP_ENABLED in {tmp_path / '.env'}: 'perhaps': true or false is needed"
