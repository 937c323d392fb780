"""The precedence of sources, where files are searched for, and older spellings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from whippet.app.config import ConfigError, load
from whippet.app.config.formats import Address


def test_defaults_apply_if_nothing_is_set(start: Any) -> None:
    loaded = start()
    assert loaded.file is None
    assert loaded.warnings == ()
    assert set(loaded.origins.values()) == {"default"}


def test_a_variable_overrides_the_file(start: Any) -> None:
    loaded = start('[http]\naddress = "127.0.0.1:1"\nweb_ui = true', IGGY_HTTP_ADDRESS="127.0.0.1:2")
    assert loaded.config.http.address == Address("127.0.0.1", 2)
    assert loaded.config.http.web_ui is True
    assert loaded.origins["http.address"] == "IGGY_HTTP_ADDRESS"
    assert loaded.origins["http.web_ui"] == "server.toml"
    assert loaded.origins["http.enabled"] == "default"


def test_an_empty_variable_is_ignored(start: Any) -> None:
    assert start(IGGY_HTTP_ADDRESS="").config.http.address == Address("127.0.0.1", 3000)


def test_config_toml_is_read_if_there_is_no_server_toml(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[system]\npath = "there"')
    assert load({}, str(tmp_path)).file == "config.toml"
    (tmp_path / "server.toml").write_text('[system]\npath = "here"')
    assert load({}, str(tmp_path)).config.system.path == "here"


def test_a_named_file_is_also_searched_for_in_parent_folders(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (inner / "server.toml").write_text('[system]\npath = "not this"')
    (tmp_path / "mine.toml").write_text('[system]\npath = "outer"')
    loaded = load({"IGGY_CONFIG_PATH": "mine.toml"}, str(inner))
    assert (loaded.config.system.path, loaded.file) == ("outer", str(tmp_path / "mine.toml"))
    (inner / "mine.toml").write_text('[system]\npath = "inner"')
    loaded = load({"IGGY_CONFIG_PATH": "mine.toml"}, str(inner))
    assert (loaded.config.system.path, loaded.file) == ("inner", "mine.toml")
    assert load({"IGGY_CONFIG_PATH": str(tmp_path / "mine.toml")}, "/").config.system.path == "outer"


def test_the_environment_overrides_a_dotenv_file(tmp_path: Path) -> None:
    inner = tmp_path / "a"
    inner.mkdir()
    (tmp_path / ".env").write_text(
        "# comment\nexport IGGY_SYSTEM_PATH='from env # file'\nIGGY_HTTP_WEB_UI = true # why\n"
        'IGGY_CLUSTER_NAME="a\\"b"\nIGGY_ROOT_PASSWORD=hush\nOTHER=\nIGGY_TCP_IPV6=true\nno variable\n'
    )
    loaded = load({"IGGY_TCP_IPV6": "false"}, str(inner))
    assert loaded.config.system.path == "from env # file"
    assert loaded.config.http.web_ui is True
    assert loaded.config.cluster.name == 'a"b'
    assert loaded.config.tcp.ipv6 is False
    assert loaded.origins["system.path"] == f"IGGY_SYSTEM_PATH in {tmp_path / '.env'}"
    assert loaded.environment == {"IGGY_ROOT_PASSWORD": "hush"}
    assert loaded.warnings == (f"{tmp_path / '.env'}: line 8: not NAME=value; ignored",)


def test_a_named_env_file_is_the_only_one_that_is_read(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("IGGY_SYSTEM_PATH=not-this")
    (tmp_path / "production.env").write_text("IGGY_SYSTEM_PATH=this\nIGGY_CONFIG_PATH=mine.toml")
    (tmp_path / "mine.toml").write_text("[http]\nweb_ui = true")
    loaded = load({"IGGY_ENV_PATH": "production.env"}, str(tmp_path))
    assert loaded.config.system.path == "this"
    assert loaded.file == "mine.toml"


def test_a_folder_called_dotenv_is_ignored(tmp_path: Path) -> None:
    (tmp_path / ".env").mkdir()
    assert load({}, str(tmp_path)).warnings == ()


@pytest.mark.parametrize("variable", ["IGGY_CONFIG_PATH", "IGGY_ENV_PATH"])
def test_a_named_file_that_is_missing_is_refused(tmp_path: Path, variable: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{variable}: 'gone': no such file"):
        load({variable: "gone"}, str(tmp_path))


def test_a_key_overrides_its_alias_in_the_same_source(start: Any) -> None:
    loaded = start('[topic]\nmax_topic_size = "10 GB"\n[system.topic]\nmax_size = "20 GB"')
    assert loaded.config.system.topic.max_size == 20 * 10**9
    assert loaded.warnings == (
        "server.toml: topic.max_topic_size: ignored, because server.toml: system.topic.max_size is set",
    )
    loaded = start(IGGY_TOPIC_MAX_TOPIC_SIZE="30 GB", IGGY_SYSTEM_TOPIC_MAX_SIZE="40 GB")
    assert loaded.config.system.topic.max_size == 40 * 10**9


def test_an_alias_in_a_variable_overrides_the_key_in_the_file(start: Any) -> None:
    loaded = start('[system.topic]\nmax_size = "20 GB"', IGGY_TOPIC_MAX_TOPIC_SIZE="30 GB")
    assert loaded.config.system.topic.max_size == 30 * 10**9
    assert loaded.origins["system.topic.max_size"] == "IGGY_TOPIC_MAX_TOPIC_SIZE"


def test_tables_in_the_file_and_in_variables_are_merged_by_number(start: Any) -> None:
    loaded = start(
        '[[cluster.node.others]]\nname = "b"\nip = "10.0.0.2"\nports = { tcp = 1, http = 2 }',
        IGGY_CLUSTER_NODE_OTHERS_0_PORTS_TCP="8091",
        IGGY_CLUSTER_NODE_OTHERS_1_NAME="c",
        IGGY_CLUSTER_NODE_OTHERS_1_IP="10.0.0.3",
    )
    first, second = loaded.config.cluster.node.others
    assert (first.name, first.ip, first.ports.tcp, first.ports.http) == ("b", "10.0.0.2", 8091, 2)
    assert (second.name, second.ip, second.ports.tcp) == ("c", "10.0.0.3", None)
    assert loaded.origins["cluster.node.others.0.ports.tcp"] == "IGGY_CLUSTER_NODE_OTHERS_0_PORTS_TCP"
    assert loaded.origins["cluster.node.others.0.ports.http"] == "server.toml"


def test_a_variable_that_is_a_list_is_split(start: Any) -> None:
    loaded = start(IGGY_HTTP_CORS_ALLOWED_ORIGINS="[https://a.example, https://b.example]")
    assert loaded.config.http.cors.allowed_origins == ("https://a.example", "https://b.example")


def test_variables_of_other_programs_are_ignored(start: Any) -> None:
    foreign = {
        "IGGY_ROOT_USERNAME": "iggy",
        "IGGY_DISPLAY_CONFIG": "1",
        "IGGY_USERNAME": "a",
        "IGGY_PASSWORD": "b",
        "IGGY_TCP_SERVER_ADDRESS": "c",
        "IGGY_CONNECTION_STRING": "iggy://",
        "IGGY_CONNECTORS_CONFIG_PATH": "d",
        "IGGY_CONNECTORS_SINK_X_ENABLED": "true",
        "IGGY_MCP_HTTP_ADDRESS": "e",
        "IGGY_MCP_PERMISSIONS_READ": "true",
        "IGGY_TEST_VERBOSE": "1",
        "IGGY_BENCH_DIR": "f",
        "HTTP_ADDRESS": "g",
    }
    assert start(**foreign).warnings == ()


def test_an_unknown_variable_that_resembles_no_key_causes_a_warning(start: Any) -> None:
    # Kubernetes sets these for a service called iggy.
    loaded = start(IGGY_PORT_8090_TCP_ADDR="10.0.0.1", IGGY_SERVICE_PORT_HTTP="3000", IGGY_FAVOURITE="blue")
    assert loaded.warnings == (
        "IGGY_PORT_8090_TCP_ADDR: unknown variable; ignored",
        "IGGY_SERVICE_PORT_HTTP: unknown variable; ignored",
        "IGGY_FAVOURITE: unknown variable; ignored",
    )


def test_rust_log_sets_the_log_level_if_it_is_valid(start: Any) -> None:
    loaded = start(RUST_LOG="debug", IGGY_SYSTEM_LOGGING_LEVEL="error")
    assert loaded.config.system.logging.level == "debug"
    assert loaded.origins["system.logging.level"] == "RUST_LOG"
    loaded = start(RUST_LOG="hyper=trace", IGGY_SYSTEM_LOGGING_LEVEL="error")
    assert loaded.config.system.logging.level == "error"
    assert loaded.warnings == ("RUST_LOG: 'hyper=trace': not a valid system.logging.level; ignored",)


def test_two_different_token_secrets_cause_a_warning(start: Any) -> None:
    one, two = "1" * 32, "2" * 32
    loaded = start(IGGY_HTTP_JWT_ENCODING_SECRET=one, IGGY_HTTP_JWT_DECODING_SECRET=two)
    assert len(loaded.warnings) == 1
    assert one not in loaded.warnings[0]
    assert start(IGGY_HTTP_JWT_ENCODING_SECRET=one, IGGY_HTTP_JWT_DECODING_SECRET=one).warnings == ()
    assert start(IGGY_HTTP_JWT_ENCODING_SECRET=one).warnings == ()
