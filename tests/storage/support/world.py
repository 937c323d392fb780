"""A store in a folder of its own, disks that obey the test, and messages to fill it with.

These tests wait only for events, never for time.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeVar

from tests.support.clocks import NOON
from tests.support.running import HANGS_S
from whippet.storage import batch as batches
from whippet.storage.batch import Message, StoredMessage, build
from whippet.storage.documents import StreamDocument, TopicDocument
from whippet.storage.engine import Engine
from whippet.storage.fetched import Fetched
from whippet.storage.files import Buffer, Files
from whippet.storage.options import StoreOptions
from whippet.storage.partition import Partition
from whippet.storage.store import Store, now_us

Answer = TypeVar("Answer")


def random_bytes(length: int) -> bytes:
    """Always the same ones, so that a failure can be reproduced."""
    return hashlib.shake_128(b"whippet").digest(length)


def texts(*payloads: bytes | str) -> bytearray:
    """A batch of plain messages."""
    plain = [Message(text.encode() if isinstance(text, str) else text) for text in payloads]
    return build(plain, NOON, random_bytes)


def sized(count: int, payload_bytes: int, mark: bytes = b"x") -> bytearray:
    """A batch of `count` messages of one size."""
    return build([Message((mark * payload_bytes)[:payload_bytes])] * count, NOON, random_bytes)


def split(buffers: Sequence[batches.Readable]) -> list[bytes]:
    """The batches in the result of a read."""
    content = b"".join(buffers)
    found = []
    while content:
        named = batches.header(content)
        assert batches.HEADER_BYTES < named.length <= len(content)
        found.append(content[: named.length])
        content = content[named.length :]
    return found


def stored(fetched: Fetched) -> list[StoredMessage]:
    """The messages of a read, after checking their number and the next offset."""
    found = [message for whole in split(fetched.buffers) for message in batches.messages(whole)]
    assert len(found) == fetched.messages
    if found:
        assert fetched.next_offset == found[-1].offset + 1
    return found


def offsets(fetched: Fetched) -> list[int]:
    return [message.offset for message in stored(fetched)]


def payloads(fetched: Fetched) -> list[bytes]:
    return [message.payload for message in stored(fetched)]


def local(engine: Engine) -> Store:
    """The engine of a gateway as the store on this machine that it is in most tests."""
    assert isinstance(engine, Store)
    return engine


@contextlib.asynccontextmanager
async def opened(
    path: object, *, files: Files | None = None, clock: Callable[[], int] | None = None, **options: Any
) -> AsyncIterator[Store]:
    """A store that is closed at the end, without a saver unless the options have one."""
    if isinstance(files, SlowDisk):
        # The event loop must not write to a disk that waits for the event loop.
        options = {"loop_append_bytes_max": 0, **options}
    chosen = StoreOptions(path=str(path), **{"saver_interval_s": None, **options})
    store = await Store.open(chosen, files=files, clock=clock or now_us)
    try:
        yield store
    finally:
        await store.close()


async def with_topic(store: Store, partitions: int = 1) -> list[Partition]:
    """All partitions of topic 0 in stream 0, both created if missing."""
    if 0 not in store.streams:
        await store.create_stream(StreamDocument(id=0, name="s", created_at=1))
        await store.create_topic(0, TopicDocument(id=0, name="t", created_at=1, partitions_count=partitions))
    return list(store.partitions_of(0, 0))


@contextlib.asynccontextmanager
async def partition_in(path: object, **options: Any) -> AsyncIterator[Partition]:
    """The only partition of a new store."""
    async with opened(path, **options) as store:
        yield (await with_topic(store))[0]


class SlowDisk(Files):
    """A disk on which writes to logs wait while it is stopped, for one partition's folder or for all."""

    def __init__(self) -> None:
        self.going = threading.Event()
        self.going.set()
        self.slow = ""
        self.reached = threading.Event()
        """Set once a write has reached the stop."""
        self._paths: dict[int, str] = {}

    def stop(self, where: str = ".log") -> None:
        self.slow = where
        self.reached.clear()
        self.going.clear()

    def go(self) -> None:
        self.going.set()

    def open_for_writing(self, path: str) -> int:
        handle = super().open_for_writing(path)
        self._paths[handle] = path
        return handle

    def write(self, handle: int, buffers: Sequence[Buffer], position: int) -> int:
        path = self._paths.get(handle, "")
        if self.slow in path and path.endswith(".log") and not self.going.is_set():
            self.reached.set()
            assert self.going.wait(HANGS_S)
        return super().write(handle, buffers, position)


async def settled() -> None:
    """Returns when the event loop has done everything that it can do without the disk."""
    for _ in range(20):
        await asyncio.sleep(0)


async def reached(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, HANGS_S)
