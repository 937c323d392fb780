"""Bad records stop a pipeline, become dead letters, or are skipped and counted. None is lost."""

from __future__ import annotations

import base64
from collections.abc import Callable

import pytest

from tests.pipelines.support.dead_letters import letters
from tests.pipelines.support.job import Job
from tests.support.lake import Lake

GOOD = ['{"id":1,"name":"7"}', '{"id":2,"name":"x"}', '{"id":3,"name":"9"}']
BROKEN = ["broken", '{"id":"one"}', '{"id":4} {"id":5}']
TOMBSTONE = "null"
AS_NUMBER = '[[transforms]]\ntype = "sql"\nquery = "SELECT id, cast(name AS int) AS number, iggy_offset FROM input"\n'
Source = Callable[..., str]


def b64(octets: bytes) -> str:
    return base64.b64encode(octets).decode()


def into(lake: Lake, dead_letters: bool = True) -> tuple[str, str, str]:
    """Returns a sink and a dead-letter table, and the topics of both."""
    stream, _ = lake.topic().split("/")
    sink = f'[sink]\ntype = "topic"\nstream = "{stream}"\ntopic = "good"\ncreate_topic = 2\n'
    letters = f'[dead_letter]\nstream = "{stream}"\ntopic = "bad"\n'
    return sink + (letters if dead_letters else ""), f"{stream}/good", f"{stream}/bad"


def test_an_unparsable_record_becomes_one_dead_letter_with_its_reason_and_origin(
    job: Job, lake: Lake, source: Source
) -> None:
    topic = lake.topic(partitions=2)
    lake.send(topic, [*GOOD[:2], BROKEN[0]], 0)
    lake.send(topic, [BROKEN[1], GOOD[2], BROKEN[2]], 1)
    mark = {"key": {"kind": "string", "value": b64(b"whippet.tombstone")}, "value": {"kind": "bool", "value": "AQ=="}}
    lake.send_json(topic, [{"payload": b64(TOMBSTONE.encode()), "user_headers": [mark]}])
    sink, good, bad = into(lake)
    text = source(topic) + sink
    ran = job(text)
    job.crash()
    job(text)
    assert lake.all_values(good) == GOOD
    found = sorted(letters(lake, bad))
    assert [payload for payload, _ in found] == sorted([*BROKEN, TOMBSTONE])
    stream, name = topic.split("/")
    places = {payload: (headers["partition"], headers["offset"]) for payload, headers in found}
    assert places == {BROKEN[0]: ("0", "2"), TOMBSTONE: ("0", "3"), BROKEN[1]: ("1", "0"), BROKEN[2]: ("1", "2")}
    for _, headers in found:
        assert (headers["stream"], headers["topic"], headers["pipeline"], headers["step"]) == (
            stream,
            name,
            "job",
            "source",
        )
        assert headers["reason"] == "it is not a JSON object with these fields"
    assert (ran.done.rows, ran.done.bad_records) == (7, 4)


def test_rows_that_fail_a_transform_become_dead_letters_with_the_original_payload(
    job: Job, lake: Lake, source: Source
) -> None:
    topic = lake.topic()
    odd = '{"id": 2,   "name": "x", "unasked": true}'
    lake.send(topic, [GOOD[0], odd, "broken", GOOD[2], '{"id":4,"name":"y"}'])
    sink, good, bad = into(lake)
    text = source(topic) + AS_NUMBER + sink
    job(text)
    job.crash()
    job(text)
    assert lake.all_values(good) == ['{"id":1,"number":7}', '{"id":3,"number":9}']
    found = dict(letters(lake, bad))
    assert set(found) == {odd, "broken", '{"id":4,"name":"y"}'}
    assert 'The value \'x\' of the type "STRING" cannot be cast to "INT"' in found[odd]["reason"]
    assert (found[odd]["step"], found[odd]["offset"]) == ("transforms", "1")


