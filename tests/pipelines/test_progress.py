"""The reports of a running pipeline, and of its failures."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: install whippet-gateway[spark]")

from pyspark_whippet import errors as source_errors
from whippet.pipelines import errors
from whippet.pipelines.batch_processor import RunStatus
from whippet.pipelines.progress import Progress, total_lag
from whippet.pipelines.secrets import mask
from whippet.pipelines.user_text import as_pipeline_error, error_text


def test_the_lag_counts_all_partitions_of_all_topics() -> None:
    ends = [{"endOffset": {"s/a": {"0": 5, "1": 0}}, "latestOffset": {"s/a": {"0": 9, "1": 2}}}]
    files = [{"endOffset": '{"logOffset":0}', "latestOffset": "null"}]
    report = SimpleNamespace(json=json.dumps({"sources": ends + files}))
    assert total_lag(report) == 6
    assert total_lag(SimpleNamespace(json=json.dumps({"sources": files}))) is None
    assert total_lag(None) is None


def test_a_progress_line_has_the_rows_the_rate_and_the_last_error() -> None:
    progress = Progress("job")
    progress.begin()
    done = RunStatus(
        rows=12_345, batches=3, bad_records=2, last_batch=7, last_batch_s=1.26, last_error="source: " + "no " * 99
    )
    line = progress.line(done, 99_999)
    assert line[8:].startswith(" job: 12,345 rows, ")
    assert " rows/s, 99,999 behind, batch 7 took 1.3 s, 2 bad records, last error: source: no no " in line
    assert len(line) < 300
    assert ", 0 rows/s" in progress.line(done, None)
    assert " job: 1 result, " in progress.line(RunStatus(noun="result", rows=1), None)


def test_every_failure_becomes_one_sentence_of_the_right_type() -> None:
    trace = (
        "[STREAM_FAILED] Query terminated with exception: Traceback (most recent call last):\n"
        '  File "x.py", line 1\nwhippet.pipelines.errors.SinkError: table orders: it is full\n SQLSTATE: 38000'
    )
    found = as_pipeline_error(RuntimeError(trace))
    assert isinstance(found, errors.SinkError)
    assert str(found) == "table orders: it is full"
    lost = as_pipeline_error(
        RuntimeError("pyspark_whippet.errors.DataLossError: a is gone; set failOnDataLoss=false to skip it")
    )
    assert isinstance(lost, source_errors.DataLossError)
    assert str(lost) == "a is gone; set fail_on_data_loss = false to skip it"
    assert error_text(ValueError("a\n  b")) == "ValueError: a b"
    assert isinstance(as_pipeline_error(ValueError("x")), errors.SparkError)


def test_the_longest_secret_is_masked_first() -> None:
    assert mask("of postgresql://me:pw@db and pw-1", ("postgresql://me:pw@db", "pw-1")) == "of ****** and ******"
