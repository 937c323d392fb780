"""The data folder of an Iggy server, which is only read: which version wrote it, its files, and whether they change.

Iggy locks nothing, so a server that is running shows in the files that it has open, and in files that change while
they are read. What it still has in memory shows nowhere.
"""

from __future__ import annotations

import enum
import os
import re
import struct
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from whippet.app.importing.iggy.report import Refused, Report
from whippet.storage.layout import PartitionId, number

CONFIG_FILE = "runtime/current_config.toml"
STATE_FILE = "state/log"
JOURNAL_FILE = "metadata/journal.wal"
SNAPSHOT_FILE = "metadata/snapshot.bin"
CATALOGUE_BYTES_MAX = 1 << 30
"""The catalogue is read at once."""

_LOG_FILE = re.compile(r"(\d{20})\.log", re.ASCII)
_OFFSET = re.compile(r"\d{20}", re.ASCII)
_PURGED = struct.Struct("<QQ")


class Generation(enum.Enum):
    CLASSIC = "0.7 or 0.8"
    MODERN = "0.9"


class LogFile(NamedTuple):
    """One segment. It ends where the next one begins; the last one has no ceiling."""

    path: str
    start_offset: int
    size: int
    ceiling: int | None


class Source:
    """See the module."""

    def __init__(self, path: str) -> None:
        self.root = _root(path)
        self.generation = self._generation()
        self.config = self._config()
        self._before = self._fingerprint()
        self._streams = self._folder_name("stream", "streams")
        self._topics = self._folder_name("topic", "topics")
        self._partitions = self._folder_name("partition", "partitions")

    # -------------------------------------------------------------------------------------------------- what it is

    def _generation(self) -> Generation:
        if (self.root / "FORMAT").exists():
            raise Refused(f"{self.root}: this is a data folder of Whippet")
        modern = [name for name in (JOURNAL_FILE, SNAPSHOT_FILE) if self._size(name)]
        classic = self._size(STATE_FILE)
        if modern and classic:
            raise Refused(
                f"{self.root}: has both {STATE_FILE} of an Iggy server up to 0.8 and {modern[0]} of a newer one; it is "
                "unclear which of them describes the streams: move the other one away"
            )
        if modern:
            return Generation.MODERN
        if classic:
            return Generation.CLASSIC
        raise Refused(
            f"{self.root}: there is neither {STATE_FILE} nor {JOURNAL_FILE}, or they are empty; is this the data "
            "folder of an Iggy server (local_data)?"
        )

    def _size(self, name: str) -> int:
        path = self.root / name
        return path.stat().st_size if path.is_file() else 0

    def _config(self) -> dict[str, Any]:
        """The configuration with which the server ran; empty if it is missing or damaged: it is only a hint."""
        try:
            found = tomllib.loads((self.root / CONFIG_FILE).read_text())
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
            return {}
        system = found.get("system")
        return system if isinstance(system, dict) else {}

    def setting(self, section: str, key: str) -> object:
        found = self.config.get(section)
        return found.get(key) if isinstance(found, dict) else None

    def _folder_name(self, section: str, default: str) -> str:
        name = self.setting(section, "path")
        return name if isinstance(name, str) and name else default

    @property
    def says_encrypted(self) -> bool:
        return self.setting("encryption", "enabled") is True

    # ------------------------------------------------------------------------------------------------- is it in use

    def refuse_in_use(self) -> None:
        """Raises Refused if a process has files of the folder open for writing, as far as this user may see that."""
        inside = str(self.root.resolve()) + "/"
        for process in _entries_of("/proc"):
            if not process.isdigit() or int(process) == os.getpid():
                continue
            handles = f"/proc/{process}/fd"
            if any(_is_writing_below(f"{handles}/{handle}", inside) for handle in _entries_of(handles)):
                raise Refused(f"{self.root}: process {process} has files in it open; stop the Iggy server first")

    def refuse_changed(self) -> None:
        """Raises Refused if files have changed since the beginning."""
        after = self._fingerprint()
        changed = sorted(str(name) for name in {*after, *self._before} if after.get(name) != self._before.get(name))
        if changed:
            raise Refused(
                f"{self.root / changed[0]}: has changed during the import ({len(changed)} files in all); stop the Iggy "
                "server first"
            )

    def _fingerprint(self) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        for folder, _, names in os.walk(self.root):
            for name in names:
                path = os.path.join(folder, name)
                try:
                    status = os.stat(path)
                except FileNotFoundError:
                    continue
                found[os.path.relpath(path, self.root)] = status.st_size, status.st_mtime_ns
        return found

    # -------------------------------------------------------------------------------------------------------- catalogue

    def path(self, name: str) -> str:
        return str(self.root / name)

    def read(self, name: str) -> bytes | None:
        """The content of a file of the catalogue; None if there is none."""
        path = self.root / name
        if not path.is_file():
            return None
        if path.stat().st_size > CATALOGUE_BYTES_MAX:
            raise Refused(f"{path}: has {path.stat().st_size} bytes, more than a catalogue can have")
        return path.read_bytes()

    # ------------------------------------------------------------------------------------------------------- partitions

    def partition(self, place: PartitionId) -> Path:
        topic = self.root / self._streams / str(place.stream) / self._topics / str(place.topic)
        return topic / self._partitions / str(place.partition)

    def partitions(self) -> Iterator[PartitionId]:
        """All partitions that have a folder, whatever the catalogue says."""
        for stream in _numbered(self.root / self._streams):
            topics = self.root / self._streams / str(stream) / self._topics
            for topic in _numbered(topics):
                for partition in _numbered(topics / str(topic) / self._partitions):
                    yield PartitionId(stream, topic, partition)

    def logs(self, place: PartitionId) -> list[LogFile]:
        folder = self.partition(place)
        if not folder.is_dir():
            return []
        named = [(_LOG_FILE.fullmatch(path.name), path) for path in folder.iterdir() if path.is_file()]
        logs = sorted((int(match[1]), path) for match, path in named if match is not None)
        ceilings: list[int | None] = [*(start for start, _ in logs), None][1:]
        return [
            LogFile(str(path), start, path.stat().st_size, ceiling)
            for (start, path), ceiling in zip(logs, ceilings, strict=True)
        ]

    def lonely_indexes(self, place: PartitionId) -> dict[int, Path]:
        """Indexes of messages whose own file is missing, by their first offset."""
        found = {path.stem: path for path in self.partition(place).glob("*.index") if path.is_file()}
        kept = {path.stem for path in self.partition(place).glob("*.log")}
        lonely = {int(stem): path for stem, path in found.items() if stem not in kept and _OFFSET.fullmatch(stem)}
        return {start: path for start, path in sorted(lonely.items()) if path.stat().st_size}

    def log_bytes(self) -> int:
        return sum(log.size for place in self.partitions() for log in self.logs(place))

    def index(self, log: LogFile) -> bytes:
        path = Path(log.path).with_suffix(".index")
        try:
            return path.read_bytes()
        except OSError:
            # An index is a hint that may be missing.
            return b""

    def purges_done(self, place: PartitionId) -> int:
        """How many purges 0.9 has carried out in a partition."""
        try:
            content = (self.partition(place) / "purge.gen").read_bytes()
        except OSError:
            return 0
        return int(_PURGED.unpack(content)[0]) if len(content) == _PURGED.size else 0

    def stored_offsets(self, place: PartitionId, kind: str, report: Report) -> dict[int, int]:
        """The offsets in a partition by the number of their consumer or group."""
        folder = self.partition(place) / "offsets" / kind
        found: dict[int, int] = {}
        if not folder.is_dir():
            return found
        for path in sorted(folder.iterdir()):
            identity = number(path.name)
            if identity is None or not path.is_file():
                report.lose(f"{path}: not the file of a stored offset; not imported")
                continue
            content = path.read_bytes()
            value, reason = _offset_in(content)
            if value is None:
                report.lose(f"{path}: no stored offset can be read from it ({reason}); not imported")
            else:
                found[identity] = value
        return found


