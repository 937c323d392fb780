"""The control channel between the two sides of a running pipeline: the runner, which waits for the query to end, and
the batch processor, which Spark calls with each batch.

1. Usually both are in one process and share objects: `LocalControl`.
2. Over Spark Connect, batches are processed by a Python process next to the server, in a session cloned from the
   client's. The two sides exchange their data through settings of the client's session: `ConnectRunnerControl` and
   `ConnectBatchControl`.
"""

from __future__ import annotations

import json
import os
import threading
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.utils import is_remote

if TYPE_CHECKING:
    from whippet.pipelines.batch_processor import RunStatus

QUERY = "sql.streaming.queryId"
STATUS, STOPPING = "whippet.pipeline.done", "whippet.pipeline.stopping"
SERVER = "SPARK_CONNECT_LOCAL_URL"
"""Where Spark tells a Python process next to the server how to reach it."""


class BatchControl(Protocol):
    """The side of the batch processor."""

    def is_stopping(self) -> bool: ...

    def query_id(self, frame: DataFrame) -> str:
        """Returns the id of the query. It is in the checkpoint, so a restart keeps it."""

    def report(self, status: RunStatus) -> None: ...


class RunnerControl(Protocol):
    """The side of the runner."""

    poll_s: float
    """How often the runner checks whether the query has ended."""

    @property
    def batches(self) -> BatchControl: ...

    def request_stop(self) -> None: ...

    def update(self, status: RunStatus) -> None:
        """Copies what the batches have reported."""


def control_for(session: SparkSession, name: str, stopping: threading.Event) -> RunnerControl:
    return ConnectRunnerControl(session, name) if is_remote() else LocalControl(stopping)


class LocalControl:
    poll_s = 0.05

    def __init__(self, stopping: threading.Event) -> None:
        self._stopping = stopping

    @property
    def batches(self) -> LocalControl:
        return self

    def request_stop(self) -> None:
        """Both sides share the event."""

    def update(self, status: RunStatus) -> None:
        """Both sides share the object."""

    report = update

    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    def query_id(self, frame: DataFrame) -> str:
        found = frame.sparkSession.sparkContext.getLocalProperty(QUERY)
        assert found is not None
        return found


class ConnectRunnerControl:
    poll_s = 0.25

    def __init__(self, session: Any, name: str) -> None:
        self._session = session
        self.batches = ConnectBatchControl(session.session_id, name)

    def request_stop(self) -> None:
        self._session.conf.set(STOPPING, "true")

    def update(self, status: RunStatus) -> None:
        for name, value in json.loads(self._session.conf.get(STATUS, "{}")).items():
            setattr(status, name, value)


@dataclass
class ConnectBatchControl:
    """Pickled to the process next to the server."""

    session_id: str
    """The id of the client's session."""
    name: str
    """The name of the query."""

    def is_stopping(self) -> bool:
        return self._session.conf.get(STOPPING, "") != ""

    def query_id(self, frame: DataFrame) -> str:
        return self._query_id

    def report(self, status: RunStatus) -> None:
        values = {name: value for name, value in asdict(status).items() if name != "failure"}
        self._session.conf.set(STATUS, json.dumps(values))

    @cached_property
    def _query_id(self) -> str:
        return next(str(query.id) for query in self._session.streams.active if query.name == self.name)

    @cached_property
    def _session(self) -> SparkSession:
        return SparkSession.builder.remote(f"{os.environ[SERVER]};session_id={self.session_id}").create()
