"""Reading one range of one partition: what an executor does for every task, of tables and of streams alike.

The next page is asked for before the last one is handed to Spark, so that gateway and Spark work at the same time. What
comes is compared with what was asked for: a gateway answers a poll below its oldest message with the oldest one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from pyspark.sql.datasource import InputPartition

from app.pipeline import columns, polls
from app.pipeline.batches import Messages
from app.pipeline.errors import DataLossError
from app.pipeline.offsets import Range
from app.pipeline.options import Settings
from app.pipeline.session import Pending, Session, session_of

_log = logging.getLogger(__name__)
PATIENCE = "2s"
"""How long to wait for messages that were announced and are not there yet."""


@dataclass
class Slice(InputPartition):
    """A task's share."""

    topic: str
    partition: int
    start: int
    end: int


def slices(ranges: list[Range]) -> list[Slice]:
    return [Slice(*each) for each in ranges]


def read(settings: Settings, schema: Any, share: Any) -> Iterator[Any]:
    """Record batches; none where Spark has made a partition of its own out of an empty list of them."""
    if not isinstance(share, Slice):
        return
    wanted = columns.arrow_schema(schema)
    for messages in pages(session_of(settings.access), settings, share):
        yield columns.build(messages, share.topic, share.partition, wanted, settings.value_format)


def pages(session: Session, settings: Settings, share: Slice) -> Iterator[Messages]:
    at = share.start
    pending = _ask(session, settings, share, at)
    while at < share.end:
        page = _within(polls.finish(pending), at, share.end)
        if not len(page):
            page = _within(polls.finish(_ask(session, settings, share, at, PATIENCE)), at, share.end)
        if not len(page):
            _lost(settings, share, at, share.end, "nothing")
            return
        first = int(page.offsets[0])
        if first != at:
            _lost(settings, share, at, first, str(first))
        at = int(page.offsets[-1]) + 1
        if at < share.end:
            pending = _ask(session, settings, share, at)
        yield page


def _ask(session: Session, settings: Settings, share: Slice, at: int, wait: str | None = None) -> Pending:
    count = min(settings.page_size, share.end - at)
    return polls.begin(session, share.topic, share.partition, "offset", at, count, wait)


def _within(page: Messages, start: int, end: int) -> Messages:
    low, high = np.searchsorted(page.offsets, (start, end))
    return page.part(int(low), int(high))


def _lost(settings: Settings, share: Slice, start: int, end: int, found: str) -> None:
    place = f"{share.topic} partition {share.partition}"
    if settings.fail_on_data_loss:
        raise DataLossError(
            f"{place}: offset {start} is gone (server returned {found}); set failOnDataLoss=false to skip it"
        )
    _log.warning("%s: offsets %d to %d are gone and skipped (failOnDataLoss=false)", place, start, end - 1)
