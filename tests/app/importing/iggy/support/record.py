"""What clients saw in the folder of a real Iggy server, and what is in a folder of Whippet, in the same form."""

from __future__ import annotations

import asyncio
import hashlib
import json
import struct
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import xxhash
from argon2 import PasswordHasher
from argon2.exceptions import VerifyMismatchError

from whippet.app.access.permissions import Permissions
from whippet.app.access.personal_tokens import Token, hash_of
from whippet.app.access.users import UserDocument
from whippet.storage import batch as batches
from whippet.storage.batch import StoredMessage
from whippet.storage.documents import GroupDocument, StreamDocument, TopicDocument
from whippet.storage.offsets import Key, Kind
from whippet.storage.options import StoreOptions
from whippet.storage.partition import Partition
from whippet.storage.store import Store

READ_TOGETHER = 1000


class Kept(NamedTuple):
    """One partition of a folder of Whippet."""

    messages: list[StoredMessage]
    next_offset: int
    offsets: dict[Key, int]


class Folder(NamedTuple):
    """Everything in a folder of Whippet."""

    streams: dict[str, StreamDocument]
    topics: dict[tuple[str, str], TopicDocument]
    groups: dict[tuple[str, str], dict[str, GroupDocument]]
    partitions: dict[tuple[str, str, int], Kept]
    users: dict[str, UserDocument]
    tokens: list[Token]
    problems: list[str]
    """What the store reported when it was opened."""


def folder_at(path: Path, **options: Any) -> Folder:
    """Opens a folder as the gateway does, and reads all of it."""
    return asyncio.run(_read(StoreOptions(path=str(path), **options)))


async def _read(options: StoreOptions) -> Folder:
    store = await Store.open(options)
    try:
        found = Folder({}, {}, {}, {}, {}, [], [*store.problems, *map(str, store.damage)])
        for stream_id, stream in store.streams.items():
            found.streams[stream.document.name] = stream.document
            for topic_id, topic in stream.topics.items():
                names = stream.document.name, topic.document.name
                found.topics[names] = topic.document
                found.groups[names] = {group.name: group for group in topic.groups.values()}
                for partition in store.partitions_of(stream_id, topic_id):
                    found.partitions[*names, partition.place.partition] = await _kept(partition)
        for content in store.users.values():
            document = msgspec.json.decode(content, type=UserDocument)
            found.users[document.username] = document
        found.tokens.extend(msgspec.json.decode(content, type=Token) for content in store.tokens.values())
        return found
    finally:
        await store.close()


async def _kept(partition: Partition) -> Kept:
    messages: list[StoredMessage] = []
    position = 0
    while position < partition.appended:
        fetched = await partition.read(position, READ_TOGETHER)
        if not fetched.messages:
            break
        messages += _messages(b"".join(fetched.buffers))
        position = fetched.next_offset
    offsets = {
        (kind, identity): stored
        for kind in (Kind.CONSUMER, Kind.GROUP)
        for identity in partition.readers(kind)
        if (stored := partition.offset_of(kind, identity)) is not None
    }
    return Kept(messages, partition.appended, offsets)


def _messages(content: bytes) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    view = memoryview(content)
    while view:
        length = batches.header(view).length
        found += batches.messages(view[:length])
        view = view[length:]
    return found


# ----------------------------------------------------------------------------------------------------------- the record


def summary(messages: list[StoredMessage]) -> dict[str, Any]:
    """A partition as the record of a folder describes it."""
    digest = hashlib.sha256()
    for message in messages:
        digest.update(struct.pack("<QQI", message.offset, message.timestamp, len(message.payload)))
        digest.update(message.id.to_bytes(16, "little") + message.payload)
    return {
        "messages": len(messages),
        "first_offset": messages[0].offset if messages else None,
        "last_offset": messages[-1].offset if messages else None,
        "with_headers": sum(bool(message.user_headers) for message in messages),
        "sha256": digest.hexdigest(),
    }


