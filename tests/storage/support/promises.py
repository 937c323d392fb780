"""The promises of a store: every message, stored offset and document, and the states in which they may be found.

The scenario reports what it is about to do (`begin ...`) and what was acknowledged. Whatever was begun and not
acknowledged may be found done or not done. `check` compares a reopened store with that.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from whippet.storage import batch as batches
from whippet.storage.errors import BatchFault, InvalidBatch
from whippet.storage.fetched import Fetched
from whippet.storage.offsets import Key
from whippet.storage.options import Durability
from whippet.storage.partition import Partition
from whippet.storage.store import Store

State = frozenset[tuple[object, ...]]
"""The catalogue as a set of facts."""

PartitionKey = tuple[int, int, str, int]
"""Stream, topic, name of the topic (a new one for every topic that is created), partition."""


class Epoch:
    """The messages of a partition from its creation, or a purge, to the next."""

    def __init__(self) -> None:
        self.candidates: dict[int, list[bytes]] = {}
        """Everything that was ever appended at an offset, acknowledged or not."""
        self.acknowledged: dict[int, bytes] = {}
        self.promised = dict.fromkeys(Durability, 0)
        """For each level: everything acknowledged before this offset has that durability."""
        self.firsts = {0}
        """Where the partition may begin: after the last trim, and after those that were not acknowledged."""
        self.offsets: dict[Key, set[int | None]] = {}
        self.offsets_ever: dict[Key, set[int | None]] = {}

    def begin(self, base: int, payloads: list[bytes]) -> None:
        for i, payload in enumerate(payloads):
            self.candidates.setdefault(base + i, []).append(payload)

    def acknowledge(self, base: int, payloads: list[bytes], level: Durability) -> None:
        for i, payload in enumerate(payloads):
            assert base + i not in self.acknowledged, f"offset {base + i} was acknowledged twice"
            self.acknowledged[base + i] = payload
        self.promise(base + len(payloads), level)

    def promise(self, next_offset: int, level: Durability) -> None:
        for lower in Durability:
            if lower <= level:
                self.promised[lower] = max(self.promised[lower], next_offset)

    def begin_offset(self, key: Key, offset: int | None) -> None:
        self.offsets.setdefault(key, {None}).add(offset)
        self.offsets_ever.setdefault(key, {None}).add(offset)

    def acknowledge_offset(self, key: Key, offset: int | None) -> None:
        self.offsets[key] = {offset}


class Promises:
    def __init__(self) -> None:
        self.catalogue: set[State] = {frozenset()}
        """The states in which the catalogue may be found."""
        self.partitions: dict[PartitionKey, list[Epoch]] = {}
        """The epochs in which a partition may be found, newest last."""

    def begin_change(self, change: Callable[[State], State]) -> None:
        self.catalogue |= {change(state) for state in self.catalogue}

    def acknowledge_change(self, change: Callable[[State], State]) -> None:
        self.catalogue = {change(state) for state in self.catalogue}

    def begin_epoch(self, key: PartitionKey) -> Epoch:
        epoch = Epoch()
        self.partitions.setdefault(key, []).append(epoch)
        return epoch

    def current(self, key: PartitionKey, partition: Partition) -> Epoch:
        """The epoch of a partition. After a purge or a creation that failed, the offsets show which one it is."""
        epochs = self.partitions[key]
        if len(epochs) > 1 and partition.failed is None:
            fits = [epoch for epoch in epochs if epoch.promised[Durability.MEMORY] <= partition.appended]
            epochs[:] = fits[:1] if partition.appended else fits[-1:]
        return epochs[0]


def facts(store: Store) -> State:
    """The catalogue of a store as a set of facts."""
    found: set[tuple[object, ...]] = set()
    for s, stream in store.streams.items():
        found.add(("stream", s, stream.document.name))
        for t, topic in stream.topics.items():
            found.add(("topic", s, t, topic.document.name))
            found.add(("partitions", s, t, topic.document.partitions_count))
            found.add(("expiry", s, t, topic.document.message_expiry))
            found |= {("group", s, t, g, group.name) for g, group in topic.groups.items()}
    return frozenset(found | {("user", u, document) for u, document in store.users.items()})


def served(found: Fetched) -> list[tuple[int, bytes]]:
    """What a read returned, as offsets and payloads. Every batch is checked.

    A part of a batch keeps the deltas of its messages; nothing else may be wrong with it.
    """
    content = memoryview(b"".join(found.buffers))
    messages = []
    while content:
        length = batches.header(content).length
        try:
            batches.check(content[:length])
        except InvalidBatch as error:
            assert error.fault is BatchFault.DELTA, error
        messages += [(message.offset, message.payload) for message in batches.messages(content[:length])]
        content = content[length:]
    assert len(messages) == found.messages
    return messages


async def read_everything(partition: Partition) -> list[tuple[int, bytes]]:
    """All messages, in small reads that begin and end inside batches and segments."""
    messages: list[tuple[int, bytes]] = []
    offset = 0
    while offset < partition.readable:
        found = await partition.read(offset, 7)
        messages += served(found)
        if found.next_offset <= offset:
            break
        offset = found.next_offset
    return messages


async def check(store: Store, promises: Promises, survived: Durability, *, is_all_served: bool = True) -> None:
    """Raises AssertionError if the store lacks something that it promised with at least the durability `survived`."""
    state = facts(store)
    assert state in promises.catalogue, f"the catalogue is in no state it may be in: {set(state)}"
    assert not is_all_served or not store.unavailable, store.unavailable
    for place, partition in store.partitions.items():
        name = store.streams[place.stream].topics[place.topic].document.name
        epochs = promises.partitions[place.stream, place.topic, name, place.partition]
        messages = await read_everything(partition)
        problems = [_problem(epoch, partition, messages, survived) for epoch in epochs]
        assert None in problems, f"{place}: " + " / ".join(map(str, problems))
    for s, stream in store.streams.items():
        for t, topic in stream.topics.items():
            unavailable = [place.partition for place in store.unavailable if (place.stream, place.topic) == (s, t)]
            assert sorted(topic.partitions + unavailable) == list(range(topic.document.partitions_count)), (s, t, topic)


def _problem(epoch: Epoch, partition: Partition, messages: list[tuple[int, bytes]], survived: Durability) -> str | None:
    offsets = [offset for offset, _ in messages]
    if any(after <= before for before, after in pairwise(offsets)):
        return f"offsets out of order: {offsets}"
    kept_until = epoch.promised[survived]
    for offset, payload in messages:
        if payload not in epoch.candidates.get(offset, ()):
            return f"made-up message at offset {offset}: {payload[:40]!r}"
        if offset < kept_until and offset in epoch.acknowledged and payload != epoch.acknowledged[offset]:
            return f"offset {offset} was acknowledged with another message than {payload[:40]!r}"
    found = set(offsets)
    missing: list[int] = []
    for first in sorted(epoch.firsts):
        missing = [o for o in epoch.acknowledged if first <= o < kept_until and o not in found]
        if not missing and (not offsets or offsets[0] >= first):
            break
    else:
        return f"acknowledged and lost: {missing[:10]}; there are {offsets[:3]}..{offsets[-3:]}; begins {epoch.firsts}"
    if partition.appended < kept_until:
        return f"continues at offset {partition.appended}, {kept_until} was promised"
    if survived is not Durability.SYNCED and offsets != list(range(partition.first_offset, partition.appended)):
        # After a power failure there may be holes: messages without a promise may be lost in any order.
        return f"holes: {offsets} in {partition.first_offset}..{partition.appended}"
    if survived <= partition.durability and partition.first_offset not in epoch.firsts:
        return f"begins at {partition.first_offset}, not at one of {epoch.firsts}"
    return _offsets_problem(epoch, partition, survived)


def _offsets_problem(epoch: Epoch, partition: Partition, survived: Durability) -> str | None:
    for key, allowed in epoch.offsets.items():
        value = partition.offset_of(*key)
        if value is not None and value >= partition.appended:
            return f"the stored offset {value} of {key} is ahead of the messages, which end at {partition.appended}"
        if survived <= partition.durability:
            if value not in allowed:
                return f"the stored offset of {key} is {value}, not one of {allowed}"
        elif value not in epoch.offsets_ever[key] and value != partition.appended - 1:
            return f"the stored offset of {key} is {value}, which nobody has stored"
    return None
