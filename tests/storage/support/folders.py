"""A closed data folder to damage, and the check of what the store makes of it.

Stream 0, topic 0 has two partitions of several small segments. The tests damage partition 0; partition 1 shows that the
damage stays where it is.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tests.storage.support.segments import messages_in, payload_of, tree
from whippet.storage import batch as batches
from whippet.storage.batch import Message, build
from whippet.storage.documents import StreamDocument, TopicDocument
from whippet.storage.offsets import Kind
from whippet.storage.options import StoreOptions
from whippet.storage.partition import Partition
from whippet.storage.store import Store

BATCH_MESSAGES = 3
SEGMENT_BATCHES = 4
SEGMENT_MESSAGES = BATCH_MESSAGES * SEGMENT_BATCHES
BATCH_BYTES = 256 + BATCH_MESSAGES * (48 + 25)
SEGMENT_BYTES = BATCH_BYTES * SEGMENT_BATCHES
SEGMENTS = 5
"""The last one is half full."""
MESSAGES = SEGMENT_MESSAGES * (SEGMENTS - 1) + SEGMENT_MESSAGES // 2
CONSUMER = 7
CONSUMED = MESSAGES - 2


@dataclass(frozen=True)
class DamagedFolder:
    """A data folder, and the paths of its parts."""

    root: Path

    @property
    def stream(self) -> Path:
        return self.root / "streams/0"

    @property
    def topic(self) -> Path:
        return self.stream / "topics/0"

    def partition(self, number: int = 0) -> Path:
        return self.topic / f"partitions/{number}"

    def log(self, segment: int, partition: int = 0) -> Path:
        return self.partition(partition) / f"{segment * SEGMENT_MESSAGES:020}.log"

    def index(self, segment: int, partition: int = 0) -> Path:
        return self.log(segment, partition).with_suffix(".index")

    @property
    def offset_file(self) -> Path:
        return self.partition() / f"offsets/consumers/{CONSUMER}"

    def remove_indexes(self) -> None:
        for path in self.partition().glob("*.index"):
            path.unlink()

    def overwrite(self, segment: int, position: int, content: bytes) -> None:
        path = self.log(segment)
        old = path.read_bytes()
        path.write_bytes(old[:position] + content + old[position + len(content) :])


class Seen(NamedTuple):
    """What a store that was opened on the folder served and reported."""

    messages: dict[int, list[tuple[int, bytes]]]
    """By partition, before anything was appended."""
    appended_at: dict[int, int]
    reports: list[str]
    """Damage and problems, as text."""
    unavailable: dict[int, str]
    offset: int | None
    names: list[str]

    def offsets(self, partition: int = 0) -> list[int]:
        return [offset for offset, _ in self.messages[partition]]

    def says(self, *parts: object) -> bool:
        """Whether one line of the reports has all these parts."""
        return any(all(str(part) in line for part in parts) for line in self.reports)


def options_of(root: Path, **changes: object) -> StoreOptions:
    options = StoreOptions(
        path=str(root), segment_bytes=SEGMENT_BYTES, saver_interval_s=None, catalog_syncs=False, index_cache="none"
    )
    return msgspec.structs.replace(options, **changes)


def batch_of(base_offset: int, salt: str = "") -> bytearray:
    payloads = [payload_of(base_offset + i, 25, salt) for i in range(BATCH_MESSAGES)]
    return build([Message(payload) for payload in payloads], 1, os.urandom)


def make(root: Path) -> DamagedFolder:
    """A filled, closed and undamaged folder."""

    async def fill() -> None:
        store = await Store.open(options_of(root))
        await store.create_stream(StreamDocument(id=0, name="stream", created_at=1))
        await store.create_topic(0, TopicDocument(id=0, name="topic", created_at=1, partitions_count=2))
        for number in range(2):
            partition = store.partition(0, 0, number)
            assert partition is not None
            for base in range(0, MESSAGES, BATCH_MESSAGES):
                await partition.append(batch_of(base))
            await partition.store_offset(Kind.CONSUMER, CONSUMER, CONSUMED)
            assert partition.segments_count == SEGMENTS
        await store.close()

    asyncio.run(fill())
    return DamagedFolder(root)


async def everything(partition: Partition) -> list[tuple[int, bytes]]:
    """All messages. Each read must make progress, and reading one message at each offset must give the same."""
    found: list[tuple[int, bytes]] = []
    offset = 0
    while offset < partition.readable:
        fetched = await partition.read(offset, 10)
        found += messages_in(fetched)
        assert fetched.next_offset > offset, f"a reader at offset {offset} does not get on"
        offset = fetched.next_offset
    return found


def look(root: Path, *, salt: str = "appended", **changes: Any) -> Seen:
    """Opens the folder, reads everything, appends a batch to every partition, closes."""

    async def act() -> Seen:
        store = await Store.open(options_of(root, **changes))
        try:
            messages, appended_at = {}, {}
            for place, partition in store.partitions.items():
                if (place.stream, place.topic) != (0, 0):
                    continue
                served = messages[place.partition] = await everything(partition)
                answer = await partition.append(batch_of(partition.appended, salt))
                base = appended_at[place.partition] = answer.base_offset
                added = [(base + i, payload_of(base + i, 25, salt)) for i in range(BATCH_MESSAGES)]
                assert await everything(partition) == served + added
            known = store.partition(0, 0, 0)
            return Seen(
                messages,
                appended_at,
                [*map(str, store.damage), *store.problems],
                {place.partition: reason for place, reason in store.unavailable.items()},
                known.offset_of(Kind.CONSUMER, CONSUMER) if known is not None else None,
                [stream.document.name for stream in store.streams.values()]
                + [topic.document.name for stream in store.streams.values() for topic in stream.topics.values()],
            )
        finally:
            await store.close()

    return asyncio.run(act())


def reopened(damaged: DamagedFolder, *, lost: Iterable[int] = (), **changes: Any) -> Seen:
    """Opens the damaged folder and checks what always holds: everything but the `lost` offsets is served with its own
    content, the other partition has everything, appending continues after the newest offset, no byte is gone, and the
    next opening finds the same and what was appended."""
    before = tree(damaged.root)
    seen = look(damaged.root, **changes)
    assert_kept(before, tree(damaged.root))
    missing = set(lost)
    original = [(offset, payload_of(offset, 25)) for offset in range(MESSAGES)]
    assert seen.messages[0] == [message for message in original if message[0] not in missing]
    assert seen.messages[1] == original
    assert seen.appended_at[1] == MESSAGES
    assert_continues(damaged, seen, **changes)
    return seen


def assert_continues(damaged: DamagedFolder, seen: Seen, **changes: object) -> None:
    """Checks that a second opening serves the same and what was appended at the first, and appends after that."""
    before = tree(damaged.root)
    again = look(damaged.root, salt="again", **changes)
    assert_kept(before, tree(damaged.root))
    for number, served in seen.messages.items():
        base = seen.appended_at[number]
        assert base > max((offset for offset, _ in served), default=-1)
        added = [(base + i, payload_of(base + i, 25, "appended")) for i in range(BATCH_MESSAGES)]
        assert again.messages[number] == served + added
        assert again.appended_at[number] == base + BATCH_MESSAGES


def assert_kept(before: dict[str, bytes], after: dict[str, bytes]) -> None:
    """Checks that every byte is where it was or was set aside, from the end of a log or as a whole file. Indexes are
    only hints, and stored offsets may change."""
    aside = {name: content for name, content in after.items() if "damaged" in name}
    for name, content in before.items():
        if name.endswith((".index", ".new")) or name == "LOCK" or "/offsets/" in name:
            continue
        if name in after and after[name].startswith(content):
            continue
        file = name.rpartition("/")[2]
        cuts = {
            int(kept.rpartition("@")[2].partition(".")[0]): rest for kept, rest in aside.items() if f"{file}@" in kept
        }
        if any(after[name].startswith(content[:cut]) and content[cut:] == rest for cut, rest in cuts.items()):
            continue
        assert content in aside.values(), f"bytes of {name} are gone"


def pieces_of(path: Path) -> list[tuple[int, bytes]]:
    """The batches of a good log with their positions."""
    content = path.read_bytes()
    position, found = 0, []
    while position < len(content):
        length = batches.header(content[position:]).length
        found.append((position, content[position : position + length]))
        position += length
    return found
