"""The only module that uses the operating system's files: every call of the store goes through a `Files` value.

Tests replace it to make any operation fail, stop short or get lost. All methods block, so only the shards' threads and
the offline tools of the command line call them, never the event loop.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
from collections.abc import Sequence
from typing import NamedTuple

from whippet.storage.descriptors import with_reserve

Buffer = bytes | bytearray | memoryview

BUFFERS_PER_WRITE = 1024
"""IOV_MAX of Linux: the most buffers that one call writes."""


_libc = ctypes.CDLL(None, use_errno=True)
_syncfs = getattr(_libc, "syncfs", None)
_fallocate = getattr(_libc, "fallocate64", None) or getattr(_libc, "fallocate", None)
if _fallocate is not None:
    _fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)

RWF_NOWAIT = getattr(os, "RWF_NOWAIT", 8)

KEEP_SIZE = 1
"""FALLOC_FL_KEEP_SIZE, which the os module does not have."""


class Item(NamedTuple):
    """One entry of a folder."""

    name: str
    is_folder: bool
    size: int


class Space(NamedTuple):
    """The bytes of a file system that this process may still use, and all that it has."""

    free: int
    total: int


class Files:
    """The real disk. Errors are the OSErrors of the operating system, unchanged."""

    def open_for_reading(self, path: str) -> int:
        return with_reserve(os.open, path, os.O_RDONLY)

    def open_for_writing(self, path: str) -> int:
        """Opens for reading and writing; creates the file if it does not exist."""
        return with_reserve(os.open, path, os.O_RDWR | os.O_CREAT, 0o640)

    def close(self, handle: int) -> None:
        os.close(handle)

    def size(self, handle: int) -> int:
        return os.fstat(handle).st_size

    def read(self, handle: int, length: int, position: int) -> bytes:
        """Returns less than `length` bytes only at the end of the file, or above Linux's 2 GiB a call."""
        return os.pread(handle, length, position)

    def read_cached(self, handle: int, length: int, position: int) -> Buffer | None:
        """Reads what the operating system has in memory, without waiting for the disk. None if it does not have all of
        it, or cannot tell."""
        content = bytearray(length)
        try:
            taken = os.preadv(handle, (content,), position, RWF_NOWAIT)
        except OSError:
            # EAGAIN: a disk would be needed. EOPNOTSUPP: this file system cannot tell. The rest shows in a plain read.
            return None
        return content if taken == length else None

    def write(self, handle: int, buffers: Sequence[Buffer], position: int) -> int:
        """Writes at a position and returns how many bytes were written, which may be fewer than given."""
        return os.pwritev(handle, buffers, position)

    def truncate(self, handle: int, size: int) -> None:
        os.ftruncate(handle, size)

    def reserve(self, handle: int, size: int) -> None:
        """Allocates blocks for the first `size` bytes of a file without making it longer. `truncate` to any length,
        including the current one, frees those after the end."""
        number = errno.EOPNOTSUPP
        if _fallocate is not None:
            while _fallocate(handle, KEEP_SIZE, 0, size):
                number = ctypes.get_errno()
                if number != errno.EINTR:
                    break
            else:
                return
        raise OSError(number, os.strerror(number))

    def sync(self, handle: int) -> None:
        """Returns when the file's content and length are on the disk."""
        os.fdatasync(handle)

    def sync_folder(self, path: str) -> None:
        """Returns when the file names in a folder are on the disk."""
        handle = with_reserve(os.open, path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def sync_filesystem(self, path: str) -> None:
        """Returns when everything written to the file system of a folder is on the disk."""
        handle = with_reserve(os.open, path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            if _syncfs is None:
                os.sync()
            elif _syncfs(handle):
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number), path)
        finally:
            os.close(handle)

    def space(self, path: str) -> Space:
        """The space of the file system of a folder."""
        found = os.statvfs(path)
        return Space(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)

    def share_a_disk(self, path: str, other: str) -> bool:
        """Returns whether two folders are in one file system."""
        return os.stat(path).st_dev == os.stat(other).st_dev

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def make_folder(self, path: str) -> None:
        os.mkdir(path, 0o750)

    def remove_tree(self, path: str) -> None:
        """Removes a folder with its content. Links are removed, but not what they point to."""
        if os.path.islink(path):
            os.unlink(path)
        else:
            with_reserve(shutil.rmtree, path)

    def exists(self, path: str) -> bool:
        """Whether there is anything with that name. Raises OSError if that cannot be determined."""
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def list(self, path: str) -> list[Item]:
        """The entries of a folder, with the sizes of plain files. Raises FileNotFoundError if there is no such
        folder."""
        items = []
        with with_reserve(os.scandir, path) as entries:
            for entry in entries:
                is_folder = entry.is_dir()
                try:
                    size = 0 if is_folder else entry.stat().st_size
                except FileNotFoundError:
                    continue
                items.append(Item(entry.name, is_folder, size))
        return items

    def lock(self, path: str) -> int | None:
        """Takes the lock for as long as the handle is open. Returns None if another process has it."""
        handle = self.open_for_writing(path)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return None
            raise
        return handle

    def sign(self, handle: int) -> None:
        """Writes the process id into a lock file."""
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"pid {os.getpid()}\n".encode(), 0)


