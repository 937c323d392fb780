"""What cannot be imported is refused in one sentence, and the target stays as it was."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.app.importing.iggy.support import made
from tests.app.importing.iggy.support.made import KEY_TEXT, ORDERS, Classic, Modern
from tests.app.importing.iggy.support.record import fits, folder_at
from tests.app.importing.iggy.support.running import imported
from whippet.app.access.users import Users
from whippet.app.importing.iggy.cipher import cipher_of
from whippet.app.importing.iggy.report import Refused
from whippet.app.importing.iggy.source import Source
from whippet.storage.documents import StreamDocument, TopicDocument
from whippet.storage.errors import StoreLocked
from whippet.storage.options import StoreOptions
from whippet.storage.store import Store, now_us

OTHER_KEY = "b" + KEY_TEXT[1:]


@pytest.fixture
def small(tmp_path: Path) -> Classic:
    return made.small_classic(tmp_path / "iggy")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


async def prepared(path: Path, *streams: str, users: bool = False) -> None:
    """A folder of Whippet with a root user, and perhaps more."""
    store = await Store.open(StoreOptions(path=str(path)))
    root = {"IGGY_ROOT_USERNAME": "chief", "IGGY_ROOT_PASSWORD": "own password"}
    found = await Users.open(store, root, False, now_us)
    await found.save_root()
    if users:
        await found.create("alice", "her password", 1, None)  # type: ignore[arg-type]
    for number, name in enumerate(streams):
        await store.create_stream(StreamDocument(id=number, name=name, created_at=1))
        await store.create_topic(number, TopicDocument(id=0, name="t", created_at=1, partitions_count=1))
    found.close()
    await store.close()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def refusal(source: Path, target: Path, key: str | None = None) -> str:
    """The sentence of a refusal after which the target has no streams of the source."""
    with pytest.raises(Refused) as caught:
        imported(source, target, key=key)
    assert not list(target.glob("streams/*/topics/0/groups"))
    assert not list(target.glob("staging/*"))
    return str(caught.value)


def test_a_name_that_is_taken_refuses_everything(small: Classic, data: Path) -> None:
    asyncio.run(prepared(data, "shop"))
    before = contents(data)
    assert refusal(small.root, data) == (
        "the target already has a stream 'shop'; nothing is overwritten, and nothing was imported"
    )
    assert contents(data) == before


def test_a_user_that_is_there_refuses_everything(small: Classic, data: Path) -> None:
    asyncio.run(prepared(data, users=True))
    assert "already has a user 'alice'" in refusal(small.root, data)


def test_a_second_import_is_refused(small: Classic, data: Path) -> None:
    imported(small.root, data)
    with pytest.raises(Refused, match="a stream 'shop', a user 'alice'; nothing is overwritten"):
        imported(small.root, data)


def test_the_root_user_of_a_fresh_folder_is_replaced(small: Classic, data: Path) -> None:
    asyncio.run(prepared(data))
    report = imported(small.root, data)
    users = folder_at(data).users
    assert set(users) == {"iggy", "alice"}
    assert fits(users["iggy"], made.PASSWORD)
    assert any("is replaced" in note for note in report.notes)


def test_other_folders_keep_their_root_user_and_their_numbers(small: Classic, data: Path) -> None:
    asyncio.run(prepared(data, "own"))
    permissions = bytes(10) + b"\1" + (0).to_bytes(4, "little") + b"\0\1\0\0\0\0" + b"\0" + b"\0"
    small.record(33, made.with_id(2, made.user_request("carol", permissions=permissions)))
    report = imported(small.root, data)
    folder = folder_at(data)
    assert {name: document.id for name, document in folder.streams.items()} == {"own": 0, "shop": 1}
    assert set(folder.users) == {"chief", "alice", "carol"}
    assert fits(folder.users["chief"], "own password")
    carols = folder.users["carol"].permissions
    assert carols is not None
    assert list(carols.streams) == [1]
    assert "stream 'shop' has the number 1 here, it was 0 in Iggy" in report.notes
    assert [len(folder.partitions["shop", ORDERS, number].messages) for number in (0, 1)] == [30, 0]


def test_a_folder_that_a_gateway_has_open_is_refused(small: Classic, data: Path) -> None:
    async def with_open_folder() -> None:
        store = await Store.open(StoreOptions(path=str(data)))
        with pytest.raises(StoreLocked):
            imported(small.root, data)
        await store.close()

    asyncio.run(with_open_folder())


@pytest.mark.parametrize("inside", ["", "below"])
def test_source_and_target_must_be_apart(small: Classic, inside: str) -> None:
    with pytest.raises(Refused, match="are the same folder, or one is in the other"):
        imported(small.root, small.root / inside)
    assert not (small.root / "FORMAT").exists()


def test_a_folder_of_whippet_is_not_a_source(data: Path, tmp_path: Path) -> None:
    asyncio.run(prepared(data))
    assert refusal(data, tmp_path / "other") == f"{data}: this is a data folder of Whippet"


def test_other_folders_are_not_a_source(tmp_path: Path, data: Path) -> None:
    assert "there is no such folder" in refusal(tmp_path / "nothing", data)
    (tmp_path / "empty").mkdir()
    assert "is this the data folder of an Iggy server" in refusal(tmp_path / "empty", data)
    (tmp_path / "file").touch()
    assert "not a folder" in refusal(tmp_path / "file", data)
    assert not data.exists()


def test_versions_before_0_7_are_refused(tmp_path: Path, data: Path) -> None:
    folder = Classic(tmp_path / "iggy", release=6001)
    assert "written by an Iggy server before 0.7" in refusal(folder.root, data)


def test_two_catalogues_are_refused(small: Classic, data: Path) -> None:
    Modern(small.root)
    assert "has both state/log" in refusal(small.root, data)


@pytest.mark.parametrize("build", [made.small_classic, made.small_modern], ids=["classic", "modern"])
def test_an_encrypted_folder_needs_its_key(build: type[Classic], tmp_path: Path, data: Path) -> None:
    folder = build(tmp_path / "iggy", encrypts=True)
    folder.configure("[system.encryption]\nenabled = true\n")
    said = refusal(folder.root, data)
    assert "encrypted" in said
    assert "--key-file" in said
    assert "WHIPPET_IMPORT_KEY" in said
    assert "key" in refusal(folder.root, data, OTHER_KEY)
    assert not data.exists()


def test_without_a_configuration_a_missing_key_is_considered(tmp_path: Path, data: Path) -> None:
    folder = made.small_classic(tmp_path / "iggy", encrypts=True)
    assert "or the folder is encrypted and its key is needed" in refusal(folder.root, data)


@pytest.mark.parametrize("text", ["", "not base64!", "YWJj"])
def test_a_key_of_another_form_is_refused_without_being_repeated(text: str) -> None:
    with pytest.raises(Refused) as caught:
        cipher_of(text)
    assert not text or text not in str(caught.value)


def test_a_key_that_is_not_needed_is_ignored(small: Classic, data: Path) -> None:
    report = imported(small.root, data, key=KEY_TEXT)
    assert report.messages == 30
    assert "the key was not needed" in report.notes[0]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="processes show their open files in /proc")
@pytest.mark.parametrize("mode", ["rb", "ab"])
def test_a_source_to_which_a_process_may_write_is_refused(small: Classic, data: Path, mode: str) -> None:
    path = next(small.root.rglob("*.log"))
    program = f"import sys; file = open({str(path)!r}, {mode!r}); print('open', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        if mode == "rb":
            assert imported(small.root, data).messages == 30
        else:
            assert f"process {process.pid} has files in it open" in refusal(small.root, data)
        process.communicate()


def test_a_source_that_changes_is_refused(small: Classic, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check = Source.refuse_changed

    def change_and_check(source: Source) -> None:
        path = next(small.root.rglob("*.log"))
        os.utime(path, ns=(1, 1))
        check(source)

    monkeypatch.setattr(Source, "refuse_changed", change_and_check)
    assert "has changed during the import" in refusal(small.root, data)
    assert folder_at(data).streams == {}
