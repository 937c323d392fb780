"""Reading segments from files next to a running server: no gaps, no duplicates, and damage is reported."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pyspark_whippet.errors import DataLossError, OptionError
from pyspark_whippet.offsets import Range
from pyspark_whippet.options import decode
from pyspark_whippet.settings import Settings
from pyspark_whippet.topics import GatewayBackend
from tests.support.lake import Lake

pytest.importorskip("pyarrow", reason="pyarrow is not installed: install whippet-gateway[spark]")
pytest.importorskip("pyspark", reason="pyspark is not installed: install whippet-gateway[spark]")

from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructField, StructType

from pyspark_whippet import backends, columns
from pyspark_whippet.folder import FolderBackend
from pyspark_whippet.gateway_reader import Split, split_of
from pyspark_whippet.segment_reader import FileSplit, read_segment
from pyspark_whippet.segments import segments_in
from pyspark_whippet.stream_reader import TopicStreamReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Load = Callable[..., "DataFrame"]
SEGMENTS: dict[str, Any] = {"options": {"segment_size": "1 MiB"}}


@pytest.fixture
def filled(lake: Lake) -> str:
    """A topic with three closed segments and a last one, with large batches, messages of many sizes, and single
    messages."""
    topic = lake.topic(**SEGMENTS)
    numbers = itertools.count()
    for _ in range(7):
        lake.send(topic, [f"{next(numbers)} {'x' * 400}" for _ in range(1_000)])
        lake.send(topic, [f"{next(numbers)} {'y' * (n * 7 % 300)}" for n in range(200)])
        for _ in range(20):
            lake.send(topic, [f"{next(numbers)} alone"])
    header = {"key": {"kind": "string", "value": "aw=="}, "value": {"kind": "raw", "value": "dg=="}}
    lake.send_json(topic, [{"payload": "eA==", "user_headers": [header], "id": 2**100}])
    lake.send(topic, ["z" * 600_000])
    lake.send(topic, [f"the last {next(numbers)}"])
    return topic


def settings(topic: str, path: Path, **more: object) -> Settings:
    said = {"from": "files", "path": str(path), "subscribe": topic}
    return decode(said | {key: str(value) for key, value in more.items()}, {})


def whole(lake: Lake, topic: str) -> Range:
    partition = lake.details(topic)["partitions"][0]
    return Range(topic, 0, partition["first_offset"], partition["next_offset"])


def table(settings: Settings, splits: Any) -> list[dict[str, Any]]:
    """Returns all columns of all rows."""
    wanted = StructType([StructField(name, kind) for name, kind in columns.TYPES.items()])
    return [row for split in splits for batch in backends.read(settings, wanted, split) for row in batch.to_pylist()]


def everything(lake: Lake, topic: str) -> list[dict[str, Any]]:
    """Returns the same rows, read from the gateway."""
    asked = decode({**lake.options, "subscribe": topic}, {})
    return table(asked, [split_of(whole(lake, topic))])


def microseconds(time: datetime) -> int:
    return (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def closed(topic: str, lake: Lake) -> list[Any]:
    return FolderBackend(settings(topic, lake.folder)).segments(topic, 0)


def test_closed_segments_have_the_same_rows_as_the_gateway(lake: Lake, filled: str) -> None:
    asked = settings(filled, lake.folder)
    folder = FolderBackend(asked)
    bounds = folder.bounds_of(filled)
    assert bounds is not None
    end = bounds[0].next_offset
    segments = closed(filled, lake)
    assert len(segments) >= 3
    assert (segments[0].start, segments[-1].end) == (0, end)
    rows = everything(lake, filled)
    assert 0 < end < len(rows)
    for most in (10**6, 333):
        cut = settings(filled, lake.folder, maxRecordsPerPartition=most)
        splits = folder.plan_splits([Range(filled, 0, 0, end)], cut)
        assert len(splits) >= max(len(segments), end // most)
        assert table(asked, splits) == rows[:end]
    middle = folder.plan_splits([Range(filled, 0, 1_215, 3_001)], asked)
    assert table(asked, middle) == rows[1_215:3_001]


def test_a_segment_without_an_index_can_be_read(lake: Lake, filled: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(lake.folder, copy)
    for index in copy.glob("streams/*/topics/*/partitions/0/*.index"):
        index.unlink()
    asked = settings(filled, copy)
    rows = everything(lake, filled)
    splits = FolderBackend(asked).plan_splits([Range(filled, 0, 1_215, 3_001)], asked)
    assert table(asked, splits) == rows[1_215:3_001]
    at = FolderBackend(asked).offset_at(filled, 0, microseconds(rows[2_000]["timestamp"]))
    assert at is not None
    assert rows[at - 1]["timestamp"] < rows[at]["timestamp"] == rows[2_000]["timestamp"]


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_compressed_segments_have_the_same_rows_with_and_without_their_index(
    lake: Lake, tmp_path: Path, compression: str
) -> None:
    topic = lake.topic(**SEGMENTS, compression_algorithm=compression)
    for number in range(12):
        values = [f"{number} {row} {'x' * (row % 90)}" + os.urandom(300).hex() for row in range(900)]
        lake.send(topic, values)
        lake.send(topic, [f"{number} alone"])
        lake.send(topic, [f"{number} alone, too"])
    copy = tmp_path / "copy"
    shutil.copytree(lake.folder, copy)
    asked = settings(topic, copy)
    end = FolderBackend(asked).segments(topic, 0)[-1].end
    rows = everything(lake, topic)[:end]
    assert len(rows) == end > 2_000
    for _ in range(2):
        for start in (0, 1_215):
            splits = FolderBackend(asked).plan_splits([Range(topic, 0, start, end)], asked)
            assert table(asked, splits) == rows[start:]
        for index in copy.glob("streams/*/topics/*/partitions/0/*.index"):
            index.unlink()


def test_times_resolve_to_the_same_offsets_as_on_the_gateway(lake: Lake, filled: str) -> None:
    files, gateway = FolderBackend(settings(filled, lake.folder)), GatewayBackend(decode(lake.options, {}).access)
    end = closed(filled, lake)[-1].end
    rows = everything(lake, filled)
    times = {microseconds(rows[at]["timestamp"]) for at in range(0, end, 97)}
    for time in sorted(times):
        assert files.offset_at(filled, 0, time) == gateway.offset_at(filled, 0, time)
    assert files.offset_at(filled, 0, 0) == 0
    assert files.offset_at(filled, 0, 2**62) is None


def test_files_and_gateway_join_without_gap_or_overlap_while_segments_are_closed_and_deleted(
    lake: Lake, filled: str
) -> None:
    asked = decode({**lake.options, "subscribe": filled, "from": "all", "path": str(lake.folder)}, {})
    rows = everything(lake, filled)
    backend = backends.backend_for(asked)
    splits = backend.plan_splits([whole(lake, filled)], asked)
    assert {type(split) for split in splits} == {FileSplit, Split}
    # What was the last segment is closed before it is read.
    for _ in range(3):
        lake.send(filled, ["later" * 200] * 1_000)
    assert closed(filled, lake)[-1].end > rows[-1]["offset"]
    assert table(asked, splits) == rows
    # The gateway still has what is no longer in any file.
    elsewhere = closed(filled, lake)[0].path
    os.rename(elsewhere, f"{elsewhere}.away")
    try:
        assert table(asked, splits) == rows
    finally:
        os.rename(f"{elsewhere}.away", elsewhere)
    lake.drop_segments(filled, 1)
    with pytest.raises(DataLossError, match=r"offset 0 is gone \(server returned \d+\)"):
        table(asked, splits)
    lenient = decode({**lake.options, "subscribe": filled, "failOnDataLoss": "false"}, {})
    first = lake.details(filled)["partitions"][0]["first_offset"]
    assert table(lenient, splits) == rows[first:]


def test_an_archive_still_has_what_the_gateway_has_deleted(lake: Lake, filled: str, tmp_path: Path) -> None:
    rows = everything(lake, filled)
    archive = tmp_path / "archive"
    shutil.copytree(lake.topic_folder(filled), archive)
    lake.drop_segments(filled, 2)
    asked = decode({**lake.options, "subscribe": filled, "from": "all", "path": str(archive)}, {})
    backend = backends.backend_for(asked)
    bounds = backend.bounds_of(filled)
    assert bounds is not None
    first = backend.first_offset(filled, 0, bounds[0])
    assert first == 0
    assert table(asked, backend.plan_splits([Range(filled, 0, first, bounds[0].next_offset)], asked)) == rows
    other = lake.topic()
    wrong = decode({**lake.options, "subscribe": other, "from": "all", "path": str(archive)}, {})
    with pytest.raises(OptionError, match="belong to another topic than the gateway's"):
        backends.backend_for(wrong).plan_splits([Range(other, 0, 0, 1)], wrong)


@pytest.mark.parametrize("damage", ["a byte", "a header", "cut"])
def test_damage_is_reported_with_file_and_position_or_skipped(
    lake: Lake, filled: str, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(lake.topic_folder(filled), copy)
    asked = settings(filled, copy)
    segment = FolderBackend(asked).segments(filled, 0)[1]
    if damage == "cut":
        os.truncate(segment.path, segment.size - 10)
    else:
        with open(segment.path, "r+b") as file:
            file.seek(300_000 if damage == "a byte" else 32)
            file.write(b"\xff" * 8)
    folder = FolderBackend(asked)
    end = folder.segments(filled, 0)[-1].end
    splits = folder.plan_splits([Range(filled, 0, 0, end)], asked)
    with pytest.raises(DataLossError, match=rf"{segment.path} at position \d+ is damaged: .*; set failOnDataLoss="):
        table(asked, splits)
    lenient = settings(filled, copy, failOnDataLoss=False)
    rows = everything(lake, filled)
    found = table(lenient, splits)
    missing = [row for row in rows[:end] if row not in found]
    assert found == [row for row in rows[:end] if row not in missing]
    assert 0 < len(missing) <= 1_020
    assert missing[0]["offset"] >= segment.start
    assert f"{len(missing)} messages, offsets {missing[0]['offset']} to {missing[-1]['offset']}" in caplog.text


def test_a_segment_that_was_deleted_or_replaced_is_named(lake: Lake, filled: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(lake.topic_folder(filled), copy)
    asked = settings(filled, copy)
    segment = FolderBackend(asked).segments(filled, 0)[0]
    (split,) = FolderBackend(asked).plan_splits([Range(filled, 0, segment.start, segment.end)], asked)
    with open(segment.path, "ab") as file:
        file.write(b"more")
    with pytest.raises(DataLossError, match=rf"{segment.path} has {segment.size + 4} bytes; it had {segment.size}"):
        list(read_segment(asked, split))
    os.unlink(segment.path)
    with pytest.raises(DataLossError, match=rf"{segment.path} has been deleted since the job was planned"):
        list(read_segment(asked, split))
    assert list(read_segment(settings(filled, copy, failOnDataLoss=False), split)) == []
    with pytest.raises(DataLossError, match=rf"offset 0 is gone \(no segment in {copy} has it\)"):
        FolderBackend(asked).plan_splits([Range(filled, 0, 0, segment.end)], asked)


def test_a_file_that_becomes_unreadable_or_truncated_is_named(
    lake: Lake, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = settings(filled, lake.folder)
    segment = FolderBackend(asked).segments(filled, 0)[0]
    (split,) = FolderBackend(asked).plan_splits([Range(filled, 0, segment.start, segment.end)], asked)
    monkeypatch.setattr(os, "preadv", lambda *_: 0)
    with pytest.raises(DataLossError, match=rf"{segment.path} at position 0 is damaged: the file ends in the middle"):
        list(read_segment(asked, split))

    def broken(*_: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "preadv", broken)
    with pytest.raises(DataLossError, match=rf"{segment.path} at position 0 is damaged: it cannot be read: Input"):
        list(read_segment(asked, split))


def test_the_last_segment_is_read_only_after_a_graceful_shutdown(lake: Lake, filled: str, tmp_path: Path) -> None:
    rows = everything(lake, filled)
    copy = tmp_path / "copy"
    shutil.copytree(lake.folder, copy)
    asked = settings(filled, copy)
    assert FolderBackend(asked).segments(filled, 0)[-1].end < len(rows)
    (copy / "LOCK").write_bytes(b"")
    segments = FolderBackend(asked).segments(filled, 0)
    assert segments[-1].end == len(rows)
    assert table(asked, FolderBackend(asked).plan_splits([Range(filled, 0, 0, len(rows))], asked)) == rows


def test_a_stream_resumes_when_the_server_restarts_and_keeps_writing(lake: Lake, filled: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(lake.folder, copy)
    asked = settings(filled, copy, startingOffsets="earliest")
    (copy / "LOCK").write_bytes(b"")
    left = TopicStreamReader(asked, StructType())
    start = {**left.reportLatestOffset(), filled: {"0": whole(lake, filled).end}}
    assert left.latestOffset(start, ReadAllAvailable()) == start
    (copy / "LOCK").write_bytes(b"1234")
    for lenient in (asked, settings(filled, copy, failOnDataLoss="false")):
        back = TopicStreamReader(lenient, StructType())
        assert back.reportLatestOffset()[filled]["0"] < start[filled]["0"]
        assert back.latestOffset(start, ReadAllAvailable()) == start
    beyond = {filled: {"0": start[filled]["0"] + 1}}
    with pytest.raises(DataLossError, match="checkpoint is ahead of the server"):
        TopicStreamReader(asked, StructType()).latestOffset(beyond, ReadAllAvailable())


def test_a_partition_whose_only_segment_is_the_last_starts_and_ends_there(
    lake: Lake, filled: str, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(lake.folder, copy)
    asked = settings(filled, copy, startingOffsets="earliest")
    end = FolderBackend(asked).segments(filled, 0)[-1].end
    for segment in FolderBackend(asked).segments(filled, 0):
        Path(segment.path).unlink()
    reader = TopicStreamReader(asked, StructType())
    assert reader.initialOffset() == reader.reportLatestOffset()
    assert reader.initialOffset()[filled] == {"0": end}


def test_a_file_created_during_a_listing_never_gives_a_segment_a_wrong_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for start in (0, 10, 20):
        (tmp_path / f"{start:020}.log").write_bytes(b"x")
    scandir = os.scandir

    def overtaken(path: str) -> AbstractContextManager[Iterator[os.DirEntry[str]]]:
        """Misses 20, which was created during the listing, and sees 30, which was created before the end of the
        listing."""
        monkeypatch.setattr(os, "scandir", scandir)
        (tmp_path / f"{30:020}.log").write_bytes(b"x")
        items = [item for item in scandir(path) if not item.name.startswith(f"{20:020}")]
        return contextlib.nullcontext(iter(items))

    monkeypatch.setattr(os, "scandir", overtaken)
    found = segments_in(str(tmp_path), lambda: False)
    assert [(segment.start, segment.end) for segment in found] == [(0, 10), (10, 20), (20, 30)]


def test_nothing_in_the_folder_is_changed(lake: Lake, filled: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(lake.folder, copy)
    before = {path: path.stat()[:9] for path in copy.rglob("*")}
    asked = settings(filled, copy)
    end = FolderBackend(asked).segments(filled, 0)[-1].end
    assert len(table(asked, FolderBackend(asked).plan_splits([Range(filled, 0, 0, end)], asked))) == end
    assert {path: path.stat()[:7] for path in copy.rglob("*")} == {path: stat[:7] for path, stat in before.items()}


def test_invalid_paths_are_refused(tmp_path: Path) -> None:
    for said, sentence in (
        ({"from": "files", "path": "s3://bucket/x"}, "a folder is needed that driver and executors see"),
        ({"from": "files", "path": "data"}, "an absolute path is needed"),
        ({"from": "tapes"}, "one of gateway, files, all, archive is needed"),
    ):
        with pytest.raises(OptionError, match=sentence):
            decode({"subscribe": "s/t", **said}, {})
    with pytest.raises(OptionError, match="is neither a data folder, with streams/ in it, nor the folder of a topic"):
        FolderBackend(settings("s/t", tmp_path))
    with pytest.raises(OptionError, match="is not a folder that the driver can see"):
        FolderBackend(settings("s/t", tmp_path / "nowhere"))


# ---------------------------------------------------------------------------------------------------- through Spark


def test_tables_and_streams_can_be_read_from_files(load: Load, lake: Lake, filled: str, tmp_path: Path) -> None:
    end = closed(filled, lake)[-1].end
    offline: dict[str, Any] = {"from": "files", "path": lake.folder}
    frame = load(filled, url="http://127.0.0.1:1", **offline)
    assert frame.count() == end
    assert frame.rdd.getNumPartitions() == len(closed(filled, lake))
    total = whole(lake, filled).end
    joined = load(filled, **{"from": "all"}, path=lake.folder)
    assert joined.agg({"offset": "sum"}).collect()[0][0] == total * (total - 1) // 2
    assert joined.select("offset").distinct().count() == total
    with pytest.raises(Exception, match="option 'path' is required with from=files"):
        load(filled, **{"from": "files"})
    counts: list[int] = []
    spark = frame.sparkSession
    reader = spark.readStream.format("whippet").options(**lake.options).option("subscribe", filled)
    reader = reader.option("from", "all").option("path", str(lake.folder)).option("startingOffsets", "earliest")
    stream = reader.option("maxOffsetsPerTrigger", "4000").load()
    query = (
        stream.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        .foreachBatch(lambda batch, _: counts.append(batch.count()))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    assert counts == [4_000, 4_000, total - 8_000]
