"""`whippet check` reads the folder of a real store and never changes it."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from whippet.app.cli.main import main
from whippet.storage.batch import Message, build
from whippet.storage.documents import StreamDocument, TopicDocument
from whippet.storage.options import StoreOptions
from whippet.storage.producer_file import encode
from whippet.storage.producers import Producer, Record
from whippet.storage.store import Store


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    async def fill() -> None:
        store = await Store.open(StoreOptions(path=str(tmp_path / "data"), segment_bytes=1024))
        await store.create_stream(StreamDocument(id=0, name="orders", created_at=1))
        await store.create_topic(0, TopicDocument(id=0, name="eu", created_at=1, partitions_count=2))
        partition = store.partition(0, 0, 1)
        assert partition is not None
        for i in range(10):
            await partition.append(build([Message(b"order %d" % i)], 1, os.urandom))
        await store.close()

    asyncio.run(fill())
    return tmp_path / "data"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "LOCK"}


def test_an_undamaged_folder_is_summarised(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert (
        "stream 0 (orders), topic 0 (eu), partition 1: 10 messages in 3 segments, first offset 0, next offset 10"
        in shown
    )
    assert "2 partitions, 0 of them damaged" in shown


def test_damage_is_reported_and_not_changed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, *_, last = sorted((folder / "streams/0/topics/0/partitions/1").glob("*.log"))
    first.write_bytes(first.read_bytes()[:-1] + b"\xff")
    last.write_bytes(last.read_bytes() + b"half a batch")
    before = contents(folder)
    assert main(["check", str(folder), "--json"]) == 1
    *partitions, others = json.loads(capsys.readouterr().out)
    assert others == {"documents": 3, "damage": []}
    assert [partition["messages"] for partition in partitions] == [0, 9]
    assert [Path(damage["file"]).name for damage in partitions[1]["damage"]] == [first.name, last.name]
    assert contents(folder) == before


def test_the_files_of_producers_are_checked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = encode(Record(Producer(b"p", 1, 2), 3, 1, 4, 5), 0)
    file = folder / "streams/0/topics/0/partitions/1/producers"
    file.write_bytes(record + bytes(len(record)) + record)
    assert main(["check", str(folder)]) == 0
    file.write_bytes(record + record[:-1] + b"x" + record + record[:70])
    capsys.readouterr()
    assert main(["check", str(folder), "--json"]) == 1
    damage = json.loads(capsys.readouterr().out)[1]["damage"]
    assert [found["reason"] for found in damage] == [
        "the record at position 128 is damaged",
        "the bytes after position 384 are not a record",
    ]


def test_a_folder_that_is_not_a_store_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"whippet: {tmp_path}/FORMAT: missing; this is not a data folder of Whippet\n"
    assert not list(tmp_path.iterdir())
