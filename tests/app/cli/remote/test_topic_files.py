"""`whippet export topic` and `import topic`: nothing is lost, and what is wrong is named."""

from __future__ import annotations

import io
import json
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from tests.app.cli.remote.support.commands import PASSWORD, USER, Whippet
from tests.support.running import run
from whippet.app.cli.main import main
from whippet.app.cli.remote import topic_reading, topic_tables
from whippet.app.cli.remote.importing import split_by_origin
from whippet.app.cli.remote.topic_records import (
    HEADERS_BYTES_MAX,
    BadRow,
    Record,
    headers_of,
    line_of,
    record_of_line,
)
from whippet.app.client import Client
from whippet.app.client.commands import to_partition
from whippet.storage.batch import TIME_SPAN_MAX_US, Message

FORMATS = ("ndjson", "parquet", "arrow")
INTEGERS = {4: "b", 5: "h", 6: "i", 7: "q", 9: "B", 10: "H", 11: "I", 12: "Q"}


@pytest.fixture
def topic(whippet: Whippet) -> Iterator[str]:
    whippet("stream", "create", "files")
    for name in ("a", "b"):
        whippet("topic", "create", "files", name, "3")
    yield "files/a"
    whippet("stream", "delete", "files", "--yes")


def header(key: bytes, kind: int, value: bytes, key_kind: int = 2) -> bytes:
    return struct.pack("<BI", key_kind, len(key)) + key + struct.pack("<BI", kind, len(value)) + value


@st.composite
def header_blocks(draw: st.DrawFn) -> bytes:
    """Blocks of every kind, and some that are none."""
    parts = []
    for _ in range(draw(st.integers(0, 4))):
        kind = draw(st.integers(1, 15))
        size = {2: None, 1: None, 3: 1, 8: 16, 13: 16, 14: 4, 15: 8}.get(kind) or None
        if kind in INTEGERS:
            size = struct.calcsize(INTEGERS[kind])
        value = draw(st.binary(min_size=size or 1, max_size=size or 30))
        if kind == 2 and draw(st.booleans()):
            value = draw(st.text(min_size=1, max_size=20)).encode()
        key = draw(st.binary(min_size=1, max_size=8) | st.sampled_from([b"source", "größe".encode()]))
        parts.append(header(key, kind, value, draw(st.sampled_from([2, 2, 2, 1]))))
    return draw(st.just(b"".join(parts)) | st.binary(max_size=20))


JSON_LIKE = st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(), st.lists, max_leaves=5)
PAYLOADS = (
    st.binary(min_size=1, max_size=80)
    | st.text(min_size=1, max_size=40).map(str.encode)
    | st.lists(JSON_LIKE).map(lambda value: json.dumps(value).encode())
    | st.sampled_from(
        [b'{"a":1e400}', b'{"a":1,"a":2}', b"[1\n]", b"{ }", b"[" * 2000 + b"]" * 2000, b'["\x1b"]', b"[\t]"]
    )
)
RECORDS = st.builds(
    Record,
    st.integers(0, 2),
    st.integers(0, 2**63),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**63 - 1),
    st.integers(1, 2**128 - 1),
    header_blocks(),
    PAYLOADS,
)


@given(RECORDS)
def test_a_line_has_everything_of_a_message(record: Record) -> None:
    line = line_of(record)
    assert b"\n" not in line
    assert json.loads(line)["offset"] == record.offset
    assert record_of_line(line) == record


@given(st.lists(RECORDS, max_size=5), st.sampled_from(["parquet", "arrow"]), st.booleans())
def test_a_table_has_everything_of_a_message(records: list[Record], form: str, as_stream: bool) -> None:
    file = io.BytesIO()
    with topic_tables.Table(file, form, as_stream=as_stream) as table:
        table.add(records)
    assert list(topic_tables.read(io.BytesIO(file.getvalue()), "file", form)) == records


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_a_table_that_was_not_finished_does_not_look_complete(form: str) -> None:
    file = io.BytesIO()
    record = Record(0, 0, 1, 1, 1, b"", b"x")

    def fail_within() -> None:
        with topic_tables.Table(file, form, as_stream=False) as table:
            table.add([record] * topic_tables.ROWS)
            table.add([record])
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        fail_within()
    assert file.getvalue()
    assert not file.closed
    with pytest.raises(Exception, match="file"):
        list(topic_tables.read(io.BytesIO(file.getvalue()), "file", form))


