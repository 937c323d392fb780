"""Snapshots for support: a ZIP of small text files about this process. Created on a thread, never stored."""

from __future__ import annotations

import io
import logging
import os
import resource
import zipfile
from collections.abc import Callable, Sequence
from typing import NamedTuple

from whippet.app.errors import Code, CommandError
from whippet.app.telemetry import log_files

_log = logging.getLogger(__name__)

ALL = 100
FILES_LISTED_MAX = 10_000
LOG_BYTES_MAX = 1 << 20
"""The log's end in the snapshot has at most this many bytes."""

_METHODS = {
    1: zipfile.ZIP_STORED,
    2: zipfile.ZIP_DEFLATED,
    3: zipfile.ZIP_BZIP2,
    # A program that reads the archive need not support these two methods in a ZIP, so they are replaced by common ones.
    4: zipfile.ZIP_DEFLATED,
    5: zipfile.ZIP_LZMA,
    6: zipfile.ZIP_DEFLATED,
}


def zip_method(compression: int) -> int:
    if compression not in _METHODS:
        raise CommandError(Code.INVALID_COMMAND, f"there is no snapshot compression {compression}")
    return _METHODS[compression]


def selected_parts(types: Sequence[int]) -> tuple[int, ...]:
    """Returns the selected parts, each once, because any user may request one and a part takes time. "All" must stand
    alone, and leaves out the test."""
    if ALL in types:
        if len(types) > 1:
            raise CommandError(Code.INVALID_COMMAND, "a snapshot of all parts (100) must not name other parts")
        return tuple(part for part in _PARTS if part != TEST)
    for part in types:
        if part not in _PARTS:
            raise CommandError(Code.INVALID_COMMAND, f"there is no snapshot part {part}")
    return tuple(dict.fromkeys(types))


class Server(NamedTuple):
    """The server of which a snapshot is created."""

    data_folder: str
    log_folder: str | None
    """None if the log is not written to files."""
    config: str


def make(parts: Sequence[int], method: int, server: Server) -> bytes:
    """Leaves out a part that cannot be read, and logs the reason."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", method) as target:
        for part in parts:
            name, write = _PARTS[part]
            try:
                target.writestr(name, write(server))
            except OSError as error:
                _log.warning("the snapshot lacks %s: %s", name, error)
    return archive.getvalue()


def _filesystem(server: Server) -> str:
    lines = []
    for folder, _, files in os.walk(server.data_folder):
        for file in files:
            path = os.path.join(folder, file)
            lines.append(f"{os.stat(path).st_size:>16} {os.path.relpath(path, server.data_folder)}")
            if len(lines) == FILES_LISTED_MAX:
                return "\n".join([*lines, f"... only the first {FILES_LISTED_MAX} files are listed", ""])
    return "\n".join([*lines, ""])


def _processes(server: Server) -> str:
    with open("/proc/self/status") as status:
        return status.read()


def _resources(server: Server) -> str:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    names = [name for name in dir(usage) if name.startswith("ru_")]
    return "".join(f"{name[3:]} {getattr(usage, name)}\n" for name in names)


def _test(server: Server) -> str:
    return "test"


def _logs(server: Server) -> str:
    """Reads the end of the newest file."""
    if server.log_folder is None:
        return "system.logging.file_enabled is false: the log goes to standard error alone, and cannot be read here.\n"
    with open(os.path.join(server.log_folder, log_files.NAME), "rb") as log:
        skipped = max(log.seek(0, os.SEEK_END) - LOG_BYTES_MAX, 0)
        log.seek(skipped)
        # The first line is incomplete.
        lines = log.read(LOG_BYTES_MAX) if not skipped else log.read(LOG_BYTES_MAX).partition(b"\n")[2]
    return lines.decode(errors="replace")


def _config(server: Server) -> str:
    return server.config


TEST = 4
_PARTS: dict[int, tuple[str, Callable[[Server], str]]] = {
    1: ("filesystem_overview.txt", _filesystem),
    2: ("process_list.txt", _processes),
    3: ("resource_usage.txt", _resources),
    TEST: ("test.txt", _test),
    5: ("server_logs.txt", _logs),
    6: ("server_config.txt", _config),
}
