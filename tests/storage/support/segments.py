"""Segments to damage: batches whose messages identify themselves, and a log on a folder, without a store.

The content of a message follows from its offset, so a reader can verify it from the message alone.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from tests.storage.support import packed
from whippet.storage import batch as batches
from whippet.storage import recovery
from whippet.storage.entry import Entry
from whippet.storage.fetched import Fetched
from whippet.storage.files import Files
from whippet.storage.handles import Handles, IndexCache
from whippet.storage.log import Log
from whippet.storage.segment import Damage

PARTITION = 3
START_TIME = 1_700_000_000_000_000

FIRST_SEGMENT = "00000000000000000000"


class FilesInMemoryOfTheSystem(Files):
    """The real disk without syncs: there are no power failures here, and thousands of syncs would only take time."""

    def sync(self, handle: int) -> None:
        pass

    def sync_folder(self, path: str) -> None:
        pass


@dataclass(frozen=True)
class Piece:
    """A batch in a log."""

    content: bytes
    """As it is in the log."""
    position: int
    base_offset: int
    count: int
    plain: bytes
    """As it was appended."""

    @property
    def end(self) -> int:
        return self.position + len(self.content)

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.count

    @property
    def offsets(self) -> range:
        return range(self.base_offset, self.next_offset)


def payload_of(offset: int, size: int = 20, salt: str = "") -> bytes:
    """The payload of the message at an offset."""
    return f"{salt}{offset}:".encode().ljust(size, b"abcdefghij"[offset % 10 : offset % 10 + 1])


def stamped(
    sizes: Sequence[int],
    base_offset: int,
    *,
    partition: int = PARTITION,
    timestamp: int = START_TIME,
    salt: str = "",
    payloads: Sequence[bytes] | None = None,
) -> bytes:
    """A stamped batch of messages with these payload sizes."""
    random_bytes = random.Random(base_offset).randbytes
    payloads = payloads or [payload_of(base_offset + i, size, salt) for i, size in enumerate(sizes)]
    batch = batches.build([batches.Message(payload) for payload in payloads], timestamp, random_bytes)
    checked = batches.check(batch)
    batches.stamp(batch, partition, base_offset, timestamp + base_offset, checked.checksums)
    return bytes(batch)


def pieces(
    shapes: Iterable[Sequence[int]], base_offset: int = 0, partition: int = PARTITION, way: str = "plain"
) -> list[Piece]:
    """Batches back to back, each given by the payload sizes of its messages, stored in this way."""
    found: list[Piece] = []
    position = 0
    for shape in shapes:
        plain = stamped(shape, base_offset, partition=partition)
        content = packed.stored(plain, way)
        found.append(Piece(content, position, base_offset, len(shape), plain))
        position += len(content)
        base_offset += len(shape)
    return found


def joined(batch_pieces: Iterable[Piece]) -> bytes:
    return b"".join(piece.content for piece in batch_pieces)


class Opened(NamedTuple):
    """A log on a folder, and one list of what recovery reported and the log reports from then on."""

    log: Log
    damage: list[Damage]
    handles: Handles

    def close(self) -> None:
        self.log.close()
        self.handles.close()

    def abandon(self) -> None:
        """Closes without writing anything more, like a kill."""
        self.log.forget()
        self.handles.close()


def open_log(
    folder: Path | str,
    *,
    files: Files | None = None,
    partition: int = PARTITION,
    segment_bytes: int = 1 << 20,
    check_all: bool = False,
    index_bytes: float = float("inf"),
    way: str = "plain",
    **options: Any,
) -> Opened:
    files = files or FilesInMemoryOfTheSystem()
    recovered = recovery.recover(files, str(folder), partition, check_all=check_all)
    damage = list(recovered.damage)
    handles = Handles(files, 16)
    cache = IndexCache(index_bytes)
    log = Log(
        files,
        handles,
        cache,
        str(folder),
        partition,
        segment_bytes,
        recovered.segments,
        damage.append,
        compression=packed.compression_of(way),
        seal=packed.seal_of(way),
        **options,
    )
    return Opened(log, damage, handles)


def append(log: Log, sizes: Sequence[int], *, partition: int = PARTITION, salt: str = "new") -> int:
    """Writes one batch at the end of the log, and returns its offset."""
    base = log.next_offset
    batch = bytearray(stamped(sizes, base, partition=partition, salt=salt))
    entry = Entry(batch, base, base + len(sizes), START_TIME + base, batches.frame_positions(batch))
    error = log.write([entry], [], sync=False)
    assert error is None, error
    return base


def messages_in(fetched: Fetched) -> list[tuple[int, bytes]]:
    """Offset and payload of everything that was read. The batches are checked as a client would."""
    view = memoryview(b"".join(fetched.buffers))
    found: list[tuple[int, bytes]] = []
    while view:
        length = batches.header(view).length
        assert 0 < length <= len(view), "a piece of a batch was served"
        check_served(view[:length])
        found += [(message.offset, message.payload) for message in batches.messages(view[:length])]
        view = view[length:]
    assert len(found) == fetched.messages
    return found


def check_served(batch: memoryview) -> None:
    """Checks a whole batch or a slice of one like `check`, but deltas need not begin with 0."""
    named = batches.header(batch)
    positions = batches.frame_positions(batch)
    bounds = [batches.start_of(positions, i) for i in range(named.message_count + 1)]
    assert bounds[-1] == named.length
    checksums = b""
    for start, end in pairwise(bounds):
        assert xxhash.xxh3_64_digest(batch[start + 8 : end])[::-1] == batch[start : start + 8]
        checksums += batch[start : start + 8]
    assert xxhash.xxh3_64_intdigest(bytes(batch[:40]) + bytes(batch[48:52]) + checksums) == named.checksum


def read_log(log: Log, offset: int = 0, count: int = 1 << 30) -> list[tuple[int, bytes]]:
    """Everything from an offset on, in as many reads as it takes. Each read must make progress."""
    found = []
    while offset < log.next_offset:
        fetched = log.read(offset, count, 1 << 30, log.next_offset)
        found += messages_in(fetched)
        assert fetched.next_offset > offset, f"a reader at offset {offset} does not get on"
        offset = fetched.next_offset
    return found


def expected(batch_pieces: Iterable[Piece], shapes_salt: str = "") -> list[tuple[int, bytes]]:
    """What a reader of these batches gets."""
    return [(message.offset, message.payload) for piece in batch_pieces for message in batches.messages(piece.plain)]


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, with its content."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
