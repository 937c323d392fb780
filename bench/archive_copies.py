"""Measures how fast an archive is restored and checked, next to reading and hashing the same objects."""

from __future__ import annotations

import shutil
import time

import xxhash

from whippet.bench.appends import KB_1, append_all
from whippet.bench.archived import Bench, archived
from whippet.bench.measure import Contender, Figure, Row, race, rates
from whippet.storage.archive.checking import survey
from whippet.storage.archive.objects import LocalObjects, Objects
from whippet.storage.archive.restoring import Restoring
from whippet.storage.files import Files
from whippet.storage.options import StoreOptions
from whippet.storage.store import now_us

PARTITIONS = 4
HASHED = "the yardstick reads and hashes the same objects"
ROWS = (
    Row("restore an archive in a folder", "restore", "hashed", note=HASHED),
    Row("check an archive in a folder", "check", "hashed", note=HASHED),
)


def _hashing(objects: Objects) -> Contender:
    async def contender() -> float:
        start, size = time.perf_counter(), 0
        for item in objects.list("streams/"):
            hasher = xxhash.xxh3_64()
            for part in objects.parts(item.name, item.size):
                hasher.update(part)
            size += item.size
        return size / (time.perf_counter() - start) / 1e6

    return contender


def _restoring(objects: Objects, path: str) -> Contender:
    async def contender() -> float:
        start = time.perf_counter()
        restored = Restoring(objects, StoreOptions(path=path), Files(), now_us).run()
        seconds = time.perf_counter() - start
        shutil.rmtree(path)
        return restored.size_bytes / seconds / 1e6

    return contender


def _checking(objects: Objects) -> Contender:
    async def contender() -> float:
        start, size = time.perf_counter(), 0
        for found in survey(objects):
            size += getattr(found, "size_bytes", 0)
        return size / (time.perf_counter() - start) / 1e6

    return contender


async def copies(bench: Bench) -> list[Figure]:
    data, archive = f"{bench.folder}/original", f"{bench.folder}/copy"
    async with archived(data, archive, bench.shards, segment_bytes=64 << 20, tail_bytes_max=0) as (store, archiver):
        await append_all(await store.topic(PARTITIONS), KB_1.copies(bench.scale.read_bytes), 8)
        await archiver.round()
    objects = LocalObjects(archive, Files())
    contenders = {
        "hashed": _hashing(objects),
        "restore": _restoring(objects, f"{bench.folder}/restored"),
        "check": _checking(objects),
    }
    found = await race(contenders, bench.scale.rounds)
    shutil.rmtree(archive)
    return rates(ROWS, found, "MB/s")
