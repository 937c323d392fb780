"""Writing and reading without Spark: what a task does, against a real gateway, and as with other Iggy servers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import pytest

from pyspark_whippet import batch_markers, polls
from pyspark_whippet.deduplication import Window
from pyspark_whippet.errors import DataLossError
from pyspark_whippet.options import decode
from pyspark_whippet.session import JSON, Pending, Reply, Session
from tests.support.lake import Lake
from whippet.app.access.permissions import GlobalPermissions, StreamPermissions

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: install whippet-gateway[spark]")
pytest.importorskip("pyspark", reason="pyspark is not installed: install whippet-gateway[spark]")

from pyspark_whippet import (  # noqa: E402 -- they need both
    batches,
    gateway_reader,
    hashes,
    task_writer,
    topics,
    user_headers,
    writer,
)
from pyspark_whippet.gateway_reader import Split  # noqa: E402
from pyspark_whippet.task_writer import IdScope, Target  # noqa: E402


@pytest.fixture
def session(lake: Lake) -> Iterator[Session]:
    found = Session(decode(lake.options, {}).access)
    yield found
    found.close()


def record_batch(**columns: Sequence[object]) -> object:
    return pa.RecordBatch.from_pydict({name: pa.array(values) for name, values in columns.items()})


@pytest.mark.parametrize("takes_batches", [True, False], ids=["batches", "json"])
def test_json_carries_the_same_content_as_batches(
    session: Session, lake: Lake, monkeypatch: pytest.MonkeyPatch, takes_batches: bool
) -> None:
    topic = lake.topic(partitions=2)
    assert task_writer.target(session, topic) == Target(topic, 2, True, Window(1_000_000, 3600))
    settings = decode({**lake.options, "topic": topic, "batchSize": "70"}, {})
    entries = [{"key": "k", "value": b"v", "kind": "string"}, {"key": "n", "value": b"\x07", "kind": "uint8"}]
    headers = [entries if n % 3 else None for n in range(500)]
    batch = record_batch(value=[b"%d" % n for n in range(500)], headers=headers)
    target = {topic: Target(topic, 2, takes_batches)}
    for _ in range(2):
        sent = task_writer.TaskWriter([session], settings, IdScope("n", "0", 0), target).write([batch])
    assert sent.rows == 500
    assert sum(sent.by_partition.values()) == 500
    if not takes_batches:
        monkeypatch.setattr(Pending, "accept", JSON)
    found = []
    for partition, values in enumerate(lake.values(topic)):
        share = Split(topic, partition, 0, len(values))
        for page in gateway_reader.read_pages(session, settings, share):
            places = page.bounds.tolist()
            assert page.offsets[0] == page.offsets[-1] - len(page) + 1
            for i in range(len(page)):
                assert page.user_headers is not None
                found.append(
                    (bytes(page.payloads[places[i] : places[i + 1]]), page.user_headers[i], page.ids[i].tobytes())
                )
    assert sorted(value for value, _, _ in found) == sorted(b"%d" % n for n in range(500))
    assert len({identity for _, _, identity in found}) == 500
    block = user_headers.encode([("k", b"v", "string"), ("n", b"\x07", "uint8")])
    assert all(headers == (block if int(value) % 3 else b"") for value, headers, _ in found)


def test_rows_of_a_partition_keep_their_order_across_requests_and_record_batches(session: Session, lake: Lake) -> None:
    topic = lake.topic(partitions=2)
    settings = decode({**lake.options, "topic": topic, "batchSize": "7", "maxBatchBytes": "1000"}, {})
    batches = [
        record_batch(
            value=[b"%05d" % (start + n) for n in range(40)], partition=pa.array([n % 2 for n in range(40)], "int32")
        )
        for start in range(0, 400, 40)
    ]
    task_writer.TaskWriter([session], settings, IdScope("n", "0", 0), {topic: Target(topic, 2, True)}).write(batches)
    assert lake.values(topic) == [[f"{n:05}" for n in range(first, 400, 2)] for first in (0, 1)]


def test_partitions_are_written_concurrently_each_in_its_order(lake: Lake) -> None:
    topic = lake.topic(partitions=5)
    settings = decode({**lake.options, "topic": topic, "batchSize": "10", "inFlight": "3"}, {})
    sessions = [Session(settings.access) for _ in range(settings.in_flight)]
    to = pa.array([n % 5 for n in range(1_000)], "int32")
    batch = record_batch(value=[b"%05d" % n for n in range(1_000)], partition=to)
    sent = task_writer.TaskWriter(sessions, settings, IdScope("n", "0", 0), {topic: Target(topic, 5, True)}).write(
        [batch]
    )
    assert (sent.rows, sent.requests) == (1_000, 100)
    assert lake.values(topic) == [[f"{n:05}" for n in range(first, 1_000, 5)] for first in range(5)]
    for session in sessions:
        session.close()


def test_rows_whose_responses_are_lost_are_written_once(
    session: Session, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = lake.topic(partitions=3)
    settings = decode({**lake.options, "topic": topic, "batchSize": "20"}, {})
    target = {topic: task_writer.target(session, topic)}
    answer, is_lost = session._answer, itertools.cycle([True, False])

    def sometimes() -> Reply:
        reply = answer()
        if next(is_lost):
            session.close()
            raise ConnectionResetError("after the gateway had stored it")
        return reply

    monkeypatch.setattr(session, "_answer", sometimes)
    values = [b"equal"] * 50 + [b"%d" % n for n in range(250)]
    sent = task_writer.TaskWriter([session], settings, IdScope("n", "0", 0), target).write([record_batch(value=values)])
    assert sent.rows == 300
    assert lake.all_values(topic) == sorted(value.decode() for value in values)


def test_a_gap_anywhere_in_a_response_is_data_loss(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    there = [3, 4, 7, 8, 9]
    page = batches.messages_from_lists(there, there, there, [b"i" * 16] * 5, [b"p"] * 5, [b""] * 5)
    monkeypatch.setattr(gateway_reader, "_poll", lambda *_: None)
    monkeypatch.setattr(polls, "finish", lambda _: page)
    strict = decode({"subscribe": "s/t"}, {})
    with pytest.raises(DataLossError, match=r"s/t partition 0: offset 5 is gone \(server returned 7\)"):
        list(gateway_reader.read_pages(session, strict, Split("s/t", 0, 3, 10)))
    lenient = decode({"subscribe": "s/t", "failOnDataLoss": "false"}, {})
    assert sum(len(each) for each in gateway_reader.read_pages(session, lenient, Split("s/t", 0, 3, 10))) == 5


def test_each_query_has_its_own_markers_and_the_last_one_counts(session: Session) -> None:
    assert batch_markers.last_batch(session, "query-1") is None
    for batch in (0, 1, 1, 2):
        batch_markers.store(session, "query-1", batch)
    assert batch_markers.last_batch(session, "query-1") == 2
    assert batch_markers.last_batch(session, "query-2") is None


def test_markers_that_nobody_has_written_for_long_are_deleted(
    session: Session, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    for query in ("old-1", "old-2", "written-again"):
        batch_markers.store(session, query, 0)
    monkeypatch.setattr(batch_markers, "KEPT_US", -60_000_000)
    batch_markers.store(session, "old-1", 1)
    assert batch_markers.last_batch(session, "old-2") == 0
    before = lake.http.get("/streams/spark-markers/topics").json()
    assert {"old-1", "old-2", "written-again"} <= {each["name"] for each in before}
    monkeypatch.setattr(batch_markers, "KEPT_US", 0)
    batch_markers.store(session, "written-again", 1)
    newest = session.get(f"/streams/spark-markers/topics/written-again/messages?{batch_markers.LAST}")
    assert batch_markers.delete_old(session, int(polls.decode(newest).timestamps[0])) >= 2
    left = {each["name"] for each in lake.http.get("/streams/spark-markers/topics").json()}
    assert "written-again" in left
    assert not {"old-1", "old-2"} & left


def test_a_user_who_may_read_one_stream_can_subscribe_to_a_pattern(lake: Lake) -> None:
    mine, others = lake.topic(), lake.topic()
    stream = lake.http.get(f"/streams/{mine.split('/')[0]}").json()["id"]
    rights = dict.fromkeys(StreamPermissions.__struct_fields__, False) | {"topics": None}
    rights |= {"read_stream": True, "read_topics": True, "poll_messages": True}
    nothing = dict.fromkeys(GlobalPermissions.__struct_fields__, False)
    body: dict[str, object] = {"username": "one-stream", "password": "one-stream", "status": "active"}
    body["permissions"] = {"global": nothing, "streams": {str(stream): rights}}
    lake.http.post("/users", json=body).raise_for_status()
    access = decode({"url": lake.url, "username": "one-stream", "password": "one-stream"}, {}).access
    own = Session(access)
    token = own.call("POST", "/personal-access-tokens", b'{"name": "spark", "expiry": 0}').json["token"]
    with_token = Session(decode({"url": lake.url, "token": token}, {}).access)
    for each in (own, with_token):
        assert topics.visible_streams(each) == [mine.split("/")[0]]
        each.close()
    names = set(topics.GatewayBackend(access).topic_names())
    assert mine in names
    assert others not in names


def test_messages_are_sent_as_json_without_xxhash_and_that_is_reported_once(
    session: Session, lake: Lake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    topic = lake.topic()
    settings = decode({**lake.options, "topic": topic}, {})
    target = {topic: task_writer.target(session, topic)}
    monkeypatch.setattr(hashes, "xxh3", None)
    sent = task_writer.TaskWriter([session], settings, IdScope("n", "0", 0), target).write([record_batch(value=[b"a"])])
    assert sent.lacks_xxhash
    assert lake.all_values(topic) == ["a"]
    done = writer.TaskResult(1, 1, {}, None, sent.lacks_xxhash)
    for _ in range(2):
        writer.warn(settings, target, [done])
    assert [message for message in caplog.messages if "xxhash" in message] == [writer.LACKS_XXHASH]
