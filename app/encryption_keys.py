"""The keys for encryption at rest, from the configuration and from the key file.

A key file has one key a line, 32 bytes in base64; the last one is in use, and those before it are for what was
encrypted with them. Lines that begin with # are comments.
"""

from __future__ import annotations

import base64
import binascii
import os

import msgspec

from whippet.app import secret_files
from whippet.app.config.schema import Config
from whippet.storage.encryption import KEY_BYTES, Keyring
from whippet.storage.errors import KeyMissing
from whippet.storage.options import StoreOptions

FILE_BYTES_MAX = 1 << 20
COMMENT = "#"


def with_keys(options: StoreOptions, config: Config) -> StoreOptions:
    """The options of the store with the configured keys. Raises KeyMissing."""
    return msgspec.structs.replace(options, keyring=keyring(config))


def keys_if_known(options: StoreOptions, config: Config) -> StoreOptions:
    """The same for tools that need no key, and can do more with one."""
    try:
        return with_keys(options, config)
    except KeyMissing:
        return options


def keyring(config: Config) -> Keyring | None:
    """The configured keys; None if there are none."""
    encryption = config.system.encryption
    secrets = [] if not encryption.key else [decoded(encryption.key, "system.encryption.key")]
    if encryption.key_file:
        # The last one is in use.
        secrets += keys_in(encryption.key_file)
    if not secrets:
        if encryption.enabled:
            raise KeyMissing("system.encryption.enabled = true, but neither system.encryption.key nor key_file is set")
        return None
    return Keyring(secrets, secrets[-1] if encryption.enabled else None)


def decoded(text: str, where: str) -> bytes:
    try:
        secret = base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        secret = b""
    if len(secret) != KEY_BYTES:
        # The text may be a key with a mistake in it, so it is not shown.
        raise KeyMissing(f"{where}: not a key; {KEY_BYTES} bytes in base64 are needed")
    return secret


def keys_in(path: str) -> list[bytes]:
    """The keys of a key file, at least one. Raises KeyMissing."""
    try:
        content = secret_files.read(path, FILE_BYTES_MAX)
    except OSError as error:
        raise KeyMissing(f"{path} (system.encryption.key_file): cannot be read: {error.strerror}") from error
    if content is None:
        raise KeyMissing(f"{path} (system.encryption.key_file): does not exist; `whippet keys new` creates it")
    secrets = [
        decoded(line, f"{path}, line {number}")
        for number, line in enumerate(content.decode(errors="replace").splitlines(), 1)
        if line.strip() and not line.startswith(COMMENT)
    ]
    if not secrets:
        raise KeyMissing(f"{path} (system.encryption.key_file): has no key; `whippet keys rotate` adds one")
    return secrets


def add_key(path: str, now: str) -> bytes:
    """Adds a new key to the end of a key file, which is created if there is none, and returns the key."""
    content = secret_files.read(path, FILE_BYTES_MAX) or b""
    secret = os.urandom(KEY_BYTES)
    if content and not content.endswith(b"\n"):
        content += b"\n"
    secret_files.write(path, content + f"{COMMENT} {now}\n".encode() + base64.b64encode(secret) + b"\n")
    return secret
