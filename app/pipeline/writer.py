"""Writing a table to a topic.

The constructor runs on the driver, when the write is planned: the number of partitions is looked up there once, so that
all tasks and all their attempts send a row to the same partition. `write` runs in the tasks, on a copy of this object.
What a failed job has written stays written: a log takes nothing back.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from app.pipeline import rows, topics, writing
from app.pipeline.errors import PipelineError
from app.pipeline.options import Settings
from app.pipeline.session import session_of
from app.pipeline.writing import Scope, Target


@dataclass
class Written(WriterCommitMessage):
    """What a task has done."""

    rows: int
    requests: int
    by_partition: dict[tuple[str, int], int] = field(default_factory=dict)


def planned(settings: Settings, schema: StructType) -> dict[str, Target]:
    """The targets that are known beforehand; the topic is made if that is wanted."""
    rows.check(schema, settings)
    if settings.topic is None:
        return {}
    session, topic = session_of(settings.access), writing.topic_of(settings)
    if settings.create_topic:
        topics.create(session, topic, settings.create_topic)
    return {topic: writing.target(session, topic)}


def task() -> TaskContext:
    found = TaskContext.get()
    if found is None:
        raise PipelineError("write runs in a task of Spark, and nowhere else")
    return found


class TableWriter(DataSourceArrowWriter):
    def __init__(self, settings: Settings, schema: StructType) -> None:
        self._settings = settings
        self._targets = planned(settings, schema)
        self._job = uuid.uuid4().hex

    def write(self, iterator: Iterator[Any]) -> Written:
        settings = self._settings
        namespace = settings.id_namespace or self._job
        scope = Scope(namespace, settings.id_batch or "-", task().partitionId())
        sent = writing.Writer(session_of(settings.access), settings, scope, self._targets).write(iterator)
        return Written(sent.rows, sent.requests, sent.by_partition)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        pass

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        pass
