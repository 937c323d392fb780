"""The files of stored offsets, a small one for each consumer and group: FORMAT.md, section 5.

`OffsetFiles` belongs to the shard that owns the partition. A file holds the newest value and the one before it in two
places that are written in turn, so that a write that is cut off at any byte leaves the older value readable.
"""

from __future__ import annotations

import enum
import struct

import xxhash

from whippet.storage.encryption import NotOpened, Seal, Sealed
from whippet.storage.files import Files, make_folders, read_all, replace, write_all
from whippet.storage.layout import CONSUMERS_FOLDER, EXTERNAL_GROUPS_FOLDER, GROUPS_FOLDER, OFFSETS_FOLDER, number

PLACE = struct.Struct("<QQQ")
"""sequence, offset, checksum of the two"""
SEALED_PLACE = struct.Struct("<Q16s16s12s4x24sQ")
"""sequence, key id, salt, nonce, the encrypted offset, checksum of all before it"""


class Kind(enum.IntEnum):
    """Consumers and groups have separate ids: consumer 1 is not group 1."""

    CONSUMER = 1
    GROUP = 2
    EXTERNAL_GROUP = 3
    """The store keeps these offsets as they are: they may be after the newest message, and do not hold up retention."""


FOLDERS = {
    Kind.CONSUMER: CONSUMERS_FOLDER,
    Kind.GROUP: GROUPS_FOLDER,
    Kind.EXTERNAL_GROUP: EXTERNAL_GROUPS_FOLDER,
}

Key = tuple[Kind, int]


def encode(sequence: int, offset: int) -> bytes:
    head = struct.pack("<QQ", sequence, offset)
    return head + xxhash.xxh3_64_intdigest(head).to_bytes(8, "little")


def decode(content: bytes) -> tuple[int, int] | None:
    """The newest valid sequence and offset; None if neither place is valid."""
    found = []
    for position in (0, PLACE.size):
        place = content[position : position + PLACE.size]
        if len(place) == PLACE.size:
            sequence, offset, checksum = PLACE.unpack(place)
            if xxhash.xxh3_64_intdigest(place[:16]) == checksum:
                found.append((sequence, offset))
    return max(found) if found else None


def encode_sealed(sequence: int, offset: int, seal: Seal) -> bytes:
    def prepared(*_: bytes) -> tuple[bytes, bytes]:
        return offset.to_bytes(8, "little"), sequence.to_bytes(8, "little")

    place = SEALED_PLACE.pack(sequence, *seal.seal(prepared), 0)[:-8]
    return place + xxhash.xxh3_64_intdigest(place).to_bytes(8, "little")


def decode_sealed(content: bytes, seal: Seal | None) -> tuple[int, int] | None:
    """Like `decode`, for a file with encrypted offsets; None also if the newest valid place cannot be decrypted."""
    found = []
    for position in (0, SEALED_PLACE.size):
        place = content[position : position + SEALED_PLACE.size]
        if len(place) == SEALED_PLACE.size:
            sequence, *sealed, checksum = SEALED_PLACE.unpack(place)
            if xxhash.xxh3_64_intdigest(place[:-8]) == checksum:
                found.append((sequence, Sealed(*sealed)))
    if not found or seal is None:
        return None
    sequence, newest = max(found)
    try:
        return sequence, int.from_bytes(seal.open(newest, sequence.to_bytes(8, "little")), "little")
    except NotOpened:
        return None


def fault_in(content: bytes, seal: Seal | None) -> str | None:
    """Returns what is wrong with a file of stored offsets; None if nothing is. Without a seal, encrypted offsets are
    only compared with their checksums."""
    is_sealed = len(content) > 2 * PLACE.size
    size = SEALED_PLACE.size if is_sealed else PLACE.size
    if len(content) != 2 * size:
        return f"it has {len(content)} bytes"
    places = [content[:size], content[size:]]
    sequences = [
        int.from_bytes(place[:8], "little") if _is_whole(place) else None if any(place) else 0 for place in places
    ]
    if not any(sequences):
        return "neither of its two places has a valid offset"
    if None in sequences:
        return "one of its two places is not valid, so the offset may be an older one"
    first, second = (sequence or 0 for sequence in sequences)
    if first % 2 or not second % 2 or (first and abs(first - second) != 1):
        return "its two places do not follow each other"
    newest = places[first < second]
    if is_sealed and seal is not None and seal.knows(newest[8:24]) and decode_sealed(content, seal) is None:
        return "the offset cannot be decrypted"
    return None


def newest_sequence(content: bytes) -> int:
    """That of the newest valid place; 0 if there is none."""
    size = SEALED_PLACE.size if len(content) > 2 * PLACE.size else PLACE.size
    places = (content[at : at + size] for at in (0, size))
    return max(int.from_bytes(place[:8], "little") if _is_whole(place) else 0 for place in places)


def _newest(content: bytes, seal: Seal | None) -> tuple[int, int] | None:
    return decode_sealed(content, seal) if len(content) > 2 * PLACE.size else decode(content)


def value_in(content: bytes, seal: Seal | None) -> int | None:
    """The newest valid offset in a file; None if there is none, or if it cannot be decrypted."""
    known = _newest(content, seal)
    return None if known is None else known[1]


def rewritten(content: bytes, seal: Seal | None, offset: int | None = None) -> bytes | None:
    """A file with the newest valid offset alone, or with another one; None if it cannot be decrypted."""
    known = _newest(content, seal)
    if known is None:
        return None
    seals = seal is not None and seal.seals and len(content) > 2 * PLACE.size
    place = _encoded(known[0] | 1, known[1] if offset is None else offset, seal if seals else None)
    return bytes(len(place)) + place


