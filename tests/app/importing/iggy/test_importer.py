"""A folder of Iggy has the same content in Whippet: numbers, names, messages with their times, offsets, users."""

from __future__ import annotations

import os
import struct
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import xxhash

from tests.app.importing.iggy.support import made
from tests.app.importing.iggy.support.made import CREATED_AT, KEY_TEXT, ORDERS, Classic, Modern, Sent, numbered
from tests.app.importing.iggy.support.record import Folder, differences, fits, folder_at
from tests.app.importing.iggy.support.running import NOW, ROOT, imported
from whippet.app.access.personal_tokens import hash_of
from whippet.app.importing.iggy.importer import Root
from whippet.app.importing.iggy.report import Report
from whippet.storage.offsets import Kind
from whippet.storage.options import StoreOptions
from whippet.storage.survey import survey

FOLDERS = Path(__file__).parent / "folders"
MORE = "WHIPPET_IGGY_FOLDERS"
"""A variable that names a folder with more folders of real servers and their records, in the same form."""
ROOT_PASSWORD = "iggy-root-1"
UNLIMITED = 2**64 - 1


def real() -> Iterator[Path]:
    """The records; each folder is in an archive beside its record."""
    yield from sorted(FOLDERS.glob("*.json"))
    if MORE in os.environ:
        yield from sorted(Path(os.environ[MORE]).glob("*.json"))


def unpacked(record: Path, into: Path) -> Path:
    (archive,) = record.parent.glob(f"{record.stem}.tar.*")
    with tarfile.open(archive) as content:
        content.extractall(into, filter="data")
    return into / "local_data"


@pytest.mark.parametrize("record", list(real()), ids=lambda record: f"{record.parent.name}-{record.stem}")
def test_what_clients_saw_in_the_folder_of_a_real_server_is_there(record: Path, tmp_path: Path) -> None:
    source = unpacked(record, tmp_path)
    key = KEY_TEXT if "encrypted" in record.name else None
    report = imported(source, tmp_path / "data", key=key, root=Root("iggy", ROOT_PASSWORD))
    folder = folder_at(tmp_path / "data")
    assert differences(record, folder, knows_root=True) == []
    assert report.lost == []
    assert folder.problems == []
    assert [found.damage for found in survey(StoreOptions(path=str(tmp_path / "data"))) if found.damage] == []


@pytest.fixture(params=["classic", "modern"])
def small(request: pytest.FixtureRequest, tmp_path: Path) -> Classic | Modern:
    build = made.small_classic if request.param == "classic" else made.small_modern
    return build(tmp_path / "iggy")


@pytest.fixture
def classic(tmp_path: Path) -> Classic:
    """A folder with a stream, a topic and the folder of its partition."""
    folder = Classic(tmp_path / "iggy")
    folder.stream(0, "shop")
    folder.topic("shop", 0, ORDERS)
    folder.partition(0, 0, 0)
    return folder


@pytest.fixture
def modern(tmp_path: Path) -> Modern:
    folder = Modern(tmp_path / "iggy")
    folder.stream("shop")
    folder.topic("shop", ORDERS)
    folder.partition(0, 0, 0)
    return folder


def result(folder: Classic | Modern, *, key: str | None = None) -> tuple[Report, Folder]:
    target = folder.root.parent / "data"
    report = imported(folder.root, target, key=key)
    return report, folder_at(target)


def offsets_of(folder: Folder, partition: int = 0) -> list[int]:
    return [message.offset for message in folder.partitions["shop", ORDERS, partition].messages]


