"""Payloads as typed columns, with a real Spark and without."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.lake import Lake

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: install whippet-gateway[spark]")

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
    b'{"a":1},"x":3',
    b'{"a":1} ,\n"v":{"a":2}',
    b'{"a":1}],"x":[3',
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
def test_a_broken_payload_affects_no_other_and_never_counts_as_two(order: int) -> None:
    from pyspark_whippet import payloads  # noqa: PLC0415 -- it needs pyarrow

    sent = [payload for pair in zip(BROKEN, GOOD * 7, strict=False) for payload in pair][::order]
    structs, corrupt = payloads.parse_json(pa.array(sent, pa.binary()), KIND)
    assert corrupt.tolist() == [payload in BROKEN for payload in sent]
    assert [each["a"] for each in structs.to_pylist() if each].count(7) == sent.count(GOOD[1])
    assert payloads.corrupt_payloads(pa.array(sent, pa.binary()), corrupt).drop_null().to_pylist() == (BROKEN[::order])


def test_json_values_become_typed_columns(load: Callable[..., DataFrame], lake: Lake) -> None:
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
    with pytest.raises(
        Exception, match=r"field 'value.on' is date, which valueFormat=json does not support; use string"
    ):
        load(topic, valueFormat="json", valueSchema="on date").collect()


def test_text_values_become_strings(load: Callable[..., DataFrame], lake: Lake) -> None:
    topic = lake.topic()
    lake.send_json(topic, [{"payload": "/w=="}, {"payload": "w7xiZXI="}])
    rows = load(topic, valueFormat="string").orderBy("offset").collect()
    assert [(row.value, row._corrupt) for row in rows] == [(None, b"\xff"), ("über", None)]


# ----------------------------------------------------------------------------------------------------------------- Avro

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "ms", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "us", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["OPEN", "DONE"]}},
        {"name": "before", "type": ["null", "State"]},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
        {"name": "place", "type": {"type": "record", "name": "Place", "fields": [{"name": "lat", "type": "double"}]}},
        {"name": "key", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "clock", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "number", "type": ["int", "long"]},
        {"name": "mark", "type": {"type": "fixed", "name": "Mark", "size": 2}},
    ],
}
TIME = datetime(2026, 1, 31, 12, 0, 0, 123000, UTC)
FIRST = {
    "id": 1,
    "note": "über",
    "ms": TIME,
    "us": TIME,
    "day": date(2026, 1, 31),
    "price": Decimal("12.34"),
    "state": "DONE",
    "before": "OPEN",
    "tags": ["a", "b"],
    "counts": {"x": 1},
    "place": {"lat": 0.5},
    "key": "1e5483a7-4b50-4c41-8d40-5c7cbf2c3d8d",
    "clock": 1000,
    "number": 2**40,
    "mark": b"ab",
}
SECOND = {**FIRST, "id": 2, "note": None, "before": None, "tags": [], "counts": {}, "number": 7}


def packed(schema: Any, *rows: Any) -> list[bytes]:
    fastavro = pytest.importorskip("fastavro", reason="fastavro is not installed: install whippet-gateway[spark]")
    payloads = []
    for row in rows:
        stream = BytesIO()
        fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), row)
        payloads.append(stream.getvalue())
    return payloads


def test_avro_values_become_typed_columns(load: Callable[..., DataFrame], lake: Lake, tmp_path: Path) -> None:
    topic = lake.topic()
    good = packed(ORDER, FIRST, SECOND)
    payloads = [good[0], b"\x00broken", good[1], good[0] + b"more", good[1][:-1]]
    lake.send_json(topic, [{"payload": base64.b64encode(payload).decode()} for payload in payloads])
    file = tmp_path / "order.avsc"
    file.write_text(json.dumps(ORDER))
    frame = load(topic, valueFormat="avro", valueSchema=file).orderBy("offset")
    assert frame.schema["value"].dataType.simpleString() == (
        "struct<id:bigint,note:string,ms:timestamp,us:timestamp,day:date,price:decimal(9,2),state:string,"
        "before:string,tags:array<string>,counts:map<string,int>,place:struct<lat:double>,key:string,clock:int,"
        "number:bigint,mark:binary>"
    )
    rows = frame.collect()
    assert [row._corrupt for row in rows] == [None, payloads[1], None, payloads[3], payloads[4]]
    first, second = (row.value.asDict(recursive=True) for row in rows if row.value is not None)
    for found, expected in ((first, FIRST), (second, SECOND)):
        for name in ("ms", "us"):
            assert found.pop(name).astimezone(UTC) == TIME
        assert found == {name: value for name, value in expected.items() if name not in ("ms", "us")}
    part = load(topic, schema="value struct<id: bigint>", valueFormat="avro", valueSchema=json.dumps(ORDER))
    assert [row.value and row.value.id for row in part.collect()] == [1, None, 2, None, None]
    broken = load(topic, schema="_corrupt binary", valueFormat="avro", valueSchema=json.dumps(ORDER))
    assert broken.where("_corrupt is not null").count() == 3
    with pytest.raises(Exception, match=r"column 'value' is struct<id:bigint,.*, not struct<nothing:int>"):
        load(topic, schema="value struct<nothing: int>", valueFormat="avro", valueSchema=json.dumps(ORDER)).collect()


def test_bytes_of_another_schema_never_stop_a_query() -> None:
    from pyspark.sql.pandas.types import to_arrow_type  # noqa: PLC0415

    from pyspark_whippet import avro  # noqa: PLC0415 -- it needs pyarrow

    (good,) = packed(ORDER, FIRST)
    chances = random.Random(1)
    payloads = []
    for _ in range(3_000):
        spoilt = bytearray(good[: chances.randrange(1, len(good) + 1)])
        spoilt[chances.randrange(len(spoilt))] = chances.randrange(256)
        payloads.append(bytes(spoilt))
    kind = to_arrow_type(avro.column_type(json.dumps(ORDER)), timezone="UTC")
    found, broken = avro.parse(pa.array([good, *payloads], pa.binary()), json.dumps(ORDER), kind)
    assert len(found) == len(payloads) + 1
    assert not broken[0]
    assert broken.sum() > 1_000
    assert found.is_null().to_pylist() == broken.tolist()
    # A varint may hold a number that is too large for its declared type.
    found, broken = avro.parse(pa.array(packed("long", 5, 2**40, 6), pa.binary()), '"int"', pa.int32())
    assert (found.to_pylist(), broken.tolist()) == ([5, None, 6], [False, True, False])


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        ("nowhere.avsc", "'nowhere.avsc' is neither JSON nor a readable file"),
        ("{", "is not a valid Avro schema"),
        ('{"type": "nonsense"}', "is not a valid Avro schema"),
        ('"null"', "value is always null"),
        ('["string", "long"]', "value is a union of 2 types; only one type and null can be a column"),
        (
            '{"type": "record", "name": "R", "fields": [{"name": "r", "type": ["null", "R"]}]}',
            "value.r is R, which contains itself",
        ),
        ('{"type": "bytes", "logicalType": "decimal", "precision": 50}', "value is a decimal with 50 digits"),
    ],
)
def test_schemas_without_a_column_type_are_refused(schema: str, sentence: str) -> None:
    from pyspark_whippet import columns  # noqa: PLC0415
    from pyspark_whippet.errors import OptionError  # noqa: PLC0415
    from pyspark_whippet.options import decode  # noqa: PLC0415

    with pytest.raises(OptionError) as refused:
        columns.schema(decode({"subscribe": "s/t", "valueFormat": "avro", "valueSchema": schema}, {}))
    assert sentence in str(refused.value)
