"""Keys of Iggy whose feature this server does not have: which values are refused, and which keys are only named in the
log.

Accepting a value whose request is not fulfilled would be a broken promise, so the start is refused with a line that
names the key. The defaults of these keys request nothing, so files with all of Iggy's keys are accepted. Only keys that
tune machinery of Iggy that does not exist here have no effect; the log names those that are set.
"""

from __future__ import annotations

from collections.abc import Iterator

from whippet.app.config.formats import MASK
from whippet.app.config.keys import KEYS, walk
from whippet.app.config.schema import Config

ARCHIVED_TOGETHER = "messages and catalogue are archived together, which data_maintenance.archiver.enabled decides"

UNSUPPORTED = {
    "data_maintenance.messages.archiver_enabled": ARCHIVED_TOGETHER,
    "data_maintenance.state.archiver_enabled": ARCHIVED_TOGETHER,
    "data_maintenance.archiver.s3.tmp_upload_dir": "segments are uploaded from where they are, without a copy",
    "system.backup.path": "this version converts no files, so it makes no backups of them",
    "system.backup.compatibility.path": "this version converts no files, so it makes no backups of them",
}
"""Why any value but the default is refused."""

DETAILS = {
    key: switch
    for switch, table in (
        ("data_maintenance.state.archiver_enabled", "data_maintenance.state."),
        ("cluster.enabled", "cluster.node.others[]."),
    )
    for key in KEYS
    if key.startswith(table) and key not in UNSUPPORTED
}
"""Keys that only describe how something unsupported would be done, each with the switch that enables it. They are
accepted while the switch is off."""

WITHOUT_EFFECT = {
    "tcp.socket_migration": "all connections are served by one event loop",
    "quic.datagram_send_buffer_size": "no protocol here uses QUIC's unreliable datagrams",
    "websocket.write_buffer_size": "frames are written at once, without a buffer for small ones",
    "system.state.max_file_operation_retries": "a change of the catalogue that cannot be written is refused at once",
    "system.segment.cache_time_indexes": "times are part of the one index",
    "system.memory_pool.enabled": "there is no memory pool; system.limits bounds the memory",
    "system.memory_pool.size": "there is no memory pool; system.limits bounds the memory",
    "system.memory_pool.bucket_capacity": "there is no memory pool; system.limits bounds the memory",
}
"""Why a key that tunes Iggy's machinery has no effect. No key about data, security or the network may be here."""


def unsupported(config: Config) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yields problems, as app/config/checks.py does."""
    for key in walk(config):
        if key.name in UNSUPPORTED and key.value != KEYS[key.name].value:
            value = MASK if key.format.secret else key.format.write(key.value)
            value = str(value).lower() if isinstance(value, bool) else value
            yield (key.name,), f"{key.name} = {value} is not supported: {UNSUPPORTED[key.name]}"
    if config.cluster.enabled and config.cluster.node.others:
        keys = ("cluster.node.others.0.name", "cluster.node.others.0.ip", "cluster.enabled")
        yield (
            keys,
            "cluster.node.others is not supported while cluster.enabled is true: this version replicates nothing and "
            "sends clients to no other node",
        )

    if config.cluster.enabled and len(config.cluster.nodes) > 1:
        yield (
            ("cluster.nodes.1.name", "cluster.nodes.1.ip", "cluster.enabled"),
            f"cluster.nodes has {len(config.cluster.nodes)} nodes, which is not supported while cluster.enabled is "
            "true: this version replicates nothing and sends clients to no other node",
        )


def without_effect(name: str) -> str | None:
    """Returns the line for the log about a key that was set; None for a key that has an effect."""
    reason = WITHOUT_EFFECT.get(name)
    return None if reason is None else f"{name} has no effect: {reason}"
