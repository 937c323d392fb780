"""Unpacks batches that are stored compressed or encrypted: functions over bytes, in the layout of storage/FORMAT.md,
sections 11 and 12.

The packages for zstd and AES are imported when the first batch needs them: most executors never do.
"""

from __future__ import annotations

import struct
import zlib
from base64 import b64decode
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from pyspark_whippet.batches import HEADER, HEADER_BYTES, BadBatch, Hash, complete_bytes
from pyspark_whippet.errors import OptionError
from pyspark_whippet.hashes import xxh3
from pyspark_whippet.packages import needed
from pyspark_whippet.settings import Secret

MAGIC = b"WHPPACK1"
FIELDS = struct.Struct("<8sBBHQQ16s16s12s")
"""magic, compression, encryption, reserved, stored length, the stored length again, key id, salt, nonce"""
FIELDS_AT = HEADER.size
HEAD_CHECKSUM_AT = HEADER_BYTES - 16
CHECKSUM_AT = HEADER_BYTES - 8
NONE, GZIP, ZSTD = 1, 2, 3
CHECKSUM_BYTES = 8
"""An encrypted body begins with the checksum of the plain batch."""
BATCH_BYTES_MAX = 2**32 - 1
PLAIN_BYTES_MAX = 32 * 1024 * 1024
"""Unpacking stops after so many bytes, because few stored bytes can be very many."""
_U64 = struct.Struct("<Q")
_STORED_LENGTH = struct.Struct("<8s4xQ")
_RESERVED = bytes(HEADER_BYTES - FIELDS_AT)
_GZIP_WINDOW = 31
"""zlib's number for the format of gzip."""


class Opener(NamedTuple):
    """The keys and the place with which the batches of a topic are decrypted."""

    keys: Sequence[Secret]
    """In base64."""
    context: bytes | None
    """That of the topic's batches; None if it is unknown, because only the folder of the topic is there."""


class Plain(NamedTuple):
    """Batches as if they had not been packed."""

    content: Any
    stored_bytes: int
    """How many stored bytes they were."""
    places: list[tuple[int, int]]
    """Where runs of batches begin, in `content` and in the stored bytes."""

    def stored_position(self, position: int) -> int:
        """Returns where a batch is stored that is at this position now."""
        plain, stored = self.places[bisect_right(self.places, position, key=lambda place: place[0]) - 1]
        return stored + position - plain


def context_of(store: str, stream: int, topic: int) -> bytes:
    return b"".join(part.encode() + b"\0" for part in ("whippet", store, f"batches {stream}/{topic}"))


def stored_length(view: memoryview, position: int = 0) -> int:
    """Returns the length of the batch in the log, packed or not, going by its header."""
    magic, length = _STORED_LENGTH.unpack_from(view, position + FIELDS_AT)
    return int(length if magic == MAGIC else HEADER.unpack_from(view, position)[4])


def unpack_all(view: memoryview, opener: Opener) -> Plain:
    """Returns the complete batches at the start. If one cannot be unpacked, BadBatch is raised if it is the first, and
    otherwise those before it are returned."""
    parts: list[Any] = []
    places: list[tuple[int, int]] = []
    position = plain = 0
    while len(view) - position > HEADER_BYTES and plain < PLAIN_BYTES_MAX:
        whole = complete_bytes(view[position:])
        if whole:
            found: tuple[Any, ...] = (view[position : position + whole],)
        else:
            whole = stored_length(view, position)
            if not HEADER_BYTES < whole <= len(view) - position:
                break
            try:
                found = unpack(view[position : position + whole], opener)
            except BadBatch as bad:
                if parts:
                    break
                raise BadBatch(position, bad.reason) from None
        places.append((plain, position))
        parts += found
        plain += sum(map(len, found))
        position += whole
    return Plain(parts[0] if len(parts) == 1 else memoryview(b"".join(parts)), position, places)


