"""The two sides of a running pipeline: who waits for its end, and what is called with each batch.

1. As a rule both are in one process, and share what they know: `Here`.
2. Over Spark Connect batches are processed by a Python beside the server, in a session that is cloned from the
   client's. What the two tell each other goes through settings of the client's session: `There` and `BesideServer`.
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
    from whippet.pipelines.processing import Done

QUERY = "sql.streaming.queryId"
DONE, STOPPING = "whippet.pipeline.done", "whippet.pipeline.stopping"
SERVER = "SPARK_CONNECT_LOCAL_URL"
"""Where Spark tells a Python beside the server how to reach it."""


class Batches(Protocol):
    """The side of them."""

    def is_stopping(self) -> bool: ...

    def query(self, frame: DataFrame) -> str:
        """Which query it is; the same one after a restart, as it is in the checkpoint."""

    def tell(self, done: Done) -> None: ...


class Waiting(Protocol):
    """The side of whoever waits."""

    look_s: float
    """How often it looks whether the end has come."""

    @property
    def batches(self) -> Batches: ...

    def ask_to_stop(self) -> None: ...

    def hear(self, done: Done) -> None:
        """Learns what batches have told."""


def of(session: SparkSession, name: str, stopping: threading.Event) -> Waiting:
    return There(session, name) if is_remote() else Here(stopping)


class Here:
    look_s = 0.05

    def __init__(self, stopping: threading.Event) -> None:
        self._stopping = stopping

    @property
    def batches(self) -> Here:
        return self

    def ask_to_stop(self) -> None:
        """It is asked by the same event."""

    def hear(self, done: Done) -> None:
        """It is the same object on both sides."""

    tell = hear

    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    def query(self, frame: DataFrame) -> str:
        found = frame.sparkSession.sparkContext.getLocalProperty(QUERY)
        assert found is not None
        return found


class There:
    look_s = 0.25

    def __init__(self, session: Any, name: str) -> None:
        self._session = session
        self.batches = BesideServer(session.session_id, name)

    def ask_to_stop(self) -> None:
        self._session.conf.set(STOPPING, "true")

    def hear(self, done: Done) -> None:
        for name, value in json.loads(self._session.conf.get(DONE, "{}")).items():
            setattr(done, name, value)


@dataclass
class BesideServer:
    """Pickled on its way there."""

    session_id: str
    """Of the client's session."""
    name: str
    """Of the query."""

    def is_stopping(self) -> bool:
        return self._session.conf.get(STOPPING, "") != ""

    def query(self, frame: DataFrame) -> str:
        return self._query

    def tell(self, done: Done) -> None:
        said = {name: value for name, value in asdict(done).items() if name != "failure"}
        self._session.conf.set(DONE, json.dumps(said))

    @cached_property
    def _query(self) -> str:
        return next(str(query.id) for query in self._session.streams.active if query.name == self.name)

    @cached_property
    def _session(self) -> SparkSession:
        return SparkSession.builder.remote(f"{os.environ[SERVER]};session_id={self.session_id}").create()
