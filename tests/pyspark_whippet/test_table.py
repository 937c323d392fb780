"""Topics as tables, read and written with a real Spark and a real gateway."""

from __future__ import annotations

import base64
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from pyspark_whippet import register
from tests.support.lake import PASSWORD, Lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Load = Callable[..., "DataFrame"]
Save = Callable[..., None]


def texts(frame: DataFrame) -> list[str]:
    return sorted(row[0] for row in frame.selectExpr("cast(value as string)").collect())


def numbers(spark: SparkSession, count: int, value: str = "concat('value ', id)") -> DataFrame:
    return spark.range(0, count, 1, 2).selectExpr(f"{value} AS value")


# ------------------------------------------------------------------------------------------------------------- reading


def test_a_topic_is_a_table_with_the_columns_of_kafkas_source(load: Load, lake: Lake) -> None:
    topic = lake.topic(partitions=2)
    lake.send(topic, ["first", "the second one"], partition=0)
    lake.send(topic, ["third"], partition=1)
    before = datetime.now(UTC)
    frame = load(topic).orderBy("partition", "offset")
    assert frame.schema.simpleString() == (
        "struct<value:binary,stream:string,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "originTimestamp:timestamp,id:binary,key:binary,timestampType:int>"
    )
    rows = frame.collect()
    assert [(row.value, row.partition, row.offset) for row in rows] == [
        (b"first", 0, 0),
        (b"the second one", 0, 1),
        (b"third", 1, 0),
    ]
    assert {(f"{row.stream}/{row.topic}") for row in rows} == {topic}
    assert all(abs((row.timestamp.astimezone(UTC) - before).total_seconds()) < 60 for row in rows)
    assert len({row.id for row in rows}) == 3


def test_ids_above_64_bits_and_headers_of_all_kinds_are_read(load: Load, lake: Lake) -> None:
    topic = lake.topic()
    parts = {"raw": b"\x00\xff", "string": "über".encode(), "bool": b"\x01", "uint32": (7).to_bytes(4, "little")}
    headers = [
        {
            "key": {"kind": "string", "value": base64.b64encode(kind.encode()).decode()},
            "value": {"kind": kind, "value": base64.b64encode(value).decode()},
        }
        for kind, value in parts.items()
    ]
    payload = base64.b64encode(b"payload").decode()
    lake.send_json(topic, [{"id": 2**128 - 1, "payload": payload, "user_headers": headers}])
    lake.send_json(topic, [{"id": 2**64 + 5, "payload": payload}])
    first, second = load(topic, includeHeaders=True).orderBy("offset").collect()
    assert (first.id, second.id) == (b"\xff" * 16, (2**64 + 5).to_bytes(16, "big"))
    assert {header.key: (header.value, header.kind) for header in first.headers} == {
        kind: (value, kind) for kind, value in parts.items()
    }
    assert second.headers is None


def test_the_schema_can_have_any_columns_in_any_order(load: Load, lake: Lake) -> None:
    topic = lake.topic()
    lake.send(topic, ["a", "b"])
    rows = load(topic, schema="offset bigint, value binary").collect()
    assert [tuple(row) for row in rows] == [(0, b"a"), (1, b"b")]
    with pytest.raises(Exception, match="column 'ofset' of the schema does not exist"):
        load(topic, schema="ofset bigint").collect()
    with pytest.raises(Exception, match="column 'offset' is bigint, not string"):
        load(topic, schema="offset string").collect()


def test_pages_and_splits_of_any_size_return_every_message_once(load: Load, lake: Lake) -> None:
    topic = lake.topic(partitions=2)
    for partition in (0, 1):
        for start in range(0, 900, 300):
            lake.send(topic, [f"{partition}-{n}" for n in range(start, start + 300)], partition)
    frame = load(topic, pageSize=70, maxRecordsPerPartition=250)
    assert frame.rdd.getNumPartitions() == 8
    assert texts(frame) == lake.all_values(topic)
    assert load(topic, minPartitions=6).rdd.getNumPartitions() == 6