def unpack(view: memoryview, opener: Opener) -> tuple[bytes, Any]:
    """Returns the header and the frames of a packed batch, or raises BadBatch if it is not what its header states."""
    magic, compression, encryption, reserved, length, again, *sealed_with = FIELDS.unpack_from(view, FIELDS_AT)
    hashed = _hash()
    if magic != MAGIC:
        raise BadBatch(0, "the header of a batch is invalid")
    if _U64.unpack_from(view, HEAD_CHECKSUM_AT)[0] != hashed(view[:HEAD_CHECKSUM_AT]):
        raise BadBatch(0, "the checksum of a packed batch's header is wrong")
    if _U64.unpack_from(view, CHECKSUM_AT)[0] != hashed(bytes(view[:CHECKSUM_AT]) + view[HEADER_BYTES:]):
        raise BadBatch(0, "the checksum of a packed batch is wrong")
    plain_length = HEADER.unpack_from(view)[4]
    is_known = compression in (NONE, GZIP, ZSTD) and encryption in (0, 1) and not reserved
    if not is_known or not length == again == len(view) or not HEADER_BYTES < plain_length <= BATCH_BYTES_MAX:
        raise BadBatch(0, "a batch is packed in a way that this version does not know")
    needed(*["cryptography"] * encryption, *["zstandard"] * (compression == ZSTD))
    place, body = bytes(view[:FIELDS_AT]), view[HEADER_BYTES:]
    if encryption:
        opened = memoryview(_decrypted(view, body, sealed_with, opener))
        place = place[:40] + opened[:CHECKSUM_BYTES] + place[48:]
        body = opened[CHECKSUM_BYTES:]
    frames = _decompressed(body, compression, plain_length - HEADER_BYTES)
    if len(frames) != plain_length - HEADER_BYTES:
        raise BadBatch(0, "a packed batch has another length than its header states")
    return place + _RESERVED, frames


def _hash() -> Hash:
    return xxh3 or needed("xxhash").xxh3_64_intdigest


# -------------------------------------------------------------------------------------------------------- compression


def _decompressed(body: Any, compression: int, size: int) -> Any:
    """Never decompresses more than `size` bytes."""
    if compression == NONE:
        return body
    if compression == ZSTD:
        return _from_zstd(body, size)
    gzip = zlib.decompressobj(wbits=_GZIP_WINDOW)
    try:
        frames = gzip.decompress(body, size)
        # The end of the stream, with its checksum, may follow what was asked for.
        more = b"" if gzip.eof else gzip.decompress(gzip.unconsumed_tail, 1)
    except zlib.error as error:
        raise BadBatch(0, f"a packed batch cannot be decompressed: {error}") from None
    if more or not gzip.eof or gzip.unused_data:
        raise BadBatch(0, "a packed batch has another length than its header states")
    return frames


def _from_zstd(body: Any, size: int) -> Any:
    zstandard = needed("zstandard")
    try:
        # The size that the frame itself states would be allocated before anything is decompressed.
        if zstandard.frame_content_size(body) != size:
            raise BadBatch(0, "a packed batch has another length than its header states")
        return zstandard.ZstdDecompressor().decompress(
            body, max_output_size=size, read_across_frames=False, allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise BadBatch(0, f"a packed batch cannot be decompressed: {error}") from None


# --------------------------------------------------------------------------------------------------------- encryption


def _decrypted(view: memoryview, body: Any, sealed_with: list[bytes], opener: Opener) -> bytes:
    from cryptography.exceptions import InvalidTag  # noqa: PLC0415 -- see the module

    key_id, salt, nonce = sealed_with
    key = next((key for key in opener.keys if _key_id(key) == key_id), None)
    if key is None:
        given = "its keys are others" if opener.keys else "no key is given"
        raise OptionError(
            f"option 'encryption.secretKey': messages are encrypted with the key {key_id.hex()}, but {given}; "
            "'encryption.keyFile' and WHIPPET_ENCRYPTION_KEY are other ways to give it"
        )
    if opener.context is None:
        raise OptionError("option 'path': the messages are encrypted, which needs the whole data folder, with FORMAT")
    try:
        opened: bytes = _cipher(key, salt).decrypt(nonce, body, opener.context + view[:HEAD_CHECKSUM_AT])
    except InvalidTag:
        raise BadBatch(0, "a batch cannot be decrypted: it was changed, or moved here from another place") from None
    if len(opened) < CHECKSUM_BYTES:
        raise BadBatch(0, "an encrypted batch has no checksum")
    return opened


@lru_cache(maxsize=256)
def _key_id(key: Secret) -> bytes:
    return _derived(key, b"", b"whippet key id", 16)


@lru_cache(maxsize=256)
def _cipher(key: Secret, salt: bytes) -> Any:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 -- see the module

    return AESGCM(_derived(key, salt, b"whippet data", 32))


def _derived(key: Secret, salt: bytes, purpose: bytes, length: int) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415 -- see the module
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF  # noqa: PLC0415 -- see the module

    return HKDF(SHA256(), length, salt, purpose).derive(b64decode(key.text))
