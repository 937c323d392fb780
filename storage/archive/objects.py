"""Objects of an archive, in a bucket or in a folder: put, read back, list, remove, and replace if unchanged.

This is the only module that knows obstore. All methods block, so the archiver's threads and the tools of the command
line call them, never the event loop. Every failure is an ArchiveUnavailable, whose text is one line. Nothing is tried
again here, because only the caller knows whether what it does still makes sense.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import obstore
import xxhash
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import AzureStore, GCSStore, LocalStore, S3Store

from whippet.storage.errors import ArchiveConflict, ArchiveUnavailable, StorageError
from whippet.storage.files import Buffer, Files, make_folders
from whippet.storage.options import ArchiveOptions

if TYPE_CHECKING:
    from obstore.store import ObjectStore

PART_BYTES = 8 << 20
"""The size of a part of a large upload, and of a ranged read: what one request moves."""
PARTS_TOGETHER = 2
LOCK_FILE = "LOCK"
_UNFINISHED = re.compile(r"#\d+$")
LOCK_WAIT_S = 10.0

Result = TypeVar("Result")


class _Missing(ArchiveUnavailable):
    """There is no such object, or no such bucket."""


class Version(NamedTuple):
    """Identifies what an object contained when it was read or written."""

    e_tag: str | None
    version: str | None


class Found(NamedTuple):
    content: bytes
    version: Version


class Listed(NamedTuple):
    name: str
    size: int


class Digest(NamedTuple):
    """What is compared after an upload."""

    size: int
    xxh3: str


class Objects:
    """The objects below a prefix of a bucket."""

    def __init__(self, store: ObjectStore, location: str) -> None:
        self.location = location
        """The place, as operators know it; it contains no secret."""
        self.folder: str | None = None
        """The folder with the objects, if they are files of this machine."""
        self._store = store

    def put(self, name: str, content: bytes) -> None:
        """Stores a small object, whatever was there."""
        self._guarded("written", name, lambda: obstore.put(self._store, name, content, use_multipart=False))

    def put_parts(self, name: str, parts: Iterable[bytes]) -> None:
        """Stores an object of any size. The parts are taken one by one, and few of them are in memory at a time."""
        self._guarded(
            "written",
            name,
            lambda: obstore.put(
                self._store,
                name,
                iter(parts),
                use_multipart=True,
                chunk_size=PART_BYTES,
                max_concurrency=PARTS_TOGETHER,
            ),
        )

    def replace(self, name: str, content: bytes, expected: Version | None) -> Version:
        """Replaces an object if it still is the expected version, or creates it if None is expected. Otherwise
        nothing is written, and ArchiveConflict is raised."""
        mode: Any = "create"
        if expected is not None:
            mode = {key: value for key, value in expected._asdict().items() if value is not None}
        try:
            result = self._guarded(
                "replaced", name, lambda: obstore.put(self._store, name, content, mode=mode, use_multipart=False)
            )
        except (AlreadyExistsError, PreconditionError) as error:
            raise ArchiveConflict(f"{self._place(name)}: somebody else has changed it") from error
        except _Missing as error:
            if expected is None:
                raise
            raise ArchiveConflict(f"{self._place(name)}: somebody else has removed it") from error
        return Version(result["e_tag"], result["version"])

    def get(self, name: str) -> Found | None:
        """Reads a small object; None if there is none."""

        def read() -> Found:
            found = obstore.get(self._store, name)
            meta = found.meta
            return Found(bytes(found.bytes()), Version(meta["e_tag"], meta["version"]))

        try:
            return self._guarded("read", name, read)
        except _Missing:
            return None

    def size(self, name: str) -> int | None:
        """None if there is no such object."""
        try:
            return int(self._guarded("read", name, lambda: obstore.head(self._store, name))["size"])
        except _Missing:
            return None

    def read(self, name: str, start: int, length: int) -> Buffer:
        """Reads a range, which must be inside the object."""
        if not length:
            return b""
        content = self._guarded(
            "read", name, lambda: memoryview(obstore.get_range(self._store, name, start=start, length=length))
        )
        if len(content) != length:
            raise ArchiveUnavailable(f"{self._place(name)}: {len(content)} of {length} bytes came at position {start}")
        return content

    def parts(self, name: str, size: int) -> Iterator[Buffer]:
        """The content of an object of a known size, part by part."""
        for start in range(0, size, PART_BYTES):
            yield self.read(name, start, min(PART_BYTES, size - start))

    def digest(self, name: str) -> Digest | None:
        """Reads an object back completely; None if there is none."""
        size = self.size(name)
        if size is None:
            return None
        hasher = xxhash.xxh3_64()
        for part in self.parts(name, size):
            hasher.update(part)
        return Digest(size, hasher.hexdigest())

    def list(self, below: str) -> Iterator[Listed]:
        """All objects whose names begin with a folder's. A service may list late what was just written or removed."""

        def chunks() -> list[Listed]:
            return [Listed(item["path"], item["size"]) for chunk in obstore.list(self._store, below) for item in chunk]

        yield from self._guarded("listed", below, chunks)

    def remove(self, names: Sequence[str]) -> None:
        """Removes objects, those that do not exist included."""
        for name in names:
            try:
                self._guarded("removed", name, lambda name=name: obstore.delete(self._store, name))  # type: ignore[misc]
            except _Missing:
                continue

    def remove_unfinished(self, folder: str) -> None:
        """Removes what uploads left that were interrupted. In a bucket, a rule of its operator does that."""

    def _place(self, name: str) -> str:
        return f"{self.location.rstrip('/')}/{name}"

    def _guarded(self, action: str, name: str, call: Callable[[], Result]) -> Result:
        try:
            return call()
        except (AlreadyExistsError, PreconditionError, StorageError):
            raise
        except FileNotFoundError as error:
            raise _Missing(f"{self._place(name)} cannot be {action}: {_first_line(error)}") from error
        except (BaseError, OSError, ValueError, NotImplementedError) as error:
            # The text of obstore has a dump of its own structures after the first line.
            raise ArchiveUnavailable(f"{self._place(name)} cannot be {action}: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return lines[0][:500] if lines else type(error).__name__


class LocalObjects(Objects):
    """Objects in a folder. Everything is synced before a method returns: the caller is about to delete the original."""

    def __init__(self, path: str, files: Files) -> None:
        self._root = path.rstrip("/") or "/"
        self._files = files
        self._turn = threading.Lock()
        try:
            for above in make_folders(files, self._root):
                files.sync_folder(above)
            store = LocalStore(self._root)
        except (OSError, BaseError) as error:
            raise ArchiveUnavailable(f"{path} cannot be used as an archive: {_first_line(error)}") from error
        super().__init__(store, self._root)
        self.folder = self._root

    def put(self, name: str, content: bytes) -> None:
        self._prepare(name)
        super().put(name, content)
        self._sync(name)

    def put_parts(self, name: str, parts: Iterable[bytes]) -> None:
        self._prepare(name)
        super().put_parts(name, parts)
        self._sync(name)

    def replace(self, name: str, content: bytes, expected: Version | None) -> Version:
        """obstore cannot replace a file if it is unchanged, so this does it under a lock; the write is a rename."""
        self._prepare(name)
        with self._turn:
            lock = self._lock()
            try:
                current = self.get(name)
                if (None if current is None else current.version) != expected:
                    raise ArchiveConflict(f"{self._place(name)}: somebody else has changed it")
                result = self._guarded("replaced", name, lambda: obstore.put(self._store, name, content))
                self._sync(name)
            finally:
                self._files.close(lock)
        return Version(result["e_tag"], result["version"])

    def remove_unfinished(self, folder: str) -> None:
        """obstore writes beside the object, under its name with a number, and renames the file at the end."""
        path = f"{self._root}/{folder}"
        try:
            for item in self._files.list(path):
                if not item.is_folder and _UNFINISHED.search(item.name):
                    self._files.remove(f"{path}/{item.name}")
        except FileNotFoundError:
            return
        except OSError as error:
            raise ArchiveUnavailable(f"{path} cannot be tidied: {error.strerror}") from error

    def _lock(self) -> int:
        path, deadline = f"{self._root}/{LOCK_FILE}", time.monotonic() + LOCK_WAIT_S
        while True:
            try:
                lock = self._files.lock(path)
            except OSError as error:
                raise ArchiveUnavailable(f"{path} cannot be locked: {error.strerror}") from error
            if lock is not None:
                return lock
            if time.monotonic() > deadline:
                raise ArchiveUnavailable(f"{path}: another process has held this lock for {LOCK_WAIT_S:.0f} seconds")
            time.sleep(0.01)

    def _prepare(self, name: str) -> None:
        """Creates the folders of an object, and syncs their names."""
        folder = f"{self._root}/{name}".rpartition("/")[0]
        try:
            for above in make_folders(self._files, folder):
                self._files.sync_folder(above)
        except FileExistsError:
            # Another thread has just created it.
            self._prepare(name)
        except OSError as error:
            raise ArchiveUnavailable(f"{folder} cannot be created: {error.strerror}") from error

    def _sync(self, name: str) -> None:
        path = f"{self._root}/{name}"
        try:
            handle = self._files.open_for_reading(path)
            try:
                self._files.sync(handle)
            finally:
                self._files.close(handle)
            self._files.sync_folder(path.rpartition("/")[0])
        except OSError as error:
            raise ArchiveUnavailable(f"{path} cannot be synced: {error.strerror}") from error


def open_objects(options: ArchiveOptions, files: Files) -> Objects:
    """Connects to nothing yet, except that a folder is created if it is missing."""
    if options.kind == "disk":
        return LocalObjects(options.path, files)
    prefix = options.key_prefix.strip("/")
    scheme = {"s3": "s3", "gcs": "gs", "azure": "az"}[options.kind]
    place = f"{options.account}/{options.bucket}" if options.kind == "azure" else options.bucket
    location = f"{scheme}://{place}/{prefix}" if prefix else f"{scheme}://{place}"
    shared: dict[str, Any] = {
        "prefix": prefix or None,
        "client_options": {
            # Only services with an endpoint of their own may do without TLS.
            "allow_http": options.endpoint.startswith("http://") or bool(options.service_account_file),
            "timeout": timedelta(seconds=options.request_timeout_s),
        },
        # A conditional write that succeeds although its response is lost would look refused if it were repeated.
        "retry_config": {"max_retries": 0},
    }
    try:
        return Objects(_store(options, shared), location)
    except (BaseError, OSError, ValueError) as error:
        raise ArchiveUnavailable(f"{location} cannot be used: {_first_line(error)}") from error


def _store(options: ArchiveOptions, shared: dict[str, Any]) -> ObjectStore:
    if options.kind == "gcs":
        return GCSStore(options.bucket, **_given(service_account=options.service_account_file), **shared)
    if options.kind == "azure":
        given = _given(account_key=options.secret_access_key, endpoint=options.endpoint)
        return AzureStore(options.bucket, account_name=options.account, **given, **shared)
    given = _given(
        region=options.region,
        endpoint=options.endpoint,
        access_key_id=options.access_key_id,
        secret_access_key=options.secret_access_key,
    )
    return S3Store(options.bucket, **given, **shared)


def _given(**options: str) -> dict[str, Any]:
    """Those that are not empty; for the others, obstore asks the environment and the machine."""
    return {name: value for name, value in options.items() if value}
