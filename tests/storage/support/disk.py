"""A disk in memory that loses what a real one may lose: the store's `Files` for tests of faults and power failures.

The store sees the operating system's view (the page cache). In addition, the disk knows what a power failure leaves:
for every file the synced content and the writes since then, for every name in a folder the synced one and the changes
since then. `power_cut` keeps what was synced and any part of the rest, `process_kill` keeps everything the operating
system had. Every method of `Files` is one numbered operation, at which a `Fault` may occur.

The rules of the model, where file systems differ:

- `sync` of a file makes its content durable, `sync_folder` of its folder makes its name durable; neither does the
  other's work. Syncing either of the two folders of a rename makes the whole rename durable.
- Unsynced changes have no order, except changes of one name and changes of the names of one file or folder.
- After a failed `sync` the pages are clean, as on Linux: the data can still be read, and the next sync succeeds without
  having written it. That sync makes only newly written data durable.
"""

from __future__ import annotations

import enum
import errno
import os
import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tests.storage.support.disk_files import File, Folder, Node, Renaming, inside, sync_files, twin_of
from whippet.storage.files import BUFFERS_PER_WRITE, Buffer, Files, Item


class PowerCut(BaseException):
    """The machine is off. Raised by the operation at which it went off and by every later one."""


class FaultKind(enum.Enum):
    EIO = "I/O error"
    ENOSPC = "no space"
    SHORT = "a short write, then all is well"
    SHORT_ENOSPC = "a short write, then no space"
    CRASH = "the end"


class Fault(NamedTuple):
    """Occurs at the operation with this number, counted from 1, and lasts for a number of operations."""

    at: int
    kind: FaultKind
    operations: int = 1


class Operation(NamedTuple):
    """One call of a `Files` method in the log of a disk."""

    number: int
    act: str
    path: str


TAKES_SPACE = frozenset(
    {"open_for_writing", "write", "truncate", "reserve", "sync", "sync_folder", "rename", "make_folder", "lock", "sign"}
)
"""Operations that may be refused for lack of space."""


class _Handle:
    __slots__ = ("file", "path", "writable")

    def __init__(self, file: Node, path: str, writable: bool) -> None:
        self.file = file
        self.path = path
        self.writable = writable


# ------------------------------------------------------------------------------------------------------------ the disk


