"""The data folder as a whole: its lock, its format version, and whether it was left cleanly (FORMAT.md, section 1).

All of it blocks, so the store calls it on a shard's thread, and command line tools call it before they do anything
else.
"""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Callable, Iterator

import msgspec

from whippet.storage.document_checksums import with_checksum
from whippet.storage.documents import NOT_UNDERSTOOD
from whippet.storage.encryption import Keyring
from whippet.storage.errors import KeyMissing, StoreLocked, UnsupportedFormat
from whippet.storage.files import Files, make_folders, read_all, replace
from whippet.storage.handles import close
from whippet.storage.layout import (
    FORMAT_FILE,
    FORMAT_VERSION,
    LOCK_FILE,
    OLDEST_VERSION,
    TOKENS_FOLDER,
    USERS_FOLDER,
    Layout,
)
from whippet.storage.options import StoreOptions

_log = logging.getLogger(__name__)


class Identity(msgspec.Struct, frozen=True, omit_defaults=True):
    """The file FORMAT, which identifies a data folder."""

    whippet_store: int
    """The format version."""
    id: str
    created_at: int
    keys: tuple[str, ...] = ()
    """The ids of all keys with which anything in the folder may be encrypted."""


def read_identity(files: Files, path: str) -> Identity:
    """Reads the file FORMAT. Raises UnsupportedFormat unless this program can read folders of its version."""
    try:
        identity = msgspec.json.decode(read_all(files, path), type=Identity)
    except NOT_UNDERSTOOD as error:
        raise UnsupportedFormat(f"{path}: cannot be decoded: {error}") from error
    except OSError as error:
        raise UnsupportedFormat(f"{path}: cannot be read: {error.strerror}") from error
    if not OLDEST_VERSION <= identity.whippet_store <= FORMAT_VERSION:
        raise UnsupportedFormat(
            f"{path}: this folder has format version {identity.whippet_store}, this program has {FORMAT_VERSION}"
        )
    return identity


class DataFolder:
    """The data folder of a running store."""

    def __init__(
        self, files: Files, layout: Layout, clock: Callable[[], int], *, recreate: bool, keyring: Keyring | None = None
    ) -> None:
        self.problems: list[str] = []
        self.identity = ""
        """The id in FORMAT, once the folder was entered."""
        self._files = files
        self._layout = layout
        self._clock = clock
        self._recreate = recreate
        self._keyring = keyring
        self._lock: int | None = None

    @property
    def is_locked(self) -> bool:
        return self._lock is not None

    def enter(self) -> int:
        """Creates the folder if necessary, takes the lock, and returns when the folder was created."""
        root, path = self._layout.root, self._layout.below(LOCK_FILE)
        made = make_folders(self._files, root)
        for above in made:
            self._files.sync_folder(above)
        is_known = self._files.exists(path)
        self._lock = self._files.lock(path)
        if self._lock is None:
            raise StoreLocked(f"{root}: another process has this data folder open (see {LOCK_FILE} in it)")
        if not made and (not is_known or self._files.size(self._lock)):
            # The last process did not leave the folder cleanly. What is read now may be in the system's memory only,
            # and the store is about to build on it and call it synced.
            self._files.sync_filesystem(root)
        self._files.sign(self._lock)
        created_at = self._check_format()
        for folder in (self._layout.streams, self._layout.below(USERS_FOLDER), self._layout.below(TOKENS_FOLDER)):
            make_folders(self._files, folder)
        self._files.sync_folder(root)
        return created_at

    def _check_format(self) -> int:
        path = self._layout.below(FORMAT_FILE)
        if not self._files.exists(path):
            if self._files.exists(self._layout.streams) and self._files.list(self._layout.streams):
                if not self._recreate:
                    raise UnsupportedFormat(
                        f"{path}: missing, although there are streams; is this a data folder of Whippet? "
                        "system.recovery.recreate_missing_state = true opens it as one"
                    )
                if self._keyring is not None:
                    raise UnsupportedFormat(
                        f"{path}: missing, and without the id in it nothing can be decrypted; put the file back"
                    )
                self.problems.append(f"{path}: missing; recreated")
            identity = Identity(FORMAT_VERSION, str(uuid.uuid4()), self._clock(), self._active_key())
            self._write(path, identity)
            self.identity = identity.id
            return identity.created_at
        identity = read_identity(self._files, path)
        self._check_keys(path, identity)
        upgraded = msgspec.structs.replace(identity, whippet_store=FORMAT_VERSION)
        # The keys are named before anything is encrypted with them.
        more = tuple(key for key in self._active_key() if key not in identity.keys)
        upgraded = msgspec.structs.replace(upgraded, keys=identity.keys + more)
        if upgraded != identity:
            # Nothing else has to be written: whatever an older version has written is valid in this one.
            self._write(path, upgraded)
        if identity.whippet_store < FORMAT_VERSION:
            _log.info(
                "%s: format version %d is now %d; older servers cannot open the folder any more",
                self._layout.root,
                identity.whippet_store,
                FORMAT_VERSION,
            )
        self.identity = identity.id
        return identity.created_at

    def _active_key(self) -> tuple[str, ...]:
        active = b"" if self._keyring is None else self._keyring.active_id
        return (active.hex(),) if active else ()

    def _check_keys(self, path: str, identity: Identity) -> None:
        known = [] if self._keyring is None else self._keyring.ids
        missing = [key for key in identity.keys if key not in known]
        if missing:
            configured = f"the configured keys are {', '.join(known)}" if known else "no key is configured"
            raise KeyMissing(
                f"{path}: the folder is encrypted with the key {', '.join(missing)}, but {configured} "
                "(system.encryption.key, system.encryption.key_file)"
            )

    def _write(self, path: str, identity: Identity) -> None:
        replace(self._files, path, with_checksum(msgspec.json.encode(identity)))

    def leave(self, *, all_is_synced: bool) -> None:
        """Releases the lock. An empty lock file means to the next start that everything has been synced."""
        lock, self._lock = self._lock, None
        if lock is None:
            return
        path = self._layout.below(LOCK_FILE)
        if all_is_synced:
            try:
                self._files.truncate(lock, 0)
            except OSError as error:
                _log.warning("%s: the next start will treat this as an unclean stop: %s", path, error)
        close(self._files, path, lock)


@contextlib.contextmanager
def locked_offline(options: StoreOptions, files: Files) -> Iterator[Layout]:
    """Locks a data folder for a tool that works on it while no server runs. The lock file's content stays as it is, so
    the next start still knows how the last server stopped."""
    layout = Layout(options)
    if not files.exists(layout.below(FORMAT_FILE)):
        raise UnsupportedFormat(f"{layout.below(FORMAT_FILE)}: missing; this is not a data folder of Whippet")
    read_identity(files, layout.below(FORMAT_FILE))
    lock = files.lock(layout.below(LOCK_FILE))
    if lock is None:
        raise StoreLocked(f"{layout.root}: another process has this data folder open; stop it first")
    try:
        yield layout
    finally:
        files.close(lock)
