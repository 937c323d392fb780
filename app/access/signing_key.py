"""access/signing.key: the secret that signs access tokens, where the configuration has none.

It is made once, for this folder. Tokens survive a restart with it. Whoever can read the file can be everybody, so its
owner alone may.
"""

from __future__ import annotations

import base64
import logging
import os
import secrets

from whippet.app.config.error import ConfigError
from whippet.app.config.listeners import HttpJwt
from whippet.storage import files

_log = logging.getLogger(__name__)

NAME = "signing.key"
SECRET_BYTES = 64
OWNER_ALONE = 0o600


def read_or_make(configured: HttpJwt, folder: str) -> list[bytes]:
    """The first one signs, all of them verify. Blocks: for a thread, or before the loop is needed."""
    texts = [secret for secret in (configured.encoding_secret, configured.decoding_secret) if secret]
    if not texts:
        return [_kept(os.path.join(folder, NAME))]
    if len(set(texts)) > 1:
        _log.warning(
            "http.jwt.encoding_secret and http.jwt.decoding_secret differ: tokens are signed with the first, and "
            "those that were signed with the second are accepted until they end"
        )
    if configured.use_base64_secret:
        return [base64.b64decode(text, validate=True) for text in texts]
    return [text.encode() for text in texts]


def _kept(path: str) -> bytes:
    disk = files.Files()
    try:
        found = _read(path)
        if found is None:
            files.make_folders(disk, os.path.dirname(path))
            found = _make(path)
            disk.sync_folder(os.path.dirname(path))
    except OSError as error:
        raise ConfigError(
            f"{path}, the key of access tokens, cannot be used: {error.strerror or error}; "
            "mend that, or set http.jwt.encoding_secret"
        ) from error
    if len(found) < SECRET_BYTES:
        raise ConfigError(f"{path} is not a key as Whippet makes it: remove it and a new one is made")
    return found


def _read(path: str) -> bytes | None:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        if os.fstat(handle).st_mode & 0o077:
            _log.warning("%s was readable for others: now it is not, but they may have it", path)
            os.fchmod(handle, OWNER_ALONE)
        return os.read(handle, 4096)
    finally:
        os.close(handle)


def _make(path: str) -> bytes:
    """Under another name first, so that a crash leaves no half of a key."""
    secret = secrets.token_bytes(SECRET_BYTES)
    temporary = f"{path}.new"
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, OWNER_ALONE)
    try:
        os.fchmod(handle, OWNER_ALONE)
        os.write(handle, secret)
        os.fsync(handle)
    finally:
        os.close(handle)
    os.rename(temporary, path)
    return secret
