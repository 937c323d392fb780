"""Reads topics from a folder without the gateway, for `from=files`.

It is the data folder of a server, running or not, a copy of it, or the folder of one topic. The layout is that of
storage/FORMAT.md, sections 1 and 6; the names of topics are in the documents next to their messages.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

from pyspark_whippet import planning
from pyspark_whippet.errors import OptionError
from pyspark_whippet.gateway_reader import Split, report_loss, split_of
from pyspark_whippet.offsets import Range
from pyspark_whippet.packed_batches import context_of
from pyspark_whippet.partition_bounds import PartitionBounds
from pyspark_whippet.segment_reader import FileSplit
from pyspark_whippet.segments import Segment, last_start, offset_at, segments_in, sync, written_end
from pyspark_whippet.settings import Settings

STREAMS, TOPICS, PARTITIONS = "streams", "topics", "partitions"
STREAM_FILE, TOPIC_FILE, FORMAT_FILE, LOCK_FILE = "stream.json", "topic.json", "FORMAT", "LOCK"


class FolderBackend:
    """Created for each plan: the topics of a stream are looked up only once."""

    def __init__(self, settings: Settings) -> None:
        assert settings.path is not None
        self._path = settings.path
        self._topic = None
        self._listed: dict[str, dict[str, tuple[dict[str, Any], str]]] = {}
        if not os.path.isdir(self._path):
            raise OptionError(f"option 'path': {self._path} is not a folder that the driver can see")
        if not os.path.isdir(f"{self._path}/{STREAMS}"):
            if not os.path.isdir(f"{self._path}/{PARTITIONS}"):
                raise OptionError(
                    f"option 'path': {self._path} is neither a data folder, with {STREAMS}/ in it, "
                    f"nor the folder of a topic, with {PARTITIONS}/"
                )
            if settings.topics is None or len(settings.topics) != 1:
                raise OptionError(f"option 'path': {self._path} is the folder of one topic; subscribe to one")
            self._topic = settings.topics[0]

    # ------------------------------------------------------------------------------------------------- what is there

    def topic_names(self) -> Iterator[str]:
        for stream, folder in self._streams():
            yield from (f"{stream}/{topic['name']}" for topic, _ in _topics(folder))

    def bounds_of(self, topic: str) -> dict[int, PartitionBounds] | None:
        if self.document(topic) is None:
            return None
        return {number: self._partition_bounds(topic, number) for number in self._partitions(topic)}

    def _partition_bounds(self, topic: str, number: int) -> PartitionBounds:
        path = self._partition(topic, number)
        # Read before the segments are listed: otherwise one that is closed in between would be missed.
        begin = 0 if path is None else last_start(path)
        found = self.segments(topic, number)
        if found:
            first, end = found[0].start, found[-1].end
            return PartitionBounds(end, end - first, first, self.epoch(topic, number))
        # No segment is closed. The first message to come is in the last segment: those before it have been deleted.
        return PartitionBounds(begin, 0, begin, self.epoch(topic, number))

    def epoch(self, topic: str, partition: int) -> int | None:
        """Returns the epoch of a partition, by the rule of storage/FORMAT.md, section 6; None if it is not known."""
        document = self.document(topic) or {}
        for name in ("epochs", "incarnations"):
            numbers = document.get(name) or ()
            if partition < len(numbers) and numbers[partition]:
                return int(numbers[partition])
        return None

    def first_offset(self, topic: str, partition: int, bounds: PartitionBounds) -> int:
        return bounds.next_offset if bounds.first_offset is None else bounds.first_offset

    def offset_at(self, topic: str, partition: int, timestamp_us: int) -> int | None:
        return offset_at(self.segments(topic, partition), timestamp_us)

    def still_has(self, topic: str, partition: int, offset: int) -> bool:
        """The last segment was readable while the server was shut down; now it is running again and appends to it."""
        path = self._partition(topic, partition)
        return path is not None and written_end(path) >= offset

    def document(self, topic: str) -> dict[str, Any] | None:
        """Returns the document of a topic, or None if there is no such topic."""
        found = self._lookup(topic)
        return None if found is None else found[0]

    def segments(self, topic: str, partition: int) -> list[Segment]:
        """Returns the readable segments, in order."""
        path = self._partition(topic, partition)
        return [] if path is None else segments_in(path, self._was_shut_down)

    def _partition(self, topic: str, partition: int) -> str | None:
        found = self._lookup(topic)
        return None if found is None else f"{found[1]}/{PARTITIONS}/{partition}"

    def _was_shut_down(self) -> bool:
        """Whether the server shut down gracefully and has not been started since: it writes its name into the lock
        file."""
        try:
            return os.stat(f"{self._path}/{LOCK_FILE}").st_size == 0
        except FileNotFoundError:
            return False

    def _lookup(self, topic: str) -> tuple[dict[str, Any], str] | None:
        if self._topic is not None:
            return (_document(f"{self._path}/{TOPIC_FILE}") or {}, self._path) if topic == self._topic else None
        stream, _, name = topic.partition("/")
        if stream not in self._listed:
            folders = [folder for each, folder in self._streams() if each == stream]
            self._listed[stream] = {item[0]["name"]: item for folder in folders for item in _topics(folder)}
        return self._listed[stream].get(name)

    def _streams(self) -> Iterator[tuple[str, str]]:
        for folder in _numbered_folders(f"{self._path}/{STREAMS}"):
            document = _document(f"{folder}/{STREAM_FILE}")
            if document is not None:
                yield document["name"], folder

    def _partitions(self, topic: str) -> list[int]:
        found = self._lookup(topic)
        if found is None:
            return []
        document, folder = found
        numbers = sorted(int(os.path.basename(each)) for each in _numbered_folders(f"{folder}/{PARTITIONS}"))
        # Folders beyond the count are being removed.
        return [number for number in numbers if number < document.get("partitions_count", 2**32)]

    # ------------------------------------------------------------------------------------------------------ planning

    def plan_splits(self, ranges: list[Range], settings: Settings) -> list[FileSplit]:
        found: list[FileSplit] = []
        for split in self.all_splits(ranges, settings, has_fallback=False):
            if isinstance(split, FileSplit):
                found.append(split)
            else:
                report_loss(settings, split, split.start, split.end, f"no segment in {self._path} has it")
        return found

    def all_splits(self, ranges: list[Range], settings: Settings, *, has_fallback: bool) -> list[FileSplit | Split]:
        """Splits that cover all of the ranges, also where no file has the messages.

        With `has_fallback`, tasks fetch from the gateway what they do not find in their file.
        """
        known = {(each.topic, each.partition): self.segments(each.topic, each.partition) for each in ranges}
        contexts = {topic: self._context(topic) for topic, _ in known}
        splits: list[FileSplit | Split] = []
        synced: set[Segment] = set()
        for piece, segment in planning.divide(ranges, known, settings):
            if segment is None:
                splits.append(split_of(piece))
                continue
            if segment not in synced:
                synced.add(segment)
                sync(segment)
            splits.append(FileSplit(*piece[:4], segment, has_fallback, contexts[piece.topic], epoch=piece.epoch))
        return splits

    def _context(self, topic: str) -> bytes | None:
        """Returns what the encrypted batches of a topic are bound to; None without the whole data folder."""
        found, store = self._lookup(topic), _document(f"{self._path}/{FORMAT_FILE}")
        if found is None or store is None or self._topic is not None:
            return None
        stream, _, topic_id = found[1].removeprefix(f"{self._path}/{STREAMS}/").split("/")
        return context_of(store["id"], int(stream), int(topic_id))


# ------------------------------------------------------------------------------------------------- folders, documents


def _topics(stream_folder: str) -> Iterator[tuple[dict[str, Any], str]]:
    for folder in _numbered_folders(f"{stream_folder}/{TOPICS}"):
        document = _document(f"{folder}/{TOPIC_FILE}")
        if document is not None:
            yield document, folder


def _numbered_folders(folder: str) -> list[str]:
    """Returns the subfolders that have a number as their name."""
    try:
        with os.scandir(folder) as items:
            return sorted(item.path for item in items if item.name.isascii() and item.name.isdigit())
    except FileNotFoundError:
        return []


def _document(path: str) -> dict[str, Any] | None:
    """Returns None if the file is gone."""
    try:
        with open(path, "rb") as file:
            found: dict[str, Any] = json.load(file)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise OptionError(f"option 'path': {path} is not a valid document: {error}") from None
    return found
