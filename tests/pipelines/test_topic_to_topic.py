"""Pipelines from topic to topic: no message is lost or written twice, whatever crashes in between."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable

import pytest

from tests.pipelines.support.job import Job
from tests.support.lake import Lake

Source = Callable[..., str]


def sink(lake: Lake, **more: object) -> tuple[str, str]:
    from whippet.pipelines.keys import toml_text  # noqa: PLC0415 -- it needs pyspark

    stream, _ = lake.topic().split("/")
    keys = {"stream": stream, "topic": "copy", "create_topic": 3, **more}
    return "\n".join(['[sink]\ntype = "topic"', *(f"{k} = {toml_text(v)}" for k, v in keys.items())]), f"{stream}/copy"


def test_a_created_topic_remembers_ids_so_that_a_crash_writes_nothing_twice(
    job: Job, lake: Lake, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark_whippet import batch_markers  # noqa: PLC0415 -- it needs pyspark

    topic = lake.topic(partitions=2)
    lake.send(topic, [f'{{"id":{n},"name":"equal"}}' for n in (1, 1, 1, 2)], 0)
    lake.send(topic, [f'{{"id":{n}}}' for n in range(3, 40)], 1)
    table, copy = sink(lake)
    text = source(topic, batch_length=15) + table

    def fails(*_: object) -> None:
        raise RuntimeError("the process ended here")

    with monkeypatch.context() as patched:
        # All messages of the batch are written, but the marker is not.
        patched.setattr(batch_markers, "store", fails)
        with pytest.raises(RuntimeError, match="the process ended here"):
            job(text)
    assert len(lake.all_values(copy)) > 0
    job(text)
    assert lake.all_values(copy) == lake.all_values(topic)
    job.crash()
    # The marker prevents a replay after the ids are forgotten.
    lake.http.delete(f"{lake.path(copy)}/purge").raise_for_status()
    job(text)
    assert lake.all_values(copy) == []


def test_a_row_may_become_several_messages_and_equal_rows_are_all_kept(job: Job, lake: Lake, source: Source) -> None:
    topic = lake.topic()
    lake.send(topic, ['{"id":1,"tags":["a","a","b"]}', '{"id":1,"tags":["a","a","b"]}'])
    table, copy = sink(lake)
    explode = '[transforms.sql]\nquery = "SELECT *, explode(tags) AS tag FROM input"\n[transforms.filter_fields]\n'
    text = source(topic, "id bigint, tags array<string>") + explode + 'keep_fields = ["tag"]\n' + table
    job(text)
    job.crash()
    job(text)
    assert lake.all_values(copy) == ['{"tag":"a"}'] * 4 + ['{"tag":"b"}'] * 2


def test_records_with_one_key_stay_in_order_and_those_with_one_id_are_written_once(
    job: Job, lake: Lake, source: Source
) -> None:
    topic = lake.topic()
    lake.send(topic, [f'{{"id":{n},"name":"{n % 7}"}}' for n in range(60)] + ['{"id":0,"name":"0"}'])
    table, copy = sink(lake, key_field="name", id_columns=["id"])
    job(source(topic) + table)
    places: dict[str, set[int]] = {}
    for partition, values in enumerate(lake.values(copy)):
        rows = [json.loads(value) for value in values]
        for row in rows:
            places.setdefault(row["name"], set()).add(partition)
            mine = [each["id"] for each in rows if each["name"] == row["name"]]
            assert mine == sorted(mine)
    assert all(len(each) == 1 for each in places.values())
    assert len(lake.all_values(copy)) == 60


def test_texts_are_copied_unchanged_with_metadata_on_request(job: Job, lake: Lake, source: Source) -> None:
    topic = lake.topic()
    lake.send(topic, ["eins", "zwei"])
    table, copy = sink(lake, schema="text")
    job(source(topic, None, schema="text") + table)
    assert lake.all_values(copy) == ["eins", "zwei"]


def test_avro_payloads_have_their_fields(job: Job, lake: Lake, source: Source) -> None:
    fastavro = pytest.importorskip("fastavro", reason="fastavro is not installed: install whippet-gateway[spark]")
    schema = {
        "type": "record",
        "name": "o",
        "fields": [{"name": "id", "type": "long"}, {"name": "s", "type": "string"}],
    }
    octets = io.BytesIO()
    fastavro.schemaless_writer(octets, schema, {"id": 7, "s": "x"})
    topic = lake.topic()
    lake.send_json(topic, [{"payload": base64.b64encode(octets.getvalue()).decode()}])
    table, copy = sink(lake)
    job(source(topic, None, schema="avro") + f"fields = '{json.dumps(schema)}'\n" + table)
    assert lake.all_values(copy) == ['{"id":7,"s":"x"}']


def test_metadata_are_included_on_request(job: Job, lake: Lake, source: Source) -> None:
    topic = lake.topic()
    lake.send(topic, ['{"id":1}'])
    table, copy = sink(lake, include_metadata=True)
    job(source(topic) + table)
    (found,) = [json.loads(value) for value in lake.all_values(copy)]
    stream, name = topic.split("/")
    assert {key: found[key] for key in ("id", "iggy_stream", "iggy_topic", "iggy_partition_id", "iggy_offset")} == {
        "id": 1,
        "iggy_stream": stream,
        "iggy_topic": name,
        "iggy_partition_id": 0,
        "iggy_offset": 0,
    }
    assert len(found["iggy_id"]) == 32
    assert len(found["iggy_timestamp"]) == len("2026-01-01T00:00:00.000000Z")


def test_a_replayed_batch_has_the_same_computed_values(
    job: Job, lake: Lake, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark_whippet import batch_markers  # noqa: PLC0415 -- it needs pyspark

    topic = lake.topic()
    lake.send(topic, ['{"id":1}', '{"id":2}'])
    table, copy = sink(lake)
    fields = '{key = "u", value.computed = "uuid_v7"}, {key = "t", value.computed = "timestamp_micros"}'
    text = source(topic) + f"[transforms.add_fields]\nfields = [{fields}]\n" + table
    # Without markers, only equal payloads and ids keep the second run from adding anything.
    monkeypatch.setattr(batch_markers, "last_batch", lambda *_: None)
    job(text)
    before = lake.all_values(copy)
    job.crash()
    job(text)
    assert lake.all_values(copy) == before
    assert len({json.loads(value)["u"] for value in before}) == 2


def test_records_can_be_deduplicated_and_then_counted(job: Job, lake: Lake, source: Source) -> None:
    topic = lake.topic()
    stream = topic.split("/")[0]
    late = 'time_field = "at"\nwatermark = "1 minute"\n'
    transforms = f"""
        [[transforms]]
        type = "deduplicate"
        fields = ["id"]
        {late}
        [[transforms]]
        type = "window"
        size = "1 minute"
        aggregates = {{n = "count(*)"}}
        {late}
    """
    sink = f'[sink]\ntype = "topic"\nstream = "{stream}"\ntopic = "counts"\ncreate_topic = 1\n'
    text = source(topic, "id bigint, at timestamp") + transforms + sink
    minutes = {1: 0, 2: 0, 3: 1, 4: 5}
    for _ in range(2):
        lake.send(topic, [f'{{"id":{n},"at":"2026-01-01T10:{minute:02}:00Z"}}' for n, minute in minutes.items()])
        job(text)
    counts = [json.loads(value) for value in lake.all_values(f"{stream}/counts")]
    assert sorted((each["window_start"][14:16], each["n"]) for each in counts) == [("00", 2), ("01", 1)]
