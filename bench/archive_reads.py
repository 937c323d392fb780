"""Measures reads of what is only in an archive, next to bare ranged reads of the same objects: in a folder of this
machine, and over HTTP from a bare server (object_server.py)."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from typing import Any

from obstore.store import HTTPStore

from whippet.bench.appends import KB_1, append_all
from whippet.bench.archived import Bench, archived
from whippet.bench.measure import Contender, Figure, Row, Target, race, rates
from whippet.bench.object_server import served
from whippet.storage.archive.documents import Manifest, decode, manifest_name, partition_folder
from whippet.storage.archive.histories import Histories
from whippet.storage.archive.objects import LocalObjects, Objects
from whippet.storage.files import Files
from whippet.storage.layout import Layout, PartitionId
from whippet.storage.options import GIB, StoreOptions

ENOUGH = Target("ratio", ">=", 0.7)
SEGMENT_BYTES = 64 << 20
ROOM = 64 << 20
PLACE = PartitionId(0, 0, 0)
BARE = "the yardstick reads 8 MiB at a time"
CHECKED = "every batch was checked before"
ROWS = (
    Row("archive over HTTP, 1,000 x 1 KB a read", "http 1", "http bare", ENOUGH, BARE),
    Row("archive over HTTP, 8,000 x 1 KB a read", "http 8", "http bare", ENOUGH, BARE),
    Row("archive over HTTP, read again", "http again", "http bare", note="the third time, from the cache on the disk"),
    Row("archive in a folder, 1,000 x 1 KB a read", "folder 1", "folder bare", note=BARE),
    Row("archive in a folder, 8,000 x 1 KB a read", "folder 8", "folder bare", note=BARE),
    Row("archive in a folder, read again", "folder again", "folder bare", note=CHECKED),
)


def _bare(objects: Objects, manifest: Manifest) -> Contender:
    """Measures megabytes per second with one ranged read after the other, without looking at what comes."""

    async def contender() -> float:
        start, size = time.perf_counter(), 0
        for piece in manifest.pieces:
            name = f"{partition_folder(PLACE)}/{piece.log.name}"
            size += sum(map(len, objects.parts(name, piece.log.size)))
        return size / (time.perf_counter() - start) / 1e6

    return contender


def _reading(objects: Objects, folder: str, end: int, messages: int, passes: int = 1) -> Contender:
    """Measures one reader that goes on and on, after a start, when nothing was read or checked. Only the last pass
    counts."""
    numbers = itertools.count()

    async def contender() -> float:
        layout = Layout(StoreOptions(path=f"{folder}/reader{id(numbers)}-{next(numbers)}"))
        os.makedirs(layout.root)
        histories = Histories(lambda: objects, Files(), layout, GIB)
        try:
            rates = [await _read(histories, end, messages) for _ in range(passes)]
        finally:
            histories.stop()
            histories.empty_cache()
        return rates[-1]

    return contender


async def _read(histories: Histories, end: int, messages: int) -> float:
    start, size, offset = time.perf_counter(), 0, 0

    def read() -> Any:
        return histories.read(PLACE, offset, messages, ROOM, end)

    while offset < end:
        found = await histories.on_thread(read)
        size += sum(map(len, found.buffers))
        offset = found.next_offset
    return size / (time.perf_counter() - start) / 1e6


async def reads(bench: Bench) -> list[Figure]:
    data, archive = f"{bench.folder}/hours", f"{bench.folder}/years"
    batches = KB_1.copies(bench.scale.read_bytes)
    async with archived(data, archive, bench.shards, segment_bytes=SEGMENT_BYTES, tail_bytes_max=0) as (
        store,
        archiver,
    ):
        await append_all(await store.topic(), batches, 8)
        await archiver.round()
    local = LocalObjects(archive, Files())
    found = local.get(manifest_name(PLACE))
    assert found is not None
    manifest = decode(found.content, Manifest, archive)
    with served(archive) as url:
        remote = Objects(HTTPStore.from_url(url, client_options={"allow_http": True}), url)
        contenders: dict[str, Contender] = {}
        for name, objects in (("http", remote), ("folder", local)):
            add: Callable[..., Contender] = lambda *how, objects=objects: _reading(  # noqa: E731
                objects, bench.folder, manifest.next_offset, *how
            )
            contenders |= {
                f"{name} bare": _bare(objects, manifest),
                f"{name} 1": add(KB_1.messages),
                f"{name} 8": add(8 * KB_1.messages),
                f"{name} again": add(8 * KB_1.messages, 3),
            }
        measured = await race(contenders, bench.scale.rounds)
    return rates(ROWS, measured, "MB/s")
