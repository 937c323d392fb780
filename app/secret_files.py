"""Files that hold a secret: only their owner may read them, and a crash never leaves one half written."""

from __future__ import annotations

import logging
import os

_log = logging.getLogger(__name__)

OWNER_ONLY = 0o600


def read(path: str, bytes_max: int) -> bytes | None:
    """Returns the content, at most `bytes_max` of it, or None if there is no such file. Does not follow links.

    A file that others could use is closed to them, with a warning: they may have the secret.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    with open(handle, "rb") as file:
        if os.fstat(handle).st_mode & 0o077:
            _log.warning("%s was readable for others; they have no access any more, but may know the secret", path)
            os.fchmod(handle, OWNER_ONLY)
        return file.read(bytes_max)


def write(path: str, content: bytes) -> None:
    """Writes and syncs a file beside the path, then renames it."""
    temporary = f"{path}.new"
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, OWNER_ONLY)
    with open(handle, "wb") as file:
        os.fchmod(handle, OWNER_ONLY)
        file.write(content)
        file.flush()
        os.fsync(handle)
    os.rename(temporary, path)
