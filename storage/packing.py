"""Packed batches: how compressed and encrypted batches are stored (FORMAT.md, section 11), as functions over bytes.

A log packs batches right before it writes them and unpacks them right after it has read them, on its shard's thread.
Everything else handles plain batches. What a packed batch is, how long it is and whether it is intact can be told
without a key and without decompressing it, so recovery, scans and checks need neither.
"""

from __future__ import annotations

import enum
import os
import struct
import threading
import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import NamedTuple, cast

import xxhash
import zstandard

from whippet.storage.batch import (
    HEADER_BYTES,
    NO_BYTES_RESERVED,
    RESERVED_AT,
    UNLIMITED,
    Header,
    Readable,
    header,
)
from whippet.storage.encryption import ID_BYTES, NONCE_BYTES, SALT_BYTES, TAG_BYTES, NotOpened, Seal, Sealed
from whippet.storage.errors import BatchFault, InvalidBatch, KeyMissing

MAGIC = b"WHPPACK1"
FIELDS = struct.Struct("<8sBBHQQ16s16s12s")
"""magic, compression, encryption, reserved, stored length, the stored length again, key id, salt, nonce"""
HEAD_CHECKSUM_AT = HEADER_BYTES - 16
CHECKSUM_AT = HEADER_BYTES - 8
ZEROS_AT = RESERVED_AT + FIELDS.size

GZIP_LEVEL = 4
ZSTD_LEVEL = 1
"""Measured with 1,000 JSON documents of 1 KB each (bench/packed.py): zstd 1 compresses 750 MB/s to 0.25, zstd 3 520
MB/s to 0.25, zstd -1 890 MB/s to 0.33; gzip 4 120 MB/s to 0.26, gzip 1 190 MB/s to 0.30."""

ENCRYPTION_BYTES = 8 + TAG_BYTES
"""By how much encryption makes a batch longer."""
SMALLEST_BYTES = 256
"""Frames with fewer bytes than this are not compressed."""
SAVED_MIN = 16
"""A batch is stored compressed if that saves at least one part of its frames in so many."""

_U64 = struct.Struct("<Q")
_LENGTHS_AT = RESERVED_AT + 12
_NO_BYTES = bytes(HEADER_BYTES)
_GZIP = 31
"""zlib's number for the format of gzip."""
_hash = xxhash.xxh3_64_intdigest


class Compression(enum.IntEnum):
    """How the frames of a batch are compressed: the numbers that topics' documents and clients use."""

    NONE = 1
    GZIP = 2
    ZSTD = 3


class Encryption(enum.IntEnum):
    """How the compressed frames are encrypted."""

    NONE = 0
    AES_256_GCM = 1


NOT_SEALED = (bytes(ID_BYTES), bytes(SALT_BYTES), bytes(NONCE_BYTES))
CHECKSUM_BYTES = 8
"""An encrypted body begins with the checksum of the plain batch."""


class Unpacked(NamedTuple):
    """A plain batch in two parts: its header and its frames."""

    head: bytes
    frames: Readable


# ------------------------------------------------------------------------------------------------------------- packing


