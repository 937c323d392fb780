"""A pipeline as a process: it locks its state, reports its progress, and stops when it is told to."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pipelines.support.bulk_server import BulkServer
from tests.pipelines.support.job import Job
from tests.support.lake import Lake
from whippet.app.cli.main import main

pytest.importorskip("pyspark", reason="pyspark is not installed: install whippet-gateway[spark]")
DEADLINE_S = 120
RANDOM = '[source]\ntype = "random"\nmax_count = 30\n'
STDOUT = '[sink]\ntype = "stdout"\n'
Source = Callable[..., str]


def test_two_processes_never_share_a_state(job: Job) -> None:
    from whippet.pipelines import state  # noqa: PLC0415
    from whippet.pipelines.errors import FileError  # noqa: PLC0415

    with (
        state.locked(job.state, "random"),
        pytest.raises(FileError, match=f"this pipeline is already running as process {os.getpid()}; use another key"),
    ):
        job(RANDOM + STDOUT)
    job(RANDOM + STDOUT)


def test_the_state_of_another_type_of_source_is_refused(job: Job, lake: Lake, source: Source) -> None:
    from whippet.pipelines.errors import FileError  # noqa: PLC0415

    job(RANDOM + STDOUT)
    with pytest.raises(
        FileError, match="the state of a pipeline with the source random, not topic; choose another key"
    ):
        job(source(lake.topic()) + STDOUT)


def test_a_stop_finishes_the_current_batch_and_the_next_run_resumes_after_it(
    job: Job, lake: Lake, source: Source
) -> None:
    from whippet.pipelines import pipeline_file, runner  # noqa: PLC0415

    topic, said = lake.topic(), list[str]()
    stream = topic.split("/")[0]
    sink = f'[sink]\ntype = "topic"\nstream = "{stream}"\ntopic = "copy"\ncreate_topic = 1\n'
    text = source(topic, batch_length=5, poll_interval="50 ms") + sink
    lake.send(topic, [f'{{"id":{n}}}' for n in range(400)])
    stopping = threading.Event()

    def stop_when_something_is_there() -> None:
        deadline = time.monotonic() + DEADLINE_S
        copy = f"/streams/{stream}/topics/copy"
        while time.monotonic() < deadline:
            answer = lake.http.get(copy)
            if answer.status_code == 200 and answer.json()["messages_count"] >= 10:
                break
        stopping.set()

    watching = threading.Thread(target=stop_when_something_is_there)
    watching.start()
    pipeline = pipeline_file.read(job.file(text))
    done = runner.run(pipeline, said.append, once=False, progress_s=0.05, stopping=stopping)
    watching.join()
    there = lake.values(f"{stream}/copy")[0]
    assert 10 <= len(there) < 400
    assert len(there) == done.rows, "no batch was cut off"
    line = r"\d\d:\d\d:\d\d job: [\d,]+ rows?, [\d,]+ rows/s(, [\d,]+ behind)?(, batch \d+ took \d+\.\d s)?"
    assert all(re.fullmatch(line, each) for each in said[1:]), said
    assert any(" behind" in each for each in said)
    job(text.replace("batch_length = 5", "batch_length = 500"))
    assert sorted(lake.values(f"{stream}/copy")[0]) == lake.all_values(topic)


def test_the_command_reports_what_it_does_and_exits_with_0_on_sigterm(tmp_path: Path) -> None:
    file = tmp_path / "made-up.toml"
    source = '[source]\ntype = "random"\ninterval = "100 ms"\nmessages_range = [1, 2]\n'
    file.write_text(f'key = "made-up"\n{source}{STDOUT}print_payload = true\n')
    command = [sys.executable, "-m", "whippet.app.cli.main", "pipeline", "run", str(file), "--progress", "0.2"]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stderr
        lines = [process.stdout.readline() for _ in range(3)]
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, err
    assert all('"title":"Hello"' in line for line in lines)
    said = err.splitlines()
    assert said[0] == (
        "pipeline made-up: random -> stdout; state in local_state/made-up, Spark's log in local_state/made-up/spark.log"
    )
    assert re.fullmatch(r"pipeline made-up: stopped: [\d,]+ rows? in [\d,]+ batch(es)?", said[-1])
    assert all(re.match(r"\d\d:\d\d:\d\d made-up: ", line) for line in said[1:-1]), err


def command(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["pipeline", *words])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_mistakes_exit_with_2_and_failures_with_1_each_in_one_line(
    job: Job, lake: Lake, source: Source, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "job.toml"
    file.write_text(job.file(RANDOM + STDOUT).replace("max_count", "max_cuont"))
    code, out, err = command(capsys, "run", str(file), "--once")
    assert (code, out) == (2, "")
    assert err == f"whippet: {file}: [source]: key 'max_cuont' is unknown; did you mean 'max_count'?\n"
    topic = lake.topic()
    lake.send(topic, ["broken"])
    file.write_text(job.file(source(topic) + STDOUT))
    code, _, err = command(capsys, "run", str(file), "--once")
    assert code == 1
    assert err.splitlines()[-1].startswith(f"whippet: {topic} partition 0 offset 0: source: it is not a JSON object")
    file.write_text(job.file(RANDOM + STDOUT))
    code, _, err = command(capsys, "run", str(file), "--once")
    assert code == 2
    assert "the state of a pipeline with the source topic" in err


def test_check_reports_what_would_run_and_starts_nothing(
    job: Job, lake: Lake, source: Source, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = lake.topic(partitions=2)
    stream = topic.split("/")[0]
    lake.send(topic, ['{"id":1}'])
    sink = f'[sink]\ntype = "topic"\nstream = "{stream}"\ntopic = "new"\ncreate_topic = 4\n'
    sql = '[[transforms]]\ntype = "sql"\nquery = "SELECT id + 1 AS more FROM input"\n'
    file = tmp_path / "job.toml"
    file.write_text(job.file(source(topic) + sql + sink))
    code, out, _ = command(capsys, "check", str(file))
    assert code == 0
    assert out.splitlines() == [
        "pipeline job",
        "  source: topic",
        f'    stream = "{stream}"',
        '    topics = ["t"]',
        '    fields = "id bigint, name string"',
        f"    {topic}: 2 partitions, 1 message",
        "  transform 1: sql",
        '    query = "SELECT id + 1 AS more FROM input"',
        "  sink: topic",
        f'    stream = "{stream}"',
        '    topic = "new"',
        "    create_topic = 4",
        f"    {stream}/new: will be created, with 4 partitions",
        "    exactly once: by ids of messages, and by a marker on the gateway",
        "  bad records: stop the pipeline",
        f"  state: {job.state}, new",
        "  records: more bigint",
        "the pipeline can run",
    ]
    assert lake.http.get(f"/streams/{stream}/topics/new").status_code == 404
    assert not job.state.exists()
    file.write_text(job.file(source(topic) + sql.replace("id + 1", "idd + 1") + sink))
    code, _, err = command(capsys, "check", str(file))
    assert code == 2
    assert "[[transforms]] 1 (sql): A column, variable, or function parameter with name `idd`" in err
    file.write_text(job.file(source("no/t") + sink))
    code, _, err = command(capsys, "check", str(file))
    assert (code, err) == (2, "whippet: [source]: topic 'no/t' does not exist\n")
    assert command(capsys, "check", str(file), "--offline")[0] == 0


UNFIT = [
    (
        'type = "parquet"\npath = "{folder}/p"\npartition_by = ["titel"]',
        "there is no field 'titel'; did you mean 'title'?",
    ),
    (
        'type = "delta"\npath = "{folder}/d"\npartition_by = ["titel"]',
        "there is no field 'titel'; did you mean 'title'?",
    ),
    ('type = "topic"\nstream = "s"\ntopic = "t"\ncreate_topic = 1\nkey_field = "titel"', "there is no field 'titel'"),
    ('type = "topic"\nstream = "s"\ntopic = "t"\ncreate_topic = 1\nschema = "raw"', "needs a field 'payload'"),
    (
        'type = "iceberg"\nwarehouse = "{folder}/w"\ntables = ["a.b"]\npartition_by = ["day(title)"]',
        "key 'partition_by': day(title) needs a time, but field 'title' is string",
    ),
    ('type = "elasticsearch"\nurl = "{bulk}"\nindex = "i"\nid_columns = ["ident"]', "there is no field 'ident'"),
]


@pytest.mark.parametrize(("table", "sentence"), UNFIT, ids=range(len(UNFIT)))
def test_check_finds_the_same_mistakes_in_sinks_as_run(
    table: str, sentence: str, job: Job, bulk: BulkServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "job.toml"
    file.write_text(job.file(RANDOM + "[sink]\n" + table.format(folder=tmp_path / "out", bulk=bulk.url)))
    for words in (("check", str(file)), ("run", str(file), "--once")):
        code, out, err = command(capsys, *words)
        assert code == 2
        assert "the pipeline can run" not in out
        assert err.splitlines()[-1].startswith("whippet: [sink] (")
        assert sentence in err.splitlines()[-1]
    assert not (tmp_path / "out").exists()
    assert not bulk.indexes


def test_missing_topics_are_reported_before_spark_starts(
    job: Job, lake: Lake, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    from whippet.pipelines import spark_session  # noqa: PLC0415
    from whippet.pipelines.errors import FileError  # noqa: PLC0415

    monkeypatch.setattr(spark_session, "start", lambda *_: pytest.fail("it takes many seconds"))
    with pytest.raises(FileError, match=r"^\[source\]: topic 'no/t' does not exist$"):
        job(source("no/t") + STDOUT)
    sink = '[sink]\ntype = "topic"\nstream = "no"\ntopic = "t"\n'
    with pytest.raises(
        FileError, match=r"^\[sink\] \(topic\): topic 'no/t' does not exist; create it, or set create_topic"
    ):
        job(source(lake.topic()) + sink)
