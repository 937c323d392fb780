"""CPU, memory and disk figures of this process and this machine, from /proc on Linux.

That is memory and no disk, so the event loop may read it. Where a file is missing, on another system or in a restricted
container, the figures are 0.
"""

from __future__ import annotations

import os
import platform
import resource
import time

import msgspec

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Reading(msgspec.Struct, frozen=True):
    """CPU in percent since the previous reading: of one core for the process, of all cores for the machine. Sizes in
    bytes."""

    cpu_usage: float
    total_cpu_usage: float
    memory_usage: int
    total_memory: int
    available_memory: int
    read_bytes: int
    written_bytes: int
    threads: int
    open_files: int
    open_files_limit: int
    """The limit for this process."""


class Machine:
    """Remembers the CPU times of the last reading, because usage is a difference."""

    def __init__(self) -> None:
        self.hostname = platform.node()
        self.os_name = platform.system()
        self.os_version = _os_version()
        self.kernel_version = platform.release()
        self._process = (time.monotonic(), 0.0)
        self._cores = (0.0, 0.0)
        self.read()

    def read(self) -> Reading:
        memory = {line.split(":")[0]: line for line in lines_of("/proc/meminfo")}
        io = dict(line.split(": ") for line in lines_of("/proc/self/io") if ": " in line)
        statm = _words("/proc/self/statm")
        stat = _words("/proc/self/stat")
        return Reading(
            cpu_usage=self._process_usage(),
            total_cpu_usage=self._machine_usage(),
            memory_usage=int(statm[1]) * _PAGE if len(statm) > 1 else 0,
            total_memory=_kilobytes(memory.get("MemTotal")),
            available_memory=_kilobytes(memory.get("MemAvailable")),
            read_bytes=int(io.get("read_bytes", 0)),
            written_bytes=int(io.get("write_bytes", 0)),
            threads=int(stat[19]) if len(stat) > 19 else 0,
            open_files=_open_files(),
            open_files_limit=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        )

    def _process_usage(self) -> float:
        then, used_then = self._process
        now, used = time.monotonic(), time.process_time()
        self._process = now, used
        return 100 * (used - used_then) / (now - then) if now > then else 0.0

    def _machine_usage(self) -> float:
        times = [float(word) / _TICK for word in _words("/proc/stat")[1:9]]
        total, idle = sum(times), sum(times[3:5])
        total_then, idle_then = self._cores
        self._cores = total, idle
        if total <= total_then:
            return 0.0
        # For a machine that was idle throughout, rounding gives slightly less than zero.
        return min(max(100 * (1 - (idle - idle_then) / (total - total_then)), 0.0), 100.0)


def _open_files() -> int:
    try:
        # One of them is the listing itself.
        return len(os.listdir("/proc/self/fd")) - 1
    except OSError:
        return 0


def _os_version() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        return platform.version()


def lines_of(path: str) -> list[str]:
    """Returns the lines of a file of the kernel; none if this system does not have it."""
    try:
        with open(path) as file:
            return file.read().splitlines()
    except OSError:
        return []


def _words(path: str) -> list[str]:
    """Returns the words of the first line. The program's name in brackets could contain spaces; ours does not."""
    lines = lines_of(path)
    return lines[0].split() if lines else []


def _kilobytes(line: str | None) -> int:
    return int(line.split()[1]) * 1024 if line else 0
