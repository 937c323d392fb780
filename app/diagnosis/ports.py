"""Checks that the listeners' addresses can be used: each is bound for a moment, and never listened on."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import tomllib
from collections.abc import Iterator
from typing import Any, NamedTuple

from whippet.app import current_config
from whippet.app.config import Config
from whippet.app.config.formats import Address
from whippet.app.diagnosis import processes
from whippet.app.diagnosis.finding import Finding, fail, ok, warn

CHECK = "port"


class Listener(NamedTuple):
    setting: str
    kind: str
    """tcp or udp"""
    address: Address
    is_encrypted: bool


def listeners(config: Config) -> list[Listener]:
    found = []
    if config.http.enabled:
        found.append(Listener("http.address", "tcp", config.http.address, config.http.tls.enabled))
    if config.tcp.enabled:
        found.append(Listener("tcp.address", "tcp", config.tcp.address, config.tcp.tls.enabled))
    if config.quic.enabled:
        found.append(Listener("quic.address", "udp", config.quic.address, True))
    own = config.websocket.address
    if config.websocket.enabled and own is not None and not (config.http.enabled and own == config.http.address):
        found.append(Listener("websocket.address", "tcp", own, config.websocket.tls.enabled))
    if config.metrics.enabled:
        found.append(Listener("metrics.endpoint", "tcp", config.metrics.endpoint, True))
    return found


def findings(config: Config, server: int | None) -> Iterator[Finding]:
    bound = _bound_by_the_server(config) if server is not None else {}
    every = listeners(config)
    for number, each in enumerate(every):
        other = next((other for other in every[:number] if _collide(each, other)), None)
        if other is None:
            yield _tried(each, server, bound.get(each.setting))
        else:
            yield fail(CHECK, f"{each.setting}: {other.setting} has {other.address}", "set one of them to another port")
        yield from _exposed(each)


def _collide(one: Listener, other: Listener) -> bool:
    """Returns whether two listeners cannot exist at the same time; a name is not resolved for this."""
    hosts = {one.address.host, other.address.host}
    same = one.kind == other.kind and one.address.port == other.address.port != 0
    return same and (len(hosts) == 1 or bool(hosts & {"0.0.0.0", "::"}))


def _tried(listener: Listener, server: int | None, bound: str | None) -> Finding:
    setting, kind, address, _ = listener
    try:
        wanted = socket.SOCK_STREAM if kind == "tcp" else socket.SOCK_DGRAM
        entries = socket.getaddrinfo(address.host, address.port, type=wanted, flags=socket.AI_PASSIVE)
        family, _, _, _, target = min(entries, key=lambda entry: entry[0] != socket.AF_INET)
        with socket.socket(family, wanted) as link:
            if kind == "tcp":
                # As the server does: connections of an earlier process must not count.
                link.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            link.bind(target)
    except (OSError, UnicodeError) as error:
        return _refused(listener, error, server)
    if server is not None:
        if bound and bound != str(address):
            return ok(CHECK, f"{setting}: process {server}, the server, has {bound}")
        return warn(
            CHECK,
            f"{setting}: {address} is free, although process {server} has the data folder open",
            "it was started with other settings, or is about to start or stop: see its log",
        )
    return ok(CHECK, f"{setting}: {address} ({kind}) is free")


def _refused(listener: Listener, error: Exception, server: int | None) -> Finding:
    setting, kind, address, _ = listener
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EADDRINUSE:
        holder = processes.holder_of_port(kind, address.port)
        if holder is not None and holder[0] == server:
            return ok(CHECK, f"{setting}: process {server}, the server, has {address}")
        if holder is not None:
            whose = f"process {holder[0]} ({holder[1]})"
            return fail(CHECK, f"{setting}: {whose} has {address}", f"stop it, or set {setting} to another port")
        if server is not None:
            return ok(CHECK, f"{setting}: {address} is in use, probably by the server, process {server}")
        return fail(
            CHECK,
            f"{setting}: another process has {address} (root can see which)",
            f"stop it, or set {setting} to another port",
        )
    if number in (errno.EACCES, errno.EPERM):
        return fail(
            CHECK,
            f"{setting}: this user may not listen on {address}",
            "use a port from 1024 on, or give the server CAP_NET_BIND_SERVICE",
        )
    if number == errno.EADDRNOTAVAIL:
        return fail(CHECK, f"{setting}: this machine does not have the address {address.host}", f"correct {setting}")
    reason = getattr(error, "strerror", None) or error
    return fail(CHECK, f"{setting}: {address}: {reason}", f"correct {setting}")


def _exposed(listener: Listener) -> Iterator[Finding]:
    try:
        is_local = ipaddress.ip_address(listener.address.host).is_loopback
    except ValueError:
        is_local = listener.address.host == "localhost"
    if not is_local and not listener.is_encrypted:
        section = listener.setting.partition(".")[0]
        yield warn(
            CHECK,
            f"{listener.setting}: {listener.address} can be reached from other machines, and is not encrypted: "
            "passwords and messages can be read on the way",
            f"set {section}.tls.enabled, unless something in front of it encrypts",
        )


def _bound_by_the_server(config: Config) -> dict[str, str]:
    """Returns the addresses that the running server has written down: those with port 0 have a real one."""
    path = os.path.join(config.system.path, config.system.runtime.path, current_config.NAME)
    try:
        with open(path, "rb") as file:
            written: dict[str, Any] = tomllib.load(file)
    except (OSError, tomllib.TOMLDecodeError):
        # It is there only when the server listens.
        return {}
    found = {}
    for section in ("http", "tcp", "quic", "websocket", "metrics"):
        key = current_config.FIELDS.get(section, "address")
        value = written.get(section, {}).get(key)
        if isinstance(value, str):
            found[f"{section}.{key}"] = value
    return found