def test_without_dead_letters_a_bad_record_stops_the_pipeline_before_its_batch_is_written(
    job: Job, lake: Lake, source: Source
) -> None:
    from whippet.pipelines.errors import BadRecordError  # noqa: PLC0415 -- it needs pyspark

    topic = lake.topic()
    lake.send(topic, [GOOD[0], "broken", "broken, too"])
    sink, good, _ = into(lake, dead_letters=False)
    where = f"{topic} partition 0 offset 1: source: it is not a JSON object with these fields"
    way_out = r'add a \[dead_letter\] topic, or set on_error = "skip"'
    with pytest.raises(BadRecordError, match=rf"^{where} \(and 1 more in this batch\); {way_out}$"):
        job(source(topic) + sink)
    assert lake.all_values(good) == []
    ran = job('on_error = "skip"\n' + source(topic) + sink)
    assert lake.all_values(good) == [GOOD[0]]
    assert ran.done.bad_records == 2
    assert ran.done.last_error == "source: it is not a JSON object with these fields"


def test_a_transform_that_fails_on_every_row_stops_the_pipeline(
    job: Job, lake: Lake, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    from whippet.pipelines import bad_row_search  # noqa: PLC0415 -- it needs pyspark
    from whippet.pipelines.errors import BadRecordError  # noqa: PLC0415

    monkeypatch.setattr(bad_row_search, "BAD_ROWS_MAX", 3)
    topic = lake.topic()
    lake.send(topic, [f'{{"id":{n},"name":"n{n}"}}' for n in range(8)])
    sink, _, _ = into(lake)
    with pytest.raises(BadRecordError, match=r"more than 3 rows of one batch cannot be transformed: The value 'n\d+'"):
        job(source(topic) + AS_NUMBER + sink)


def test_an_empty_payload_becomes_a_dead_letter_when_raw_payloads_go_to_a_topic(
    job: Job, lake: Lake, source: Source
) -> None:
    from whippet.pipelines.errors import BadRecordError  # noqa: PLC0415

    topic = lake.topic()
    lake.send(topic, ['{"id":1,"name":"a"}', '{"id":2,"name":""}', '{"id":3}', '{"id":4,"name":"d"}'])
    as_payload = '[[transforms]]\ntype = "sql"\nquery = "SELECT *, name AS payload FROM input"\n'
    into_text, good, bad = into(lake)
    text = as_payload + into_text.replace("create_topic", 'schema = "text"\ncreate_topic', 1)
    stopping = source(topic) + text[: text.index("[dead_letter]")]
    where = rf"^{topic} partition 0 offset 1: \[sink\] \(topic\): the payload is null or empty; add a"
    with pytest.raises(BadRecordError, match=where):
        job(stopping)
    assert lake.all_values(good) == [], "nothing of its batch is written"
    job(source(topic) + text)
    job.crash()
    job(source(topic) + text)
    assert lake.all_values(good) == ["a", "d"]
    found = [(payload, headers["offset"], headers["reason"]) for payload, headers in letters(lake, bad)]
    reason = "the payload is null or empty"
    assert sorted(found) == [('{"id":2,"name":"","payload":""}', "1", reason), ('{"id":3}', "2", reason)]


def test_pipelines_with_windows_set_bad_records_aside(job: Job, lake: Lake, source: Source) -> None:
    topic = lake.topic()
    times = ["09:00:10", "09:00:50", "09:01:00", "09:05:00"]
    lake.send(topic, ["broken", *(f'{{"id":1,"at":"2026-01-01T{time}Z"}}' for time in times)])
    sink, good, bad = into(lake)
    window = (
        '[[transforms]]\ntype = "window"\ntime_field = "at"\nsize = "1 minute"\nwatermark = "1 minute"\n'
        'group_by = ["id"]\naggregates = {n = "count(*)"}\n'
    )
    text = source(topic, "id bigint, at timestamp") + window + sink
    job(text)
    job.crash()
    job(text)
    hour = "2026-01-01T09:0"
    assert lake.all_values(good) == [
        f'{{"window_start":"{hour}{n}:00.000000Z","window_end":"{hour}{n + 1}:00.000000Z","id":1,"n":{count}}}'
        for n, count in ((0, 2), (1, 1))
    ]
    assert [payload for payload, _ in letters(lake, bad)] == ["broken"]
