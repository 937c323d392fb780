"""The sources `files` and `random`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.pipelines.support.dead_letters import letters
from tests.pipelines.support.job import Job
from tests.support.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIELDS = 'fields = "id bigint, name string, at timestamp"'


def into(lake: Lake) -> tuple[str, str]:
    stream, _ = lake.topic().split("/")
    sink = f'[sink]\ntype = "topic"\nstream = "{stream}"\ntopic = "good"\ncreate_topic = 1\n'
    return f'{sink}[dead_letter]\nstream = "{stream}"\ntopic = "bad"\n', stream


def files(folder: Path, kind: str, more: str = FIELDS) -> str:
    return f'[source]\ntype = "files"\npath = "{folder}"\nformat = "{kind}"\n{more}\n'


def test_lines_of_json_become_messages_once_including_those_of_later_files(
    job: Job, lake: Lake, tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.ndjson").write_text('{"id":1,"name":"ü","at":"2026-01-01T00:00:00Z"}\n\nbroken\n{"id":2} {"id":3}\n')
    table, stream = into(lake)
    text = files(folder, "json", FIELDS + "\nfiles_per_batch = 1") + table
    job(text)
    job.crash()
    (folder / "b.ndjson").write_text('{"id":4}\n{"id":4}\n')
    job(text)
    job(text)
    one = '{"id":1,"name":"ü","at":"2026-01-01T00:00:00.000000Z"}'
    assert lake.values(f"{stream}/good")[0] == [one, '{"id":4}', '{"id":4}']
    bad = dict(letters(lake, f"{stream}/bad"))
    assert set(bad) == {"broken", '{"id":2} {"id":3}'}
    assert bad["broken"]["file"].endswith("/in/a.ndjson")
    assert "topic" not in bad["broken"]


def test_an_error_shows_how_a_bad_line_begins(job: Job, lake: Lake, tmp_path: Path) -> None:
    from whippet.pipelines.errors import BadRecordError  # noqa: PLC0415 -- it needs pyspark

    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.ndjson").write_text('{"id":1}\n{"id": "one", ' + "x" * 100)
    with pytest.raises(
        BadRecordError, match=r"/in/a\.ndjson: '\{\"id\": \"one\", x{46}': source: it is not a JSON object"
    ):
        job(files(folder, "json") + '[sink]\ntype = "stdout"\n')


def test_csv_and_parquet(job: Job, lake: Lake, tmp_path: Path, spark: SparkSession) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.csv").write_text('id;name;at\n1;"x;""y""";2026-01-01T00:00:00Z\none;z;\n2;;\n')
    table, stream = into(lake)
    job(files(folder, "csv", FIELDS + '\ndelimiter = ";"') + table)
    rows = [json.loads(value) for value in lake.values(f"{stream}/good")[0]]
    assert rows == [{"id": 1, "name": 'x;"y"', "at": "2026-01-01T00:00:00.000000Z"}, {"id": 2}]
    ((payload, headers),) = letters(lake, f"{stream}/bad")
    assert (payload, headers["reason"]) == ("one;z;", "it is not a CSV record with these fields")
    spark.createDataFrame([(7, "p")], "id bigint, name string").write.parquet(str(tmp_path / "parquet"))
    (job.folder / "state").rename(job.folder / "old-state")
    job(files(tmp_path / "parquet", "parquet", "") + table)
    assert lake.values(f"{stream}/good")[0][-1] == '{"id":7,"name":"p"}'


def test_a_quoted_csv_field_may_span_several_lines(job: Job, lake: Lake, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    quoted = '2,"a ""quoted"" one,\r\nand\n\nmore",2026-01-01T00:00:00Z'
    text = f'id,name,at\n1,"two\nlines",\n{quoted}\nx,"bad\nrecord",\n3,plain,\n'
    (folder / "a.csv").write_bytes(text.encode())
    (folder / "b.csv").write_bytes(b"id,name,at\r\n4,d,\r\n\r\n5,e,")
    table, stream = into(lake)
    job(files(folder, "csv") + table)
    rows = sorted((json.loads(value) for value in lake.values(f"{stream}/good")[0]), key=lambda row: row["id"])
    assert rows == [
        {"id": 1, "name": "two\nlines"},
        {"id": 2, "name": 'a "quoted" one,\r\nand\n\nmore', "at": "2026-01-01T00:00:00.000000Z"},
        {"id": 3, "name": "plain"},
        {"id": 4, "name": "d"},
        {"id": 5, "name": "e"},
    ]
    ((payload, _),) = letters(lake, f"{stream}/bad")
    assert payload == 'x,"bad\nrecord",'


def test_random_records_have_the_requested_number_and_are_repeatable(job: Job, lake: Lake) -> None:
    table, stream = into(lake)
    text = '[source]\ntype = "random"\nmax_count = 120\npayload_size = 10\nmessages_range = [50, 60]\n' + table
    job(text)
    job.crash()
    job(text)
    rows = [json.loads(value) for value in lake.values(f"{stream}/good")[0]]
    assert len(rows) == len({row["id"] for row in rows}) == 120
    assert {(row["title"], row["name"], len(row["text"])) for row in rows} == {("Hello", "World", 10)}


def test_a_missing_folder_is_reported(job: Job, lake: Lake, tmp_path: Path) -> None:
    from whippet.pipelines import check_report, pipeline_file  # noqa: PLC0415 -- they need pyspark
    from whippet.pipelines.errors import FileError  # noqa: PLC0415

    table, _ = into(lake)
    text = files(tmp_path / "nowhere", "json") + table
    with pytest.raises(FileError, match=r"^\[source\]: folder '.*nowhere' does not exist$"):
        list(check_report.lines(pipeline_file.read(job.file(text)), inspect=True))
    with pytest.raises(FileError, match="nowhere"):
        job(text)


def test_a_folder_without_such_files_is_reported_in_one_sentence(job: Job, lake: Lake, tmp_path: Path) -> None:
    from whippet.pipelines.errors import FileError, SparkError  # noqa: PLC0415 -- they need pyspark

    table, _ = into(lake)
    folder = tmp_path / "in"
    folder.mkdir()
    with pytest.raises(FileError, match=r"there is no Parquet file in .* yet .* set 'fields'"):
        job(files(folder, "parquet", "") + table)
    (folder / "a.csv").write_text("ident,name,at\n1,x,\n")
    with pytest.raises(FileError, match=r"^\[source\]: key 'path': '.*a.csv' is a file; a folder or a pattern"):
        job(files(folder / "a.csv", "csv") + table)
    with pytest.raises(SparkError, match="CSV header does not conform to the schema"):
        job(files(folder, "csv") + table)
    (folder / "a.csv").rename(folder / "a.parquet")
    (job.folder / "state").rename(job.folder / "old-state")
    with pytest.raises(SparkError, match=r"a\.parquet.*not a Parquet file") as error:
        job(files(folder, "parquet") + table)
    assert "\n" not in str(error.value)
