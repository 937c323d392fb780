"""What Kafka's source and sink of Spark do, row by row of the table in docs/spark.md: tests of what no other module
tests, and a list of all of them."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FOLDER = Path(__file__).parent
PAGE = FOLDER.parents[1] / "docs" / "spark.md"
ROWS = {
    "`subscribe`, `subscribePattern`, `assign`": "test_several_topics_can_be_named_or_matched_by_a_pattern",
    "offsets and times where to start and end": "test_offsets_and_times_select_where_to_start_and_end",
    "`failOnDataLoss`": "test_a_purge_or_a_new_topic_is_noticed_wherever_it_comes",
    "`maxOffsetsPerTrigger`": "test_existing_messages_are_read_in_batches_of_the_limit_and_then_new_ones",
    "`minOffsetsPerTrigger`, `maxTriggerDelay`": (
        "test_a_batch_waits_for_the_least_number_of_messages_or_for_the_longest_delay"
    ),
    "the first batch": "test_the_first_batch_has_rows_and_its_replay_begins_where_it_began",
    "`includeHeaders`": "test_ids_above_64_bits_and_headers_of_all_kinds_are_read",
    "columns `key`, `value`, `timestampType`": "test_keys_and_tombstones_are_written_read_and_copied",
    "null values": "test_keys_and_tombstones_are_written_read_and_copied",
    "columns `topic`, `partition` of the sink": "test_rows_go_to_the_topic_in_their_column",
    "other columns of the sink": "test_a_copy_of_a_topic_keeps_ids_and_headers",
    "output modes": "test_complete_results_are_appended_and_updates_are_refused_by_spark",
    "`kafka.group.id`, `groupIdPrefix`": "test_offsets_are_stored_for_the_named_consumer",
    "`sources[].metrics`, description": "test_the_listener_and_the_server_report_the_same_lag",
    "`kafka.*`": "test_a_mistake_is_one_sentence_that_says_what_to_do",
    "writing again after a failure": "test_a_replayed_batch_is_written_once",
}
Load = Callable[..., "DataFrame"]
Save = Callable[..., None]


def test_every_row_of_the_table_has_a_test() -> None:
    section = PAGE.read_text().partition("## As with Kafka\n")[2].partition("\n## ")[0]
    rows = [line.split(" | ")[0].removeprefix("| ") for line in section.splitlines() if line.startswith("| ")]
    assert rows[2:] == list(ROWS)
    modules = [ast.parse(path.read_text()) for path in FOLDER.glob("test_*.py")]
    there = {item.name for module in modules for item in module.body if isinstance(item, ast.FunctionDef)}
    assert set(ROWS.values()) <= there


def test_keys_and_tombstones_are_written_read_and_copied(
    spark: SparkSession, load: Load, save: Save, lake: Lake
) -> None:
    topic, copy = lake.topic(partitions=2), lake.topic(partitions=2)
    entry = "array(named_struct('key', 'h', 'value', binary('v'), 'kind', 'string'))"
    frame = spark.createDataFrame(
        [(0, '{"n": 1}', "a"), (1, None, "a"), (2, "null", "a"), (3, '{"n": 3}', None), (4, None, "b")],
        "number int, value string, key string",
    )
    frame = frame.selectExpr("value", "key", f"CASE WHEN number IN (0, 4) THEN {entry} END AS headers")
    save(frame, topic)
    load(topic, includeHeaders=True).write.format("whippet").options(**lake.options, topic=copy).save()

    def rows(of: str) -> list[tuple[object, ...]]:
        found = load(of, includeHeaders=True).selectExpr(
            "string(value) AS value", "string(key) AS key", "transform(headers, each -> each.key) AS names", "id",
            "timestampType",
        )  # fmt: skip
        return sorted(map(tuple, found.collect()), key=repr)

    written = rows(topic)
    assert sorted([row[:3] for row in written], key=repr) == sorted(
        [
            ('{"n": 1}', "a", ["h"]),
            (None, "a", None),
            ("null", "a", None),
            ('{"n": 3}', None, None),
            (None, "b", ["h"]),
        ],
        key=repr,
    )
    assert {row[4] for row in written} == {1}
    assert rows(copy) == written
    # Readers that know nothing of this see JSON's null, and the marks among the headers.
    assert lake.all_values(topic) == ["null", "null", "null", '{"n": 1}', '{"n": 3}']
    parsed = load(topic, valueFormat="json", valueSchema="n int").selectExpr("value.n", "_corrupt IS NULL", "key")
    assert sorted(map(tuple, parsed.collect()), key=repr) == sorted(
        [(1, True, b"a"), (None, True, b"a"), (None, False, b"a"), (3, True, None), (None, True, b"b")], key=repr
    )


def test_complete_results_are_appended_and_updates_are_refused_by_spark(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    source, results = lake.topic(), lake.topic()
    lake.send(source, ["a", "b", "a"])

    def run(mode: str, to: str) -> None:
        reader = spark.readStream.format("whippet").options(**lake.options)
        reader = reader.options(subscribe=source, startingOffsets="earliest")
        counts = reader.load().groupBy("value").count().selectExpr("concat(string(value), count) AS value")
        writer = counts.writeStream.format("whippet").options(**lake.options, topic=to).outputMode(mode)
        query = writer.option("checkpointLocation", str(tmp_path / mode)).trigger(availableNow=True).start()
        assert query.awaitTermination(60)

    run("complete", results)
    lake.send(source, ["b"])
    run("complete", results)
    assert lake.all_values(results) == ["a2", "a2", "b1", "b2"]
    with pytest.raises(Exception, match="whippet does not support Update mode"):
        run("update", results)
