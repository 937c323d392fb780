"""A data folder of format version 1, as a server of that version has left it: it opens, and nothing else is rewritten.

support/version_1.tar.gz has a stream `old` with a topic `events` (gzip chosen, which was without effect), whose
partition 0 has two segments with 240 messages and a stored offset, and partition 1 one message; a group, two users and
a token.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from tests.storage.support.segments import tree
from tests.storage.support.world import opened, payloads, sized
from whippet.storage.data_folder import read_identity
from whippet.storage.document_checksums import without_checksum
from whippet.storage.errors import UnsupportedFormat
from whippet.storage.files import Files
from whippet.storage.layout import FORMAT_VERSION
from whippet.storage.offsets import Kind
from whippet.storage.options import StoreOptions
from whippet.storage.survey import survey

ARCHIVE = Path(__file__).parent / "support/version_1.tar.gz"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path / "data", filter="data")
    return tmp_path / "data"


def payload(number: int) -> bytes:
    return (f"message {number} ".encode() * 700)[:7000]


async def test_a_folder_of_version_1_opens_with_everything_in_it(folder: Path) -> None:
    async with opened(folder, tail_bytes_max=0) as store:
        assert (list(store.damage), store.problems, store.unavailable) == ([], [], {})
        (stream,) = store.streams.values()
        (topic,) = stream.topics.values()
        assert (stream.document.name, topic.document.name, len(topic.partitions)) == ("old", "events", 2)
        assert [group.name for group in topic.groups.values()] == ["workers"]
        assert (len(store.users), len(store.tokens)) == (2, 1)
        first, second = store.partitions_of(0, 0)
        assert payloads(await first.read(0, 1000)) == [payload(number) for number in range(240)]
        assert payloads(await second.read(0, 1000)) == [b"only one"]
        assert first.offset_of(Kind.CONSUMER, 7) == 33
        assert first.size_bytes == first.disk_bytes


async def test_it_is_upgraded_by_one_number_and_nothing_else_is_rewritten(folder: Path) -> None:
    before = tree(folder)
    assert read_identity(Files(), str(folder / "FORMAT")).whippet_store == 1
    async with opened(folder):
        pass
    after = tree(folder)
    was, now = json.loads(before.pop("FORMAT")), json.loads(without_checksum(after.pop("FORMAT"))[0])
    assert was["whippet_store"] == 1
    assert now == was | {"whippet_store": FORMAT_VERSION}
    assert before == after


async def test_what_is_appended_from_then_on_is_compressed_as_the_topic_had_chosen(folder: Path) -> None:
    async with opened(folder, tail_bytes_max=0) as store:
        first, _ = store.partitions_of(0, 0)
        before = first.disk_bytes
        await first.append(sized(100, 1000))
        assert first.disk_bytes - before < 20_000
    async with opened(folder, tail_bytes_max=0) as store:
        first, _ = store.partitions_of(0, 0)
        everything = payloads(await first.read(0, 1000))
        assert everything == [*(payload(number) for number in range(240)), *[b"x" * 1000] * 100]


def test_a_check_reads_both_versions_and_refuses_later_ones(folder: Path) -> None:
    options = StoreOptions(path=str(folder))
    messages = {each.place.partition: each.messages for each in survey(options) if not each.damage}
    assert messages == {0: 240, 1: 1}
    path = folder / "FORMAT"
    identity = json.loads(path.read_bytes())
    path.write_text(json.dumps(identity | {"whippet_store": FORMAT_VERSION}))
    assert len(list(survey(options))) == 2
    path.write_text(json.dumps(identity | {"whippet_store": FORMAT_VERSION + 1}))
    with pytest.raises(UnsupportedFormat, match=f"version {FORMAT_VERSION + 1}, this program has {FORMAT_VERSION}"):
        list(survey(options))
