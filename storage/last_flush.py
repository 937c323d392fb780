"""The last flush of a partition, before its files are closed."""

from __future__ import annotations

import logging

from whippet.storage.errors import PartitionFailed, StorageError
from whippet.storage.layout import PartitionId
from whippet.storage.write_pipeline import WritePipeline

_log = logging.getLogger(__name__)


async def last_flush(place: PartitionId, pipeline: WritePipeline) -> StorageError | None:
    """Writes and syncs everything, if that is possible at all. Returns why not."""
    if isinstance(pipeline.failed, PartitionFailed):
        return pipeline.failed
    pipeline.failed = None
    try:
        await pipeline.flush(sync=True)
    except StorageError as error:
        lost = pipeline.appended - pipeline.written
        _log.critical("%s: %d acknowledged messages from memory could not be written: %s", place, lost, error)
        return error
    return None
