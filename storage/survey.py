"""Checks every batch of a data folder that no server has open, and reports its content and all damage.

For `whippet check`. It changes nothing: what opening the folder would cut off or finish is reported as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import msgspec

from whippet.storage import producer_file, recovery, scan
from whippet.storage.data_folder import locked_offline
from whippet.storage.files import Files, read_all
from whippet.storage.index import Index
from whippet.storage.layout import (
    PartitionId,
    log_file,
    number,
    producers_file,
    segment_of,
)
from whippet.storage.options import StoreOptions
from whippet.storage.segment import Damage, Segment


class Surveyed(msgspec.Struct, frozen=True):
    """One partition. `messages` counts the readable ones; `next_offset` is where appending would continue."""

    place: PartitionId
    segments: int
    messages: int
    first_offset: int
    next_offset: int
    size_bytes: int
    damage: list[Damage]


def survey(options: StoreOptions, files: Files | None = None) -> Iterator[Surveyed]:
    """Yields every partition, found by its folder, whether or not a document lists it."""
    files = files or Files()
    with locked_offline(options, files) as layout:
        for stream in _numbered(files, layout.streams):
            for topic in _numbered(files, layout.topics(stream)):
                for partition in _numbered(files, layout.partitions(stream, topic)):
                    place = PartitionId(stream, topic, partition)
                    yield _check(files, layout.partition(place), place)


def _numbered(files: Files, folder: str) -> list[int]:
    if not files.exists(folder):
        return []
    ids = (number(item.name) for item in files.list(folder) if item.is_folder)
    return sorted(identity for identity in ids if identity is not None)


def _check(files: Files, folder: str, place: PartitionId) -> Surveyed:
    named = [(segment_of(item.name), item) for item in files.list(folder) if not item.is_folder]
    sizes = {name[0]: item.size for name, item in named if name is not None and name[1] == "log"}
    segments = [Segment(start, sizes[start]) for start in sorted(sizes)]
    for segment, following in pairwise(segments):
        segment.next_offset = following.start_offset
    damage: list[Damage] = []
    messages = 0
    for segment in segments[:-1]:
        damage += recovery.check_closed(files, folder, segment, place.partition)
        messages += _count(segment.index)
    if segments:
        damage += _check_last(files, folder, segments[-1], place.partition)
        messages += _count(segments[-1].index)
    damage += _check_producers(files, folder)
    return Surveyed(
        place=place,
        segments=len(segments),
        messages=messages,
        first_offset=segments[0].start_offset if segments else 0,
        next_offset=segments[-1].next_offset if segments else 0,
        size_bytes=sum(sizes.values()),
        damage=damage,
    )


def _check_last(files: Files, folder: str, segment: Segment, partition_id: int) -> list[Damage]:
    path = log_file(folder, segment.start_offset)
    segment.index = Index()
    handle = files.open_for_reading(path)
    try:
        window = scan.Window(files, handle, segment.log_bytes)
        found = scan.scan(window, segment.index, path, partition_id, 0, segment.start_offset)
    finally:
        files.close(handle)
    segment.next_offset = offset = found.next_offset
    if found.reason is None:
        return found.damage
    return [*found.damage, Damage(path, found.end, segment.log_bytes - found.end, offset, offset, found.reason)]


def _check_producers(files: Files, folder: str) -> list[Damage]:
    """Records without a batch are not damage: a crash leaves them, and the next start removes them."""
    path = producers_file(folder)
    if not files.exists(path):
        return []
    content = read_all(files, path)
    found = producer_file.scan(content)
    damage = producer_file.damage_in(path, found)
    if found.end < len(content.rstrip(b"\0")):
        damage.append(Damage(path, 0, 0, 0, 0, f"the bytes after position {found.end} are not a record"))
    return damage


def _count(index: Index | None) -> int:
    assert index is not None
    return sum(index.count(i) for i in range(len(index)))
