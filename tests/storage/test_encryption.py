"""Encryption at rest: what is sealed opens only with its key and in its place, and no nonce is used twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.storage.support.packed import pack_everything, seal_of, stored
from tests.storage.support.segments import stamped, tree
from tests.storage.support.ways import KEY, WAYS
from tests.storage.support.world import opened, payloads, texts, with_topic
from whippet.storage import packing, sealed_documents
from whippet.storage.encryption import USES_MAX, Keyring, NotOpened, Seal, Sealed, id_of
from whippet.storage.errors import CatalogueError, InvalidBatch, KeyMissing, UnsupportedFormat
from whippet.storage.layout import FORMAT_VERSION
from whippet.storage.offsets import SEALED_PLACE, Kind
from whippet.storage.packing import Compression
from whippet.storage.producers import Producer

OTHER = bytes(32)
SECRET = b"the text that nobody may find on the disk "
BATCH = stamped([40] * 50, 7)


def seal(keyring: Keyring, plain: bytes = SECRET, bound: bytes = b"") -> Sealed:
    return keyring.seal(lambda *_: (plain, bound))


# -------------------------------------------------------------------------------------------------------------- keyring


def test_what_was_sealed_opens_with_the_key_and_nowhere_else() -> None:
    sealed = seal(Keyring([], KEY), bound=b"here")
    assert SECRET not in sealed.ciphertext
    assert Keyring([KEY], None).open(sealed, b"here") == SECRET
    assert Keyring([KEY], OTHER).open(sealed, b"here") == SECRET
    with pytest.raises(NotOpened, match="moved"):
        Keyring([KEY], None).open(sealed, b"there")
    with pytest.raises(NotOpened, match=f"the key {id_of(KEY).hex()}, which is not known"):
        Keyring([OTHER], None).open(sealed, b"here")


@pytest.mark.parametrize("part", [1, 2, 3])
def test_a_change_of_any_part_is_noticed(part: int) -> None:
    sealed = seal(Keyring([], KEY))
    for position in range(len(sealed[part])):
        content = bytearray(sealed[part])
        content[position] ^= 1
        changed = Sealed(*(bytes(content) if number == part else each for number, each in enumerate(sealed)))
        with pytest.raises(NotOpened):
            Keyring([KEY], None).open(changed, b"")


def test_no_salt_and_nonce_are_used_together_twice() -> None:
    keyring = Keyring([], KEY)
    used = [seal(keyring) for _ in range(2000)]
    assert len({each.salt for each in used}) == 1
    assert len({each.nonce for each in used}) == 2000
    assert seal(Keyring([], KEY)).salt != used[0].salt, "a process that continues from a copy has another salt"


def test_after_many_uses_there_is_another_salt() -> None:
    keyring = Keyring([], KEY)
    first = seal(keyring).salt
    keyring._left = 1
    assert seal(keyring).salt == first
    assert seal(keyring).salt != first
    assert keyring._left == USES_MAX - 1


def test_neither_ids_nor_texts_tell_the_key() -> None:
    assert KEY.hex() not in repr(Keyring([KEY], OTHER))
    assert id_of(KEY) != id_of(OTHER)
    assert id_of(KEY) not in KEY


# -------------------------------------------------------------------------------------------------------------- batches


@pytest.mark.parametrize("compression", list(Compression))
def test_an_encrypted_batch_is_intact_without_a_key_and_the_same_after_decryption(compression: Compression) -> None:
    batch = stamped([], 3, payloads=[SECRET * 20, SECRET])
    whole = b"".join(packing.pack(batch, compression, seal_of("encrypted")))
    assert SECRET not in whole
    assert batch[40:48] not in whole, "the checksum of the plain batch helps to guess its messages"
    named = packing.check(whole)
    assert (named.base_offset, named.message_count, named.length) == (3, 2, len(batch))
    assert packing.plain(whole, seal_of("plain")) == batch
    assert len(whole) != len(batch)


def test_a_batch_opens_only_in_its_place() -> None:
    whole = stored(BATCH, "encrypted")
    keyring = Keyring([KEY], None)
    with pytest.raises(InvalidBatch, match="moved here"):
        packing.unpack(whole, Seal(keyring, b"another place"))
    for position in (0, 8, 16, 24, 48):
        moved = bytearray(whole)
        moved[position] ^= 1
        moved[240:248] = packing._hash(bytes(moved[:240])).to_bytes(8, "little")
        moved[248:256] = packing._checksum(moved[:256], moved[256:]).to_bytes(8, "little")
        packing.check(moved)
        with pytest.raises(InvalidBatch, match="moved here"):
            packing.unpack(moved, seal_of("encrypted"))


def test_without_its_key_a_batch_is_refused_but_is_not_damaged() -> None:
    whole = stored(BATCH, "zstd, encrypted")
    for known in (None, Seal(Keyring([OTHER], None), b"a place")):
        with pytest.raises(KeyMissing, match=id_of(KEY).hex()):
            packing.unpack(whole, known)


def test_compression_that_saves_what_encryption_adds_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a packed batch would look like a plain one in the index."""
    pack_everything(monkeypatch)
    frames = len(BATCH) - 256
    monkeypatch.setattr(packing, "compress", lambda *_: bytes(frames - packing.ENCRYPTION_BYTES))
    whole = b"".join(packing.pack(BATCH, Compression.ZSTD, seal_of("encrypted")))
    assert len(whole) == len(BATCH) + packing.ENCRYPTION_BYTES
    assert packing.plain(whole, seal_of("encrypted")) == BATCH


