"""Running a pipeline: start, say how it is doing, stop.

It stops by itself when everything that is there was done (`once`), and when it is told to: then the batch in hand is
finished, because it would have to be done again.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from whippet.pipelines import bad_records, plan, sides, spark_session, state
from whippet.pipelines import flow as flows
from whippet.pipelines.errors import SparkError
from whippet.pipelines.flow import Flow
from whippet.pipelines.pipeline_file import APPEND, Pipeline
from whippet.pipelines.processing import Done, Processing, Stopping
from whippet.pipelines.progress import Progress, behind
from whippet.pipelines.sentences import as_ours
from whippet.pipelines.sides import Waiting
from whippet.pipelines.spark_session import LOG

Say = Callable[[str], None]
SOON = 1


def run(
    pipeline: Pipeline,
    say: Say,
    *,
    once: bool,
    progress_s: float,
    stopping: threading.Event | None = None,
    remote: str | None = None,
) -> Done:
    """Until its end; what was done. A PipelineError if it could not go on. `remote` is a Connect server for it."""
    stopping = stopping or threading.Event()
    with state.held(pipeline.state, pipeline.source.TYPE):
        is_own = not spark_session.is_there()
        say(_greeting(pipeline, is_own and remote is None))
        if remote is None:
            # Spark takes many seconds to begin. Over Connect the folders are elsewhere.
            plan.look(pipeline)
        session = spark_session.start(f"whippet pipeline {pipeline.key}", pipeline.spark, pipeline.state, remote)
        try:
            with _told_to_stop(stopping):
                return _run(pipeline, session, say, once=once, progress_s=progress_s, stopping=stopping)
        except (PySparkException, Py4JJavaError) as error:
            raise as_ours(error) from error
        except (Py4JError, ConnectionError) as error:
            raise SparkError(f"Spark has ended by itself; what it said is in {pipeline.state / LOG}") from error
        finally:
            if is_own:
                spark_session.stop(session)


def _greeting(pipeline: Pipeline, is_own: bool) -> str:
    steps = " -> ".join([pipeline.source.TYPE, *(each.TYPE for each in pipeline.transforms)])
    sinks = ", ".join(each.TYPE for each in pipeline.sinks)
    where = f", Spark's log in {pipeline.state / LOG}" if is_own and not spark_session.is_submitted() else ""
    return f"pipeline {pipeline.key}: {steps} -> {sinks}; state in {pipeline.state}{where}"


def _run(
    pipeline: Pipeline, session: SparkSession, say: Say, *, once: bool, progress_s: float, stopping: threading.Event
) -> Done:
    source = pipeline.source.frame(session, pipeline.iggy)
    flow = flows.analyse(source, pipeline.transforms)
    for place, sink in pipeline.placed_sinks:
        sink.fit(flow.schema, pipeline.iggy, place)
    for place, sink in pipeline.placed_sinks:
        sink.prepare(flow.schema, pipeline.iggy, place)
    if pipeline.dead_letter is not None:
        bad_records.make_topic(pipeline.iggy, pipeline.dead_letter)
    done = Done(noun="result" if flow.keeps_state else "row")
    side = sides.of(session, pipeline.key, stopping)
    # Batches may be processed by a process elsewhere, started in another folder.
    resolved = replace(pipeline, iggy=pipeline.iggy.resolved, state=pipeline.state.absolute())
    processing = Processing(resolved, flow, done, side.batches)
    query = _query(pipeline, source, flow, processing, once=once)
    with _heard(done):
        _wait(pipeline, query, side, done, say, progress_s=progress_s, stopping=stopping)
    side.hear(done)
    _raise_failure(query, done, is_stopping=stopping.is_set())
    return done


def _wait(
    pipeline: Pipeline,
    query: StreamingQuery,
    side: Waiting,
    done: Done,
    say: Say,
    *,
    progress_s: float,
    stopping: threading.Event,
) -> None:
    progress = Progress(pipeline.key)
    progress.begin()
    say_next = time.monotonic() + progress_s
    is_asked = False
    while query.isActive:
        if not is_asked and stopping.wait(side.look_s):
            is_asked = True
            side.ask_to_stop()
        if is_asked:
            _stop(query)
            time.sleep(side.look_s)
        if time.monotonic() >= say_next:
            side.hear(done)
            say(progress.line(done, behind(query.lastProgress)))
            say_next = time.monotonic() + progress_s


def _query(pipeline: Pipeline, source: DataFrame, flow: Flow, processing: Processing, *, once: bool) -> StreamingQuery:
    frame = flows.streamed(source, pipeline.transforms) if flow.keeps_state else source
    writer = frame.writeStream.foreachBatch(processing).queryName(pipeline.key)
    writer = writer.option("checkpointLocation", str((pipeline.state / state.CHECKPOINT).absolute()))
    writer = writer.outputMode(pipeline.output_mode if flow.keeps_state else APPEND)
    if once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{pipeline.source.trigger_ms} milliseconds").start()


def _stop(query: StreamingQuery) -> None:
    """If a batch is in hand it ends by itself; the next one does not begin."""
    if query.isActive and not query.status["isTriggerActive"]:
        query.stop()


def _raise_failure(query: StreamingQuery, done: Done, *, is_stopping: bool) -> None:
    error = done.failure or query.exception()
    # Of what has failed in another process there is but the text.
    if error is None or isinstance(error, Stopping) or (is_stopping and Stopping.__name__ in str(error)):
        return
    raise error


@contextmanager
def _heard(done: Done) -> Iterator[None]:
    """What is warned of on the driver is shown with the progress, such as a database that does not answer just now."""

    class Hearing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            done.last_error = record.getMessage()

    hearing = Hearing(logging.WARNING)
    logs = [logging.getLogger(name) for name in ("pyspark_whippet", "whippet.pipelines")]
    for log in logs:
        log.addHandler(hearing)
    try:
        yield
    finally:
        for log in logs:
            log.removeHandler(hearing)


@contextmanager
def _told_to_stop(stopping: threading.Event) -> Iterator[None]:
    """SIGTERM and Ctrl-C ask; a second one ends the process at once. Spark has set a handler of its own before."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def told(number: int, frame: FrameType | None) -> None:
        if stopping.is_set():
            # Java ends with us, as its standard input does.
            os._exit(SOON)
        stopping.set()

    before: dict[signal.Signals, Any] = {each: signal.signal(each, told) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