def test_headers_are_readable_with_their_kinds() -> None:
    block = (
        header(b"n", 11, b"\7\0\0\0") + header(b"r", 1, b"\xff") + header(b"t", 3, b"\1") + header(b"f", 15, bytes(8))
    )
    named = headers_of(block)
    assert named is not None
    assert [(each.key, each.kind, each.value) for each in named] == [
        ("n", "uint32", "7"),
        ("r", "raw", "/w=="),
        ("t", "bool", "true"),
        ("f", "float64", "0.0"),
    ]


def nasty() -> list[tuple[int, Message]]:
    """Messages that are easily changed on the way, and their partitions."""
    payloads = [
        b"plain",
        b"\xff\x00",
        b'{"a": 1}',
        b'{"a":1,"b":[2]}',
        "größe\x1b".encode(),
        b" \n ",
        b"1",
        b'"x"',
        b"x" * 70_000,
    ]
    blocks = [
        b"",
        header(b"n", 11, b"\7\0\0\0"),
        header(b"k", 2, b"v") + header(b"r", 1, b"\0\xff"),
        header(b"f", 14, b"\0\0\xc0\x7f"),
    ]
    hour = 3_600_000_000
    return [
        (
            i % 3,
            Message(payloads[i % len(payloads)], 2**127 + i, blocks[i % len(blocks)], 1_700_000_000_000_000 - i * hour),
        )
        for i in range(60)
    ]


def send(address: str, topic: str) -> None:
    stream, name = topic.split("/")

    async def send_all() -> None:
        async with await Client.connect(f"iggy://{USER}:{PASSWORD}@{address}") as client:
            for partition, message in nasty():
                await client.send_messages(stream, name, [message], to_partition(partition))

    run(send_all())


def without_times(file: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "timestamp"} for row in rows]


@pytest.mark.parametrize("form", FORMATS)
def test_what_is_exported_imported_and_exported_is_the_same(
    form: str, whippet: Whippet, topic: str, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_reading, "POLLED", 7)
    send(address, topic)
    file, again = tmp_path / f"a.{form}", tmp_path / "b.ndjson"
    exported = whippet("export", "topic", topic, str(file), "--output", "json").json
    assert (exported["messages_count"], exported["format"]) == (60, form)
    assert whippet("import", "topic", "files/b", str(file), "--output", "json").json["messages_count"] == 60
    whippet("export", "topic", topic, str(tmp_path / "a.jsonl"))
    whippet("export", "topic", "files/b", str(again))
    assert without_times(again) == without_times(tmp_path / "a.jsonl")
    assert [int(row["id"]) for row in without_times(again)] == [
        message.id for number in range(3) for partition, message in nasty() if partition == number
    ]
    assert not list(tmp_path.glob("*.part"))


def test_an_export_has_bounds(whippet: Whippet, topic: str, address: str, capsys: pytest.CaptureFixture[str]) -> None:
    send(address, topic)

    def offsets(*words: str) -> list[tuple[int, int]]:
        rows = [json.loads(line) for line in whippet("export", "topic", topic, "-", *words).out.splitlines()]
        return [(row["partition_id"], row["offset"]) for row in rows]

    assert offsets("-p", "1", "--from", "3", "--to", "6") == [(1, 3), (1, 4), (1, 5)]
    assert offsets("--from", "-1") == [(0, 19), (1, 19), (2, 19)]
    assert offsets("--from", "1h-ago", "--to", "1") == [(0, 0), (1, 0), (2, 0)]
    assert offsets("--to", "1h-ago") == offsets("--from", "20") == offsets("--from", "end") == []
    whippet("export", "topic", topic, "-", "-p", "7", code=3)
    whippet("export", "topic", "no/topic", "-", code=3)
    assert "no place to begin" in whippet("export", "topic", topic, "-", "--to", "soon", code=2).err