# ----------------------------------------------------------------------------------------------------------- the folder


async def fill(path: Path, **options: Any) -> None:
    async with opened(path, **options) as store:
        (partition,) = await with_topic(store)
        await partition.append(texts(SECRET * 3, SECRET))
        await partition.append_once(texts(SECRET), Producer(b"a producer", 1, 1))
        await partition.store_offset(Kind.CONSUMER, 1, 1)
        await partition.store_offset(Kind.CONSUMER, 1, 2)
        await store.write_user(1, b'{"password": "' + SECRET + b'"}')
        await store.write_token(2, SECRET)


async def check(path: Path, **options: Any) -> None:
    async with opened(path, tail_bytes_max=0, **options) as store:
        assert (list(store.damage), store.problems) == ([], [])
        (partition,) = await with_topic(store)
        assert payloads(await partition.read(0, 10))[:3] == [SECRET * 3, SECRET, SECRET]
        assert partition.offset_of(Kind.CONSUMER, 1) == 2
        assert (store.users[1], store.tokens[2]) == (b'{"password": "' + SECRET + b'"}', SECRET)
        again = await partition.append_once(texts(SECRET), Producer(b"a producer", 1, 1))
        assert (again.repeated, again.base_offset) == (True, 2)


@pytest.mark.parametrize("way", ["encrypted", "zstd, encrypted"])
async def test_nothing_of_the_messages_users_and_tokens_is_readable_on_the_disk(tmp_path: Path, way: str) -> None:
    await fill(tmp_path, **WAYS[way])
    assert [name for name, content in tree(tmp_path).items() if SECRET[:20] in content] == []
    await check(tmp_path, **WAYS[way])
    # A server that encrypts nothing more can still read it.
    await check(tmp_path, **WAYS["plain"])


async def test_stored_offsets_are_encrypted(tmp_path: Path) -> None:
    await fill(tmp_path, **WAYS["encrypted"])
    content = (tmp_path / "streams/0/topics/0/partitions/0/offsets/consumers/1").read_bytes()
    assert len(content) == 2 * SEALED_PLACE.size
    async with opened(tmp_path, **WAYS["encrypted"]) as store:
        (partition,) = await with_topic(store)
        assert partition.offset_of(Kind.CONSUMER, 1) == 2


async def test_encryption_begins_in_a_folder_that_has_plain_data(tmp_path: Path) -> None:
    await fill(tmp_path)
    await check(tmp_path, **WAYS["encrypted"])
    names = [name for name, content in tree(tmp_path).items() if SECRET[:20] in content]
    assert [name.rpartition(".")[2] for name in names] == ["log"], "users and tokens are encrypted at once"
    async with opened(tmp_path, **WAYS["encrypted"]) as store:
        (partition,) = await with_topic(store)
        await partition.store_offset(Kind.CONSUMER, 1, 0)
        await partition.store_offset(Kind.CONSUMER, 1, 2)
    await check(tmp_path, **WAYS["encrypted"])
    assert json.loads((tmp_path / "FORMAT").read_bytes())["keys"] == [id_of(KEY).hex()]


