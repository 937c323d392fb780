"""Reads one range of one partition from the gateway: what a task does, for tables and streams alike.

The next page is requested before the last one is handed to Spark, so that gateway and Spark work at the same time. Each
response is compared with the request: a gateway answers a poll below its oldest message with the oldest one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from pyspark.sql.datasource import InputPartition

from pyspark_whippet import polls
from pyspark_whippet.batches import Messages
from pyspark_whippet.errors import DataLossError, GatewayError
from pyspark_whippet.offsets import Range
from pyspark_whippet.session import Pending, Session
from pyspark_whippet.settings import Settings

_log = logging.getLogger(__name__)
EMPTY_POLL_WAIT = "2s"
"""How long to wait for messages that the gateway has reported but does not return yet."""
NOT_FOUND = 404
"""The topic or the partition existed when the job was planned."""
OTHER_EPOCH = 409
"""It was purged or created again since."""


@dataclass
class Split(InputPartition):
    """The messages that one task reads."""

    topic: str
    partition: int
    start: int
    end: int
    epoch: int | None = field(default=None, kw_only=True)
    """That of the partition when the job was planned, in which these offsets are valid."""


def split_of(each: Range) -> Split:
    return Split(each.topic, each.partition, each.start, each.end, epoch=each.epoch)


def read_pages(session: Session, settings: Settings, split: Split) -> Iterator[Messages]:
    at = split.start
    pending = _poll(session, settings, split, at)
    while at < split.end:
        try:
            answer = polls.finish(pending)
            if not len(answer):
                answer = polls.finish(_poll(session, settings, split, at, EMPTY_POLL_WAIT))
        except GatewayError as error:
            if error.status not in (NOT_FOUND, OTHER_EPOCH):
                raise
            report_loss(settings, split, at, split.end, str(error))
            return
        page = messages_between(answer, at, split.end)
        if not len(page):
            report_loss(
                settings, split, at, split.end, f"server returned {answer.offsets[0] if len(answer) else 'nothing'}"
            )
            return
        for start, end in gaps(at, page):
            report_loss(settings, split, start, end, f"server returned {end}")
        at = int(page.offsets[-1]) + 1
        if at < split.end:
            pending = _poll(session, settings, split, at)
        yield page


def _poll(session: Session, settings: Settings, split: Split, at: int, wait: str | None = None) -> Pending:
    count = min(settings.page_size, split.end - at)
    return polls.begin(session, split.topic, split.partition, "offset", at, count, wait, split.epoch)


def messages_between(page: Messages, start: int, end: int) -> Messages:
    low, high = np.searchsorted(page.offsets, (start, end))
    return page.part(int(low), int(high))


def gaps(at: int, page: Messages) -> list[tuple[int, int]]:
    """Returns the start and end of each gap, before the page and inside it. The page should begin at offset `at`."""
    first, last = int(page.offsets[0]), int(page.offsets[-1])
    found = [(at, first)] if first != at else []
    if last - first + 1 != len(page):
        places = np.flatnonzero(np.diff(page.offsets) != 1).tolist()
        found += [(int(page.offsets[i]) + 1, int(page.offsets[i + 1])) for i in places]
    return found


def report_loss(settings: Settings, split: Split, start: int, end: int, why: str) -> None:
    """Raises an error, or logs a warning with failOnDataLoss=false."""
    place = f"{split.topic} partition {split.partition}"
    if settings.fail_on_data_loss:
        raise DataLossError(f"{place}: offset {start} is gone ({why}); set failOnDataLoss=false to skip it")
    count, last = end - start, end - 1
    _log.warning("%s: skipped %d messages, offsets %d to %d, which are gone (%s)", place, count, start, last, why)
