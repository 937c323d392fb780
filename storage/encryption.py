"""Encryption at rest with AES-256-GCM: the keys that a store knows, and what is sealed with them.

A `Keyring` is used by all threads of a store. What it seals says which key, salt and nonce it was sealed with, so any
process that knows the key can open it. Nothing here uses a file. FORMAT.md, section 12, has the formats, and the reason
why no nonce is ever used twice with the same key.
"""

from __future__ import annotations

import hmac
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from secrets import token_bytes
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES = 32
ID_BYTES = SALT_BYTES = 16
NONCE_BYTES = 12
TAG_BYTES = 16
USES_MAX = 1 << 24
"""How often a derived key encrypts."""

Buffer = bytes | bytearray | memoryview


class NotOpened(Exception):
    """What was sealed cannot be opened: the key is unknown, or it was changed or moved."""


class Sealed(NamedTuple):
    """With what something was sealed, and the ciphertext, which ends with its tag."""

    key_id: bytes
    salt: bytes
    nonce: bytes
    ciphertext: bytes


def id_of(secret: bytes) -> bytes:
    """The id of a key, which tells nothing about it."""
    return _derived(secret, b"", b"whippet key id", ID_BYTES)


def _derived(secret: bytes, salt: bytes, purpose: bytes, length: int = KEY_BYTES) -> bytes:
    # Imported where they are used: they take a fifth of the start of a client, which has no keys.
    from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF  # noqa: PLC0415

    return HKDF(SHA256(), length, salt, purpose).derive(secret)


def _wrong_tag() -> type[Exception]:
    """Called only when something cannot be opened."""
    from cryptography.exceptions import InvalidTag  # noqa: PLC0415

    return InvalidTag


class Keyring:
    """The keys by which a store can read, and perhaps one with which it encrypts what it writes."""

    def __init__(
        self, secrets: Sequence[bytes], active: bytes | None, random: Callable[[int], bytes] = token_bytes
    ) -> None:
        known = [*secrets, *([] if active is None else [active])]
        self._secrets = {id_of(secret): secret for secret in known}
        self._random = random
        self._lock = threading.Lock()
        self._left = 0
        self.active_id = b"" if active is None else id_of(active)
        """The id of the key with which it encrypts; empty: it does not encrypt."""
        self._blinding = b"" if active is None else _derived(active, b"", b"whippet batch checksum")
        self._cipher = lru_cache(1024)(self._cipher_of)

    @property
    def ids(self) -> list[str]:
        return [identity.hex() for identity in self._secrets]

    def knows(self, key_id: bytes) -> bool:
        return key_id in self._secrets

    def __repr__(self) -> str:
        return f"<keys {', '.join(self.ids)}>"

    def seal(self, prepare: Callable[[bytes, bytes, bytes], tuple[Buffer, Buffer]]) -> Sealed:
        """Encrypts. `prepare` takes the key's id, the salt and the nonce, and returns what is encrypted and the data
        that the ciphertext is bound to."""
        with self._lock:
            if not self._left:
                self._left, self._salt = USES_MAX, self._random(SALT_BYTES)
            self._left -= 1
            salt = self._salt
        nonce = self._random(NONCE_BYTES)
        plain, bound = prepare(self.active_id, salt, nonce)
        return Sealed(self.active_id, salt, nonce, self._cipher(self.active_id, salt).encrypt(nonce, plain, bound))

    def open(self, sealed: Sealed, bound: Buffer) -> bytes:
        """Decrypts. Raises NotOpened."""
        if sealed.key_id not in self._secrets:
            raise NotOpened(f"it is encrypted with the key {sealed.key_id.hex()}, which is not known here")
        try:
            return self._cipher(sealed.key_id, sealed.salt).decrypt(sealed.nonce, sealed.ciphertext, bound)
        except _wrong_tag():
            raise NotOpened("what is encrypted was changed, or moved here from another place") from None

    def _cipher_of(self, key_id: bytes, salt: bytes) -> AESGCM:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415

        return AESGCM(_derived(self._secrets[key_id], salt, b"whippet data"))

    def blinded(self, checksum: int, bound: bytes) -> int:
        """A number in place of a checksum of plain data, which would help to guess that data."""
        digest = hmac.digest(self._blinding, checksum.to_bytes(8, "little") + bound, "sha256")
        return int.from_bytes(digest[:8], "little")


class Seal:
    """A keyring for one place: what it seals can be opened only with the same context."""

    def __init__(self, keyring: Keyring, context: bytes) -> None:
        self._keyring = keyring
        self._context = context
        self.seals = bool(keyring.active_id)
        """Whether what is written is encrypted."""

    def seal(self, prepare: Callable[[bytes, bytes, bytes], tuple[Buffer, Buffer]]) -> Sealed:
        def with_context(key_id: bytes, salt: bytes, nonce: bytes) -> tuple[Buffer, Buffer]:
            plain, bound = prepare(key_id, salt, nonce)
            return plain, self._context + bound

        return self._keyring.seal(with_context)

    def open(self, sealed: Sealed, bound: Buffer) -> bytes:
        return self._keyring.open(sealed, self._context + bound)

    def blinded(self, checksum: int, bound: bytes) -> int:
        return self._keyring.blinded(checksum, self._context + bound)

    def knows(self, key_id: bytes) -> bool:
        return self._keyring.knows(key_id)

    def is_active(self, key_id: bytes) -> bool:
        return key_id == self._keyring.active_id

    def for_part(self, name: str) -> Seal:
        """The same for a part of this place."""
        return Seal(self._keyring, self._context + name.encode() + b"\0")
