"""`cluster.nodes`, the roster of newer Iggy releases: one node is this server, and more are refused."""

from __future__ import annotations

from typing import Any

import pytest

from whippet.app.config import ConfigError, load, render
from whippet.app.config.formats import Address

ROSTER = {
    "IGGY_CLUSTER_ENABLED": "true",
    "IGGY_CLUSTER_NODES_0_NAME": "node-0",
    "IGGY_CLUSTER_NODES_0_IP": "192.0.2.7",
    "IGGY_CLUSTER_NODES_0_REPLICA_ID": "3",
    "IGGY_CLUSTER_NODES_0_PORTS_TCP": "1001",
    "IGGY_CLUSTER_NODES_0_PORTS_TCP_REPLICA": "1005",
    "IGGY_CLUSTER_NODES_0_PORTS_QUIC": "1002",
    "IGGY_CLUSTER_NODES_0_PORTS_HTTP": "1003",
    "IGGY_CLUSTER_NODES_0_PORTS_WEBSOCKET": "1004",
}
"""The settings with which Iggy's test harness starts a server."""
TWO = """
[cluster]
enabled = true
nodes = [
    { name = "a", ip = "127.0.0.1", replica_id = 0, ports = { tcp = 8090, tcp_replica = 9090 } },
    { name = "b", ip = "127.0.0.1", replica_id = 1, ports = { tcp = 8091, tcp_replica = 9091 } },
]
"""


def test_the_only_node_of_a_roster_is_this_server_on_the_ports_of_the_roster(start: Any) -> None:
    loaded = start(IGGY_TCP_ADDRESS="0.0.0.0:8090", **ROSTER)
    config = loaded.config
    assert config.tcp.address == Address("0.0.0.0", 1001)
    assert config.quic.address == Address("127.0.0.1", 1002)
    assert config.http.address == Address("127.0.0.1", 1003)
    assert config.websocket.address == Address("127.0.0.1", 1004)
    assert (config.cluster.node.current.name, config.cluster.node.current.ip) == ("node-0", "192.0.2.7")
    assert loaded.origins["tcp.address"] == "IGGY_CLUSTER_NODES_0_PORTS_TCP"
    assert loaded.without_effect == (
        "IGGY_CLUSTER_NODES_0_PORTS_TCP_REPLICA: cluster.nodes[].ports.tcp_replica has no effect: this server "
        "exchanges nothing with other nodes",
    )


def test_a_port_missing_in_the_roster_is_that_of_the_listener(start: Any) -> None:
    config = start('[cluster]\nenabled = true\nnodes = [{ name = "a", ip = "::1", replica_id = 0 }]').config
    assert config.tcp.address == Address("127.0.0.1", 8090)
    assert config.websocket.address is None


def test_clients_receive_the_advertised_address(start: Any) -> None:
    node = '{ name = "a", ip = "10.0.0.1", advertised_address = "a.example", replica_id = 0 }'
    config = start(f"[cluster]\nenabled = true\nnodes = [{node}]").config
    assert config.cluster.node.current.ip == "a.example"


def test_a_roster_has_no_effect_while_the_cluster_is_disabled(start: Any) -> None:
    loaded = start(TWO.replace("true", "false"))
    assert len(loaded.config.cluster.nodes) == 2
    assert loaded.config.tcp.address == Address("127.0.0.1", 8090)
    assert loaded.config.cluster.node.current.name == "iggy-node-1"


def test_a_printed_roster_has_the_same_meaning(start: Any, tmp_path: Any) -> None:
    loaded = start(**ROSTER)
    (tmp_path / "printed.toml").write_text(render.toml(loaded))
    assert load({"IGGY_CONFIG_PATH": "printed.toml"}, str(tmp_path)).config == loaded.config


def test_a_roster_of_several_nodes_is_refused(start: Any) -> None:
    with pytest.raises(ConfigError, match=r"^server.toml: cluster.nodes.1.name: cluster.nodes has 2 nodes, which"):
        start(TWO)


@pytest.mark.parametrize("missing", ["NAME", "IP"])
def test_a_node_needs_a_name_and_an_address(start: Any, missing: str) -> None:
    del (variables := dict(ROSTER))[f"IGGY_CLUSTER_NODES_0_{missing}"]
    with pytest.raises(ConfigError, match=rf"cluster.nodes.0.{missing.lower()} is needed"):
        start(**variables)


def test_two_listeners_with_the_same_port_in_the_roster_are_refused(start: Any) -> None:
    with pytest.raises(ConfigError, match="both use TCP port 1003"):
        start(**ROSTER | {"IGGY_CLUSTER_NODES_0_PORTS_TCP": "1003"})


@pytest.mark.parametrize("replica_id", [None, 3])
def test_the_replica_id_on_the_command_line_matches_the_node(tmp_path: Any, replica_id: int | None) -> None:
    assert load(ROSTER, str(tmp_path), replica_id).config.cluster.enabled


def test_another_replica_id_on_the_command_line_is_refused(tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match=r"^--replica-id 0: the only node of cluster.nodes has replica_id = 3$"):
        load(ROSTER, str(tmp_path), 0)
    assert load({}, str(tmp_path), 0).origins["tcp.address"] == "default"