def test_offsets_and_times_select_where_to_start_and_end(load: Load, lake: Lake) -> None:
    topic = lake.topic(partitions=2)
    lake.send(topic, ["a", "b", "c"], 0)
    lake.send(topic, ["x", "y"], 1)
    only = f'{{"{topic}": {{"0": 1, "1": -2}}}}'
    until = f'{{"{topic}": {{"0": 2, "1": 1}}}}'
    assert texts(load(topic, startingOffsets=only, endingOffsets=until)) == ["b", "x"]
    second = load(topic).where("value = binary('x')").first()
    assert second is not None
    lake.send(topic, ["later"], 1)
    (latest,) = load(topic).where("value = binary('later')").collect()
    instant = latest.timestamp.astimezone(UTC)
    assert texts(load(topic, startingTimestamp=instant.isoformat(), startingOffsetsByTimestampStrategy="latest")) == [
        "later"
    ]
    assert "later" not in texts(load(topic, endingTimestamp=instant.isoformat()))
    with pytest.raises(Exception, match="partition 0: 9 is after the end of the log, which is 3"):
        load(topic, endingOffsets=f'{{"{topic}": {{"0": 9, "1": -1}}}}').collect()
    # As Kafka's source does, instead of choosing something for the others.
    with pytest.raises(Exception, match=r"'startingOffsets': name all partitions; .* has \[1\], too \(-2 is earliest"):
        load(topic, startingOffsets=f'{{"{topic}": {{"0": 1}}}}').collect()
    with pytest.raises(Exception, match=r"'endingOffsetsByTimestamp': name all partitions; .* has \[0\], too"):
        load(topic, endingOffsetsByTimestamp=f'{{"{topic}": {{"1": 1}}}}').collect()


def test_several_topics_can_be_named_or_matched_by_a_pattern(load: Load, lake: Lake) -> None:
    one, other = lake.topic(), lake.topic(partitions=2)
    lake.send(one, ["one"])
    lake.send(other, ["left"], 0)
    lake.send(other, ["right"], 1)
    assert texts(load(f"{one},{other}")) == ["left", "one", "right"]
    pattern = "|".join([one, other])
    assert texts(load(subscribePattern=pattern)) == ["left", "one", "right"]
    assert texts(load(assign=f'{{"{other}": [1]}}')) == ["right"]
    stream, name = one.split("/")
    assert texts(load(stream=stream, topic=name)) == ["one"]


def test_a_topic_whose_name_is_a_number_is_not_taken_for_another(load: Load, lake: Lake) -> None:
    topic = lake.topic()
    stream = topic.split("/")[0]
    lake.send(topic, ["of the topic with the id 0"])
    lake.http.post(f"/streams/{stream}/topics", json={"name": "0", "partitions_count": 1}).raise_for_status()
    with pytest.raises(Exception, match=f"'{stream}/0' matches, but the gateway takes 0 for an id"):
        load(subscribePattern=f"{stream}/.*").count()
    assert texts(load(subscribePattern=f"{stream}/[a-z]+")) == ["of the topic with the id 0"]


def test_a_loaded_table_does_not_change_however_often_it_is_used(load: Load, lake: Lake) -> None:
    topic = lake.topic()
    lake.send(topic, [str(n) for n in range(10)])
    frame = load(topic)
    assert frame.count() == 10
    late = frame.filter("offset >= 8")
    assert late.count() == 2
    assert frame.count() == 10
    assert late.union(frame.filter("offset >= 2")).count() == 10
    assert load(lake.topic()).count() == 0


