"""Removes streams, topics and partitions from a store, and serves their partitions again if that fails; purges topics.

A removal closes the partitions first, then moves their folders into the trash. If the catalogue refuses, the partitions
are opened again; nothing that was acknowledged is lost. The store shields these functions from cancellation
(shielding.py).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

from whippet.storage.documents import Topic
from whippet.storage.errors import CatalogueError
from whippet.storage.layout import PartitionId
from whippet.storage.partition import Partition
from whippet.storage.partition_opener import Opened, Unavailable

if TYPE_CHECKING:
    from whippet.storage.store import Store

_log = logging.getLogger(__name__)

ALL_PARTITIONS = range(2**32)


async def remove_stream(store: Store, stream_id: int) -> None:
    catalog, folder = store.catalog, store.layout.stream(stream_id)
    closed = []
    for topic_id in list(store.streams[stream_id].topics):
        closed += await _close_partitions(store, stream_id, topic_id, ALL_PARTITIONS)
    async with _reopened_on_failure(store, closed, lambda: catalog.restore(folder)):
        await store.change(lambda: catalog.remove_stream(stream_id))
    _forget_unavailable(store, stream_id)
    del store.streams[stream_id]
    await _empty_trash(store)


async def remove_topic(store: Store, stream_id: int, topic_id: int) -> None:
    catalog, folder = store.catalog, store.layout.topic(stream_id, topic_id)
    closed = await _close_partitions(store, stream_id, topic_id, ALL_PARTITIONS)
    async with _reopened_on_failure(store, closed, lambda: catalog.restore(folder)):
        await store.change(lambda: catalog.remove_topic(stream_id, topic_id))
    _forget_unavailable(store, stream_id, topic_id)
    del store.streams[stream_id].topics[topic_id]
    await _empty_trash(store)


async def purge_topic(store: Store, stream_id: int, topic_id: int, epoch: int | None) -> None:
    """Deletes all messages of a topic. `epoch` is a number that its partitions never had.

    The epoch is stored first: after a crash in between, readers learn of a purge that has not happened, and no reader
    ever misses one that has.
    """
    topic = store.streams[stream_id].topics[topic_id]
    if epoch is None:
        epoch = 1 + max(map(topic.document.epoch, range(topic.document.partitions_count)), default=0)
    document = topic.document.purged(epoch)

    async def write() -> None:
        await store.change(lambda: store.catalog.write_topic(stream_id, document))

    try:
        await write()
        is_stored = True
    except CatalogueError as error:
        _log.warning("%s; what a full disk lacks is made by purging first", error)
        is_stored = False
    # Also if it is not stored: partitions have this epoch from their purge on, and the next change stores it.
    topic.document = document
    for partition in store.partitions_of(stream_id, topic_id):
        await partition.purge(epoch)
    if not is_stored:
        await write()


async def remove_partitions(store: Store, stream_id: int, topic_id: int, count: int) -> None:
    """Removes the `count` highest partitions of a topic."""
    catalog, topic = store.catalog, store.streams[stream_id].topics[topic_id]
    left = topic.document.partitions_count - count
    if left < 0:
        raise CatalogueError(f"a topic of {topic.document.partitions_count} partitions cannot lose {count}")
    closed = await _close_partitions(store, stream_id, topic_id, range(left, left + count))
    before = topic.document
    async with _reopened_on_failure(store, closed, lambda: catalog.write_topic(stream_id, before)):
        topic.document = await store.change(lambda: catalog.remove_partitions(stream_id, before, count))
    _forget_unavailable(store, stream_id, topic_id, left)
    try:
        await finish_removing(store, stream_id, topic)
    except CatalogueError as error:
        _log.warning("removed partitions stay on the disk until the next removal or start: %s", error)
    await _empty_trash(store)


async def finish_removing(store: Store, stream_id: int, topic: Topic) -> None:
    """Removes the folders of partitions whose removal was decided."""
    document = topic.document
    if document.removing:
        topic.document = await store.change(lambda: store.catalog.finish_removing(stream_id, document))


async def _empty_trash(store: Store) -> None:
    """The removal has succeeded, even if its space can only be freed by the next removal or start."""
    try:
        await store.change(store.catalog.empty_trash)
    except CatalogueError as error:
        _log.warning("the trash cannot be emptied: %s", error)


async def _close_partitions(store: Store, stream_id: int, topic_id: int, partition_ids: range) -> list[Partition]:
    topic = store.streams[stream_id].topics[topic_id]
    closed = []
    for partition_id in [identity for identity in topic.partitions if identity in partition_ids]:
        partition = store.partitions.pop(PartitionId(stream_id, topic_id, partition_id), None)
        if partition is None:
            continue
        topic.partitions.remove(partition_id)
        # It still writes what was acknowledged: the removal may fail.
        await partition.close("it was removed", keep=False)
        closed.append(partition)
    return closed


def _forget_unavailable(store: Store, stream_id: int, topic_id: int | None = None, first: int = 0) -> None:
    """Removed partitions are no longer reported as unavailable."""
    for place in [place for place in store.unavailable if place.stream == stream_id and place.partition >= first]:
        if topic_id in (None, place.topic):
            del store.unavailable[place]
            partitions = store.streams[stream_id].topics[place.topic].partitions
            if place.partition in partitions:  # It is not after a removal that failed and could not be undone.
                partitions.remove(place.partition)


@contextlib.asynccontextmanager
async def _reopened_on_failure(
    store: Store, closed: list[Partition], restore: Callable[[], None]
) -> AsyncIterator[None]:
    """If the removal fails, opens the closed partitions again, once `restore` has made sure that the next start will
    not remove them. If `restore` fails too, that start decides, and nobody writes to them until then."""
    try:
        yield
    except CatalogueError:
        reason = None
        try:
            await store.change(restore)
        except CatalogueError as error:
            reason = f"its removal failed half-way and could not be undone: {error}"
        for old in closed:
            place, shard = old.place, store.shard(old.place)
            opened: Opened | Unavailable
            if reason is None and (ends := store.awaited.get(place)) is not None:
                store.await_partition(ends, "the archive")
                store.streams[place.stream].topics[place.topic].partitions.append(place.partition)
                continue
            if reason is None:
                opened = await shard.call(lambda place=place, shard=shard: store.opener.try_to_open(place, shard))  # type: ignore[misc]
            else:
                opened = Unavailable(place, reason)
            store.serve(opened, shard)
            if isinstance(opened, Opened):
                store.streams[place.stream].topics[place.topic].partitions.append(place.partition)
        raise
