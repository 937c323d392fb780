"""The snapshot that support asks for: a ZIP of small text files about this process. Made in a thread, never stored."""

from __future__ import annotations

import io
import logging
import os
import resource
import zipfile
from collections.abc import Callable, Sequence

from whippet.app.errors import Code, CommandError

_log = logging.getLogger(__name__)

ALL = 100
FILES_LISTED_MAX = 10_000

_METHODS = {
    1: zipfile.ZIP_STORED,
    2: zipfile.ZIP_DEFLATED,
    3: zipfile.ZIP_BZIP2,
    # Whoever reads the archive need not know these two in a ZIP, so they get what everybody knows.
    4: zipfile.ZIP_DEFLATED,
    5: zipfile.ZIP_LZMA,
    6: zipfile.ZIP_DEFLATED,
}


def zip_method(compression: int) -> int:
    if compression not in _METHODS:
        raise CommandError(Code.INVALID_COMMAND, f"there is no snapshot compression {compression}")
    return _METHODS[compression]


def chosen(types: Sequence[int]) -> tuple[int, ...]:
    """The parts that are wanted, each once, because everybody may ask and a part takes time. "All" stands alone, and
    leaves out the test."""
    if ALL in types:
        if len(types) > 1:
            raise CommandError(Code.INVALID_COMMAND, "a snapshot of all parts names no other part")
        return tuple(part for part in _PARTS if part != TEST)
    for part in types:
        if part not in _PARTS:
            raise CommandError(Code.INVALID_COMMAND, f"there is no snapshot part {part}")
    return tuple(dict.fromkeys(types))


def make(parts: Sequence[int], method: int, data_folder: str, config: str) -> bytes:
    """A part that cannot be had is left out, and the log says why."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", method) as target:
        for part in parts:
            name, write = _PARTS[part]
            try:
                target.writestr(name, write(data_folder, config))
            except OSError as error:
                _log.warning("the snapshot has no %s: %s", name, error)
    return archive.getvalue()


def _filesystem(data_folder: str, config: str) -> str:
    lines = []
    for folder, _, files in os.walk(data_folder):
        for file in files:
            path = os.path.join(folder, file)
            lines.append(f"{os.stat(path).st_size:>16} {os.path.relpath(path, data_folder)}")
            if len(lines) == FILES_LISTED_MAX:
                return "\n".join([*lines, f"... only the first {FILES_LISTED_MAX} files are listed", ""])
    return "\n".join([*lines, ""])


def _processes(data_folder: str, config: str) -> str:
    with open("/proc/self/status") as status:
        return status.read()


def _resources(data_folder: str, config: str) -> str:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    names = [name for name in dir(usage) if name.startswith("ru_")]
    return "".join(f"{name[3:]} {getattr(usage, name)}\n" for name in names)


def _test(data_folder: str, config: str) -> str:
    return "test"


def _logs(data_folder: str, config: str) -> str:
    return "The log goes to standard error and, unless system.logging.file_enabled is false, to files.\n"


def _config(data_folder: str, config: str) -> str:
    return config


TEST = 4
_PARTS: dict[int, tuple[str, Callable[[str, str], str]]] = {
    1: ("filesystem_overview.txt", _filesystem),
    2: ("process_list.txt", _processes),
    3: ("resource_usage.txt", _resources),
    TEST: ("test.txt", _test),
    5: ("server_logs.txt", _logs),
    6: ("server_config.txt", _config),
}
