"""Parquet, Delta and Iceberg: another engine reads them correctly after crashes at every point."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.pipelines.support.crashes import CRASHES, run_up_to
from tests.pipelines.support.dead_letters import letters
from tests.pipelines.support.job import Job
from tests.support.lake import Lake
from tests.support.sizes import mostly_long

pl = pytest.importorskip("polars", reason="polars is not installed")
pytest.importorskip("deltalake", reason="deltalake is not installed: install whippet-gateway[delta]")
pytest.importorskip("pyiceberg", reason="pyiceberg is not installed: install whippet-gateway[iceberg]")
Source = Callable[..., str]
KINDS = ("parquet", "delta", "iceberg")
FIELDS = "id bigint, country string, amount decimal(10,2), at timestamp, tags array<string>"


def rows(start: int, end: int) -> list[str]:
    return [
        json.dumps({"id": n, "country": "dfi"[n % 3], "amount": f"{n}.25", "at": f"2026-01-0{n % 2 + 1}T10:00:00Z"})
        for n in range(start, end)
    ]


def sinks(*kinds: str, folder: Path, **more: Any) -> str:
    from whippet.pipelines.keys import toml_text  # noqa: PLC0415 -- it needs pyspark

    lines = []
    for kind in kinds:
        place: dict[str, Any] = {"path": str(folder / kind)}
        if kind == "iceberg":
            place = {"warehouse": str(folder / kind), "tables": ["shop.orders"]}
        parts = ["country", "day(at)"] if kind == "iceberg" else ["country"]
        keys = {**place, "partition_by": parts, **more}
        lines += ["[[sinks]]", f'type = "{kind}"', *(f"{key} = {toml_text(value)}" for key, value in keys.items())]
    return "\n".join([*lines, ""])


def iceberg(folder: Path) -> Any:
    from pyiceberg.catalog import load_catalog  # noqa: PLC0415 -- an extra

    catalog = load_catalog("default", type="sql", uri=f"sqlite:///{folder}/iceberg/catalog.db")
    return catalog.load_table("shop.orders")


def found(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Reads with Polars, which has its own readers for all three formats."""
    if kind == "parquet":
        return pl.scan_parquet(f"{folder}/parquet/**/*.parquet", hive_partitioning=True).sort("id").collect()
    if kind == "delta":
        return pl.scan_delta(str(folder / "delta")).sort("id").collect()
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    return pl.scan_iceberg(iceberg(folder)).sort("id").collect()


