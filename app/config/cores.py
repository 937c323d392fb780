"""Assigns cores to shards: parses `system.sharding.cpu_allocation`, and applies it to this machine.

Parsing does not depend on the machine, so files can be checked anywhere; `resolve` is called once, at the start. A NUMA
allocation that this machine cannot satisfy falls back to all cores; a number or range that it does not have is an
error.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec

from whippet.app.config.formats import Format, Invalid


class Allocation(msgspec.Struct, frozen=True):
    """The requested allocation. Without any of the options: all cores."""

    text: str = "all"
    count: int | None = None
    span: tuple[int, int] | None = None
    """First core, and the one after the last."""
    nodes: tuple[int, ...] = ()
    cores_per_node: int = 0
    """0: all cores of the node."""
    one_per_core: bool = False
    """Leave out the second hardware thread of a core."""


class Machine(msgspec.Struct, frozen=True):
    available: tuple[int, ...]
    """Cores that this process may run on."""
    nodes: dict[int, tuple[int, ...]]
    """Cores of each NUMA node."""
    second_threads: frozenset[int] = frozenset()
    """Cores that share a physical one with a core of a lower number."""


def parse_allocation(value: object) -> Allocation:
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise Invalid(value)
    text = value.strip().lower()
    if text in {"all", "numa:auto"}:
        return Allocation(text)
    if re.fullmatch(r"\d{1,5}", text, re.ASCII) and int(text) > 0:
        return Allocation(text, count=int(text))
    if (span := re.fullmatch(r"(\d{1,5})\.\.(\d{1,5})", text, re.ASCII)) and int(span[1]) < int(span[2]):
        return Allocation(text, span=(int(span[1]), int(span[2])))
    if text.startswith("numa:"):
        return _parse_numa(text)
    raise Invalid(value)


def _parse_numa(text: str) -> Allocation:
    parts = dict(part.split("=", 1) for part in text.removeprefix("numa:").split(";"))
    nodes, per_node, no_ht = parts.pop("nodes", ""), parts.pop("cores", "0"), parts.pop("no_ht", "false")
    if parts or no_ht not in {"true", "false"}:
        raise Invalid(text)
    return Allocation(
        text,
        nodes=tuple(int(node) for node in nodes.split(",")),
        cores_per_node=int(per_node),
        one_per_core=no_ht == "true",
    )


CPU_ALLOCATION = Format(
    needs="all, a number of cores, a range such as 0..4, numa:auto or numa:nodes=0,1;cores=4;no_ht=true",
    parse=parse_allocation,
    write=lambda allocation: allocation.text,
)


def resolve(allocation: Allocation, machine: Machine) -> tuple[int, tuple[int, ...]]:
    """Returns the number of shards, and the cores to pin them to (none: the operating system places them)."""
    available = machine.available
    if allocation.count is not None:
        if allocation.count > len(available):
            raise ValueError(f"this process may use {len(available)} cores")
        return allocation.count, _pinned(available[: allocation.count], available)
    if allocation.span is not None:
        cores = tuple(range(*allocation.span))
        if missing := set(cores) - set(available):
            raise ValueError(f"core {min(missing)} does not exist or is not open to this process")
        return len(cores), cores
    chosen: list[int] = []
    for node in allocation.nodes:
        cores = tuple(core for core in machine.nodes.get(node, ()) if core in available)
        if allocation.one_per_core:
            cores = tuple(core for core in cores if core not in machine.second_threads)
        chosen.extend(cores[: allocation.cores_per_node or None])
    if chosen:
        unique = tuple(dict.fromkeys(chosen))
        return len(unique), unique
    return len(available), _pinned(available, available)


def _pinned(cores: tuple[int, ...], available: tuple[int, ...]) -> tuple[int, ...]:
    """With one or two cores the event loop shares one with a shard, which must then be free to get out of its way:
    pinned there, two shards were measured to write 10 to 25 % less. Cores that are named explicitly are always
    pinned."""
    return cores if len(available) > 2 else ()


def this_machine(system: str = "/sys/devices/system") -> Machine:
    """Reads what Linux reports in /sys; without it, there are cores but no nodes."""
    available = (
        tuple(sorted(os.sched_getaffinity(0)))
        if hasattr(os, "sched_getaffinity")
        else tuple(range(os.cpu_count() or 1))
    )
    nodes = {
        int(folder.name.removeprefix("node")): _core_list(folder / "cpulist")
        for folder in Path(system, "node").glob("node[0-9]*")
    }
    second = {
        core
        for siblings in Path(system, "cpu").glob("cpu[0-9]*/topology/thread_siblings_list")
        for core in _core_list(siblings)[1:]
    }
    return Machine(available, nodes, frozenset(second))


def _core_list(path: Path) -> tuple[int, ...]:
    """Parses the kernel's notation, such as 0-3,8-11."""
    try:
        parts = path.read_text().strip().split(",")
        spans = [(part.split("-") * 2)[:2] for part in parts if part]
        return tuple(core for first, last in spans for core in range(int(first), int(last) + 1))
    except (OSError, ValueError):
        return ()
