"""Catalogue documents with secrets, encrypted or not: FORMAT.md, section 12."""

from __future__ import annotations

import msgspec

from whippet.storage.document_checksums import without_checksum
from whippet.storage.encryption import NotOpened, Seal, Sealed
from whippet.storage.errors import CatalogueError


class _Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    encrypted: int
    """The version: 1."""
    key: bytes
    salt: bytes
    nonce: bytes
    content: bytes


def sealed(content: bytes, name: str, seal: Seal | None) -> bytes:
    """A document as it is stored under a name."""
    if seal is None or not seal.seals:
        return content
    return msgspec.json.encode(_Envelope(1, *seal.for_part(name).seal(lambda *_: (content, b""))))


def opened(stored: bytes, name: str, seal: Seal | None) -> tuple[bytes, bool]:
    """A document as it was before it was stored, and whether it should be stored again because it is not encrypted, or
    with another key. Raises CatalogueError if it cannot be decrypted."""
    stored = without_checksum(stored)[0]
    try:
        envelope = msgspec.json.decode(stored, type=_Envelope)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return stored, seal is not None and seal.seals
    if seal is None:
        raise CatalogueError(f"{name}: is encrypted with the key {envelope.key.hex()}, which is not known here")
    try:
        part = Sealed(envelope.key, envelope.salt, envelope.nonce, envelope.content)
        content = seal.for_part(name).open(part, b"")
    except NotOpened as error:
        raise CatalogueError(f"{name}: {error}") from error
    return content, seal.seals and not seal.is_active(envelope.key)
