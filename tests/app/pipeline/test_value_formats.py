"""Payloads as typed columns, through a real Spark, and parsed by themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tests.app.pipeline.conftest import Lake

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'whippet[spark]'")

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KIND = pa.struct(
    [
        pa.field("a", pa.int64()),
        pa.field("s", pa.string()),
        pa.field("f", pa.float64()),
        pa.field("t", pa.timestamp("us", "UTC")),
        pa.field("n", pa.struct([("x", pa.int32())])),
    ]
)
GOOD = [
    b'{"a":1,"s":"x","f":1,"t":"2026-01-01T00:00:00Z","n":{"x":3,"y":4},"unasked":5}',
    b'{"a":\n 7}',
    b"{}",
    b'{"n":null}',
]
BROKEN = [
    b"null",
    b"",
    b" ",
    b"5",
    b"[1]",
    b'{"a":"x"}',
    b'{"a":1.5}',
    b'{"s":5}',
    b'{"t":"nope"}',
    b'{"a":9223372036854775808}',
    b'{"a":1,"a":2}',
    b'{"a":1}{"a":2}',
    b'{"a":1,',
    b'"s":"q"}',
    b'{}}{"v":{}',
    b'{"n":[{}',
    b'{"s":"',
    b'"}',
    b'{"s":"a\nb"}',
    b"\xff",
    b'{"s":"\xff"}',
]


@pytest.mark.parametrize("order", [1, -1])
def test_a_broken_payload_spoils_no_other_and_is_never_taken_for_two(order: int) -> None:
    from app.pipeline import values  # noqa: PLC0415 -- it needs pyarrow

    payloads = [payload for pair in zip(BROKEN, GOOD * 6, strict=False) for payload in pair][::order]
    structs, corrupt = values.json(pa.array(payloads, pa.binary()), KIND)
    assert corrupt.tolist() == [payload in BROKEN for payload in payloads]
    assert [each["a"] for each in structs.to_pylist() if each].count(7) == payloads.count(GOOD[1])
    assert values.corrupt(pa.array(payloads, pa.binary()), corrupt).drop_null().to_pylist() == (BROKEN[::order])


def test_json_values_are_typed_columns(load: Callable[..., DataFrame], lake: Lake) -> None:
    topic = lake.topic()
    lake.send(topic, ['{"id":1,"name":"a","at":"2026-01-01T00:00:00Z","tags":["x"]}', "broken", '{"id":2}'])
    typed = "id bigint, name string, at timestamp, tags array<string>"
    frame = load(topic, valueFormat="json", valueSchema=typed)
    rows = frame.orderBy("offset").select("value.*", "_corrupt").collect()
    assert [(row.id, row.name, row.tags, row._corrupt) for row in rows] == [
        (1, "a", ["x"], None),
        (None, None, None, b"broken"),
        (2, None, None, None),
    ]
    assert rows[0]["at"].timestamp() == 1767225600
    own = load(topic, schema="offset bigint, value struct<name: string>", valueFormat="json").collect()
    assert [(row.offset, row.value and row.value.name) for row in own] == [(0, "a"), (1, None), (2, None)]
    assert load(topic, schema="_corrupt binary", valueFormat="json").where("_corrupt is not null").count() == 1
    with pytest.raises(Exception, match=r"field 'value.on' is date, which valueFormat=json does not read; use string"):
        load(topic, valueFormat="json", valueSchema="on date").collect()


def test_values_that_are_texts_are_strings(load: Callable[..., DataFrame], lake: Lake) -> None:
    topic = lake.topic()
    lake.send_json(topic, [{"payload": "/w=="}, {"payload": "w7xiZXI="}])
    rows = load(topic, valueFormat="string").orderBy("offset").collect()
    assert [(row.value, row._corrupt) for row in rows] == [(None, b"\xff"), ("über", None)]