class SimulatedDisk(Files):
    """See the module. Used by one thread at a time, as the files of one shard are."""

    def __init__(self) -> None:
        self.fault: Fault | None = None
        self.refuse: Callable[[str, str], int | None] = _never
        """Called before every operation with its path. Returns the number of the error to fail with, or None."""
        self.ignores_sync: Callable[[str], bool] = lambda path: False
        """A disk that lies: if this returns true for a file or folder, syncing it succeeds and does nothing."""
        self.operations = 0
        self.off = False
        self.trace: list[Operation] | None = None
        self._root = Folder()
        self._renamings: list[Renaming] = []
        self._handles: dict[int, _Handle] = {}
        self._next_handle = 3
        self._locks: dict[int, File] = {}
        self._no_space_for_writes = False

    @property
    def open_handles(self) -> list[str]:
        return [handle.path for handle in self._handles.values()]

    # --------------------------------------------------------------------------------------------- what it may lose

    def process_kill(self) -> SimulatedDisk:
        """Everything the operating system was given, synced or not. Handles and locks are gone with the process."""
        survivor = SimulatedDisk()
        twins: dict[int, Node] = {}
        root = twin_of(self._root, twins)
        assert isinstance(root, Folder)
        survivor._root = root
        survivor._renamings = [renaming.twin(twins) for renaming in self._renamings]
        return survivor

    def power_cut(self, rng: random.Random) -> SimulatedDisk:
        """Everything synced, and any part of what was not."""
        names: dict[int, dict[str, Node]] = {}
        for renaming in self._chosen(rng):
            for folder, name, node in renaming.effects:
                known = names.setdefault(id(folder), dict(folder.durable))
                if node is None:
                    known.pop(name, None)
                else:
                    known[name] = node
        survivor = SimulatedDisk()
        survivor._root = self._settled(self._root, names, rng)
        return survivor

    def _chosen(self, rng: random.Random) -> list[Renaming]:
        """A subset of the changes of names. A change of a file's names implies the earlier ones of that file."""
        share = rng.random()
        wanted = [rng.random() < share for _ in self._renamings]
        needed: set[int] = set()
        for i in range(len(wanted) - 1, -1, -1):
            about = id(self._renamings[i].about)
            if wanted[i]:
                needed.add(about)
            elif about in needed:
                wanted[i] = True
        return [renaming for renaming, is_wanted in zip(self._renamings, wanted, strict=True) if is_wanted]

    def _settled(self, folder: Folder, names: dict[int, dict[str, Node]], rng: random.Random) -> Folder:
        settled = Folder()
        for name, node in sorted(names.get(id(folder), folder.durable).items(), key=lambda pair: pair[0]):
            kept: Node
            if isinstance(node, Folder):
                kept = self._settled(node, names, rng)
            else:
                kept = File()
                kept.durable = node.after_power_cut(rng)
                kept.content = bytearray(kept.durable)
            settled.names[name] = settled.durable[name] = kept
        return settled

    # ----------------------------------------------------------------------------------------------------- operations

    def _begin(self, act: str, path: str) -> FaultKind | None:
        """Counts an operation and raises its fault. Returns a fault that the caller has to simulate."""
        if self.off:
            raise PowerCut
        self.operations += 1
        if self.trace is not None:
            self.trace.append(Operation(self.operations, act, path))
        refused = self.refuse(act, path)
        if refused is not None:
            raise OSError(refused, os.strerror(refused), path)
        if self._no_space_for_writes and act == "write":
            self._no_space_for_writes = False
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        if self.fault is None or not 0 <= self.operations - self.fault.at < self.fault.operations:
            return None
        kind = self.fault.kind
        if kind is FaultKind.EIO or (kind is FaultKind.ENOSPC and act in TAKES_SPACE):
            number = errno.EIO if kind is FaultKind.EIO else errno.ENOSPC
            if act not in ("sync", "close"):
                raise OSError(number, os.strerror(number), path)
            return kind
        if kind is FaultKind.CRASH:
            self.off = True
            if act not in ("write", "remove_tree"):
                raise PowerCut
            return kind
        if kind in (FaultKind.SHORT, FaultKind.SHORT_ENOSPC) and act == "write":
            self._no_space_for_writes = kind is FaultKind.SHORT_ENOSPC
            return kind
        return None

    def _rng(self) -> random.Random:
        assert self.fault is not None
        return random.Random(self.fault.at)

    def _folder(self, path: str) -> Folder:
        node: Node | None = self._root
        for name in path.split("/"):
            if not name:
                continue
            if not isinstance(node, Folder):
                raise _error(errno.ENOTDIR, path)
            node = node.names.get(name)
            if node is None:
                raise _error(errno.ENOENT, path)
        if not isinstance(node, Folder):
            raise _error(errno.ENOTDIR, path)
        return node

    def _find(self, path: str) -> tuple[Folder, str, Node | None]:
        above, _, name = path.rstrip("/").rpartition("/")
        folder = self._folder(above)
        return folder, name, folder.names.get(name) if name else folder

    def _rename(self, about: Node, *effects: tuple[Folder, str, Node | None]) -> None:
        for folder, name, node in effects:
            if node is None:
                folder.names.pop(name, None)
            else:
                folder.names[name] = node
        self._renamings.append(Renaming(effects, about))

    def _handle(self, number: int) -> _Handle:
        try:
            return self._handles[number]
        except KeyError:
            raise _error(errno.EBADF, f"handle {number}") from None

    def _path_of(self, number: int) -> str:
        return self._handles[number].path if number in self._handles else f"handle {number}"

    def _open(self, node: Node, path: str, *, writable: bool) -> int:
        self._next_handle += 1
        self._handles[self._next_handle] = _Handle(node, path, writable)
        return self._next_handle

    # -------------------------------------------------------------------------------------------------------- `Files`

    def open_for_reading(self, path: str) -> int:
        self._begin("open_for_reading", path)
        node = self._find(path)[2]
        if node is None:
            raise _error(errno.ENOENT, path)
        return self._open(node, path, writable=False)

    def open_for_writing(self, path: str) -> int:
        self._begin("open_for_writing", path)
        return self._open_for_writing(path)

    def _open_for_writing(self, path: str) -> int:
        folder, name, node = self._find(path)
        if isinstance(node, Folder):
            raise _error(errno.EISDIR, path)
        if node is None:
            node = File()
            self._rename(node, (folder, name, node))
        return self._open(node, path, writable=True)

    def close(self, handle: int) -> None:
        fault = self._begin("close", self._path_of(handle))
        self._handle(handle)
        del self._handles[handle]
        self._locks.pop(handle, None)
        if fault is not None:
            # Linux closes it in any case.
            raise _error(errno.EIO if fault is FaultKind.EIO else errno.ENOSPC, f"handle {handle}")

    def size(self, handle: int) -> int:
        self._begin("size", self._path_of(handle))
        file = self._handle(handle).file
        return len(file.content) if isinstance(file, File) else 0

    def read(self, handle: int, length: int, position: int) -> bytes:
        self._begin("read", self._path_of(handle))
        file = self._handle(handle).file
        if isinstance(file, Folder):
            raise _error(errno.EISDIR, f"handle {handle}")
        return bytes(file.content[position : position + length])

    def read_cached(self, handle: int, length: int, position: int) -> Buffer | None:
        try:
            content = self.read(handle, length, position)
        except OSError:
            return None
        return content if len(content) == length else None

    def write(self, handle: int, buffers: Sequence[Buffer], position: int) -> int:
        fault = self._begin("write", self._path_of(handle))
        file = self._writable(handle)
        if len(buffers) > BUFFERS_PER_WRITE:
            raise _error(errno.EINVAL, f"handle {handle}")
        content = b"".join(buffers)
        if fault is not None:
            taken = self._rng().randrange(fault is not FaultKind.CRASH, max(len(content), 2))
            content = content[:taken]
        if content:
            file.change(position, content)
        if fault is FaultKind.CRASH:
            raise PowerCut
        return len(content)

    def _writable(self, handle: int) -> File:
        known = self._handle(handle)
        if not known.writable or not isinstance(known.file, File):
            raise _error(errno.EBADF, known.path)
        return known.file

    def truncate(self, handle: int, size: int) -> None:
        self._begin("truncate", self._path_of(handle))
        known = self._handle(handle)
        if not known.writable or not isinstance(known.file, File):
            raise _error(errno.EINVAL, known.path)
        known.file.change(size, None)

    def reserve(self, handle: int, size: int) -> None:
        """This disk has no blocks; only the call matters."""
        self._begin("reserve", self._path_of(handle))
        self._writable(handle)

    def sync(self, handle: int) -> None:
        path = self._path_of(handle)
        try:
            fault = self._begin("sync", path)
        except OSError:
            self._fail_sync(handle)
            raise
        file = self._handle(handle).file
        if fault is not None:
            self._fail_sync(handle)
            raise _error(errno.EIO if fault is FaultKind.EIO else errno.ENOSPC, path)
        if isinstance(file, File) and not self.ignores_sync(path):
            file.sync()

    def _fail_sync(self, handle: int) -> None:
        file = self._handle(handle).file
        if isinstance(file, File):
            file.fail_sync()

    def sync_folder(self, path: str) -> None:
        self._begin("sync_folder", path)
        folder = self._folder(path)
        if self.ignores_sync(path):
            return
        self._make_durable(self._made_durable_with(folder))

    def _made_durable_with(self, folder: Folder) -> dict[int, None]:
        """The changes of names in a folder, and earlier changes of the same files, in order."""
        last = {id(r.about): i for i, r in enumerate(self._renamings) if any(e[0] is folder for e in r.effects)}
        return {i: None for i, r in enumerate(self._renamings) if i <= last.get(id(r.about), -1)}

    def _make_durable(self, durable: dict[int, None]) -> None:
        last: dict[tuple[int, str], int] = {}
        for i in durable:
            for above, name, node in self._renamings[i].effects:
                last[id(above), name] = i
                if node is None:
                    above.durable.pop(name, None)
                else:
                    above.durable[name] = node
        left = []
        for i, renaming in enumerate(self._renamings):
            if i in durable:
                continue
            # After a durable change of a name, its earlier meaning cannot come back.
            effects = tuple(effect for effect in renaming.effects if last.get((id(effect[0]), effect[1]), -1) < i)
            if effects:
                left.append(Renaming(effects, renaming.about))
        self._renamings = left

    def sync_filesystem(self, path: str) -> None:
        self._begin("sync_filesystem", path)
        self._folder(path)
        if self.ignores_sync(path):
            return
        self._make_durable(dict.fromkeys(range(len(self._renamings))))
        sync_files(self._root)

    def rename(self, source: str, target: str) -> None:
        self._begin("rename", target)
        above, name, node = self._find(source)
        new_above, new_name, there = self._find(target)
        if node is None:
            raise _error(errno.ENOENT, source)
        if there is node:
            return
        if f"{source}/".startswith(f"{target}/"):
            raise _error(errno.ENOTEMPTY, target)
        if isinstance(node, Folder):
            if f"{target}/".startswith(f"{source}/"):
                raise _error(errno.EINVAL, target)
            if isinstance(there, File):
                raise _error(errno.ENOTDIR, target)
            if isinstance(there, Folder) and there.names:
                raise _error(errno.ENOTEMPTY, target)
        elif isinstance(there, Folder):
            raise _error(errno.EISDIR, target)
        self._rename(node, (above, name, None), (new_above, new_name, node))

    def remove(self, path: str) -> None:
        self._begin("remove", path)
        folder, name, node = self._find(path)
        if node is None:
            raise _error(errno.ENOENT, path)
        if isinstance(node, Folder):
            raise _error(errno.EISDIR, path)
        self._rename(node, (folder, name, None))

    def make_folder(self, path: str) -> None:
        self._begin("make_folder", path)
        folder, name, node = self._find(path)
        if node is not None:
            raise _error(errno.EEXIST, path)
        made = Folder()
        self._rename(made, (folder, name, made))

    def remove_tree(self, path: str) -> None:
        fault = self._begin("remove_tree", path)
        folder, name, node = self._find(path)
        if node is None:
            raise _error(errno.ENOENT, path)
        if not isinstance(node, Folder):
            raise _error(errno.ENOTDIR, path)
        steps = [*inside(node), (folder, name, node)]
        if fault is not None:
            steps = steps[: self._rng().randrange(len(steps) + 1)]
        for above, inner, gone in steps:
            self._rename(gone, (above, inner, None))
        if fault is not None:
            raise PowerCut

    def exists(self, path: str) -> bool:
        self._begin("exists", path)
        try:
            return self._find(path)[2] is not None
        except (FileNotFoundError, NotADirectoryError):
            return False

    def list(self, path: str) -> list[Item]:
        self._begin("list", path)
        folder = self._folder(path)
        return [
            Item(name, isinstance(node, Folder), len(node.content) if isinstance(node, File) else 0)
            for name, node in folder.names.items()
        ]

    def lock(self, path: str) -> int | None:
        self._begin("lock", path)
        handle = self._open_for_writing(path)
        file = self._writable(handle)
        if any(file is locked for locked in self._locks.values()):
            del self._handles[handle]
            return None
        self._locks[handle] = file
        return handle

    def sign(self, handle: int) -> None:
        self._begin("sign", self._path_of(handle))
        file = self._writable(handle)
        file.change(0, None)
        file.change(0, b"pid 1\n")


def _never(act: str, path: str) -> int | None:
    return None


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
