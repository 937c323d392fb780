"""access/signing.key: the secret that signs access tokens, unless the configuration sets one.

It is created once for the data folder, so that access tokens survive a restart. Anybody who can read it can act as any
user, so only its owner may read the file.
"""

from __future__ import annotations

import base64
import logging
import os
import secrets

from whippet.app import secret_files
from whippet.app.config.error import ConfigError
from whippet.app.config.listeners import HttpJwt
from whippet.storage import files

_log = logging.getLogger(__name__)

NAME = "signing.key"
KEY_BYTES = 64
KEY_BYTES_MAX = 4096


def read_or_create(configured: HttpJwt, folder: str) -> list[bytes]:
    """Returns the keys: the first one signs, all of them verify. Blocks: for a thread."""
    texts = [secret for secret in (configured.encoding_secret, configured.decoding_secret) if secret]
    if not texts:
        return [_key_in(os.path.join(folder, NAME))]
    if len(set(texts)) > 1:
        _log.warning(
            "http.jwt.encoding_secret and http.jwt.decoding_secret differ: new tokens are signed with the first, and "
            "tokens signed with the second are accepted until they expire"
        )
    if configured.use_base64_secret:
        return [base64.b64decode(text, validate=True) for text in texts]
    return [text.encode() for text in texts]


def _key_in(path: str) -> bytes:
    """Returns the key in the file, which is created if it is missing."""
    disk = files.Files()
    try:
        key = secret_files.read(path, KEY_BYTES_MAX)
        if key is None:
            key = secrets.token_bytes(KEY_BYTES)
            files.make_folders(disk, os.path.dirname(path))
            secret_files.write(path, key)
            disk.sync_folder(os.path.dirname(path))
    except OSError as error:
        raise ConfigError(
            f"{path}, the key that signs access tokens, cannot be used: {error.strerror or error}; "
            "repair it, or set http.jwt.encoding_secret"
        ) from error
    if len(key) < KEY_BYTES:
        raise ConfigError(f"{path} is not a key as Whippet creates it: remove it, and the next start creates a new one")
    return key
