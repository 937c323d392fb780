"""Topics as streams, read and written with a real Spark and a real gateway: with restarts, replays and failures."""

from __future__ import annotations

import json
import queue
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pyspark_whippet import log_sink
from tests.support.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

DEADLINE_S = 60
Follow = Callable[..., "DataFrame"]
Run = Callable[..., "StreamingQuery"]


@pytest.fixture
def follow(spark: SparkSession, lake: Lake) -> Follow:
    """Reads topics as a stream."""

    def read(topic: str | None = None, /, **more: object) -> DataFrame:
        options = {"startingOffsets": "earliest", **more}
        reader = spark.readStream.format("whippet").options(**lake.options)
        if topic is not None:
            reader = reader.option("subscribe", topic)
        return reader.options(**{key: str(value) for key, value in options.items()}).load()

    return read


@pytest.fixture
def run(lake: Lake, tmp_path: Path) -> Run:
    """Runs a query on the existing messages, into a topic or a function, and waits for its end."""

    def start(frame: DataFrame, to: Any, checkpoint: str = "checkpoint", **more: object) -> StreamingQuery:
        writer = frame.writeStream.option("checkpointLocation", str(tmp_path / checkpoint)).trigger(availableNow=True)
        if callable(to):
            query = writer.foreachBatch(to).start()
        else:
            options = {"topic": to, **lake.options, **{key: str(value) for key, value in more.items()}}
            query = writer.format("whippet").options(**options).start()
        assert query.awaitTermination(DEADLINE_S)
        return query

    return start