def differences(record_path: Path, folder: Folder, *, knows_root: bool) -> list[str]:
    """Everything in which a folder differs from the record. Iggy 0.9 does not keep the root user."""
    record = json.loads(record_path.read_text())
    found: list[str] = []
    _compare(found, "streams", sorted(folder.streams), sorted(stream["name"] for stream in record["streams"]))
    for stream in record["streams"]:
        name = stream["name"]
        _compare(found, name, folder.streams[name].id, stream["id"])
        topics = [topic for of, topic in folder.topics if of == name]
        _compare(found, f"topics of {name}", sorted(topics), sorted(topic["name"] for topic in stream["topics"]))
        for topic in stream["topics"]:
            _compare_topic(found, name, topic, folder)
    _compare_users(found, record, folder, knows_root=knows_root)
    for key, offsets in record.items():
        if " of " in key and key.startswith(("consumer_offsets", "group_offsets")):
            _compare_offsets(found, key, offsets, folder)
    return found


def _compare(found: list[str], what: str, got: object, expected: object) -> None:
    if got != expected:
        found.append(f"{what}: {got!r}, expected {expected!r}")


def _compare_topic(found: list[str], stream: str, expected: dict[str, Any], folder: Folder) -> None:
    names = stream, expected["name"]
    document, what = folder.topics[names], "/".join(names)
    _compare(found, f"{what} id", document.id, expected["id"])
    _compare(found, f"{what} partitions", document.partitions_count, expected["partitions_count"])
    # After a restart, 0.8 shows 0 where its configuration decides, which said never and unlimited.
    _compare(found, f"{what} expiry", document.message_expiry, expected["message_expiry"] or 2**64 - 1)
    _compare(found, f"{what} size", document.max_topic_size, expected["max_topic_size"] or 2**64 - 1)
    _compare(found, f"{what} groups", sorted(folder.groups[names]), sorted(expected["groups"]))
    for partition, described in expected["partitions"].items():
        kept = folder.partitions[*names, int(partition)]
        _compare(found, f"{what}/{partition}", summary(kept.messages), described)


def _compare_users(found: list[str], record: dict[str, Any], folder: Folder, *, knows_root: bool) -> None:
    expected = [user for user in record["users"] if user["id"] or knows_root]
    _compare(found, "users", sorted(folder.users), sorted(user["username"] for user in expected))
    for user in expected:
        document = folder.users[user["username"]]
        _compare(found, f"user {document.username} id", document.id, user["id"])
        _compare(found, f"user {document.username} status", document.status.name.lower(), user["status"])
        if user["id"]:
            _compare(found, f"user {document.username}", document.permissions, _permissions(user["permissions"]))
        password = record["passwords"][document.username]
        _compare(found, f"password of {document.username}", fits(document, password), True)
        _compare(found, f"wrong password of {document.username}", fits(document, password + "x"), False)
    token = next((value for key, value in record.items() if key.startswith("token ")), None)
    if token and knows_root:
        root = next(document for document in folder.users.values() if document.id == 0)
        _compare(found, "token", [(one.hash, one.user_mark) for one in folder.tokens], [(hash_of(token), root.mark)])


def fits(document: UserDocument, password: str) -> bool:
    try:
        return PasswordHasher().verify(document.password_hash, password)
    except VerifyMismatchError:
        return False


def _permissions(described: dict[str, Any] | None) -> Permissions | None:
    if described is None:
        return None
    streams = {
        number: {**stream, "topics": stream.get("topics") or {}}
        for number, stream in (described["streams"] or {}).items()
    }
    return msgspec.convert({"everywhere": described["global"], "streams": streams}, Permissions, strict=False)


def _compare_offsets(found: list[str], key: str, expected: dict[str, dict[str, int]], folder: Folder) -> None:
    what, _, place = key.partition(" of ")
    stream, _, topic = place.partition("/")
    for consumer, offsets in expected.items():
        if what.startswith("group"):
            wanted: Key = Kind.GROUP, folder.groups[stream, topic][consumer].id
        else:
            named = xxhash.xxh32_intdigest(consumer.encode())
            wanted = Kind.CONSUMER, int(consumer) if consumer.isdigit() else named
        for partition, offset in offsets.items():
            got = folder.partitions[stream, topic, int(partition)].offsets.get(wanted)
            _compare(found, f"{key}, {consumer}, partition {partition}", got, offset)
