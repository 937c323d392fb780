"""Checks the data folder and its disk: access, file system, free space, and how fast it writes and syncs.

The speed is measured on a file without a name, which is gone when it is closed, whatever happens.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import msgspec

from whippet.app.config import Config
from whippet.app.config.store import store_options
from whippet.app.diagnosis.finding import Finding, fail, ok, warn
from whippet.storage.data_folder import read_identity
from whippet.storage.disk_space import reserve_of
from whippet.storage.errors import StorageError
from whippet.storage.files import Files
from whippet.storage.layout import FORMAT_FILE, Layout

MIB = 1 << 20
GIB = 1 << 30
BLOCK_BYTES = 4096
SYNCS = 40
LARGE_BYTES = 16 * MIB
MEASURE_S = 2.0
"""A slow disk is not written to for longer."""
SLOW_SYNC_S = 0.02
SLOW_BYTES_PER_SECOND = 50 * MIB
FILES_MIN = 10_000

LOSES = {"tmpfs": "memory", "ramfs": "memory"}
REMOTE = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "fuse")
LAYERED = ("overlay", "aufs")

Clock = Callable[[], float]


class Speed(msgspec.Struct, frozen=True):
    """Of writes that are synced."""

    median_s: float
    """Of a write of 4 KiB and its sync."""
    slowest_s: float
    bytes_per_second: float
    """Of large writes with one sync."""


def findings(config: Config, server: int | None, clock: Clock = time.perf_counter) -> Iterator[Finding]:
    check, path = "data folder", os.path.abspath(config.system.path)
    folder = existing(path)
    access = os.R_OK | os.W_OK | os.X_OK
    if not os.path.isdir(folder):
        yield fail(check, f"{folder} is no folder", "remove it, or set system.path to another one")
        return
    if not os.access(folder, access):
        yield fail(check, f"this user cannot write in {folder}", f"chown it, or set system.path; it is {path}")
        return
    yield from _data_folder(config, path, server)
    yield from _space(config, folder)
    yield _file_system(folder)
    yield _speed(folder, config, clock)


def existing(path: str) -> str:
    """Returns the folder, or the one above it that exists, in which the server would create it."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return path


def _data_folder(config: Config, path: str, server: int | None) -> Iterator[Finding]:
    check, layout = "data folder", Layout(store_options(config))
    identity = layout.below(FORMAT_FILE)
    if not os.path.exists(identity):
        if os.path.isdir(layout.streams) and os.listdir(layout.streams):
            yield fail(check, f"{identity} is missing, although there are streams", "restore the file from a backup")
        else:
            yield ok(check, f"{path} is new: the first start creates it")
        return
    try:
        version = read_identity(Files(), identity).whippet_store
    except (StorageError, OSError) as error:
        yield fail(check, str(error), "`whippet check` reports what is damaged")
        return
    whose = "no server has it open" if server is None else f"process {server} has it open"
    yield ok(check, f"{path} has format version {version}; {whose}")


def _space(config: Config, folder: str) -> Iterator[Finding]:
    check, found = "disk space", os.statvfs(folder)
    free, total = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
    reserve = reserve_of(config.system.disk.reserve, total)
    shown = f"{_size(free)} of {_size(total)} are free, and system.disk.reserve is {_size(reserve)}"
    segment = config.system.segment.size
    if free <= reserve:
        yield fail(check, f"{shown}: messages are refused", "delete something, or enlarge the disk")
    elif free < reserve + 2 * segment:
        yield warn(
            check, f"{shown}: there is room for less than two segments of {_size(segment)}", "free some space soon"
        )
    else:
        yield ok(check, shown)
    if found.f_files and found.f_favail < FILES_MIN:
        yield warn(
            check, f"only {found.f_favail} more files can be created", "use a file system with more inodes: see mkfs"
        )


def _file_system(folder: str) -> Finding:
    check = "file system"
    mounted, kind, options = mount_of(os.path.realpath(folder))
    shown = f"{kind} on {mounted}"
    if "ro" in options:
        return fail(check, f"{shown} is read-only", f"mount -o remount,rw {mounted}")
    if kind in LOSES:
        return warn(check, f"{shown} is in memory: everything is lost when the machine stops", "use a disk")
    if kind.startswith(REMOTE):
        return warn(
            check,
            f"{shown} is on another machine: locks and syncs may not do what they promise, and each write waits for it",
            "use a local disk, and the archive for copies elsewhere",
        )
    if kind in LAYERED:
        return warn(
            check,
            f"{shown} is a layer of a container: it is slow, and is lost with the container",
            "mount a volume at the data folder",
        )
    return ok(check, shown)


def mount_of(folder: str) -> tuple[str, str, list[str]]:
    """Returns where the file system of a folder is mounted, its kind, and the options."""
    best = ("/", "unknown", [""])
    try:
        with open("/proc/self/mounts") as file:
            lines = file.read().splitlines()
    except OSError:
        return best
    for line in lines:
        _, escaped, kind, options, *_ = line.split()
        place = escaped.replace("\\040", " ")
        inside = folder == place or folder.startswith(f"{place.rstrip('/')}/")
        # Of two mounts on one place, the later one counts.
        if inside and (len(place) >= len(best[0]) or best[1] == "unknown"):
            best = place, kind, options.split(",")
    return best


def _speed(folder: str, config: Config, clock: Clock) -> Finding:
    check = "disk speed"
    found = os.statvfs(folder)
    reserve = reserve_of(config.system.disk.reserve, found.f_blocks * found.f_frsize)
    if found.f_bavail * found.f_frsize < reserve + 4 * LARGE_BYTES:
        return warn(check, "not measured: there is too little space", "free some space, then repeat the command")
    try:
        speed = measured(folder, clock)
    except OSError as error:
        return warn(check, f"not measured: {error.strerror}", "whippet bench storage measures it, too")
    shown = (
        f"a write of 4 KiB with its sync takes {speed.median_s * 1000:.2f} ms (median; the slowest "
        f"{speed.slowest_s * 1000:.1f} ms), large writes {speed.bytes_per_second / MIB:.0f} MiB/s"
    )
    if speed.median_s > SLOW_SYNC_S:
        return warn(
            check,
            shown,
            "syncs are slow: with system.partition.enforce_fsync each acknowledgement waits for one; use an SSD",
        )
    if speed.bytes_per_second < SLOW_BYTES_PER_SECOND:
        return warn(check, shown, "the disk is slow: look for another user of it, or use an SSD")
    return ok(check, shown)


def measured(folder: str, clock: Clock) -> Speed:
    """Writes and syncs in the folder for up to two seconds. Raises OSError."""
    handle = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
    try:
        times: list[float] = []
        block, began = os.urandom(BLOCK_BYTES), clock()
        while len(times) < SYNCS and (not times or clock() - began < MEASURE_S):
            at = clock()
            os.pwrite(handle, block, len(times) * BLOCK_BYTES)
            os.fdatasync(handle)
            times.append(clock() - at)
        large, written, at = os.urandom(MIB), 0, clock()
        while written < LARGE_BYTES and (not written or clock() - at < MEASURE_S):
            written += os.pwrite(handle, large, written)
        os.fdatasync(handle)
        rate = written / max(clock() - at, 1e-9)
    finally:
        os.close(handle)
    times.sort()
    return Speed(times[len(times) // 2], times[-1], rate)


def _size(size: int) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / MIB:.0f} MiB"