def test_deleted_messages_are_an_error_unless_data_loss_is_allowed(load: Load, lake: Lake) -> None:
    topic = lake.topic(options={"segment_size": "1 MiB"})
    for _ in range(3):
        lake.send(topic, ["x" * 1000] * 1200)
    lake.http.delete(f"{lake.path(topic)}/partitions/0", params={"segments_count": 1}).raise_for_status()
    assert load(topic).count() < 3600
    first = load(topic).orderBy("offset").take(1)[0].offset
    begin = f'{{"{topic}": {{"0": 0}}}}'
    with pytest.raises(Exception, match=rf"partition 0: offset 0 is gone \(server returned {first}\); set failOnData"):
        load(topic, startingOffsets=begin).count()
    assert load(topic, startingOffsets=begin, failOnDataLoss=False).count() == 3600 - first


def test_messages_deleted_after_planning_are_an_error_unless_data_loss_is_allowed(load: Load, lake: Lake) -> None:
    topic = lake.topic(options={"segment_size": "1 MiB"})
    for _ in range(3):
        lake.send(topic, ["x" * 1000] * 1200)
    strict, lenient = load(topic), load(topic, failOnDataLoss=False)
    assert strict.count() == lenient.count() == 3600
    lake.drop_segments(topic, 1)
    first = lake.details(topic)["partitions"][0]["first_offset"]
    with pytest.raises(Exception, match=rf"partition 0: offset 0 is gone \(server returned {first}\)"):
        strict.count()
    assert lenient.count() == 3600 - first
    lake.http.delete(lake.path(topic)).raise_for_status()
    with pytest.raises(Exception, match=r"partition 0: offset 0 is gone \(.* 404 .*; set failOnDataLoss=false"):
        strict.count()
    assert lenient.count() == 0


def test_a_mistake_is_one_sentence_that_says_what_to_do(load: Load, lake: Lake) -> None:
    topic = lake.topic()
    for options, sentence in (
        ({"startingOffset": "earliest"}, "option 'startingoffset' is unknown; did you mean 'startingOffsets'"),
        ({"pageSize": "many"}, "option 'pageSize': 'many': an integer of at least 1 is needed"),
        ({"batchSize": "5"}, "option 'batchSize' is for writing, and this reads"),
        ({"maxBytesPerTrigger": "5m"}, "option 'maxBytesPerTrigger' is not supported yet"),
        ({"maxTriggerDelay": "soon"}, "option 'maxTriggerDelay': 'soon': a duration is needed, such as 90s, 15m or 1h"),
        ({"kafka.bootstrap.servers": "h:9092"}, "'kafka.bootstrap.servers' belongs to Kafka's source; use 'url'"),
        ({"startingOffsets": "latest"}, "'latest' reads nothing from a table"),
        ({"startingOffsets": f'{{"{topic}": {{"0": -1}}}}'}, "'latest' reads nothing from a table"),
        ({"endingOffsets": "earliest"}, "option 'endingOffsets': 'earliest': it is not JSON"),
        ({"endingOffsets": f'{{"{topic}": {{"0": -2}}}}'}, "numbers for the partitions of each topic are needed"),
        ({"path": "orders/eu"}, "name a topic with .option('subscribe', 'stream/topic')"),
    ):
        with pytest.raises(Exception) as refused:
            load(topic, **options).collect()
        assert sentence in str(refused.value)
    with pytest.raises(Exception, match="option 'subscribe' is required"):
        load()
    with pytest.raises(Exception, match="topic 'no/where' does not exist"):
        load("no/where").collect()


def test_sql_can_read_a_topic(spark: SparkSession, lake: Lake) -> None:
    topic = lake.topic()
    lake.send(topic, ["a", "b"])
    options = ", ".join(f"{key} '{value}'" for key, value in {**lake.options, "subscribe": topic}.items())
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW orders USING whippet OPTIONS ({options})")
    assert [row[0] for row in spark.sql("SELECT string(value) FROM orders ORDER BY offset").collect()] == ["a", "b"]
    spark.sql("DROP VIEW orders")
    with pytest.raises(Exception, match="CREATE TABLE is not supported: it would write the options") as refused:
        spark.sql(f"CREATE TABLE orders USING whippet OPTIONS ({options})")
    assert PASSWORD not in str(refused.value)


