"""The result of each transform, with a real Spark."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: install whippet-gateway[spark]")

from whippet.pipelines import pipeline_file, transform_chain
from whippet.pipelines.errors import FileError
from whippet.pipelines.transform_chain import Analysis

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIELDS = (
    "id bigint, name string, ok boolean, at timestamp, tags array<string>, "
    "address struct<city: string, geo: struct<x: double>>"
)
RECORDS = [
    (1, "ann", True, datetime(2026, 1, 1, tzinfo=UTC), ["a", "b"], ("Rome", (1.5,))),
    (2, None, False, datetime(2026, 1, 2, tzinfo=UTC), [], ("Bonn", None)),
    (30, "bob", None, None, None, None),
]
NOW = datetime(2026, 7, 1, 12, 0, 0, 250_000, tzinfo=UTC)
Rows = list[dict[str, Any]]
TIMES = r"2026-07-01T12:00:00.250000Z"


def transforms(text: str) -> Any:
    source = '[source]\ntype = "random"\n'
    return pipeline_file.read(f'key = "job"\n{source}[sink]\ntype = "stdout"\n{text}').transforms


@pytest.fixture
def made(spark: SparkSession) -> Callable[[str], Rows]:
    """Applies the transforms of a file to the records above; null fields are left out, as in JSON."""

    def run(text: str) -> Rows:
        from pyspark.sql import functions as F  # noqa: N812, PLC0415

        from whippet.pipelines.record_columns import TIMES as WRITTEN  # noqa: PLC0415
        from whippet.pipelines.transforms.computed import BatchContext  # noqa: PLC0415

        frame = spark.createDataFrame(RECORDS, FIELDS).coalesce(1)
        moment = BatchContext(F.lit(NOW), F.concat(F.lit("batch 7 "), F.monotonically_increasing_id()))
        result = transform_chain.apply(frame, transforms(text), moment)
        return [json.loads(row[0]) for row in result.select(F.to_json(F.struct("*"), WRITTEN)).collect()]

    return run


def test_fields_are_added_deleted_and_updated(made: Callable[[str], Rows]) -> None:
    rows = made("""
        [[transforms]]
        type = "add_fields"
        fields = [
            {key = "region", value.static = "eu"}, {key = "n", value.static = {a = 1, b = [1.5, 2.5]}},
            {key = "name", value.static = "x"}, {key = "when", value.computed = "timestamp_millis"},
        ]
        [[transforms]]
        type = "update_fields"
        fields = [
            {key = "id", value.static = 9, condition = "always"},
            {key = "ok", value.static = true, condition = "key_not_exists"},
            {key = "nowhere", value.static = 1, condition = "key_exists"},
            {key = "address", value.static = {city = "Oslo", geo = {x = 2.0}}, condition = "key_exists"},
            {key = "new", value.static = 5, condition = "key_not_exists"},
        ]
        [[transforms]]
        type = "delete_fields"
        fields = ["tags", "at"]
    """)
    common = {"id": 9, "name": "x", "region": "eu", "n": {"a": 1, "b": [1.5, 2.5]}, "when": 1782907200250, "new": 5}
    oslo = {"city": "Oslo", "geo": {"x": 2.0}}
    assert rows == [
        {**common, "ok": True, "address": oslo},
        {**common, "ok": False, "address": oslo},
        {**common, "ok": True},
    ]


def test_computed_values_have_their_formats_and_are_repeatable(made: Callable[[str], Rows]) -> None:
    kinds = {
        "date_time": r"2026-07-01T12:00:00\.250000Z",
        "timestamp_nanos": "1782907200250000000",
        "timestamp_micros": "1782907200250000",
        "timestamp_millis": "1782907200250",
        "timestamp_seconds": "1782907200",
        "uuid_v4": "[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}",
        "uuid_v7": "[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}",
    }
    fields = ", ".join(f'{{key = "{kind}", value.computed = "{kind}"}}' for kind in kinds)
    keep = f"[transforms.filter_fields]\nkeep_fields = {json.dumps([*kinds])}"
    text = f"[transforms.add_fields]\nfields = [{fields}]\n{keep}"
    rows = made(text)
    for row in rows:
        assert list(row) == list(kinds)
        for kind, form in kinds.items():
            assert re.fullmatch(form, str(row[kind])), (kind, row[kind])
        assert int(row["uuid_v7"].replace("-", "")[:12], 16) == 1782907200250
    for kind in ("uuid_v4", "uuid_v7"):
        assert len({row[kind] for row in rows}) == len(rows), "no two rows have the same"
    assert made(text) == rows, "a replay has the same"


FILTERS = [
    ("", {"id", "name", "ok", "at", "tags", "address"}),
    ('keep_fields = ["id", "at"]', {"id", "at"}),
    ('patterns = [{key_pattern = {starts_with = "a"}}]', {"at", "address"}),
    ('keep_fields = ["id"]\npatterns = [{key_pattern = {exact = "ok"}}]', {"id", "ok"}),
    ('include_matching = false\npatterns = [{key_pattern = {regex = "^(a|t)"}}]', {"id", "name", "ok"}),
    ('patterns = [{key_pattern = {ends_with = "s"}}, {key_pattern = {contains = "am"}}]', {"tags", "address", "name"}),
    ('patterns = [{value_pattern = "is_string"}]', {"name"}),
    ('patterns = [{value_pattern = "is_array"}, {value_pattern = "is_object"}]', {"tags", "address"}),
    ('patterns = [{value_pattern = "is_number"}, {value_pattern = "is_boolean"}]', {"id", "ok"}),
]


@pytest.mark.parametrize(("text", "kept"), FILTERS, ids=range(len(FILTERS)))
def test_fields_are_filtered_by_name_and_type(spark: SparkSession, text: str, kept: set[str]) -> None:
    analysis = transform_chain.analyse(
        spark.createDataFrame([], FIELDS), transforms(f"[transforms.filter_fields]\n{text}")
    )
    assert set(analysis.schema.names) == kept


def test_fields_are_filtered_by_their_values(made: Callable[[str], Rows]) -> None:
    def ids(pattern: str, more: str = "") -> list[dict[str, Any]]:
        text = (
            f'[transforms.delete_fields]\nfields = ["ok", "at", "tags", "address"]\n[transforms.filter_fields]\n{more}'
        )
        return made(f"{text}\npatterns = [{pattern}]")

    assert ids("{value_pattern = {greater_than = 1}}") == [{}, {"id": 2}, {"id": 30}]
    assert ids("{value_pattern = {between = [1, 2]}}") == [{"id": 1}, {"id": 2}, {}]
    assert ids('{key_pattern = {exact = "id"}, value_pattern = {less_than = 2}}') == [{"id": 1}, {}, {}]
    assert ids('{value_pattern = {contains = "nn"}}, {value_pattern = {equals = 30}}') == [
        {"name": "ann"},
        {},
        {"id": 30},
    ]
    assert ids('{value_pattern = {regex = "^b"}}', "include_matching = false") == [
        {"id": 1, "name": "ann"},
        {"id": 2},
        {"id": 30},
    ]
    assert ids('{value_pattern = "is_not_null"}') == [{"id": 1, "name": "ann"}, {"id": 2}, {"id": 30, "name": "bob"}]
    assert ids('{value_pattern = "is_null"}') == [{}, {}, {}]


def test_structs_become_fields(made: Callable[[str], Rows]) -> None:
    keep = '[transforms.filter_fields]\nkeep_fields = ["id", "address"]\n'
    rows = made(f'{keep}[transforms.flatten]\nseparator = "."')
    assert rows == [
        {"id": 1, "address.city": "Rome", "address.geo.x": 1.5},
        {"id": 2, "address.city": "Bonn"},
        {"id": 30},
    ]


def test_statements_see_the_records_as_a_table_called_input(made: Callable[[str], Rows]) -> None:
    rows = made("""
        [[transforms]]
        type = "sql"
        query = "SELECT id, explode(tags) AS tag FROM input WHERE id < 10"
        [[transforms]]
        type = "sql"
        query = "WITH loud AS (SELECT upper(tag) AS tag, id FROM input) SELECT tag FROM loud"
    """)
    assert rows == [{"tag": "A"}, {"tag": "B"}]


REFUSED = [
    (
        '[transforms.delete_fields]\nfields = ["nmae"]',
        r"1 \(delete_fields\): there is no field 'nmae'; did you mean 'name'\?",
    ),
    ('[transforms.sql]\nquery = "SELEC id FROM input"', r"1 \(sql\): Syntax error at or near 'SELEC'"),
    ('[transforms.sql]\nquery = "SELECT nme FROM input"', r"1 \(sql\): A column.* with name `nme` cannot be resolved"),
    ('[transforms.sql]\nquery = "SELECT id AS _row FROM input"', r"'_row' is a reserved name"),
    ('[transforms.sql]\nquery = "SELECT id, name AS id FROM input"', "two fields are named 'id'"),
    (
        '[transforms.sql]\nquery = "SELECT count(*) AS n FROM input"',
        "it combines records, .* set 'time_field' and",
    ),
    ('[transforms.sql]\nquery = "SELECT * FROM input ORDER BY id"', "Sort is not possible on a stream of records"),
    ('[transforms.sql]\nquery = "SELECT * FROM input LIMIT 5"', "Limit is not possible on a stream of records"),
    (
        '[transforms.sql]\nquery = "SELECT id, (SELECT max(id) FROM input) AS most FROM input"',
        "a subquery would see only one batch, not all records",
    ),
    (
        '[transforms.window]\ntime_field = "name"\nsize = "1 m"\nwatermark = "1 m"\naggregates = {n = "count(*)"}',
        "field 'name' is string; a timestamp is needed",
    ),
    (
        '[transforms.window]\ntime_field = "at"\nsize = "1 m"\nwatermark = "1 m"\naggregates = {n = "cuont(*)"}',
        r"1 \(window\): Cannot resolve routine `cuont`",
    ),
    (
        '[transforms.deduplicate]\nfields = ["id"]\ntime_field = "at"\nwatermark = "1 h"\n'
        '[transforms.window]\ntime_field = "at"\nsize = "1 m"\nwatermark = "1 m"\naggregates = {n = "count(*)"}',
        r"2 \(window\): a pipeline has one 'time_field' and one 'watermark': use those of \[\[transforms\]\] 1",
    ),
    (
        '[transforms.update_fields]\nfields = [{key = "tags", value.static = 5}]',
        r"1 \(update_fields\): Cannot resolve .* cannot cast",
    ),
]


@pytest.mark.parametrize(("text", "sentence"), REFUSED, ids=range(len(REFUSED)))
def test_transforms_that_a_stream_does_not_support_are_refused_before_the_start(
    spark: SparkSession, text: str, sentence: str
) -> None:
    with pytest.raises(FileError, match=sentence) as error:
        transform_chain.analyse(spark.createDataFrame([], FIELDS), transforms(text))
    assert "\n" not in str(error.value)


def test_the_analysis_knows_which_transforms_keep_state_and_which_are_one_to_one(spark: SparkSession) -> None:
    def found(text: str) -> Analysis:
        return transform_chain.analyse(spark.createDataFrame([], FIELDS), transforms(text))

    plain = found('[transforms.sql]\nquery = "SELECT id FROM input WHERE ok"')
    assert (plain.keeps_state, plain.is_one_to_one, plain.can_fail) == (False, True, True)
    more = found('[transforms.sql]\nquery = "SELECT explode(tags) FROM input"')
    assert (more.keeps_state, more.is_one_to_one) == (False, False)
    assert not found("[transforms.flatten]").can_fail
    late = 'time_field = "at"\nwatermark = "1 hour"\n'
    for text in (
        f'[transforms.deduplicate]\nfields = ["id"]\n{late}',
        f'[transforms.window]\nsize = "1 hour"\naggregates = {{n = "count(*)"}}\n{late}',
        f"[transforms.sql]\nquery = \"SELECT count(*) n FROM input GROUP BY window(at, '1 hour')\"\n{late}",
    ):
        assert found(text).keeps_state
        assert not found(text).is_one_to_one