def _offset_in(content: bytes) -> tuple[int | None, str]:
    """8 bytes, or 16 with a checksum."""
    if len(content) not in (8, 16):
        return None, f"it has {len(content)} bytes"
    if len(content) == 16 and xxhash.xxh3_64_digest(content[:8])[::-1] != content[8:]:
        return None, "its checksum is wrong"
    return int.from_bytes(content[:8], "little"), ""


def _entries_of(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        # The process has ended, it belongs to somebody else, or this system shows none.
        return []


def _is_writing_below(handle: str, folder: str) -> bool:
    """Whether the handle of a process, as a path in /proc, may write to a file below a folder."""
    try:
        if not os.readlink(handle).startswith(folder):
            return False
        info = Path(handle.replace("/fd/", "/fdinfo/")).read_text()
    except OSError:
        # It was closed, or the process belongs to somebody else.
        return False
    flags = re.search(r"^flags:\s+([0-7]+)", info, re.MULTILINE)
    return flags is not None and int(flags[1], 8) & os.O_ACCMODE != os.O_RDONLY


def _root(path: str) -> Path:
    root = Path(path)
    if not root.exists():
        raise Refused(f"{path}: there is no such folder")
    if not root.is_dir():
        raise Refused(f"{path}: not a folder")
    return root


def _numbered(folder: Path) -> list[int]:
    if not folder.is_dir():
        return []
    found = (number(path.name) for path in folder.iterdir() if path.is_dir())
    return sorted(identity for identity in found if identity is not None)
