"""Iggy's encryption at rest: AES-256-GCM, with the nonce in front of each encrypted value and its tag after it."""

from __future__ import annotations

import base64
import binascii

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from whippet.app.importing.iggy.report import Refused

KEY_BYTES = 32
NONCE_BYTES = 12
TAG_BYTES = 16


class NotDecrypted(Exception):
    """The key is not the one, or the bytes are damaged."""


class Cipher:
    """Decrypts with one key."""

    def __init__(self, key: bytes) -> None:
        self._aes = AESGCM(key)

    def decrypt(self, value: bytes) -> bytes:
        if len(value) < NONCE_BYTES + TAG_BYTES:
            raise NotDecrypted
        try:
            return self._aes.decrypt(value[:NONCE_BYTES], value[NONCE_BYTES:], None)
        except InvalidTag:
            raise NotDecrypted from None


def cipher_of(text: str) -> Cipher:
    """The text of a key as in Iggy's configuration: base64 of 32 bytes. Errors never repeat it."""
    try:
        key = base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        raise Refused("the key is not base64; Iggy's configuration has it as system.encryption.key") from None
    if len(key) != KEY_BYTES:
        raise Refused(f"the encryption key has {len(key)} bytes, {KEY_BYTES} are needed (44 characters of base64)")
    return Cipher(key)
