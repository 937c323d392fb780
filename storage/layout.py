"""The names of files and folders in the data folder: FORMAT.md, section 1, as functions over text."""

from __future__ import annotations

import re

import msgspec

from whippet.storage.options import StoreOptions

FORMAT_VERSION = 2
OLDEST_VERSION = 1
"""Folders of this version and later ones are opened, and have the current version from then on."""
FORMAT_FILE = "FORMAT"
LOCK_FILE = "LOCK"
TRASH_FOLDER = "trash"
STAGING_FOLDER = "staging"
USERS_FOLDER = "users"
TOKENS_FOLDER = "tokens"
GROUPS_FOLDER = "groups"
STREAM_FILE = "stream.json"
TOPIC_FILE = "topic.json"
INTENT_FILE = "intent.json"
PRODUCERS_FILE = "producers"
NUMBERS_FILE = "numbers.json"
PLACEMENT_FILE = "placement.json"
HISTORY_FILE = "history.json"
RESTORING_FILE = "RESTORING"
"""In a folder whose restoring has begun and is not complete."""
CLAIMS_FILE = "archive_claims.json"
TAKEOVER_FILE = "takeover.json"
ASIDE_FOLDER = "damaged"
CONSUMERS_FOLDER = "consumers"
EXTERNAL_GROUPS_FOLDER = "external_groups"
OFFSETS_FOLDER = "offsets"

OFFSETS_MAX = 2**63
"""No partition reaches this offset, because many clients read offsets as signed. A file that names it is not ours."""

_SEGMENT_FILE = re.compile(r"(\d{20})\.(log|index)", re.ASCII)
_NUMBER = re.compile(r"0|[1-9]\d{0,9}", re.ASCII)


class PartitionId(msgspec.Struct, frozen=True, order=True):
    """Which partition: the ids of its stream and topic, and its own."""

    stream: int
    topic: int
    partition: int

    def __str__(self) -> str:
        return f"stream {self.stream}, topic {self.topic}, partition {self.partition}"


def log_file(folder: str, start_offset: int) -> str:
    return f"{folder}/{start_offset:020}.log"


def index_file(folder: str, start_offset: int) -> str:
    return f"{folder}/{start_offset:020}.index"


def left_out_file(folder: str, start_offset: int) -> str:
    """Beside an empty log: its offsets were left out on purpose, so nothing is missing."""
    return f"{folder}/{start_offset:020}.left_out"


def producers_file(folder: str) -> str:
    return f"{folder}/{PRODUCERS_FILE}"


def segment_of(file_name: str) -> tuple[int, str] | None:
    """The start offset and the kind ("log" or "index") in a file name; None for any other name."""
    match = _SEGMENT_FILE.fullmatch(file_name)
    if match is None or (start := int(match[1])) >= OFFSETS_MAX:
        return None
    return start, match[2]


def number(name: str) -> int | None:
    """The id in the name of a folder or document: a decimal u32 without leading zeros; None for any other name."""
    if _NUMBER.fullmatch(name) is None or (value := int(name)) >= 2**32:
        return None
    return value


class Layout:
    """The paths of one store's folders. Three of the names are configurable."""

    __slots__ = ("_partitions", "_topics", "root", "streams")

    def __init__(self, options: StoreOptions) -> None:
        self.root = options.path.rstrip("/") or "/"
        self.streams = f"{self.root}/{options.streams_folder}"
        self._topics = options.topics_folder
        self._partitions = options.partitions_folder

    def stream(self, stream: int) -> str:
        return f"{self.streams}/{stream}"

    def topics(self, stream: int) -> str:
        return f"{self.streams}/{stream}/{self._topics}"

    def topic(self, stream: int, topic: int) -> str:
        return f"{self.topics(stream)}/{topic}"

    def partitions(self, stream: int, topic: int) -> str:
        return f"{self.topic(stream, topic)}/{self._partitions}"

    def partition(self, place: PartitionId) -> str:
        return f"{self.partitions(place.stream, place.topic)}/{place.partition}"

    def groups(self, stream: int, topic: int) -> str:
        return f"{self.topic(stream, topic)}/{GROUPS_FOLDER}"

    def below(self, name: str) -> str:
        return f"{self.root}/{name}"
