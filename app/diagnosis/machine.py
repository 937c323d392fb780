"""Checks what the operating system allows and how it is set: open files, memory, virtual memory and network buffers."""

from __future__ import annotations

import resource
from collections.abc import Iterator

from whippet.app import open_files
from whippet.app.config import Config
from whippet.app.diagnosis import processes
from whippet.app.diagnosis.finding import Finding, fail, ok, warn
from whippet.app.telemetry.machine import Machine, lines_of
from whippet.storage.descriptors import RESERVED

MIB = 1 << 20
GIB = 1 << 30
MEMORY_MIN = 512 * MIB
"""A server with little to do, and what else the machine needs."""
SWAPPINESS_MAX = 60
DIRTY_PERCENT_MAX = 40
BUFFER_BYTES = 4 * MIB
"""What the QUIC listener asks for."""
BACKLOG = 1024


def findings(config: Config, server: int | None) -> Iterator[Finding]:
    """`server` is the process that has the data folder open."""
    yield _open_files(config, server)
    yield _memory(config)
    yield from _virtual_memory()
    yield from _network(config)


def _open_files(config: Config, server: int | None) -> Finding:
    check, needed = "open files", open_files.needed(config) + RESERVED
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[1] if server is None else processes.limit_of_open_files(server)
    whose = "a process" if server is None else f"the server (process {server})"
    if allowed is None or allowed == resource.RLIM_INFINITY or allowed >= needed:
        return ok(check, f"{whose} may open {'any number' if allowed in (None, -1) else allowed}, {needed} are needed")
    return warn(
        check,
        f"{whose} may open {allowed}, and the configured connections and segments may need {needed}; the server "
        "lowers its limits in proportion",
        f"ulimit -Hn {needed}, or LimitNOFILE={needed} in the unit of systemd",
    )


def _memory(config: Config) -> Finding:
    check, limits = "memory", config.system.limits
    budget = sum(
        (
            limits.tail_bytes,
            limits.unflushed_bytes,
            limits.frames_bytes,
            limits.responses_bytes,
            limits.index_cache_bytes,
            config.http.limits.bodies_bytes if config.http.enabled else 0,
        )
    )
    total = min(_of_this_machine() or budget * 2, _of_this_group())
    if total < MEMORY_MIN:
        return fail(check, f"there are {_size(total)}", f"give the server at least {_size(MEMORY_MIN)}")
    if total < budget + MEMORY_MIN // 2:
        return warn(
            check,
            f"there are {_size(total)}, and the limits of the configuration allow {_size(budget)}: under full load the "
            "kernel may end the server",
            "lower system.limits.frames_bytes, tail_bytes, unflushed_bytes and responses_bytes, or add memory",
        )
    return ok(check, f"there are {_size(total)}, the limits of the configuration allow {_size(budget)}")


def _of_this_machine() -> int:
    return Machine().read().total_memory


def _of_this_group() -> int:
    """Returns the limit of the container or the unit; without one, more than any machine has."""
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = _setting(path)
        if text and text.isdecimal():
            return int(text)
    return 1 << 62


def _virtual_memory() -> Iterator[Finding]:
    check = "vm settings"
    seen = []
    has_swap = len(lines_of("/proc/swaps")) > 1
    swappiness = _number("/proc/sys/vm/swappiness")
    if has_swap and swappiness is not None:
        seen.append(f"swappiness {swappiness}")
        if swappiness > SWAPPINESS_MAX:
            yield warn(
                check,
                f"vm.swappiness = {swappiness}: the kernel swaps the server out to cache files",
                "sysctl -w vm.swappiness=10",
            )
    overcommit = _number("/proc/sys/vm/overcommit_memory")
    if overcommit is not None:
        seen.append(f"overcommit_memory {overcommit}")
        if overcommit == 2:
            yield warn(
                check,
                "vm.overcommit_memory = 2: memory can be refused although there is some",
                "sysctl -w vm.overcommit_memory=0",
            )
    dirty = _number("/proc/sys/vm/dirty_ratio")
    if dirty is not None and not _number("/proc/sys/vm/dirty_bytes"):
        seen.append(f"dirty_ratio {dirty}")
        if dirty > DIRTY_PERCENT_MAX:
            yield warn(
                check,
                f"vm.dirty_ratio = {dirty}: so much of the memory may be unwritten that a sync takes seconds",
                "sysctl -w vm.dirty_ratio=20",
            )
    pages = _setting("/sys/kernel/mm/transparent_hugepage/enabled") or ""
    if pages:
        chosen = pages.partition("[")[2].partition("]")[0]
        seen.append(f"transparent huge pages {chosen}")
    yield ok(check, ", ".join(seen) or "not known on this system")


def _network(config: Config) -> Iterator[Finding]:
    check = "network settings"
    backlog, wanted = _number("/proc/sys/net/core/somaxconn"), []
    if backlog is not None and backlog < BACKLOG:
        wanted.append((f"net.core.somaxconn = {backlog}: bursts of new connections are refused", "somaxconn", 4096))
    for name in ("rmem_max", "wmem_max") if config.quic.enabled else ():
        size = _number(f"/proc/sys/net/core/{name}")
        if size is not None and size < BUFFER_BYTES:
            wanted.append(
                (f"net.core.{name} = {size}: QUIC may lose datagrams under load; it asks for 4 MiB", name, BUFFER_BYTES)
            )
    for found, name, value in wanted:
        yield warn(check, found, f"sysctl -w net.core.{name}={value}")
    if not wanted:
        yield ok(check, "nothing limits the listeners")


def _number(path: str) -> int | None:
    text = _setting(path)
    return int(text) if text and text.isdecimal() else None


def _setting(path: str) -> str | None:
    lines = lines_of(path)
    return lines[0].strip() if lines else None


def _size(size: int) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size // MIB} MiB"