def test_messages_keep_everything(small: Classic | Modern) -> None:
    report, folder = result(small)
    kept = folder.partitions["shop", ORDERS, 0]
    assert [(m.offset, m.payload, m.id) for m in kept.messages] == [(i, b"message %d" % i, i + 1) for i in range(30)]
    assert [m.timestamp - CREATED_AT for m in kept.messages] == [i // 10 * 10 for i in range(30)]
    assert {m.timestamp - m.origin_timestamp for m in kept.messages} == {7}
    assert kept.offsets == {(Kind.CONSUMER, 7): 11, (Kind.GROUP, 0): 29}
    assert folder.partitions["shop", ORDERS, 1].next_offset == 0
    assert (report.messages, report.offsets, report.groups, report.lost) == (30, 2, 1, [])


@pytest.mark.parametrize("build", [made.small_classic, made.small_modern])
def test_encrypted_messages_are_decrypted(build: type[Classic | Modern], tmp_path: Path) -> None:
    report, folder = result(build(tmp_path / "iggy", encrypts=True), key=KEY_TEXT)
    assert [m.payload for m in folder.partitions["shop", ORDERS, 0].messages] == [b"message %d" % i for i in range(30)]
    assert report.lost == []


def test_user_headers_are_copied(classic: Classic) -> None:
    headers = b"\2\1\0\0\0k\2\1\0\0\0v"
    classic.segment(classic.partition(0, 0, 0), [Sent(0, b"with", headers=headers), Sent(1, b"without")])
    kept = result(classic)[1].partitions["shop", ORDERS, 0].messages
    assert [(m.payload, m.user_headers) for m in kept] == [(b"with", headers), (b"without", b"")]


def test_a_log_may_begin_after_deleted_segments(small: Classic | Modern) -> None:
    folder = small.partition(0, 0, 0)
    (folder / f"{0:020}.log").unlink()
    (folder / f"{0:020}.index").unlink()
    report, found = result(small)
    assert offsets_of(found) == list(range(10, 30))
    assert (report.lost, found.problems) == ([], [])


def test_an_empty_log_keeps_its_next_offset(classic: Classic) -> None:
    classic.segment(classic.partition(0, 0, 0), [], 500)
    assert result(classic)[1].partitions["shop", ORDERS, 0].next_offset == 500


def test_times_that_fall_stay(classic: Classic) -> None:
    messages = [Sent(i, b"m", CREATED_AT - i // 3) for i in range(9)]
    classic.segment(classic.partition(0, 0, 0), messages)
    report, folder = result(classic)
    kept = folder.partitions["shop", ORDERS, 0].messages
    assert [m.timestamp for m in kept] == [m.time for m in messages]
    assert (report.lost, folder.problems) == ([], [])


def test_origin_times_that_are_far_apart_stay(classic: Classic) -> None:
    origins = [0, 2**40, 5, 2**63, CREATED_AT]
    messages = [Sent(i, b"m", origin=origin) for i, origin in enumerate(origins)]
    classic.segment(classic.partition(0, 0, 0), messages)
    assert [m.origin_timestamp for m in result(classic)[1].partitions["shop", ORDERS, 0].messages] == origins


def test_gaps_between_offsets_stay_and_are_reported(classic: Classic) -> None:
    classic.segment(classic.partition(0, 0, 0), [*numbered(0, 3), *numbered(7, 3)])
    report, folder = result(classic)
    assert offsets_of(folder) == [0, 1, 2, 7, 8, 9]
    assert folder.problems == []
    (line,) = report.lost
    assert line.endswith("00000000000000000000.log: 4 offsets are missing in the file, the first is 3")


def test_messages_without_payload_are_reported(classic: Classic) -> None:
    classic.segment(classic.partition(0, 0, 0), [Sent(0, b"a"), Sent(1, b""), Sent(2, b"c")])
    report, folder = result(classic)
    assert offsets_of(folder) == [0, 2]
    assert "1 messages have no payload, which Whippet does not store; the first has offset 1" in report.lost[0]


def test_many_small_messages_make_large_batches(classic: Classic) -> None:
    classic.segment(classic.partition(0, 0, 0), numbered(0, 2500))
    _, folder = result(classic)
    assert offsets_of(folder) == list(range(2500))
    size = (classic.root.parent / "data/streams/0/topics/0/partitions/0" / f"{0:020}.log").stat().st_size
    assert size == 3 * 256 + sum(48 + len(b"message %d" % i) for i in range(2500))


def test_batches_of_the_same_format_are_copied_as_they_are(modern: Modern) -> None:
    path = modern.segment(modern.partition(0, 0, 0), [numbered(0, 5), numbered(5, 5)])
    result(modern)
    assert (modern.root.parent / "data/streams/0/topics/0/partitions/0" / path.name).read_bytes() == path.read_bytes()


def test_topics_keep_their_limits_and_choices(modern: Modern) -> None:
    modern.partition(0, 1, 0)
    modern.topic("shop", "chosen", 1, made.option("segment_size", 12, struct.pack("<Q", 1 << 20)))
    modern.record(
        133,
        made.named("shop") + made.named("chosen") + made.name("chosen") + made.option("max_topic_size", 2, b"5 GiB"),
    )
    report, folder = result(modern)
    document = folder.topics["shop", "chosen"]
    assert (document.message_expiry, document.max_topic_size) == (UNLIMITED, 5 << 30)
    assert (document.options.segment_size, document.options.max_topic_size) == (1 << 20, 5 << 30)
    assert document.options.message_expiry is None
    assert report.lost == []


def test_options_that_do_not_exist_here_are_reported(modern: Modern) -> None:
    modern.partition(0, 1, 0)
    modern.topic("shop", "strange", 1, made.option("colour", 2, b"blue"))
    report, folder = result(modern)
    assert folder.topics["shop", "strange"].partitions_count == 1
    assert len(report.lost) == 1
    assert "topic shop/strange: an option is not imported: " in report.lost[0]


def test_the_limits_of_iggys_configuration_hold_where_none_were_chosen(classic: Classic) -> None:
    classic.configure('[system.topic]\nmessage_expiry = "7 days"\nmax_size = "3 GiB"\n')
    classic.topic("shop", 1, "own", expiry=99, size=5 << 30)
    _, folder = result(classic)
    left, own = folder.topics["shop", ORDERS], folder.topics["shop", "own"]
    assert (left.message_expiry, left.max_topic_size) == (7 * 86_400_000_000, 3 << 30)
    assert (left.options.message_expiry, left.options.max_topic_size) == (None, None)
    assert (own.message_expiry, own.options.max_topic_size) == (99, 5 << 30)


def test_new_partitions_have_numbers_of_their_own(small: Classic | Modern) -> None:
    _, folder = result(small)
    assert folder.topics["shop", ORDERS].incarnations == (NOW // 1000,) * 2


def test_inactive_users_and_passwords_stay(classic: Classic) -> None:
    classic.record(33, made.with_id(1, made.user_request("bob", status=2)))
    _, folder = result(classic)
    assert {name: document.status for name, document in folder.users.items()} == {"iggy": 1, "bob": 2}
    assert fits(folder.users["bob"], made.PASSWORD)


def test_personal_access_tokens_stay_unless_they_have_expired(classic: Classic) -> None:
    for text, expiry in (("never", 0), ("later", NOW), ("before", 1)):
        request = made.name(f"{text} token") + struct.pack("<Q", expiry)
        classic.record(42, made.sized(hash_of(text).encode()) + made.sized(request))
    report, folder = result(classic)
    assert {token.name: token.expires_at for token in folder.tokens} == {
        "never token": 0,
        "later token": CREATED_AT + NOW,
    }
    assert {token.user_mark for token in folder.tokens} == {folder.users["iggy"].mark}
    assert [line for line in report.notes if "'before token'" in line and "has expired" in line]


def test_the_root_user_of_newer_versions_comes_from_the_environment(modern: Modern) -> None:
    modern.record(146, struct.pack("<I", 0) + made.name("token") + struct.pack("<Q", 0) + hash_of("secret").encode())
    _, folder = result(modern)
    assert ROOT.password is not None
    assert fits(folder.users["iggy"], ROOT.password)
    assert [token.user_mark for token in folder.tokens] == [folder.users["iggy"].mark]


def test_without_that_the_root_user_is_reported(modern: Modern, tmp_path: Path) -> None:
    modern.record(146, struct.pack("<I", 0) + made.name("token") + struct.pack("<Q", 0) + hash_of("secret").encode())
    report = imported(modern.root, tmp_path / "data", root=Root("iggy", None))
    assert [line.partition(":")[0] for line in report.lost] == [
        "the root user",
        "the personal access token 'token' of user 'iggy'",
    ]


def test_offsets_of_deleted_groups_are_left_out(classic: Classic) -> None:
    folder = classic.partition(0, 0, 0)
    classic.segment(folder, numbered(0, 3))
    classic.offset(folder, "groups", 4, 1)
    report, found = result(classic)
    assert found.partitions["shop", ORDERS, 0].offsets == {}
    assert "the offset of a group that does not exist any more" in report.notes[0]


def test_an_offset_that_was_stored_is_not_given_to_another_message(small: Classic | Modern) -> None:
    """A crash of Iggy loses messages that consumers have read. It would give their offsets to new ones."""
    small.offset(small.partition(0, 0, 0), "consumers", 9, 40)
    small.offset(small.partition(0, 0, 1), "consumers", 9, 4)
    report, folder = result(small)
    assert folder.problems == []
    full, empty = (folder.partitions["shop", ORDERS, number] for number in (0, 1))
    assert (full.next_offset, full.offsets[Kind.CONSUMER, 9]) == (41, 40)
    assert (empty.next_offset, empty.offsets) == (5, {(Kind.CONSUMER, 9): 4})
    assert report.lost == []
    assert [line.partition(": ")[2] for line in report.notes] == [
        "consumers have stored offsets up to 40, but Iggy lost the messages from offset 30 on; the next message gets "
        "offset 41",
        "consumers have stored offsets up to 4, but Iggy lost the messages from offset 0 on; the next message gets "
        "offset 5",
    ]


def test_an_offset_that_cannot_be_is_reported(small: Classic | Modern) -> None:
    small.offset(small.partition(0, 0, 0), "consumers", 9, 2**50)
    report, folder = result(small)
    assert folder.partitions["shop", ORDERS, 0].next_offset == 30
    assert [line for line in report.lost if f"offset {2**50} is far after the newest message (29)" in line]


def test_what_was_about_to_be_purged_or_deleted_does_not_come_back(modern: Modern) -> None:
    """0.9 acknowledges both before the files are gone."""
    folder = modern.partition(0, 0, 0)
    for first in (0, 10, 20):
        modern.segment(folder, [numbered(first, 10)])
    modern.record(68, made.named("shop") + made.named(ORDERS) + struct.pack("<IQ", 0, 20))
    modern.topic("shop", "purged")
    modern.segment(modern.partition(0, 1, 0), [numbered(0, 3)])
    modern.record(135, made.named("shop") + made.named("purged"))
    _, found = result(modern)
    assert offsets_of(found) == list(range(20, 30))
    assert found.partitions["shop", "purged", 0].messages == []


def test_a_purge_that_was_carried_out_hides_nothing(modern: Modern) -> None:
    modern.record(135, made.named("shop") + made.named(ORDERS))
    folder = modern.partition(0, 0, 0)
    (folder / "purge.gen").write_bytes(struct.pack("<QQ", 1, 1))
    modern.segment(folder, [numbered(0, 3)])
    assert offsets_of(result(modern)[1]) == [0, 1, 2]


def test_consumers_keep_their_numbers(classic: Classic) -> None:
    """A named consumer is known by the hash of its name in both servers."""
    folder = classic.partition(0, 0, 0)
    classic.segment(folder, numbered(0, 3))
    number = xxhash.xxh32_intdigest(b"dashboard")
    classic.offset(folder, "consumers", number, 1)
    assert result(classic)[1].partitions["shop", ORDERS, 0].offsets == {(Kind.CONSUMER, number): 1}
