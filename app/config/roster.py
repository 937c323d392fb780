"""Applies `cluster.nodes`, the roster with which newer Iggy releases describe a cluster, to the settings of this node.

If the cluster is enabled, the one node of the roster is this server: it names the node, and its ports are those of the
listeners. `whippet.app.config.support` refuses a longer roster.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from whippet.app.config.error import ConfigError
from whippet.app.config.schema import Config, CurrentNode, RosterNode


def apply(config: Config, replica_id: int | None) -> tuple[Config, Mapping[str, str]]:
    """Returns the configuration with the roster applied, and for each changed key the key of the roster it comes
    from."""
    cluster = config.cluster
    if not cluster.enabled or not cluster.nodes:
        return config, {}
    node, others = cluster.nodes[0], cluster.nodes[1:]
    if replica_id is not None and not others and replica_id != node.replica_id:
        raise ConfigError(
            f"--replica-id {replica_id}: the only node of cluster.nodes has replica_id = {node.replica_id}"
        )
    changed = {"cluster.node.current.name": "cluster.nodes.0.name", "cluster.node.current.ip": _source_of_ip(node)}
    sections = {}
    ports = {"tcp": node.ports.tcp, "quic": node.ports.quic, "http": node.ports.http, "websocket": node.ports.websocket}
    for listener, port in ports.items():
        section = getattr(config, listener)
        if port is not None:
            # WebSocket has no address of its own until it is given one.
            address = msgspec.structs.replace(section.address or config.http.address, port=port)
            sections[listener] = msgspec.structs.replace(section, address=address)
            changed[f"{listener}.address"] = f"cluster.nodes.0.ports.{listener}"
    current = CurrentNode(name=node.name, ip=node.advertised_address or node.ip)
    nodes = msgspec.structs.replace(cluster.node, current=current)
    sections["cluster"] = msgspec.structs.replace(cluster, node=nodes)
    return msgspec.structs.replace(config, **sections), changed


def _source_of_ip(node: RosterNode) -> str:
    return "cluster.nodes.0.advertised_address" if node.advertised_address else "cluster.nodes.0.ip"
