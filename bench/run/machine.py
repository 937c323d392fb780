"""The machine that the load runs on, as the result describes it."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

import msgspec


class Machine(msgspec.Struct, frozen=True):
    host: str
    system: str
    kernel: str
    processor: str
    cores: int
    """That this process may use."""
    memory_bytes: int
    python: str


def machine() -> Machine:
    return Machine(
        platform.node(),
        _system(),
        f"{platform.system()} {platform.release()}",
        _processor(),
        cores(),
        os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        platform.python_version(),
    )


def cores() -> int:
    return len(os.sched_getaffinity(0))


def _system() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        return platform.system()


def _processor() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        found = None
    # Some architectures have no names for their models.
    return found[1].strip() if found else platform.machine()
