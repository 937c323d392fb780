"""Checks every file of a data folder that no server has open, and reports its content and all damage.

For `whippet check`. It changes nothing: what opening the folder would cut off or finish is reported as it is.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import NamedTuple

import msgspec

from whippet.storage import document_check, partition_check
from whippet.storage.data_folder import locked_offline, read_identity
from whippet.storage.document_check import CheckedDocuments, Names, numbered
from whippet.storage.encryption import Keyring, Seal
from whippet.storage.errors import SurveyFailed
from whippet.storage.files import Files
from whippet.storage.index import Index
from whippet.storage.layout import FORMAT_FILE, Layout, PartitionId
from whippet.storage.options import StoreOptions
from whippet.storage.partition_check import CheckedPartition, Seals
from whippet.storage.segment import Damage

TOGETHER_BYTES_MIN = 256 << 20
"""A smaller folder is checked in one process, before others would have started."""


class Surveyed(msgspec.Struct, frozen=True):
    """One partition. `messages` counts the readable ones; `next_offset` is where appending would continue."""

    place: PartitionId
    segments: int
    messages: int
    first_offset: int
    next_offset: int
    size_bytes: int
    damage: list[Damage]
    stream_name: str = ""
    topic_name: str = ""

    @property
    def name(self) -> str:
        return name_of(self.place, Names(self.stream_name, self.topic_name))


class SurveyedDocuments(msgspec.Struct, frozen=True):
    """Everything besides the partitions."""

    documents: int
    damage: list[Damage]


def name_of(place: PartitionId, names: tuple[str, str]) -> str:
    """A partition with the names of its stream and topic, as far as they are known."""
    stream, topic = (f" ({name})" if name else "" for name in names)
    return f"stream {place.stream}{stream}, topic {place.topic}{topic}, partition {place.partition}"


def survey(options: StoreOptions, files: Files | None = None) -> Iterator[Surveyed]:
    """Yields every partition, found by its folder, whether or not a document lists it."""
    for found in survey_all(options, files):
        if isinstance(found, Surveyed):
            yield found


def survey_all(
    options: StoreOptions, files: Files | None = None, *, processes: int = 1
) -> Iterator[Surveyed | SurveyedDocuments]:
    """The same, and at the end one value about all documents. With more than one process, as many partitions are
    checked at the same time: checksums of small messages take longer than reading them."""
    files = files or Files()
    with locked_offline(options, files) as layout:
        seals = SealsOf(options.keyring, read_identity(files, layout.below(FORMAT_FILE)).id)
        documents = document_check.check(files, layout, seals.documents)
        run = _Run(files, layout, seals, documents)
        places = places_in(files, layout)
        if processes > 1 and len(places) > 1 and _log_bytes(files, layout, places) >= TOGETHER_BYTES_MIN:
            yield from _together(run, places, min(processes, len(places)))
        else:
            yield from map(run.check, places)
        yield SurveyedDocuments(documents.count, [found.damage for found in documents.found])


class _Run(NamedTuple):
    """The means to check any partition."""

    files: Files
    layout: Layout
    seals: SealsOf
    documents: CheckedDocuments

    def check(self, place: PartitionId) -> Surveyed:
        folder = self.layout.partition(place)
        checked = partition_check.check(self.files, folder, place.partition, self.seals.of(place))
        return _surveyed(place, checked, self.documents)


_run_of_process: list[_Run] = []


def _together(run: _Run, places: list[PartitionId], processes: int) -> Iterator[Surveyed]:
    """A forked process has the run, with the keys, without a copy of it being sent."""
    forked = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(processes, forked, initializer=_run_of_process.append, initargs=(run,)) as pool:
        try:
            yield from pool.map(_check_in_process, places)
        except BrokenProcessPool as error:
            raise SurveyFailed("a process that checks partitions has ended early; is the memory full?") from error
        finally:
            pool.shutdown(cancel_futures=True)


def _log_bytes(files: Files, layout: Layout, places: list[PartitionId]) -> int:
    return sum(item.size for place in places for item in files.list(layout.partition(place)))


def _check_in_process(place: PartitionId) -> Surveyed:
    return _run_of_process[0].check(place)


class SealsOf:
    """The keys for everything in a folder, as far as they are known."""

    def __init__(self, keyring: Keyring | None, identity: str) -> None:
        self.documents = None if keyring is None else Seal(keyring, b"whippet\0" + identity.encode() + b"\0")

    def of(self, place: PartitionId) -> Seals:
        if self.documents is None:
            return Seals()
        return Seals(
            self.documents.for_part(f"batches {place.stream}/{place.topic}"),
            self.documents.for_part(f"offsets {place.stream}/{place.topic}/{place.partition}"),
        )


def places_in(files: Files, layout: Layout) -> list[PartitionId]:
    return [
        PartitionId(stream, topic, partition)
        for stream in numbered(files, layout.streams)
        for topic in numbered(files, layout.topics(stream))
        for partition in numbered(files, layout.partitions(stream, topic))
    ]


def _surveyed(place: PartitionId, checked: CheckedPartition, documents: CheckedDocuments) -> Surveyed:
    segments = [one.segment for one in checked.segments]
    names = documents.names_of(place)
    return Surveyed(
        place=place,
        segments=len(segments),
        messages=sum(_count(one.entries) for one in checked.segments),
        first_offset=segments[0].start_offset if segments else 0,
        next_offset=segments[-1].next_offset if segments else 0,
        size_bytes=sum(segment.log_bytes for segment in segments),
        damage=[found.damage for found in checked.found],
        stream_name=names.stream,
        topic_name=names.topic,
    )


def _count(index: Index) -> int:
    return sum(index.count(i) for i in range(len(index)))
