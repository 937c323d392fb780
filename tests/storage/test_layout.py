"""Names on the disk, and which shard owns which partition."""

from __future__ import annotations

import pytest

from whippet.storage.layout import Layout, PartitionId, index_file, left_out_file, log_file, number, segment_of
from whippet.storage.options import StoreOptions
from whippet.storage.shard import shard_of


def test_ids_lead_to_the_folders_of_the_format_page() -> None:
    layout = Layout(StoreOptions(path="/data/"))
    place = PartitionId(1, 2, 3)
    assert layout.root == "/data"
    assert layout.stream(1) == "/data/streams/1"
    assert layout.topic(1, 2) == "/data/streams/1/topics/2"
    assert layout.groups(1, 2) == "/data/streams/1/topics/2/groups"
    assert layout.partition(place) == "/data/streams/1/topics/2/partitions/3"
    assert layout.below("users") == "/data/users"
    assert str(place) == "stream 1, topic 2, partition 3"


def test_folders_have_the_names_that_are_configured() -> None:
    layout = Layout(StoreOptions(path="d", streams_folder="a", topics_folder="b", partitions_folder="c"))
    assert layout.partition(PartitionId(0, 1, 2)) == "d/a/0/b/1/c/2"


@pytest.mark.parametrize(("path", "root"), [("/", "/"), ("//", "/"), ("x", "x"), ("./x/", "./x")])
def test_a_path_loses_only_the_slash_at_its_end(path: str, root: str) -> None:
    assert Layout(StoreOptions(path=path)).root == root


@pytest.mark.parametrize("start", [0, 7, 2**32, 2**63 - 1])
def test_the_name_of_a_segment_is_its_start_offset_in_20_digits(start: int) -> None:
    assert log_file("f", start) == f"f/{start:020}.log"
    assert segment_of(log_file("f", start)[2:]) == (start, "log")
    assert segment_of(index_file("f", start)[2:]) == (start, "index")
    assert left_out_file("f", start) == f"f/{start:020}.left_out"
    assert segment_of(left_out_file("f", start)[2:]) is None


@pytest.mark.parametrize(
    "name",
    [
        "0.log",
        "0000000000000000000.log",
        "000000000000000000000.log",
        "00000000000000000000.txt",
        "00000000000000000000.log.new",
        "00000000000000000000.index.new",
        "00000000000000000000log",
        "00000000000000000000.log\n",
        "09223372036854775808.log",
        "18446744073709551616.log",
        "-0000000000000000001.log",
        "٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠.log",
        "",
    ],
)
def test_no_other_name_is_taken_for_a_segment(name: str) -> None:
    assert segment_of(name) is None


@pytest.mark.parametrize(("name", "identity"), [("0", 0), ("1", 1), ("4294967295", 2**32 - 1)])
def test_the_name_of_a_folder_is_read_as_its_id(name: str, identity: int) -> None:
    assert number(name) == identity


@pytest.mark.parametrize(
    "name", ["", "00", "01", "-1", "+1", "1 ", "1\n", "1.0", "4294967296", "99999999999", "x", "١", "1٢"]
)
def test_no_other_name_is_read_as_an_id(name: str) -> None:
    assert number(name) is None


# --------------------------------------------------------------------------------------------------------------- shards


def murmur3_32(octets: bytes) -> int:
    """Austin Appleby's MurmurHash3_x86_32 with seed 0, for lengths divisible by four, written out."""
    mixed = 0
    for at in range(0, len(octets), 4):
        word = int.from_bytes(octets[at : at + 4], "little") * 0xCC9E2D51 & 0xFFFFFFFF
        word = (word << 15 | word >> 17) & 0xFFFFFFFF
        mixed ^= word * 0x1B873593 & 0xFFFFFFFF
        mixed = ((mixed << 13 | mixed >> 19) & 0xFFFFFFFF) * 5 + 0xE6546B64 & 0xFFFFFFFF
    mixed ^= len(octets)
    mixed = (mixed ^ mixed >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    mixed = (mixed ^ mixed >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return mixed ^ mixed >> 16


@pytest.mark.parametrize(("octets", "known"), [(b"", 0), (b"\0\0\0\0", 0x2362F9DE), (b"\xff\xff\xff\xff", 0x76293B50)])
def test_the_hash_is_murmur3(octets: bytes, known: int) -> None:
    assert murmur3_32(octets) == known


def test_the_shard_of_a_partition_follows_from_the_upper_half_of_its_hash() -> None:
    for place in (PartitionId(0, 0, 0), PartitionId(1, 2, 3), PartitionId(2**32 - 1, 2**12, 2**20 - 1)):
        packed = (place.stream << 32 | place.topic << 20 | place.partition).to_bytes(8, "little")
        for shards in (1, 2, 5, 16):
            assert shard_of(place, shards) == (murmur3_32(packed) >> 16) % shards


def test_known_partitions_stay_on_their_shards() -> None:
    """The files do not depend on it, but a change would be unexpected."""
    assert [shard_of(PartitionId(0, 0, i), 16) for i in range(8)] == [5, 7, 15, 11, 2, 2, 1, 12]


@pytest.mark.parametrize("shards", range(2, 17))
def test_partitions_with_small_ids_spread_over_all_shards(shards: int) -> None:
    """Three streams of three topics of 32 partitions: no shard has more than twice its share or less than a third."""
    load = [0] * shards
    for stream in range(3):
        for topic in range(3):
            for partition in range(32):
                load[shard_of(PartitionId(stream, topic, partition), shards)] += 1
    share = 288 / shards
    assert share / 3 < min(load)
    assert max(load) < 2 * share


@pytest.mark.parametrize("shards", [2, 4])
def test_the_partitions_of_one_topic_use_every_shard(shards: int) -> None:
    assert {shard_of(PartitionId(0, 0, partition), shards) for partition in range(16)} == set(range(shards))
