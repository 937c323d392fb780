"""The program in docs/archive.md reads an archive with nothing of Whippet."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.storage.archive.support.archives import archived
from tests.storage.support.world import stored, texts, with_topic
from whippet.storage.documents import StreamDocument, TopicDocument
from whippet.storage.layout import PartitionId

DOCUMENT = Path(__file__).parents[3] / "docs/archive.md"
LINES_MAX = 60


@pytest.fixture
def program(tmp_path: Path) -> Path:
    found = re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    assert len(found) == 1
    assert "whippet" not in found[0].lower()
    assert found[0].count("\n") <= LINES_MAX
    path = tmp_path / "read_archive.py"
    path.write_text(found[0])
    return path


def read(program: Path, archive: Path, partition: int) -> subprocess.CompletedProcess[str]:
    arguments = [sys.executable, "-I", str(program), f"file://{archive}", "0", "0", str(partition)]
    return subprocess.run(arguments, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("compression", [1, 2, 3])
async def test_it_prints_every_message_of_a_partition(tmp_path: Path, program: Path, compression: int) -> None:
    async with archived(tmp_path, segment_bytes=1024) as (store, archiver):
        await store.create_stream(StreamDocument(id=0, name="s", created_at=1))
        topic = TopicDocument(id=0, name="t", created_at=1, partitions_count=2, compression_algorithm=compression)
        await store.create_topic(0, topic)
        partition = store.partitions[PartitionId(0, 0, 1)]
        for number in range(9):
            await partition.append(texts(f"first {number}" * 20, f"second {number}" * 20))
            if number in {6, 7}:
                assert await archiver.round()
        assert await archiver.round()
        expected = [
            f"{each.offset} {each.timestamp} {each.payload.decode()}" for each in stored(await partition.read(0, 99))
        ]
    assert len(expected) == 18
    output = read(program, tmp_path / "archive", 1)
    assert output.stderr == ""
    assert output.stdout.splitlines() == expected


async def test_it_notices_damage(tmp_path: Path, program: Path) -> None:
    async with archived(tmp_path) as (store, archiver):
        (partition,) = await with_topic(store)
        await partition.append(texts("one"))
        assert await archiver.round()
    (log,) = (tmp_path / "archive").rglob("*.log")
    log.write_bytes(log.read_bytes()[:-1] + b"?")
    output = read(program, tmp_path / "archive", 0)
    assert output.returncode == 1
    assert "is not what was archived" in output.stderr
