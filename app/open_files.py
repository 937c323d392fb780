"""Makes the configured numbers of connections and files fit into the open files that the operating system allows.

Where they do not fit, all limits are lowered in proportion: then one connection too many is refused by a limit, and
does not take the descriptor that a partition needs.
"""

from __future__ import annotations

import msgspec

from whippet.app.config import Config

OTHER = 64
"""Descriptors of listeners, threads, logs and freshly accepted connections."""
OPEN_FILES_MIN = 16


def needed(config: Config) -> int:
    return sum(_counts(config).values()) + OTHER


def fit_limits(config: Config, allowed: int) -> tuple[Config, str | None]:
    """Returns the configuration with limits that fit, and a warning if they had to be lowered."""
    wanted = needed(config)
    if wanted <= allowed:
        return config, None
    part = (allowed - min(OTHER, allowed // 2)) / (wanted - OTHER)
    limits, http = config.system.limits, config.http
    connections = max(int(limits.connections * part), 1)
    over_http = max(int(http.limits.connections * part), 1)
    open_files = max(int(limits.open_files * part), OPEN_FILES_MIN)
    replace = msgspec.structs.replace
    changed = replace(
        config,
        http=replace(http, limits=replace(http.limits, connections=over_http)),
        system=replace(config.system, limits=replace(limits, connections=connections, open_files=open_files)),
    )
    return changed, (
        f"the operating system allows {allowed} open files (ulimit -n), and {wanted} may be needed: "
        f"system.limits.connections = {limits.connections} counts as {connections}, "
        f"http.limits.connections = {http.limits.connections} as {over_http}, "
        f"system.limits.open_files = {limits.open_files} as {open_files}"
    )


def _counts(config: Config) -> dict[str, int]:
    """The maximum that each limit allows, over all listeners that it applies to."""
    separate = config.websocket.address not in {None, config.http.address if config.http.enabled else None}
    websocket = config.websocket.enabled and (config.http.enabled or separate)
    binary_listeners = config.tcp.enabled + websocket
    http_listeners = config.http.enabled + config.metrics.enabled + (websocket and separate)
    return {
        "system.limits.connections": binary_listeners * config.system.limits.connections,
        "http.limits.connections": http_listeners * config.http.limits.connections,
        "system.limits.open_files": config.system.limits.open_files,
    }
