"""Reads a partition on the event loop: from the memory tail, from the files, or from what is only in the archive."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from whippet.storage.fetched import Fetched
from whippet.storage.write_pipeline import WritePipeline

if TYPE_CHECKING:
    from whippet.storage.partition import Partition


async def read(partition: Partition, pipeline: WritePipeline, offset: int, count: int, left: int) -> Fetched:
    """Reads at most `count` messages in at most `left` bytes, but at least one, from an offset or the first retained
    one after it."""
    end = partition.readable
    offset = max(offset, partition.first_offset)
    found = Fetched([], 0, offset)
    while found.messages < count and offset < end and left > 0:
        tail_start, wanted = pipeline.tail.first_offset, count - found.messages
        if tail_start is not None and offset >= tail_start:
            more = pipeline.tail.read(offset, wanted, left, end)
        elif partition.history is not None and offset < (local := partition.local_first_offset):
            more = await partition.history.read(offset, wanted, left, local)
        else:
            until = min(end, partition.written)
            if offset >= until:
                break
            fetched = pipeline.read_on_loop(offset, wanted, left, until)
            if fetched is None:
                fetched = await pipeline.call(partial(pipeline.log.read, offset, wanted, left, until), brief=True)
                if partition.history is not None and offset < partition.local_first_offset:
                    # These messages have just been deleted here, and what was read comes after them.
                    continue
            more = fetched
        if found.messages and sum(map(len, more.buffers)) > left:
            # The next message alone is larger than what is left: the next read returns it.
            break
        if more.next_offset == offset:
            break
        left -= sum(map(len, more.buffers))
        offset = more.next_offset
        found = Fetched(found.buffers + more.buffers, found.messages + more.messages, offset)
    return found


async def offset_at(partition: Partition, pipeline: WritePipeline, timestamp: int) -> int:
    """The first offset whose message has this time or a later one; the next offset if there is none."""
    local = await _local_offset_at(partition, pipeline, timestamp)
    first = partition.local_first_offset
    if partition.history is None or local > first:
        return local
    return await partition.history.offset_at(timestamp, first)


async def _local_offset_at(partition: Partition, pipeline: WritePipeline, timestamp: int) -> int:
    log, tail, first = pipeline.log, pipeline.tail, partition.local_first_offset
    found = tail.offset_at(timestamp)
    if found is not None:
        return max(found, first)
    if tail.first_offset is not None and tail.first_offset <= first:
        return first
    found = pipeline.offset_on_loop(timestamp)
    if found is not None:
        return found
    return await pipeline.call(lambda: log.offset_at(timestamp), brief=True)