def test_a_file_appears_only_when_it_is_complete(
    whippet: Whippet, topic: str, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(address, topic)
    file = tmp_path / "out.ndjson"
    file.write_text("before")
    assert "--yes" in whippet("export", "topic", topic, str(file), code=2).err
    with monkeypatch.context() as failing:
        failing.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        assert "No space left" in whippet("export", "topic", topic, str(file), "--yes", code=1).err
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["out.ndjson"]
    assert file.read_text() == "before"
    whippet("export", "topic", topic, str(file), "--yes")
    assert file.read_text().count("\n") == 60
    whippet("export", "topic", topic, "/dev/null", "--format", "parquet")
    assert os.path.exists("/dev/null")
    assert not os.path.isfile("/dev/null")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"payload":"x"', "line 2"),
        ("{}", "payload"),
        ('{"payload":""}', "1 to 64000000"),
        ('{"payload":"x","key":"k"}', "unknown field `key`"),
        ('{"payload":"x","id":"abc"}', "the id is not a number"),
        ('{"payload":"x","id":"' + "9" * 40 + '"}', "id is 0 to"),
        ('{"payload":"!","encoding":"base64"}', "line 2"),
        ('{"payload":"x","encoding":"utf-16"}', "there is no encoding 'utf-16'"),
        ('{"payload":"x","headers":[{"key":"k","kind":"uint8","value":"300"}]}', "is no uint8"),
        ('{"payload":"x","headers":[{"key":"k","kind":"date","value":"1"}]}', "no kind 'date'"),
        ('{"payload":"x","headers":[{"key":"","kind":"string","value":"1"}]}', "1 to 255 bytes"),
        ('{"payload":"x","partition_id":3}', "partition create"),
        ('{"payload":"x","partition_id":-1}', "partition_id is 0 to"),
    ],
)
def test_a_line_that_is_wrong_is_named_and_nothing_is_sent(
    line: str, reason: str, whippet: Whippet, topic: str, tmp_path: Path
) -> None:
    file = tmp_path / "in.ndjson"
    file.write_text('{"payload":"good"}\n' + line + "\n")
    said = whippet("import", "topic", topic, str(file), code=2).err
    assert reason in said
    assert f"{file}, " in said
    assert whippet("topic", "get", *topic.split("/"), "--output", "json").json["messages_count"] == 0


def test_from_a_pipe_the_messages_before_a_wrong_line_are_reported(
    whippet: Whippet, topic: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = '{"payload":{"n":1}}\n\n{"payload":"text","partition_id":2}\n'
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
    assert whippet("import", "topic", topic, "-", "-p", "1", "--output", "json").json["messages_count"] == 2
    assert whippet("cat", topic, "-p", "1").out == '{"n":1}\ntext\n'
    many = '{"payload":"x"}\n' * 5000 + "wrong\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(many.encode())))
    assert main(["import", "topic", topic, "-", "-p", "1"]) == 1
    said = capsys.readouterr().err
    assert "standard input, line 5001" in said
    assert "messages were sent before this" in said


def test_tables_of_others_are_taken_if_their_columns_fit(whippet: Whippet, topic: str, tmp_path: Path) -> None:
    file = str(tmp_path / "own.parquet")
    parquet.write_table(pa.table({"payload": ["one", "two"], "partition_id": pa.array([1, 1], pa.int64())}), file)
    whippet("import", "topic", topic, file)
    assert whippet("cat", topic, "-p", "1").out == "one\ntwo\n"
    for table, reason in (
        (pa.table({"payload": ["x"], "when": [1]}), "no column 'when'"),
        (pa.table({"id": ["1"]}), "no column payload"),
        (pa.table({"payload": [None, "x"]}), "row 1: there is no payload"),
        (pa.table({"payload": ["x"], "partition_id": ["one"]}), "partition_id has type string"),
        (pa.table({"payload": [[1]]}), "payload has type list"),
    ):
        parquet.write_table(table, file)
        assert reason in whippet("import", "topic", topic, file, code=2).err
    Path(file).write_bytes(b"no parquet")
    assert file in whippet("import", "topic", topic, file, code=2).err
    Path(file).rename(tmp_path / "own.arrow")
    assert "own.arrow" in whippet("import", "topic", topic, str(tmp_path / "own.arrow"), code=2).err


def test_formats_are_told_by_names_and_need_what_they_need(
    whippet: Whippet, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "--format" in whippet("export", "topic", topic, "file.csv", code=2).err
    assert "no-such.ndjson is no file" in whippet("import", "topic", topic, "no-such.ndjson", code=2).err
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    said = whippet("export", "topic", topic, "file.parquet", code=1).err
    assert "pip install 'whippet-gateway[arrow]'" in said
    assert not (tmp_path / "file.parquet").exists()


def test_origin_times_that_are_far_apart_are_sent_in_several_batches() -> None:
    times = [0, TIME_SPAN_MAX_US, TIME_SPAN_MAX_US + 1, 5, None, None, 7, 8]
    messages = [Message(b"x", origin_timestamp=time) for time in times]
    parts = [[message.origin_timestamp for message in part] for part in split_by_origin(messages)]
    assert parts == [[0, TIME_SPAN_MAX_US], [TIME_SPAN_MAX_US + 1, 5], [None, None], [7, 8]]


def test_too_many_headers_are_refused() -> None:
    line = line_of(Record(0, 0, 0, 0, 1, header(b"k", 1, b"v" * 255) * 400, b"x"))
    with pytest.raises(BadRow, match=str(HEADERS_BYTES_MAX)):
        record_of_line(line)