async def test_after_a_rotation_new_data_has_the_new_key_and_old_data_stays_readable(tmp_path: Path) -> None:
    await fill(tmp_path, keyring=Keyring([], KEY))
    async with opened(tmp_path, keyring=Keyring([KEY], OTHER)) as store:
        (partition,) = await with_topic(store)
        await partition.append(texts(SECRET))
        await partition.store_offset(Kind.CONSUMER, 1, 2)
    (log,) = tmp_path.glob("streams/0/topics/0/partitions/0/*.log")
    assert id_of(KEY) in log.read_bytes()
    assert id_of(OTHER) in log.read_bytes()
    for name in ("users/1.json", "tokens/2.json", "streams/0/topics/0/partitions/0/offsets/consumers/1"):
        seal, active = (tmp_path / name).read_bytes(), Keyring([], OTHER)
        if name.endswith(".json"):
            path = str(tmp_path)
            identity = json.loads((tmp_path / "FORMAT").read_bytes())["id"]
            whole = Seal(active, b"whippet\0" + identity.encode() + b"\0")
            assert sealed_documents.opened(seal, name, whole)[1] is False, path
        else:
            assert id_of(OTHER) in seal
    await check(tmp_path, keyring=Keyring([KEY], OTHER))
    assert json.loads((tmp_path / "FORMAT").read_bytes())["keys"] == [id_of(KEY).hex(), id_of(OTHER).hex()]
    with pytest.raises(KeyMissing, match=id_of(KEY).hex()):
        await check(tmp_path, keyring=Keyring([], OTHER))


@pytest.mark.parametrize("keyring", [None, Keyring([], OTHER), Keyring([OTHER], None)], ids=["none", "wrong", "unused"])
async def test_a_folder_is_not_opened_without_its_key_and_is_not_changed(
    tmp_path: Path, keyring: Keyring | None
) -> None:
    await fill(tmp_path, **WAYS["encrypted"])
    before = tree(tmp_path)
    with pytest.raises(KeyMissing, match=r"system\.encryption\.key") as refused:
        async with opened(tmp_path, keyring=keyring):
            pass
    assert "\n" not in str(refused.value)
    after = tree(tmp_path)
    assert {name: content for name, content in after.items() if name != "LOCK"} == {
        name: content for name, content in before.items() if name != "LOCK"
    }
    await check(tmp_path, **WAYS["encrypted"])


async def test_without_its_format_file_an_encrypted_folder_is_not_recreated(tmp_path: Path) -> None:
    await fill(tmp_path, **WAYS["encrypted"])
    (tmp_path / "FORMAT").unlink()
    with pytest.raises(UnsupportedFormat, match="put the file back"):
        async with opened(tmp_path, recreate_missing_state=True, **WAYS["encrypted"]):
            pass


async def test_a_document_in_the_place_of_another_is_refused(tmp_path: Path) -> None:
    await fill(tmp_path, **WAYS["encrypted"])
    (tmp_path / "users/7.json").write_bytes((tmp_path / "users/1.json").read_bytes())
    with pytest.raises(CatalogueError, match=r"users/7\.json"):
        await check(tmp_path, **WAYS["encrypted"])


async def test_a_folder_without_keys_has_none_in_its_format_file(tmp_path: Path) -> None:
    await fill(tmp_path)
    found = json.loads((tmp_path / "FORMAT").read_bytes())
    assert (found.keys(), found["whippet_store"]) == ({"whippet_store", "id", "created_at", "xxh3"}, FORMAT_VERSION)


def test_plain_documents_that_look_like_anything_stay_what_they_are() -> None:
    for content in (b"", b"{}", b"\xff", b'{"encrypted": 2}', b'{"encrypted": "no"}'):
        assert sealed_documents.opened(content, "users/1.json", None) == (content, False)
        assert sealed_documents.sealed(content, "users/1.json", seal_of("plain")) == content
        hidden = sealed_documents.sealed(content, "users/1.json", seal_of("encrypted"))
        assert sealed_documents.opened(hidden, "users/1.json", seal_of("encrypted")) == (content, False)