def pack(batch: Readable, compression: Compression, seal: Seal | None = None) -> tuple[Readable, ...]:
    """The buffers that are stored for a plain batch. It is compressed if that saves enough, and encrypted if there is a
    seal. If it is neither, it is stored as it is."""
    frames: Readable = memoryview(batch)[HEADER_BYTES:]
    saves = 0
    if compression is not Compression.NONE and len(frames) >= SMALLEST_BYTES:
        body = compress(frames, compression)
        saves = len(frames) - len(body)
        if saves < max(len(frames) // SAVED_MIN, 1):
            saves = 0
    if seal is not None and seal.seals:
        if saves == ENCRYPTION_BYTES:
            # A packed batch never has the length of the plain one.
            saves = 0
        return _encrypted(batch, body if saves else frames, compression if saves else Compression.NONE, seal)
    if not saves:
        return (batch,)
    return stored(batch[:RESERVED_AT], body, compression), body


def _encrypted(batch: Readable, frames: Readable, compression: Compression, seal: Seal) -> tuple[Readable, ...]:
    place = bytearray(batch[:RESERVED_AT])
    checksum = bytes(place[40:48])
    _U64.pack_into(place, 40, checksum_to_show(place, seal))
    heads: list[bytearray] = []

    def prepared(*sealed_with: bytes) -> tuple[bytes, bytes]:
        size = CHECKSUM_BYTES + len(frames) + TAG_BYTES
        head = _head(place, size, compression, Encryption.AES_256_GCM, sealed_with)
        heads.append(head)
        return checksum + frames, bytes(head[:HEAD_CHECKSUM_AT])

    body = seal.seal(prepared).ciphertext
    return _with_checksums(heads[0], body), body


def checksum_to_show(head: Readable, seal: Seal | None) -> int:
    """The checksum of a plain batch as a packed one has it in its header, and as it may be stored elsewhere: if batches
    are encrypted, another number, because it would help to guess the messages."""
    checksum = header(head).checksum
    return checksum if seal is None or not seal.seals else seal.blinded(checksum, bytes(head[:16]))


def stored(place: Readable, body: Readable, compression: Compression) -> bytes:
    """The header of a packed batch that is not encrypted, for these first bytes of the plain one."""
    return _with_checksums(_head(place, len(body), compression, Encryption.NONE, NOT_SEALED), body)


def _head(
    place: Readable, size: int, compression: Compression, encryption: Encryption, sealed_with: tuple[bytes, ...]
) -> bytearray:
    length = HEADER_BYTES + size
    head = bytearray(_NO_BYTES)
    head[:RESERVED_AT] = place
    FIELDS.pack_into(head, RESERVED_AT, MAGIC, compression, encryption, 0, length, length, *sealed_with)
    return head


def _with_checksums(head: bytearray, body: Readable) -> bytes:
    _U64.pack_into(head, HEAD_CHECKSUM_AT, _hash(head[:HEAD_CHECKSUM_AT]))
    _U64.pack_into(head, CHECKSUM_AT, _checksum(head, body))
    return bytes(head)


def _checksum(head: Readable, body: Readable) -> int:
    state = xxhash.xxh3_64(head[:CHECKSUM_AT])
    state.update(body)
    return state.intdigest()


class _Tools(threading.local):
    """The compressor and the decompressor of a thread: both can be used again, but only by one thread at a time."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_content_size=True)
        self.decompressor = zstandard.ZstdDecompressor()


_tools = _Tools()


def compress(frames: Readable, compression: Compression) -> bytes:
    if compression is Compression.ZSTD:
        return _tools.compressor.compress(frames)
    return zlib.compress(frames, GZIP_LEVEL, wbits=_GZIP)


class Ahead:
    """Packs the batches of one log on other threads while they wait to be written, so that compression uses more than
    one core. The event loop begins, and the shard takes the results."""

    def __init__(self) -> None:
        self._begun: dict[int, tuple[Readable, Future[tuple[Readable, ...]]]] = {}
        """By base offset. If a write failed, another batch may have the same offset later."""

    def begin(self, base_offset: int, batch: Readable, compression: Compression, seal: Seal | None) -> None:
        self._begun[base_offset] = batch, _threads().submit(pack, batch, compression, seal)

    def take(self, base_offset: int, batch: Readable) -> tuple[Readable, ...] | None:
        """The packed batch; None if it was not begun."""
        begun, packed = self._begun.pop(base_offset, (None, None))
        return packed.result() if packed is not None and begun is batch else None

    def clear(self) -> None:
        self._begun.clear()


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="packing")


# ----------------------------------------------------------------------------------------------------------- unpacking


def is_packed(head: Readable) -> bool:
    """Whether a batch header is that of a packed batch."""
    return head[RESERVED_AT : RESERVED_AT + len(MAGIC)] == MAGIC


def stored_length(head: Readable) -> int:
    """The length of a batch in the log, plain or packed, by its header."""
    length: int = _U64.unpack_from(head, _LENGTHS_AT)[0] if is_packed(head) else header(head).length
    return length


def check(batch: Readable) -> Header:
    """Returns the header of an intact packed batch, or raises InvalidBatch. It needs no key and decompresses nothing,
    so it does not prove that the batch can be unpacked."""
    if len(batch) <= HEADER_BYTES:
        raise InvalidBatch(BatchFault.LENGTH, f"{len(batch)} bytes are not a packed batch")
    magic, compression, encryption, reserved, length, again, *sealed_with = FIELDS.unpack_from(batch, RESERVED_AT)
    if magic != MAGIC or _U64.unpack_from(batch, HEAD_CHECKSUM_AT)[0] != _hash(batch[:HEAD_CHECKSUM_AT]):
        raise InvalidBatch(BatchFault.BATCH_CHECKSUM, "the checksum of the packed batch's header does not match")
    if not length == again == len(batch) or length == header(batch).length:
        raise InvalidBatch(
            BatchFault.LENGTH, f"the header of the packed batch states {length} bytes, but it has {len(batch)}"
        )
    is_known = compression in _COMPRESSIONS and encryption in _ENCRYPTIONS
    is_packed_at_all = encryption or (compression != Compression.NONE and tuple(sealed_with) == NOT_SEALED)
    if not (is_known and is_packed_at_all) or reserved or any(batch[ZEROS_AT:HEAD_CHECKSUM_AT]):
        raise InvalidBatch(BatchFault.RESERVED, "the batch is packed in a way that this version does not know")
    view = memoryview(batch)
    if _U64.unpack_from(batch, CHECKSUM_AT)[0] != _checksum(view[:HEADER_BYTES], view[HEADER_BYTES:]):
        raise InvalidBatch(BatchFault.BATCH_CHECKSUM, "the checksum of the packed batch does not match")
    named = header(batch)
    if not HEADER_BYTES < named.length <= UNLIMITED.batch_bytes or not named.message_count:
        raise InvalidBatch(BatchFault.COUNT, "the packed batch has no messages, or too many bytes")
    return named


_COMPRESSIONS = frozenset(Compression)
_ENCRYPTIONS = frozenset(Encryption)


def unpack(batch: Readable, seal: Seal | None = None) -> Unpacked:
    """The plain batch in a packed one that `check` has accepted. Raises InvalidBatch if it is not what its header
    states, and KeyMissing if it is encrypted with an unknown key. Never decompresses more than the header states."""
    _, compression, encryption, _, _, _, *sealed_with = FIELDS.unpack_from(batch, RESERVED_AT)
    size = header(batch).length - HEADER_BYTES
    place = bytes(batch[:RESERVED_AT])
    body: Readable = memoryview(batch)[HEADER_BYTES:]
    if encryption:
        opened = memoryview(_opened(batch, body, sealed_with, seal))
        place = place[:40] + opened[:CHECKSUM_BYTES] + place[48:]
        body = opened[CHECKSUM_BYTES:]
    return Unpacked(place + NO_BYTES_RESERVED, decompress(body, Compression(compression), size))


def _opened(batch: Readable, body: Readable, sealed_with: list[bytes], seal: Seal | None) -> bytes:
    key_id, salt, nonce = sealed_with
    if seal is None or not seal.knows(key_id):
        raise KeyMissing(f"the batch is encrypted with the key {key_id.hex()}, which is not known here")
    try:
        # Any buffer will do, and a copy would take as long as decrypting it.
        sealed = Sealed(key_id, salt, nonce, cast("bytes", body))
        opened = seal.open(sealed, bytes(batch[:HEAD_CHECKSUM_AT]))
    except NotOpened as error:
        raise InvalidBatch(BatchFault.BATCH_CHECKSUM, f"the batch cannot be decrypted: {error}") from error
    if len(opened) < CHECKSUM_BYTES:
        raise InvalidBatch(BatchFault.LENGTH, "the encrypted batch has no checksum")
    return opened


def plain(batch: Readable, seal: Seal | None = None) -> Readable:
    """A stored batch as a plain one in one piece, whether it is packed or not."""
    return b"".join(unpack(batch, seal)) if is_packed(batch) else batch


def decompress(body: Readable, compression: Compression, size: int) -> Readable:
    """Exactly `size` bytes. Raises InvalidBatch if these are not what was compressed."""
    try:
        if compression is Compression.ZSTD:
            frames: Readable = _from_zstd(body, size)
        elif compression is Compression.GZIP:
            frames = _from_gzip(body, size)
        else:
            frames = body
    except (zstandard.ZstdError, zlib.error) as error:
        raise InvalidBatch(BatchFault.LENGTH, f"the packed batch cannot be decompressed: {error}") from error
    if len(frames) != size:
        raise InvalidBatch(
            BatchFault.LENGTH, f"the packed batch has {len(frames)} bytes of frames, but its header states {size}"
        )
    return frames


def _from_zstd(body: Readable, size: int) -> bytes:
    # The size that the frame itself states would be allocated before anything is decompressed.
    if zstandard.frame_content_size(body) != size:
        raise zstandard.ZstdError("the length in the compressed data is another one")
    return _tools.decompressor.decompress(body, max_output_size=size, read_across_frames=False, allow_extra_data=False)


def _from_gzip(body: Readable, size: int) -> bytes:
    gzip = zlib.decompressobj(wbits=_GZIP)
    frames = gzip.decompress(body, size)
    # The end of the stream, with its checksum, may follow what was asked for.
    if not gzip.eof and gzip.decompress(gzip.unconsumed_tail, 1):
        raise zlib.error("there is more of it")
    if not gzip.eof or gzip.unused_data:
        raise zlib.error("it ends too early, or something follows it")
    return frames


# ------------------------------------------------------------------------------------------------------ after damage


def resembles(head: Readable) -> bool:
    """Whether a header, perhaps a damaged one, is that of a packed batch."""
    found = head[RESERVED_AT : RESERVED_AT + len(MAGIC)]
    return sum(a == b for a, b in zip(found, MAGIC, strict=True)) >= len(MAGIC) - 2


def claimed_lengths(head: Readable) -> list[int]:
    """The lengths that a damaged header of a packed batch states, in ascending order: one if both fields agree."""
    _, _, _, _, first, second, *_ = FIELDS.unpack_from(head, RESERVED_AT)
    return sorted({first, second})