def test_plans_and_errors_contain_no_secret(spark: SparkSession, load: Load, lake: Lake) -> None:
    frame = load(lake.topic())
    plan = frame._jdf.queryExecution().toString()
    wrong = spark.read.format("whippet").options(**lake.options).option("subscribe", "no/where")
    with pytest.raises(Exception) as refused:
        wrong.option("password", f"{PASSWORD}-wrong").load().collect()
    assert "the login was refused" in str(refused.value)
    assert PASSWORD not in plan + str(refused.value) + repr(frame)


# ------------------------------------------------------------------------------------------------------------- writing


def test_rows_are_written_once_and_can_be_read_back(spark: SparkSession, load: Load, save: Save, lake: Lake) -> None:
    topic = lake.topic(partitions=3)
    save(numbers(spark, 20_000), topic)
    found = load(topic)
    assert texts(found) == sorted(f"value {n}" for n in range(20_000))
    assert found.select("id").distinct().count() == 20_000
    spread = [len(values) for values in lake.values(topic)]
    assert min(spread) > 6_000


def test_equal_rows_are_all_kept(spark: SparkSession, save: Save, lake: Lake) -> None:
    topic = lake.topic(partitions=2)
    save(numbers(spark, 1_000, "'always the same'"), topic)
    assert lake.all_values(topic) == ["always the same"] * 1_000


def test_a_job_that_runs_again_with_the_same_namespace_adds_nothing(
    spark: SparkSession, save: Save, lake: Lake
) -> None:
    topic = lake.topic(partitions=2)
    frame = spark.range(0, 500, 1, 2).selectExpr("id AS number", "concat('value ', id) AS value")
    save(frame, topic, idColumns="number", idNamespace="orders")
    save(frame.orderBy("number", ascending=False), topic, idColumns="number", idNamespace="orders")
    assert len(lake.all_values(topic)) == 500
    save(frame, topic, idColumns="number", idNamespace="others")
    assert len(lake.all_values(topic)) == 1_000


def test_a_copy_of_a_topic_keeps_ids_and_headers(load: Load, save: Save, spark: SparkSession, lake: Lake) -> None:
    source, copy = lake.topic(partitions=3), lake.topic(partitions=2)
    headers = "array(named_struct('key', 'k', 'value', binary('v'), 'kind', 'string'))"
    save(spark.range(100).selectExpr("string(id) AS value", f"{headers} AS headers"), source)
    for _ in range(2):
        # As it is: the columns that the source adds are left out, and there are fewer partitions.
        load(source, includeHeaders=True).write.format("whippet").options(**lake.options).option("topic", copy).save()
    columns = ["id", "value", "headers"]
    key = {row.id: row for row in load(source, includeHeaders=True).select(columns).collect()}
    assert {row.id: row for row in load(copy, includeHeaders=True).select(columns).collect()} == key
    assert len(lake.all_values(copy)) == 100


def test_rows_go_to_the_partition_of_their_partition_or_key_column(spark: SparkSession, save: Save, lake: Lake) -> None:
    topic = lake.topic(partitions=3)
    frame = spark.createDataFrame(
        [("p", 2, None), ("a", None, "a"), ("b", None, "b")], "value string, partition int, key string"
    )
    save(frame, topic)
    # XXH32 of a and b, modulo 3.
    assert lake.values(topic) == [["a"] if 1426945110 % 3 == 0 else [], [], ["p"]] or lake.values(topic)[2][0] == "p"
    for key, number in (("a", 1426945110), ("b", 2718739903)):
        assert key in lake.values(topic)[number % 3]
    with pytest.raises(Exception, match=r"column 'partition': .* has 3 partitions, and none is 7"):
        save(spark.createDataFrame([("p", 7)], "value string, partition int"), topic)


