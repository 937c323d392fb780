"""The catalogue in memory: streams, topics and groups, by number and by name.

Pure state; the store keeps the documents. Numbers are assigned from 0; the one freed last is reused first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from whippet.app.errors import Code, CommandError
from whippet.app.model.groups import Group
from whippet.storage.documents import StreamDocument, TopicDocument
from whippet.storage.engine import Partition

NAME_BYTES_MAX = 255


def check_name(name: str, what: str) -> None:
    """Refuses a name of a stream, topic or group that is empty or too long. Any other text is allowed."""
    if not 1 <= len(name.encode()) <= NAME_BYTES_MAX:
        raise CommandError(Code.INVALID_FORMAT, f"the name of a {what} has 1 to {NAME_BYTES_MAX} bytes")


class HasName(Protocol):
    @property
    def id(self) -> int: ...
    @property
    def name(self) -> str: ...


Named = TypeVar("Named", bound=HasName)


class Directory(Generic[Named]):
    """Objects of one kind, by id and by name."""

    def __init__(self, objects: list[Named], reserved: set[int] | None = None) -> None:
        self._by_id: dict[int, Named] = {item.id: item for item in objects}
        self._by_name: dict[str, Named] = {item.name: item for item in objects}
        self.changes = 0
        """How often an object was added, renamed or removed."""
        taken = self._by_id.keys() | (reserved or set())
        self._slots = max(taken, default=-1) + 1
        # As if the lowest had been freed last, so that low numbers are reused first after a start.
        self._freed = [identity for identity in range(self._slots - 1, -1, -1) if identity not in taken]

    def next_id(self) -> int:
        """The number of the next object that is added."""
        return self._freed[-1] if self._freed else self._slots

    def add(self, item: Named) -> None:
        """Adds a new object, whose id must be `next_id`."""
        assert item.id == self.next_id()
        self.changes += 1
        if self._freed:
            self._freed.pop()
        else:
            self._slots += 1
        self._by_id[item.id] = item
        self._by_name[item.name] = item

    def rename(self, item: Named, old_name: str) -> None:
        """Call this after the object has got its new name."""
        self.changes += 1
        self._by_name.pop(old_name, None)
        self._by_name[item.name] = item

    def remove(self, item: Named) -> None:
        self.changes += 1
        del self._by_id[item.id]
        self._by_name.pop(item.name, None)
        self._freed.append(item.id)

    def find(self, identifier: int | str) -> Named | None:
        return self._by_id.get(identifier) if isinstance(identifier, int) else self._by_name.get(identifier)

    def __iter__(self) -> Iterator[Named]:
        """In the order of the ids."""
        return iter([self._by_id[identity] for identity in sorted(self._by_id)])

    def __len__(self) -> int:
        return len(self._by_id)


class Topic:
    """A topic with its partitions, in the order of their ids, and its groups."""

    __slots__ = ("document", "groups", "id", "partitions", "turn")

    def __init__(self, document: TopicDocument, partitions: list[Partition | None], groups: Directory[Group]) -> None:
        self.id = document.id
        self.document = document
        self.partitions = partitions
        """None where a partition cannot be opened."""
        self.groups = groups
        self.turn = 0
        """The partition for the next balanced batch."""

    @property
    def name(self) -> str:
        return self.document.name

    def partition(self, partition_id: int) -> Partition | None:
        return self.partitions[partition_id] if 0 <= partition_id < len(self.partitions) else None

    def incarnation(self, partition_id: int) -> int:
        return self.document.incarnation(partition_id)

    @property
    def served(self) -> list[Partition]:
        return [partition for partition in self.partitions if partition is not None]

    @property
    def size_bytes(self) -> int:
        return sum(partition.size_bytes for partition in self.served)

    @property
    def disk_bytes(self) -> int:
        return sum(partition.disk_bytes for partition in self.served)

    @property
    def classic_size_bytes(self) -> int:
        return sum(partition.message_bytes for partition in self.served)

    @property
    def messages_count(self) -> int:
        return sum(partition.messages_count for partition in self.served)


class Stream:
    __slots__ = ("document", "id", "topics")

    def __init__(self, document: StreamDocument, topics: Directory[Topic]) -> None:
        self.id = document.id
        self.document = document
        self.topics = topics

    @property
    def name(self) -> str:
        return self.document.name

    @property
    def size_bytes(self) -> int:
        return sum(topic.size_bytes for topic in self.topics)

    @property
    def classic_size_bytes(self) -> int:
        return sum(topic.classic_size_bytes for topic in self.topics)

    @property
    def messages_count(self) -> int:
        return sum(topic.messages_count for topic in self.topics)