def _is_whole(place: bytes) -> bool:
    return xxhash.xxh3_64_intdigest(place[:-8]) == int.from_bytes(place[-8:], "little")


def _encoded(sequence: int, offset: int, seal: Seal | None) -> bytes:
    return encode(sequence, offset) if seal is None else encode_sealed(sequence, offset, seal)


class OffsetFiles:
    """The offset files of one partition. What is written is encrypted if there is a seal that encrypts."""

    def __init__(self, files: Files, folder: str, seal: Seal | None = None) -> None:
        self._seal = seal
        self._sealed: set[Key] = set()
        """Whose files have encrypted offsets."""
        self.folder = f"{folder}/{OFFSETS_FOLDER}"
        self._files = files
        self._sequences: dict[Key, int] = {}
        self._unsynced: dict[str, None] = {}

    def load(self) -> tuple[dict[Key, int], list[str]]:
        """Returns every stored offset, and the files that could not be decoded."""
        offsets: dict[Key, int] = {}
        unreadable: list[str] = []
        if not self._files.exists(self.folder):
            return offsets, unreadable
        for kind, name in FOLDERS.items():
            folder = f"{self.folder}/{name}"
            if not self._files.exists(folder):
                continue
            for item in self._files.list(folder):
                if number(item.name.removesuffix(".new")) is not None and item.name.endswith(".new"):
                    continue
                identity = number(item.name)
                path = f"{folder}/{item.name}"
                if identity is None or (known := self._read(path, (kind, identity))) is None:
                    unreadable.append(path)
                    continue
                self._sequences[kind, identity], offsets[kind, identity] = known
        return offsets, unreadable

    def _read(self, path: str, key: Key) -> tuple[int, int] | None:
        try:
            content = read_all(self._files, path)
        except OSError:
            # This consumer starts over; all others continue.
            return None
        if len(content) <= 2 * PLACE.size:
            return decode(content)
        self._sealed.add(key)
        return decode_sealed(content, self._seal_of(key))

    def _seal_of(self, key: Key) -> Seal | None:
        return None if self._seal is None else self._seal.for_part(f"{FOLDERS[key[0]]}/{key[1]}")

    def write(self, changes: dict[Key, int | None], *, sync: bool) -> None:
        """Stores offsets; None deletes one. After an error, the same changes may be written again."""
        for (kind, identity), offset in changes.items():
            folder = f"{self.folder}/{FOLDERS[kind]}"
            path = f"{folder}/{identity}"
            if offset is None:
                self._sequences.pop((kind, identity), None)
                self._sealed.discard((kind, identity))
                if self._files.exists(path):
                    self._files.remove(path)
                    self._unsynced[folder + "/"] = None
                self._unsynced.pop(path, None)
                continue
            key = kind, identity
            sequence = self._sequences.get(key)
            seal = self._seal_of(key) if self._seal is not None and self._seal.seals else None
            if sequence is None or (seal is not None) != (key in self._sealed):
                make_folders(self._files, folder)
                above = self.folder.rpartition("/")[0]
                self._unsynced |= dict.fromkeys((f"{above}/", f"{self.folder}/", f"{folder}/"))
                is_new = sequence is None
                # An odd number, whose place is the second one.
                sequence = 1 if sequence is None else sequence + 1 + sequence % 2
                place = _encoded(sequence, offset, seal)
                # The file must not exist without its first offset: it would look damaged. If it has another form now,
                # what was in it may have been promised.
                replace(self._files, path, bytes(len(place)) + place, sync=not is_new)
                (self._sealed.discard if seal is None else self._sealed.add)(key)
            else:
                sequence += 1
                handle = self._files.open_for_writing(path)
                try:
                    place = _encoded(sequence, offset, seal)
                    write_all(self._files, handle, [place], len(place) * (sequence % 2))
                finally:
                    self._files.close(handle)
            self._sequences[kind, identity] = sequence
            self._unsynced[path] = None
        if sync:
            self.sync()

    def lower(self, offsets: dict[Key, int], next_offset: int) -> list[str]:
        """Lowers stored offsets that are after the newest message, in the dictionary and in the files, and reports
        them. Those messages are lost, and nobody has read the ones that will get their offsets."""
        newest = f"lowered to {next_offset - 1}" if next_offset else "of which there is none; deleted"
        lines = []
        beyond = [key for key, offset in offsets.items() if offset >= next_offset and key[0] is not Kind.EXTERNAL_GROUP]
        for key in beyond:
            path = f"{self.folder}/{FOLDERS[key[0]]}/{key[1]}"
            lines.append(f"{path}: offset {offsets[key]} is after the newest message, {newest}")
            offsets[key] = next_offset - 1
            if not next_offset:
                del offsets[key]
        if beyond:
            self.write({key: offsets.get(key) for key in beyond}, sync=True)
        return lines

    def sync(self) -> None:
        """Returns when everything written is on the disk. Paths that end in "/" are folders."""
        for path in list(self._unsynced):
            if path.endswith("/"):
                self._files.sync_folder(path[:-1])
            else:
                handle = self._files.open_for_writing(path)
                try:
                    self._files.sync(handle)
                finally:
                    self._files.close(handle)
            del self._unsynced[path]

    def forget(self) -> None:
        """Called after a purge has removed the files."""
        self._sequences.clear()
        self._sealed.clear()
        self._unsynced.clear()