def test_rows_go_to_the_topic_in_their_column(spark: SparkSession, save: Save, lake: Lake) -> None:
    one, other = lake.topic(), lake.topic()
    rows = [(one.split("/")[0], "t", "for one"), (other.split("/")[0], "t", "for the other")]
    save(spark.createDataFrame(rows, "stream string, topic string, value string"))
    save(spark.createDataFrame([(one, "again")], "topic string, value string"))
    assert (lake.all_values(one), lake.all_values(other)) == (["again", "for one"], ["for the other"])
    with pytest.raises(Exception, match=r"column 'topic': 't' is not a topic; stream/topic is needed; or add a column"):
        save(spark.createDataFrame([("t", "nowhere")], "topic string, value string"))


def test_a_missing_topic_is_created_on_request(spark: SparkSession, save: Save, lake: Lake) -> None:
    save(numbers(spark, 10), "made by/spark", createTopic=2)
    assert lake.partitions("made by/spark") == 2
    options = lake.details("made by/spark")["options"]
    assert options["message_deduplication"]["value"] == "true"
    assert int(options["message_deduplication_max_entries"]["value"]) == 1_000_000
    assert len(lake.all_values("made by/spark")) == 10
    with pytest.raises(Exception, match="topic 'made by/nobody' does not exist; create it, or use"):
        save(numbers(spark, 1), "made by/nobody")


def test_requests_are_limited_by_bytes_and_halved_if_the_server_accepts_less(
    spark: SparkSession, save: Save, lake: Lake
) -> None:
    topic = lake.topic()
    save(numbers(spark, 200, "repeat(string(id % 10), 30000)"), topic, maxBatchBytes=10_000_000)
    assert len(lake.all_values(topic)) == 200
    with pytest.raises(Exception, match=r"a message of 2000048 bytes is too large for the server"):
        save(numbers(spark, 1, "repeat('x', 2000000)"), topic)


def test_another_thread_can_write_after_it_has_registered(spark: SparkSession, save: Save, lake: Lake) -> None:
    topic = lake.topic()

    def write() -> None:
        register(spark)
        save(numbers(spark, 10), topic)

    with ThreadPoolExecutor(1) as threads:
        threads.submit(write).result()
    assert len(lake.all_values(topic)) == 10


def test_all_sessions_of_a_process_can_register(spark: SparkSession, lake: Lake) -> None:
    topic = lake.topic()
    lake.send(topic, ["a", "b"])

    def read() -> int:
        register(spark)
        another = spark.newSession()
        register(another)
        return another.read.format("whippet").options(**lake.options).option("subscribe", topic).load().count()

    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(read).result() == 2
    register(spark)


@pytest.mark.parametrize(
    ("column", "sentence"),
    [
        ("'a' AS other, 'b' AS value", "column 'other' cannot be written; .* select to_json"),
        ("'a' AS text", "column 'text' cannot be written"),
        ("'' AS value", "column 'value' is empty; the server refuses empty payloads, and null is a tombstone"),
        ("1 AS value", "column 'value' is int; binary or string is needed"),
        ("'a' AS value, 'no id' AS id", "column 'id': 'no id' is not a valid id"),
    ],
)
def test_rows_that_cannot_become_messages_are_refused(
    spark: SparkSession, save: Save, lake: Lake, column: str, sentence: str
) -> None:
    topic = lake.topic()
    with pytest.raises(Exception, match=sentence):
        save(spark.range(1).selectExpr(column.split(", ")), topic)
    assert lake.all_values(topic) == []


def test_a_log_cannot_be_overwritten(spark: SparkSession, save: Save, lake: Lake) -> None:
    with pytest.raises(Exception, match="use mode\\('append'\\)"):
        save(numbers(spark, 1), lake.topic(), mode="overwrite")
