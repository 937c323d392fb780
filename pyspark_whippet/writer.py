"""Writes tables and streams to topics.

Constructors run on the driver when a write is planned; for a stream, before each batch. They look up the number of
partitions once, so that all tasks and all their attempts send a row to the same partition. `write` runs in the tasks
and `commit` on the driver, each on its own copy. What a failed job has written stays: a log cannot take back messages.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_whippet import batch_markers, deduplication, rows, task_writer, topics
from pyspark_whippet.errors import PipelineError
from pyspark_whippet.session import session_of
from pyspark_whippet.settings import Settings
from pyspark_whippet.task_writer import IdScope, SendTotals, Target

_log = logging.getLogger(__name__)
QUERY, BATCH = "sql.streaming.queryId", "streaming.sql.batchId"
"""The local properties of a task that identify its query and batch."""

LACKS_XXHASH = (
    "executors have no package xxhash, so messages were sent as JSON, which takes several times as long; install it on "
    "all of them"
)


@dataclass
class TaskResult(WriterCommitMessage):
    """What a task has written."""

    rows: int
    requests: int
    by_partition: dict[tuple[str, int], int] = field(default_factory=dict)
    query: str | None = None
    """The id of the streaming query, which only tasks know."""
    lacks_xxhash: bool = False


def plan_targets(settings: Settings, schema: StructType) -> dict[str, Target]:
    """Returns the targets that are known in advance. With createTopic, the topic is created."""
    rows.check_schema(schema, settings)
    if settings.topic is None:
        return {}
    session, topic = session_of(settings.access), task_writer.topic_of(settings)
    if settings.create_topic:
        topics.create(session, topic, settings.create_topic, keeps_ids=settings.id_mode != "none")
    return {topic: task_writer.target(session, topic)}


def task_context() -> TaskContext:
    found = TaskContext.get()
    if found is None:
        raise PipelineError("write must run in a Spark task")
    return found


def write_rows(
    settings: Settings, scope: IdScope, targets: dict[str, Target], record_batches: Iterator[Any]
) -> SendTotals:
    """Writes the rows of one task."""
    sessions = [session_of(settings.access, lane) for lane in range(settings.in_flight)]
    return task_writer.TaskWriter(sessions, settings, scope, targets).write(record_batches)


def warn(settings: Settings, targets: dict[str, Target], messages: list[WriterCommitMessage | None]) -> None:
    """Logs a warning if messages were sent in the slow form, or if the gateway would forget ids before what was written
    now could be replayed. Never fails."""
    if any(isinstance(message, TaskResult) and message.lacks_xxhash for message in messages):
        deduplication.warn_once(LACKS_XXHASH)
    if settings.id_mode == "none" or settings.partitioning == "balanced":
        return
    total: Counter[tuple[str, int]] = Counter()
    for message in messages:
        if isinstance(message, TaskResult):
            total.update(message.by_partition)
    most: dict[str, int] = {}
    for (topic, _), count in total.items():
        most[topic] = max(most.get(topic, 0), count)
    for topic, count in most.items():
        try:
            known = targets.get(topic) or task_writer.target(session_of(settings.access), topic)
        except PipelineError as error:
            _log.warning("could not read how many ids %s remembers: %s", topic, error)
            continue
        deduplication.warn_once(deduplication.warning(topic, known.window, count))


class TableWriter(DataSourceArrowWriter):
    def __init__(self, settings: Settings, schema: StructType) -> None:
        self._settings = settings
        self._targets = plan_targets(settings, schema)
        self._job = uuid.uuid4().hex

    def write(self, iterator: Iterator[Any]) -> TaskResult:
        settings = self._settings
        scope = IdScope(settings.id_namespace or self._job, settings.id_batch or "-", task_context().partitionId())
        sent = write_rows(settings, scope, self._targets, iterator)
        return TaskResult(sent.rows, sent.requests, sent.by_partition, None, sent.lacks_xxhash)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        warn(self._settings, self._targets, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing can be taken back."""


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, settings: Settings, schema: StructType) -> None:
        self._settings = settings
        self._targets = plan_targets(settings, schema)

    def write(self, iterator: Iterator[Any]) -> TaskResult:
        settings, context = self._settings, task_context()
        query, batch = context.getLocalProperty(QUERY), context.getLocalProperty(BATCH)
        if query is None or batch is None:
            raise PipelineError("Spark did not tell the task its query and batch, so no ids can be derived")
        session = session_of(settings.access)
        if settings.marker and settings.id_mode != "none":
            last = batch_markers.last_batch(session, query)
            if last is not None and int(batch) <= last:
                _log.warning("skipped batch %s of query %s: all batches up to %d have been written", batch, query, last)
                for _ in iterator:
                    pass
                return TaskResult(0, 0, query=query)
        scope = IdScope(settings.id_namespace or query, batch, context.partitionId())
        sent = write_rows(settings, scope, self._targets, iterator)
        return TaskResult(sent.rows, sent.requests, sent.by_partition, query, sent.lacks_xxhash)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Called when all tasks are done. If the marker cannot be stored, only its protection is lost."""
        settings = self._settings
        warn(settings, self._targets, messages)
        query = next((each.query for each in messages if isinstance(each, TaskResult)), None)
        if query is None or not settings.marker or settings.id_mode == "none":
            return
        try:
            batch_markers.store(session_of(settings.access), query, batchId)
        except PipelineError as error:
            _log.warning(
                "batch %d of query %s was written, but its marker could not be stored: %s", batchId, query, error
            )

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing can be taken back. The next attempt has the same ids, so the gateway drops what already exists."""
