"""Which process has a file or a port, as far as /proc tells: other users' processes are visible to root only."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from whippet.app.telemetry.machine import lines_of

LISTENING = {"tcp": "0A", "udp": "07"}
"""The states of sockets that take connections or datagrams."""


def holder_of_lock(path: str) -> int | None:
    """Returns the process that has a lock on the file."""
    try:
        inode = os.stat(path).st_ino
    except OSError:
        return None
    for line in lines_of("/proc/locks"):
        words = line.split()
        # 1: FLOCK  ADVISORY  WRITE 4321 08:01:1234 0 EOF
        if len(words) > 5 and words[1] == "FLOCK" and words[5].rpartition(":")[2] == str(inode):
            return int(words[4])
    return None


def holder_of_port(kind: str, port: int) -> tuple[int, str] | None:
    """Returns id and name of the process that has a port; `kind` is tcp or udp."""
    inodes = set()
    for table in (f"/proc/net/{kind}", f"/proc/net/{kind}6"):
        for line in lines_of(table)[1:]:
            words = line.split()
            if words[3] == LISTENING[kind] and int(words[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{words[9]}]")
    for pid in _pids() if inodes else ():
        if any(link in inodes for link in _links(pid)):
            return pid, name_of(pid)
    return None


def name_of(pid: int) -> str:
    return next(iter(lines_of(f"/proc/{pid}/comm")), "?")


def limit_of_open_files(pid: int) -> int | None:
    """Returns how many files the process could open at most."""
    for line in lines_of(f"/proc/{pid}/limits"):
        if match := re.match(r"Max open files\s+\S+\s+(\d+)", line):
            return int(match[1])
    return None


def _pids() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    except OSError:
        return []


def _links(pid: int) -> Iterator[str]:
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        try:
            yield os.readlink(f"{folder}/{name}")
        except OSError:
            # Closed meanwhile.
            continue