def test_every_row_is_in_every_lake_exactly_once_after_any_crash(
    job: Job, lake: Lake, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = lake.topic(partitions=2)
    lake.send(topic, rows(0, 30), 0)
    lake.send(topic, rows(30, 50), 1)
    text = source(topic, FIELDS, batch_length=25) + sinks(*KINDS, folder=job.folder)
    job(text)
    job.crash()
    job(text)
    lake.send(topic, rows(50, 60), 0)
    job(text)
    for kind in KINDS:
        table = found(kind, job.folder, monkeypatch)
        assert table["id"].to_list() == list(range(60)), kind
        assert table["country"].to_list() == ["dfi"[n % 3] for n in range(60)]
        assert str(table["amount"].sum()) == "1785.00"
        assert {str(time) for time in table["at"]} == {"2026-01-01 10:00:00+00:00", "2026-01-02 10:00:00+00:00"}
        assert sorted(table.filter(pl.col("iggy_partition_id") == 1)["iggy_offset"]) == list(range(20))
    # A new checkpoint means a new query, whose batch 1 is not the batch 1 that was written before.
    (job.folder / "state").rename(job.folder / "old-state")
    job(text)
    for kind in KINDS:
        assert found(kind, job.folder, monkeypatch)["id"].to_list() == sorted([*range(60), *range(60)]), kind


def test_parquet_files_of_an_incomplete_move_are_removed(
    job: Job, lake: Lake, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    from whippet.pipelines.sinks import parquet  # noqa: PLC0415

    topic = lake.topic()
    lake.send(topic, rows(0, 30))
    text = source(topic, FIELDS) + sinks("parquet", folder=job.folder)
    whole = parquet._replace

    def ends_before_done(path: Path, content: str) -> None:
        if path.name.endswith(".done"):
            raise RuntimeError("the process ended here")
        whole(path, content)

    with monkeypatch.context() as patched:
        patched.setattr(parquet, "_replace", ends_before_done)
        with pytest.raises(RuntimeError, match="the process ended here"):
            job(text)
    assert len(found("parquet", job.folder, monkeypatch)) == 30, "readers see them, and nothing says that they are done"
    job(text)
    assert found("parquet", job.folder, monkeypatch)["id"].to_list() == list(range(30))


def test_small_files_are_compacted_and_old_ones_deleted(
    job: Job, lake: Lake, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deltalake import DeltaTable  # noqa: PLC0415 -- an extra

    topic = lake.topic()
    lake.send(topic, rows(0, 50))
    upkeep = {"compact_after": 5, "partition_by": ["country"]}
    delta = sinks("delta", folder=job.folder, **upkeep)
    iced = sinks("iceberg", folder=job.folder, keep_snapshots="0 s", **upkeep)
    job(source(topic, FIELDS, batch_length=10) + delta + iced)
    files = {
        "delta": DeltaTable(str(job.folder / "delta")).file_uris(),
        "iceberg": [task.file.file_path for task in iceberg(job.folder).scan().plan_files()],
    }
    for kind, paths in files.items():
        assert len(paths) == 3, f"{kind}: one for each country"
        assert found(kind, job.folder, monkeypatch)["id"].to_list() == list(range(50))
    there = {f"file://{path}" for path in (job.folder / "iceberg").rglob("*.parquet")}
    assert there == set(files["iceberg"]), "what no snapshot has is gone"
    table = iceberg(job.folder)
    manifests = {
        *table.inspect.all_manifests()["path"].to_pylist(),
        *(each.manifest_list for each in table.snapshots()),
    }
    assert {f"file://{path}" for path in (job.folder / "iceberg").rglob("*.avro")} == manifests


def test_a_table_with_other_columns_is_refused_before_anything_is_written(job: Job, lake: Lake, source: Source) -> None:
    from whippet.pipelines.errors import FileError  # noqa: PLC0415

    topic = lake.topic()
    lake.send(topic, ['{"id":1,"country":"d"}'])
    table = sinks("iceberg", folder=job.folder, partition_by=["country"], include_metadata=False)
    job(source(topic, "id bigint, country string") + table)
    (job.folder / "state").rename(job.folder / "old-state")
    with pytest.raises(FileError, match=r"table shop.orders has no column 'more'; its columns are id, country"):
        job(source(topic, "id bigint, country string, more int") + table)


@pytest.mark.parametrize("kind", mostly_long(["delta", "iceberg"], usual={"iceberg"}))
def test_a_table_stays_usable_while_the_pipeline_gains_and_loses_fields(
    kind: str, job: Job, lake: Lake, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    from whippet.pipelines.errors import FileError  # noqa: PLC0415

    topic = lake.topic()
    table = sinks(kind, folder=job.folder, partition_by=["country"], include_metadata=False)
    constant = (
        '[transforms.add_fields]\nfields = [{key = "region", value.static = "eu"}, {key = "v", value.static = %s}]\n'
    )
    fields = "id bigint, country string"
    lake.send(topic, ['{"id":1,"country":"d"}'])
    job(source(topic, fields) + constant % "5000000000" + table)
    lake.send(topic, ['{"id":2,"country":"d"}'])
    # A constant is a field like any other: the table accepts rows without it, and smaller numbers in a column for large
    # ones.
    job(source(topic, fields) + constant.replace("region", "country") % "7" + table)
    lake.send(topic, ['{"id":3,"country":"d"}'])
    job(source(topic, fields) + table)
    there = found(kind, job.folder, monkeypatch)
    assert set(there.columns) == {"id", "country", "region", "v"}, "and no metadata"
    assert there["region"].to_list() == ["eu", None, None]
    assert there["v"].to_list() == [5_000_000_000, 7, None]
    lake.send(topic, ['{"id":4,"country":"d"}'])
    for other, sentence in (
        (
            constant.replace("region", "zone") % "7",
            r"\[\[sinks\]\] 1 .*: table .* has no column 'zone'; its columns are id, country",
        ),
        (constant % '"seven"', r"column 'v' of table .* is long, but the field is string; cast it"),
    ):
        with pytest.raises(FileError, match=sentence) as error:
            job(source(topic, fields) + other + table)
        assert "\n" not in str(error.value)
    job(source(topic, fields) + table)
    assert found(kind, job.folder, monkeypatch)["id"].to_list() == [1, 2, 3, 4]


STRICT_FIELDS = "id bigint, country string, place struct<x: int, y: int>, tags array<string>"
REFUSED = {
    '{"country":"d"}': "'id' must not be null",
    '{"id":21,"place":{"y":1}}': "'place.x' must not be null",
    '{"id":22,"tags":["a",null]}': "'tags.element' must not be null",
}
FAILED_CHECKS = {
    '{"id":-1,"country":"d"}': "it violates the table's constraint 'positive': id > 0",
    '{"id":23,"country":"nowhere"}': "it violates the table's constraint 'real': country != 'nowhere'",
}


def strict_table(kind: str, folder: Path) -> None:
    """Creates a table as another program would."""
    import pyarrow as pa  # noqa: PLC0415
    from deltalake import DeltaTable  # noqa: PLC0415
    from pyiceberg.catalog import load_catalog  # noqa: PLC0415

    place = pa.struct([pa.field("x", pa.int32(), nullable=False), pa.field("y", pa.int32())])
    tags = pa.list_(pa.field("element", pa.string(), nullable=False))
    columns = [("country", pa.string()), ("place", place), ("tags", tags), ("unasked", pa.string())]
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), *(pa.field(*each) for each in columns)])
    if kind == "delta":
        table = DeltaTable.create(str(folder), schema)
        table.alter.add_constraint({"positive": "id > 0"})
        table.alter.add_constraint({"real": "country <> 'nowhere'"})
        return
    folder.mkdir()
    catalog = load_catalog("default", type="sql", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
    catalog.create_namespace("shop")
    catalog.create_table("shop.orders", schema)


def unparted(kind: str, folder: Path) -> str:
    lines = sinks(kind, folder=folder, include_metadata=False).splitlines()
    return "\n".join([*(line for line in lines if not line.startswith("partition_by")), ""])


@pytest.mark.parametrize("crash", mostly_long(CRASHES, usual={"before the dead letters"}))
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_rows_that_a_table_refuses_become_dead_letters_once_and_the_others_are_written(
    kind: str, crash: str, job: Job, lake: Lake, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    strict_table(kind, job.folder / kind)
    refused = REFUSED | (FAILED_CHECKS if kind == "delta" else {})
    topic = lake.topic()
    values = [f'{{"id":{n},"country":"d","place":{{"x":{n}}},"tags":["{n}"]}}' for n in range(1, 20)]
    for place, value in enumerate(refused):
        values.insert(4 * place, value)
    lake.send(topic, values)
    stream = topic.split("/")[0]
    dead = f'[dead_letter]\nstream = "{stream}"\ntopic = "bad"\n'
    text = source(topic, STRICT_FIELDS) + unparted(kind, job.folder) + dead
    run_up_to(crash, job, text, monkeypatch)
    ran = job(text)
    there = found(kind, job.folder, monkeypatch)
    assert there["id"].to_list() == list(range(1, 20))
    assert there["place"].struct.field("x").to_list() == list(range(1, 20))
    dead_letters = letters(lake, f"{stream}/bad")
    assert {payload: headers["reason"] for payload, headers in dead_letters} == refused
    assert len(dead_letters) == len(refused) == ran.done.bad_records
    for payload, headers in dead_letters:
        assert (headers["step"], headers["offset"]) == (f"[[sinks]] 1 ({kind})", str(values.index(payload)))


@pytest.mark.parametrize("kind", mostly_long(["delta", "iceberg"], usual={"delta"}))
def test_a_batch_without_acceptable_rows_neither_creates_a_table_nor_fails(
    kind: str, job: Job, lake: Lake, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = lake.topic()
    lake.send(topic, ['{"id":1,"country":"d"}'])
    only = '[[transforms]]\ntype = "sql"\nquery = "SELECT * FROM input WHERE id > %d"\n'
    table = unparted(kind, job.folder) + "compact_after = 1\n"
    assert job(source(topic, "id bigint, country string") + only % 1 + table).done.rows == 1
    lake.send(topic, ['{"id":2,"country":"d"}'])
    job(source(topic, "id bigint, country string") + only % 1 + table)
    assert found(kind, job.folder, monkeypatch)["id"].to_list() == [2]


def test_a_full_disk_does_not_turn_rows_into_bad_records(
    job: Job, lake: Lake, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    import deltalake  # noqa: PLC0415 -- an extra

    from whippet.pipelines.errors import SinkError  # noqa: PLC0415

    strict_table("delta", job.folder / "delta")
    topic = lake.topic()
    lake.send(topic, ['{"id":1,"country":"d"}', '{"id":-1,"country":"d"}'])
    text = 'on_error = "skip"\n' + source(topic, STRICT_FIELDS) + unparted("delta", job.folder)
    write = deltalake.write_deltalake

    def is_full(path: str, *given: Any, **named: Any) -> None:
        if "commit_properties" not in named:
            raise deltalake.exceptions.DeltaError(
                "Generic LocalFileSystem error: No space left on device (os error 28)"
            )
        write(path, *given, **named)

    with monkeypatch.context() as patched:
        patched.setattr(deltalake, "write_deltalake", is_full)
        with pytest.raises(SinkError, match=r"^\[\[sinks\]\] 1 \(delta\): .*No space left on device"):
            job(text)
    assert found("delta", job.folder, monkeypatch)["id"].to_list() == []
    assert job(text).done.bad_records == 1
    assert found("delta", job.folder, monkeypatch)["id"].to_list() == [1]


@pytest.mark.parametrize("kind", mostly_long(["delta", "iceberg"], usual={"delta"}))
def test_without_dead_letters_a_refused_row_stops_the_pipeline_and_nothing_is_written(
    kind: str, job: Job, lake: Lake, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    from whippet.pipelines.errors import BadRecordError, FileError  # noqa: PLC0415

    strict_table(kind, job.folder / kind)
    table = unparted(kind, job.folder)
    topic = lake.topic()
    lake.send(topic, ['{"id":1,"country":"d"}', '{"country":"d"}', '{"country":"d"}'])
    where = rf"{topic} partition 0 offset 1: \[\[sinks\]\] 1 \({kind}\)"
    with pytest.raises(BadRecordError, match=rf"^{where}: 'id' must not be null; add a \[dead_letter\] topic"):
        job(source(topic, STRICT_FIELDS) + table)
    assert found(kind, job.folder, monkeypatch)["id"].to_list() == []
    assert job('on_error = "skip"\n' + source(topic, STRICT_FIELDS) + table).done.bad_records == 2
    assert found(kind, job.folder, monkeypatch)["id"].to_list() == [1]
    with pytest.raises(FileError, match=r"column 'id' of table .* must not be null, but there is no such field"):
        job(source(topic, "country string") + table)


def test_rows_are_written_even_if_a_compaction_fails(
    job: Job, lake: Lake, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg.exceptions import CommitFailedException  # noqa: PLC0415 -- an extra

    def is_overtaken(_: object) -> None:
        raise CommitFailedException("branch main has changed")

    from whippet.pipelines.sinks import iceberg_maintenance  # noqa: PLC0415 -- it needs pyspark

    monkeypatch.setattr(iceberg_maintenance, "compact", is_overtaken)
    topic = lake.topic()
    lake.send(topic, rows(0, 20))
    done = job(source(topic, FIELDS) + sinks("iceberg", folder=job.folder, compact_after=1)).done
    assert found("iceberg", job.folder, monkeypatch)["id"].to_list() == list(range(20))
    assert done.last_error == "[[sinks]] 1 (iceberg): could not compact small files: branch main has changed"