def forget_last_commit(checkpoint: Path) -> None:
    """Simulates a kill of the driver between the sink and the record that a batch is done."""
    numbered = (path for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
    commits = sorted(numbered, key=lambda path: int(path.name))
    commits[-1].unlink()
    (checkpoint / "commits" / f".{commits[-1].name}.crc").unlink(missing_ok=True)


class Seen:
    """A function for foreachBatch that keeps the values of each batch."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []

    def __call__(self, frame: DataFrame, _: int) -> None:
        self.batches.append(sorted(row[0] for row in frame.selectExpr("cast(value as string)").collect()))

    @property
    def values(self) -> list[str]:
        return sorted(value for batch in self.batches for value in batch)


# ------------------------------------------------------------------------------------------------------------- reading


def test_existing_messages_are_read_in_batches_of_the_limit_and_then_new_ones(
    follow: Follow, run: Run, lake: Lake
) -> None:
    topic = lake.topic(partitions=2)
    for partition in (0, 1):
        lake.send(topic, [f"{partition}-{n:04}" for n in range(500)], partition)
    there, seen = lake.all_values(topic), Seen()

    def while_others_send(frame: DataFrame, number: int) -> None:
        seen(frame, number)
        lake.send(topic, ["new"])

    run(follow(topic, maxOffsetsPerTrigger=400), while_others_send)
    assert [len(batch) for batch in seen.batches] == [400, 400, 200]
    assert seen.values == there
    again = Seen()
    run(follow(topic), again)
    assert again.values == ["new"] * 3


def test_latest_keeps_its_starting_point_even_if_the_first_batch_fails(follow: Follow, run: Run, lake: Lake) -> None:
    topic = lake.topic()
    lake.send(topic, ["before"])
    run(follow(topic, startingOffsets="latest"), Seen())
    lake.send(topic, ["first"])

    def fails(frame: DataFrame, _: int) -> None:
        raise RuntimeError("the sink is not there")

    with pytest.raises(Exception, match="the sink is not there"):
        run(follow(topic, startingOffsets="latest"), fails)
    lake.send(topic, ["second"])
    seen = Seen()
    run(follow(topic, startingOffsets="latest"), seen)
    assert seen.values == ["first", "second"]


def test_the_empty_first_batch_can_be_replayed(follow: Follow, run: Run, lake: Lake, tmp_path: Path) -> None:
    topic = lake.topic()
    lake.send(topic, ["before"])
    run(follow(topic, startingOffsets="latest"), Seen())
    forget_last_commit(tmp_path / "checkpoint")
    lake.send(topic, ["after"])
    seen = Seen()
    run(follow(topic, startingOffsets="latest"), seen)
    assert seen.values == ["after"]


def test_new_partitions_and_new_topics_are_read_from_the_start(follow: Follow, run: Run, lake: Lake) -> None:
    topic = lake.topic()
    stream = topic.split("/")[0]
    lake.send(topic, ["old"])
    run(follow(subscribePattern=f"{stream}/.*"), Seen())
    lake.http.post(f"{lake.path(topic)}/partitions", json={"partitions_count": 1}).raise_for_status()
    lake.send(topic, ["in a new partition"], partition=1)
    lake.http.post(f"/streams/{stream}/topics", json={"name": "other", "partitions_count": 1}).raise_for_status()
    lake.send(f"{stream}/other", ["in a new topic"])
    seen = Seen()
    run(follow(subscribePattern=f"{stream}/.*"), seen)
    assert seen.values == ["in a new partition", "in a new topic"]


def test_a_purge_is_an_error_unless_data_loss_is_allowed_however_many_messages_came_after_it(
    follow: Follow, run: Run, lake: Lake
) -> None:
    topic = lake.topic()
    lake.send(topic, ["a", "b"])
    run(follow(topic), Seen())
    lake.http.delete(f"{lake.path(topic)}/purge").raise_for_status()
    lake.send(topic, [f"N{n}" for n in range(5)])
    with pytest.raises(Exception, match=r"purged or created again since the last batch, which ended at \{'0': 2\}"):
        run(follow(topic), Seen())
    seen = Seen()
    run(follow(topic, failOnDataLoss=False, maxOffsetsPerTrigger=3), seen)
    assert seen.batches == [["N0", "N1", "N2"], ["N3", "N4"]]


def reader_of(lake: Lake, topic: str, **more: str) -> Any:
    """What Spark creates on the driver."""
    from pyspark.sql.types import StructType  # noqa: PLC0415

    from pyspark_whippet.options import decode  # noqa: PLC0415
    from pyspark_whippet.stream_reader import TopicStreamReader  # noqa: PLC0415

    options = {**lake.options, "subscribe": topic, "startingOffsets": "earliest", "pollIntervalMs": "0", **more}
    return TopicStreamReader(decode(options, {}), StructType())


def epoch_of(lake: Lake, topic: str) -> int:
    return int(lake.details(topic)["partitions"][0]["epoch"])


def read_all(reader: Any, splits: list[Any]) -> int:
    from pyspark_whippet import gateway_reader  # noqa: PLC0415
    from pyspark_whippet.session import session_of  # noqa: PLC0415

    session = session_of(reader._settings.access)
    return sum(len(each) for one in splits for each in gateway_reader.read_pages(session, reader._settings, one))


@pytest.mark.parametrize("act", ["purge", "create again"])
def test_a_purge_or_a_new_topic_is_noticed_wherever_it_comes(lake: Lake, act: str) -> None:
    """Between two batches, between the plan of a batch and its tasks, and before a batch that is replayed; always with
    more messages after it than had been read before."""
    from pyspark.sql.streaming.datasource import ReadAllAvailable  # noqa: PLC0415

    from pyspark_whippet.errors import DataLossError  # noqa: PLC0415

    def over() -> None:
        if act == "purge":
            lake.http.delete(f"{lake.path(topic)}/purge").raise_for_status()
        else:
            lake.http.delete(lake.path(topic)).raise_for_status()
            stream, name = topic.split("/")
            lake.http.post(f"/streams/{stream}/topics", json={"name": name, "partitions_count": 1}).raise_for_status()
        lake.send(topic, [str(n) for n in range(5)])

    topic = lake.topic()
    lake.send(topic, ["a", "b"])
    strict, lenient = reader_of(lake, topic), reader_of(lake, topic, failOnDataLoss="false")
    start = strict.initialOffset()
    assert start == {topic: {"0": 0}, "epochs": {topic: {"0": epoch_of(lake, topic)}}}
    end = strict.latestOffset(start, ReadAllAvailable())
    planned = strict.partitions(start, end)
    assert read_all(strict, planned) == 2
    over()
    with pytest.raises(DataLossError, match=r"purged or created again since the last batch, which ended at \{'0': 2\}"):
        strict.latestOffset(end, ReadAllAvailable())
    # As when the batch is replayed after a restart.
    for splits in (planned, reader_of(lake, topic).partitions(start, end)):
        with pytest.raises(DataLossError, match=r"offset 0 is gone \(.* 409 .* was purged or created again: its epoch"):
            read_all(strict, splits)
        assert read_all(lenient, splits) == 0
    now = lenient.latestOffset(end, ReadAllAvailable())
    assert now == {topic: {"0": 5}, "epochs": {topic: {"0": epoch_of(lake, topic)}}}
    assert [(each.start, each.end) for each in lenient.partitions(end, now)] == [(0, 5)]
    assert lenient.latestOffset(now, ReadAllAvailable()) == now
    # Checkpoints from before there were epochs are continued where they are.
    assert lenient.latestOffset({topic: {"0": 2}}, ReadAllAvailable()) == now
    assert [(each.start, each.end) for each in lenient.partitions({topic: {"0": 2}}, now)] == [(2, 5)]


def test_the_first_batch_has_rows_and_its_replay_begins_where_it_began(lake: Lake) -> None:
    from pyspark.sql.streaming.datasource import ReadMaxRows  # noqa: PLC0415

    topic = lake.topic()
    lake.send(topic, ["before"])
    reader = reader_of(lake, topic, startingOffsets="latest")
    start = reader.initialOffset()
    lake.send(topic, ["one", "two", "three"])
    end = reader.latestOffset(start, ReadMaxRows(2))
    assert (end[topic], end["since"]) == ({"0": 3}, start)
    assert [(each.start, each.end) for each in reader.partitions(start, end)] == [(1, 3)]
    # Spark has stored the end, and asks for the start again after a restart.
    again = reader_of(lake, topic, startingOffsets="latest")
    assert again.initialOffset()[topic] == {"0": 4}
    assert [(each.start, each.end) for each in again.partitions(again.initialOffset(), end)] == [(1, 3)]
    later = again.latestOffset(end, ReadMaxRows(2))
    assert "since" not in later
    assert [(each.start, each.end) for each in again.partitions(end, later)] == [(3, 4)]


def test_a_batch_waits_for_the_least_number_of_messages_or_for_the_longest_delay(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable  # noqa: PLC0415

    topic = lake.topic()
    lake.send(topic, ["first"])
    reader = reader_of(lake, topic, minOffsetsPerTrigger="3", maxTriggerDelay="1h")
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert end[topic] == {"0": 1}
    lake.send(topic, ["a", "b"])
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    monkeypatch.setattr(reader, "_last_batch_at", time.monotonic() - 3601)
    end = reader.latestOffset(end, ReadAllAvailable())
    assert end[topic] == {"0": 3}
    lake.send(topic, ["c", "d", "e"])
    assert reader.latestOffset(end, ReadAllAvailable())[topic] == {"0": 6}
    lake.send(topic, ["f"])
    reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset(end, ReadAllAvailable())[topic] == {"0": 7}


def test_a_deleted_topic_is_an_error_unless_data_loss_is_allowed(follow: Follow, run: Run, lake: Lake) -> None:
    kept, deleted = lake.topic(), lake.topic()
    for topic in (kept, deleted):
        lake.send(topic, ["a"])
    run(follow(f"{kept},{deleted}"), Seen())
    lake.http.delete(lake.path(deleted)).raise_for_status()
    lake.send(kept, ["b"])
    with pytest.raises(
        Exception, match=f"topic '{deleted}' was deleted; set failOnDataLoss=false to continue without it"
    ):
        run(follow(f"{kept},{deleted}"), Seen())
    seen = Seen()
    run(follow(f"{kept},{deleted}", failOnDataLoss=False), seen)
    assert seen.values == ["b"]
    with pytest.raises(Exception, match=f"topic '{deleted}' does not exist"):
        run(follow(deleted), Seen(), checkpoint="another")


def test_a_topic_deleted_during_a_batch_does_not_stop_the_query_if_data_loss_is_allowed(
    follow: Follow, run: Run, lake: Lake
) -> None:
    kept, deleted = lake.topic(), lake.topic()
    both = f"{kept},{deleted}"
    run(follow(both), Seen())
    lake.send(kept, ["kept"])
    lake.send(deleted, ["deleted"])

    def fails(frame: DataFrame, _: int) -> None:
        raise RuntimeError("the sink is not there")

    with pytest.raises(Exception, match="the sink is not there"):
        run(follow(both), fails)
    lake.http.delete(lake.path(deleted)).raise_for_status()
    with pytest.raises(Exception, match=rf"{deleted} partition 0: offset 0 is gone .* 404 .* set failOnDataLoss=false"):
        run(follow(both), Seen())
    seen = Seen()
    run(follow(both, failOnDataLoss=False), seen)
    assert seen.values == ["kept"]


def test_unread_messages_that_were_deleted_are_an_error_unless_data_loss_is_allowed(
    follow: Follow, run: Run, lake: Lake
) -> None:
    topic = lake.topic(options={"segment_size": "1 MiB"})
    run(follow(topic), Seen())
    lake.http.post(f"{lake.path(topic)}/partitions", json={"partitions_count": 1}).raise_for_status()
    for _ in range(3):
        lake.send(topic, ["x" * 1000] * 1200, partition=1)
    lake.drop_segments(topic, 1, partition=1)
    with pytest.raises(Exception, match=r"partition 1: offset 0 is gone .* set failOnDataLoss=false"):
        run(follow(topic), Seen())
    seen = Seen()
    run(follow(topic, failOnDataLoss=False), seen)
    assert 0 < len(seen.values) == 3600 - lake.details(topic)["partitions"][1]["first_offset"] < 3600


def test_latest_never_starts_after_the_end_of_a_run(lake: Lake) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable  # noqa: PLC0415
    from pyspark.sql.types import StructType  # noqa: PLC0415

    from pyspark_whippet.options import decode  # noqa: PLC0415
    from pyspark_whippet.stream_reader import TopicStreamReader  # noqa: PLC0415

    topic = lake.topic()
    lake.send(topic, ["before"])
    reader = TopicStreamReader(decode({**lake.options, "subscribe": topic}, {}), StructType())
    reader.prepareForTriggerAvailableNow()
    lake.send(topic, ["meanwhile"])
    start = reader.initialOffset()
    assert start[topic] == {"0": 2}
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end == {**start, "since": start}
    assert reader.latestOffset(end, ReadAllAvailable()) == end


def test_mistakes_in_options_are_not_hidden_by_an_error_of_spark(spark: SparkSession, run: Run) -> None:
    reader = spark.readStream.format("whippet").schema("valu binary").option("subscribe", "s/t")
    with pytest.raises(Exception, match="column 'valu' of the schema does not exist") as refused:
        run(reader.load(), Seen())
    assert "UnboundLocalError" not in str(refused.value)


def test_an_idle_topic_is_polled_at_the_interval_and_causes_no_batches(
    spark: SparkSession, follow: Follow, lake: Lake, tmp_path: Path
) -> None:
    def looks() -> int:
        text = lake.http.get("/metrics").raise_for_status().text
        found = re.search(r'whippet_command_seconds_count{command="get_topic",transport="http"} (\d+)', text)
        return int(found[1]) if found else 0

    topic = lake.topic(partitions=3)
    lake.send(topic, ["only one"])
    seen = Seen()
    frame = follow(topic, pollIntervalMs=100)
    query = frame.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint")).foreachBatch(seen).start()
    try:
        until(lambda: len(seen.batches) == 1)
        before, begun = looks(), time.monotonic()
        until(lambda: looks() >= before + 20)
        assert time.monotonic() - begun > 1.5
        assert seen.batches == [["only one"]]
    finally:
        query.stop()


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < deadline


def test_offsets_are_stored_for_the_named_consumer(follow: Follow, run: Run, lake: Lake) -> None:
    topic = lake.topic()
    lake.send(topic, [str(n) for n in range(30)])
    run(follow(topic, consumerName="spark-job", maxOffsetsPerTrigger=10), Seen())
    query: dict[str, str | int] = {"consumer_id": "spark-job", "partition_id": 0}
    stored = lake.http.get(f"{lake.path(topic)}/consumer-offsets", params=query).raise_for_status().json()
    assert stored["stored_offset"] == 29
    reader = reader_of(lake, topic, groupIdPrefix="jobs")
    reader.latestOffset({topic: {"0": 12}}, reader.getDefaultReadLimit())
    (name,) = set(re.findall(r'consumer="(jobs-[0-9a-f]{8})"', lake.http.get("/metrics").text))
    stored = lake.http.get(f"{lake.path(topic)}/consumer-offsets", params={**query, "consumer_id": name}).json()
    assert stored["stored_offset"] == 11


def test_a_failure_to_store_offsets_is_logged_occasionally_not_at_every_poll(
    lake: Lake, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable  # noqa: PLC0415
    from pyspark.sql.types import StructType  # noqa: PLC0415

    from pyspark_whippet import stream_reader  # noqa: PLC0415
    from pyspark_whippet.options import decode  # noqa: PLC0415

    topic = lake.topic()
    lake.send(topic, ["a"])
    asked = decode({**lake.options, "subscribe": topic, "consumerName": "x" * 300}, {})
    reader = stream_reader.TopicStreamReader(asked, StructType())
    for _ in range(5):
        assert reader.latestOffset({topic: {"0": 1}}, ReadAllAvailable())[topic] == {"0": 1}
    assert caplog.text.count("could not store the offset") == 1
    monkeypatch.setattr(reader, "_store_at", 0.0)
    reader.latestOffset({topic: {"0": 1}}, ReadAllAvailable())
    assert caplog.text.count("could not store the offset") == 2


# ------------------------------------------------------------------------------------------------------------- writing


def test_a_stream_is_copied_once_even_from_a_new_checkpoint(follow: Follow, run: Run, lake: Lake) -> None:
    source, copy = lake.topic(partitions=2), lake.topic(partitions=3)
    for partition in (0, 1):
        lake.send(source, [f"{partition}-{n}" for n in range(300)], partition)
    run(follow(source, maxOffsetsPerTrigger=200).select("value", "id"), copy)
    assert lake.all_values(copy) == lake.all_values(source)
    run(follow(source, maxOffsetsPerTrigger=150).select("value", "id"), copy, checkpoint="another")
    assert lake.all_values(copy) == lake.all_values(source)


@pytest.mark.parametrize("marker", [True, False])
def test_a_replayed_batch_is_written_once(follow: Follow, run: Run, lake: Lake, tmp_path: Path, marker: bool) -> None:
    source, copy = lake.topic(partitions=2), lake.topic(partitions=3)
    lake.send(source, ["always the same"] * 50, 0)
    lake.send(source, [str(n) for n in range(50)], 1)
    run(follow(source).select("value"), copy, marker=marker)
    forget_last_commit(tmp_path / "checkpoint")
    run(follow(source).select("value"), copy, marker=marker)
    assert lake.all_values(copy) == lake.all_values(source)


def test_the_marker_prevents_a_replay_when_no_ids_are_remembered(
    follow: Follow, run: Run, lake: Lake, tmp_path: Path
) -> None:
    source, copy = lake.topic(), lake.topic()
    lake.send(source, ["a", "b"])
    run(follow(source).select("value"), copy)
    forget_last_commit(tmp_path / "checkpoint")
    # A purge also forgets the ids, so a replay would show.
    lake.http.delete(f"{lake.path(copy)}/purge").raise_for_status()
    run(follow(source).select("value"), copy)
    assert lake.all_values(copy) == []
    lake.send(source, ["c"])
    run(follow(source).select("value"), copy)
    assert lake.all_values(copy) == ["c"]


def test_a_task_that_fails_after_writing_writes_nothing_twice(
    spark: SparkSession, follow: Follow, run: Run, lake: Lake
) -> None:
    from pyspark import TaskContext  # noqa: PLC0415
    from pyspark.sql.functions import udf  # noqa: PLC0415

    source, copy = lake.topic(partitions=2), lake.topic(partitions=2)
    for partition in (0, 1):
        lake.send(source, ["equal"] * 100 + [f"{partition}-{n}" for n in range(200)], partition)

    @udf("binary", useArrow=False)
    def spoilt_first(value: Any, offset: int) -> Any:
        context = TaskContext.get()
        is_first = context is not None and context.attemptNumber() == 0
        # The writer refuses an empty value, after it has sent those before it.
        return b"" if is_first and offset == 250 else bytes(value)

    frame = follow(source).select(spoilt_first("value", "offset").alias("value"))
    small = "spark.sql.execution.arrow.maxRecordsPerBatch"
    spark.conf.set(small, "20")
    try:
        run(frame, copy, batchSize=10, marker=False)
    finally:
        spark.conf.unset(small)
    assert lake.all_values(copy) == lake.all_values(source)


def test_log_sink_derives_the_same_ids_on_a_replay(follow: Follow, run: Run, lake: Lake, tmp_path: Path) -> None:
    source, copy = lake.topic(), lake.topic(partitions=2)
    lake.send(source, ["equal", "equal", "other"])
    sink = log_sink("orders-v1", topic=copy, **lake.options)
    run(follow(source).select("value"), sink)
    forget_last_commit(tmp_path / "checkpoint")
    run(follow(source).select("value"), sink)
    assert lake.all_values(copy) == ["equal", "equal", "other"]


def test_progress_reports_have_the_end_and_the_latest_offsets(follow: Follow, run: Run, lake: Lake) -> None:
    topic = lake.topic()
    lake.send(topic, ["a", "b"])
    query = run(follow(topic), Seen())
    progress = query.lastProgress
    assert progress is not None
    source = progress["sources"][0]
    assert _offsets(source["endOffset"])[topic] == _offsets(source["latestOffset"])[topic] == {"0": 2}


def _offsets(said: Any) -> Any:
    return json.loads(said) if isinstance(said, str) else said


def test_the_listener_and_the_server_report_the_same_lag(
    spark: SparkSession, follow: Follow, run: Run, lake: Lake
) -> None:
    from pyspark_whippet.listener import Lag, LagListener  # noqa: PLC0415 -- it needs pyspark

    topic = lake.topic(partitions=2)
    lake.send(topic, [str(n) for n in range(30)], 0)
    lake.send(topic, [str(n) for n in range(10)], 1)
    reported: queue.Queue[Lag] = queue.Queue()
    listener = LagListener(reported.put)
    seen = Seen()

    def full_after_three(frame: DataFrame, number: int) -> None:
        if number == 3:
            raise RuntimeError("the sink is full")
        seen(frame, number)

    spark.streams.addListener(listener)
    try:
        with pytest.raises(Exception, match="the sink is full"):
            run(follow(topic, maxOffsetsPerTrigger=12, consumerName="lagging"), full_after_three)
        found = [reported.get(timeout=DEADLINE_S) for _ in range(3)]
    finally:
        spark.streams.removeListener(listener)
    listened = [(lag.minOffsetsBehindLatest, lag.maxOffsetsBehindLatest, lag.avgOffsetsBehindLatest) for lag in found]
    assert listened == [(7, 21, 14.0), (4, 12, 8.0), (1, 3, 2.0)]
    assert found[1].numInputRows == 12
    text = lake.http.get("/metrics").raise_for_status().text
    lags = re.findall(rf'whippet_consumer_lag{{consumer="lagging",.*stream="{topic.split("/")[0]}".*}} (\d+)', text)
    assert sorted(map(int, lags)) == [1, 3]