def write_some(files: Files, handle: int, buffers: Sequence[Buffer], position: int) -> tuple[int, OSError | None]:
    """Writes everything, in as many calls as it takes. Returns how many bytes were written, and the error if not
    all."""
    written = 0
    while buffers:
        now = buffers[:BUFFERS_PER_WRITE]
        try:
            taken = files.write(handle, now, position + written)
        except OSError as error:
            return written, error
        if not taken and any(map(len, now)):
            return written, OSError(errno.EIO, os.strerror(errno.EIO))
        written += taken
        buffers = buffers[len(now) :] if taken == sum(map(len, now)) else after(buffers, taken)
    return written, None


def write_all(files: Files, handle: int, buffers: Sequence[Buffer], position: int) -> None:
    error = write_some(files, handle, buffers, position)[1]
    if error is not None:
        raise error


def after(buffers: Sequence[Buffer], taken: int) -> list[Buffer]:
    """The rest of the buffers after their first `taken` bytes."""
    for i, buffer in enumerate(buffers):
        if taken < len(buffer):
            return [memoryview(buffer)[taken:], *buffers[i + 1 :]]
        taken -= len(buffer)
    return []


def read_fully(files: Files, handle: int, length: int, position: int) -> bytes:
    """Reads `length` bytes in as many calls as it takes; fewer only if the file ends."""
    content = files.read(handle, length, position)
    while len(content) < length and (more := files.read(handle, length - len(content), position + len(content))):
        content += more
    return content


def read_all(files: Files, path: str) -> bytes:
    """Reads a small file completely."""
    handle = files.open_for_reading(path)
    try:
        parts = []
        position = 0
        while part := files.read(handle, 1 << 20, position):
            parts.append(part)
            position += len(part)
        return b"".join(parts)
    finally:
        files.close(handle)


def replace(files: Files, path: str, content: bytes, *, sync: bool = True) -> None:
    """Replaces the content of a file. Readers, also after a crash at any point, see the old content or the new one."""
    files.rename(write_beside(files, path, content, sync=sync), path)
    if sync:
        files.sync_folder(path.rpartition("/")[0])


def write_beside(files: Files, path: str, content: bytes, *, sync: bool = True) -> str:
    """Writes the content that is to replace a file into a file beside it, and returns its path."""
    temporary = path + ".new"
    handle = files.open_for_writing(temporary)
    try:
        files.truncate(handle, 0)
        write_all(files, handle, [content], 0)
        if sync:
            files.sync(handle)
    finally:
        files.close(handle)
    return temporary


def make_folders(files: Files, path: str) -> list[str]:
    """Creates a folder and its missing parents. Returns the folders that have new entries to be synced."""
    missing = []
    while path and not files.exists(path):
        missing.append(path)
        path = path.rpartition("/")[0]
    for folder in reversed(missing):
        files.make_folder(folder)
    return [folder.rpartition("/")[0] or ("/" if folder.startswith("/") else ".") for folder in missing]
