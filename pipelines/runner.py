"""Runs a pipeline: starts it, reports its progress, and stops it.

With `once` it stops when everything available has been processed. When it is handle to stop, it finishes the current
batch first, which would otherwise have to be repeated.
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

from whippet.pipelines import bad_records, check_report, run_control, spark_session, state, transform_chain
from whippet.pipelines.batch_processor import BatchProcessor, RunStatus, StopRequested
from whippet.pipelines.errors import SparkError
from whippet.pipelines.pipeline_file import APPEND, Pipeline
from whippet.pipelines.progress import Progress, total_lag
from whippet.pipelines.run_control import RunnerControl
from whippet.pipelines.spark_session import LOG
from whippet.pipelines.transform_chain import Analysis
from whippet.pipelines.user_text import as_pipeline_error

Report = Callable[[str], None]
EXIT_AT_ONCE = 1


def run(
    pipeline: Pipeline,
    report: Report,
    *,
    once: bool,
    progress_s: float,
    stopping: threading.Event | None = None,
    remote: str | None = None,
) -> RunStatus:
    """Runs until the end and returns what was done, or raises PipelineError. `remote` is the address of a Connect
    server."""
    stopping = stopping or threading.Event()
    with state.locked(pipeline.state, pipeline.source.TYPE):
        is_own = not spark_session.has_session()
        report(_greeting(pipeline, is_own and remote is None))
        if remote is None:
            # Spark takes many seconds to start. Over Connect the folders are on another machine.
            check_report.inspect_all(pipeline)
        session = spark_session.start(f"whippet pipeline {pipeline.key}", pipeline.spark, pipeline.state, remote)
        try:
            with _stop_on_signals(stopping):
                return _run(pipeline, session, report, once=once, progress_s=progress_s, stopping=stopping)
        except (PySparkException, Py4JJavaError) as error:
            raise as_pipeline_error(error) from error
        except (Py4JError, ConnectionError) as error:
            raise SparkError(f"Spark has ended unexpectedly; see its log in {pipeline.state / LOG}") from error
        finally:
            if is_own:
                spark_session.stop(session)


def _greeting(pipeline: Pipeline, is_own: bool) -> str:
    steps = " -> ".join([pipeline.source.TYPE, *(each.TYPE for each in pipeline.transforms)])
    sinks = ", ".join(each.TYPE for each in pipeline.sinks)
    where = f", Spark's log in {pipeline.state / LOG}" if is_own and not spark_session.is_submitted() else ""
    return f"pipeline {pipeline.key}: {steps} -> {sinks}; state in {pipeline.state}{where}"


def _run(
    pipeline: Pipeline,
    session: SparkSession,
    report: Report,
    *,
    once: bool,
    progress_s: float,
    stopping: threading.Event,
) -> RunStatus:
    source = pipeline.source.frame(session, pipeline.iggy)
    analysis = transform_chain.analyse(source, pipeline.transforms)
    for place, sink in pipeline.placed_sinks:
        sink.check_schema(analysis.schema, pipeline.iggy, place)
    for place, sink in pipeline.placed_sinks:
        sink.prepare(analysis.schema, pipeline.iggy, place)
    if pipeline.dead_letter is not None:
        bad_records.make_topic(pipeline.iggy, pipeline.dead_letter)
    status = RunStatus(noun="result" if analysis.keeps_state else "row")
    control = run_control.control_for(session, pipeline.key, stopping)
    # Batches may be processed by another process, started in another folder.
    resolved = replace(pipeline, iggy=pipeline.iggy.resolved, state=pipeline.state.absolute())
    processor = BatchProcessor(resolved, analysis, status, control.batches)
    query = _query(pipeline, source, analysis, processor, once=once)
    with _warnings_in_status(status):
        _wait(pipeline, query, control, status, report, progress_s=progress_s, stopping=stopping)
    control.update(status)
    _raise_failure(query, status, is_stopping=stopping.is_set())
    return status


def _wait(
    pipeline: Pipeline,
    query: StreamingQuery,
    control: RunnerControl,
    status: RunStatus,
    report: Report,
    *,
    progress_s: float,
    stopping: threading.Event,
) -> None:
    progress = Progress(pipeline.key)
    progress.begin()
    report_at = time.monotonic() + progress_s
    is_asked = False
    while query.isActive:
        if not is_asked and stopping.wait(control.poll_s):
            is_asked = True
            control.request_stop()
        if is_asked:
            _stop(query)
            time.sleep(control.poll_s)
        if time.monotonic() >= report_at:
            control.update(status)
            report(progress.line(status, total_lag(query.lastProgress)))
            report_at = time.monotonic() + progress_s


def _query(
    pipeline: Pipeline, source: DataFrame, analysis: Analysis, processor: BatchProcessor, *, once: bool
) -> StreamingQuery:
    frame = transform_chain.apply_to_stream(source, pipeline.transforms) if analysis.keeps_state else source
    writer = frame.writeStream.foreachBatch(processor).queryName(pipeline.key)
    writer = writer.option("checkpointLocation", str((pipeline.state / state.CHECKPOINT).absolute()))
    writer = writer.outputMode(pipeline.output_mode if analysis.keeps_state else APPEND)
    if once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{pipeline.source.trigger_ms} milliseconds").start()


def _stop(query: StreamingQuery) -> None:
    """A batch in progress ends by itself; the next one does not start."""
    if query.isActive and not query.status["isTriggerActive"]:
        query.stop()


def _raise_failure(query: StreamingQuery, status: RunStatus, *, is_stopping: bool) -> None:
    error = status.failure or query.exception()
    # A failure in another process is only known as text.
    if error is None or isinstance(error, StopRequested) or (is_stopping and StopRequested.__name__ in str(error)):
        return
    raise error


@contextmanager
def _warnings_in_status(status: RunStatus) -> Iterator[None]:
    """Shows warnings on the driver in the progress lines, such as a database that does not respond."""

    class WarningHandler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            status.last_error = record.getMessage()

    warnings = WarningHandler(logging.WARNING)
    logs = [logging.getLogger(name) for name in ("pyspark_whippet", "whippet.pipelines")]
    for log in logs:
        log.addHandler(warnings)
    try:
        yield
    finally:
        for log in logs:
            log.removeHandler(warnings)


@contextmanager
def _stop_on_signals(stopping: threading.Event) -> Iterator[None]:
    """SIGTERM and Ctrl-C request a stop; a second one ends the process at once. Spark has already set a handler of
    its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if stopping.is_set():
            # Java ends with this process, when its standard input is closed.
            os._exit(EXIT_AT_ONCE)
        stopping.set()

    before: dict[signal.Signals, Any] = {each: signal.signal(each, handle) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
