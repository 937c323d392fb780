"""Folders as Iggy servers write them, made by hand: what the real folders beside the tests do not have in them.

Each class writes the catalogue of one generation; both write segments. What is written is what the description of the
formats says, not what the importer's code says.
"""

from __future__ import annotations

import base64
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import xxhash
from argon2 import PasswordHasher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from whippet.storage import batch as batches

KEY = b"k" * 32
KEY_TEXT = base64.b64encode(KEY).decode()
PASSWORD = "a password"
PASSWORD_HASH = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash(PASSWORD)
CREATED_AT = 1_700_000_000_000_000
ALL_GLOBAL = b"\1" * 10
CPU, ORDERS = "cpu", "orders"


class Sent(NamedTuple):
    """One message, as a server has stored it."""

    offset: int
    payload: bytes
    time: int = CREATED_AT
    origin: int = CREATED_AT - 5
    id: int = 0x1234
    headers: bytes = b""


def numbered(first: int, count: int, time: int = CREATED_AT) -> list[Sent]:
    return [Sent(offset, b"message %d" % offset, time, time - 7, offset + 1) for offset in range(first, first + count)]


def xxh(content: bytes) -> int:
    return int(xxhash.xxh3_64_intdigest(content))


def name(text: str) -> bytes:
    return bytes([len(text.encode())]) + text.encode()


def named(text: str) -> bytes:
    """An identifier."""
    return b"\2" + name(text)


def numeric(number: int) -> bytes:
    return b"\1\4" + struct.pack("<I", number)


def with_id(number: int, request: bytes) -> bytes:
    return struct.pack("<II", number, len(request)) + request


def sized(content: bytes) -> bytes:
    return struct.pack("<I", len(content)) + content


def option(key: str, kind: int, value: bytes) -> bytes:
    return b"\2" + sized(key.encode()) + bytes([kind]) + sized(value)


def user_request(username: str, status: int = 1, permissions: bytes | None = None) -> bytes:
    held = b"\0" if permissions is None else b"\1" + sized(permissions)
    return name(username) + name(PASSWORD_HASH) + bytes([status]) + held


def encrypted(content: bytes) -> bytes:
    nonce = os.urandom(12)
    return nonce + AESGCM(KEY).encrypt(nonce, content, None)


class Folder:
    """The files that both generations have."""

    def __init__(self, root: Path, *, encrypts: bool = False) -> None:
        self.root = root
        self.encrypts = encrypts
        root.mkdir(parents=True, exist_ok=True)

    def partition(self, stream: int, topic: int, partition: int) -> Path:
        folder = self.root / f"streams/{stream}/topics/{topic}/partitions/{partition}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def configure(self, text: str) -> None:
        (self.root / "runtime").mkdir(exist_ok=True)
        (self.root / "runtime/current_config.toml").write_text(text)

    def _sealed(self, content: bytes) -> bytes:
        return encrypted(content) if self.encrypts and content else content


class Classic(Folder):
    """0.8: a log of commands, and messages with headers of 64 bytes."""

    def __init__(self, root: Path, *, encrypts: bool = False, release: int = 8000, root_user: bool = True) -> None:
        super().__init__(root, encrypts=encrypts)
        self.state = root / "state/log"
        self.state.parent.mkdir(exist_ok=True)
        self.state.touch()
        self.starts: list[int] = []
        """Where the entries begin."""
        self._release = release
        if root_user:
            self.record(33, with_id(0, user_request("iggy", permissions=ALL_GLOBAL + b"\0")))

    def record(self, code: int, command: bytes, user_id: int = 0, time: int = CREATED_AT) -> None:
        head = struct.pack("<QQIIQQI", len(self.starts), 0, 0, self._release, 0, time, user_id)
        plain = struct.pack("<I", 0) + struct.pack("<II", code, len(command)) + command
        stored = encrypted(command) if self.encrypts else command
        entry = head + struct.pack("<Q", xxh(head + plain)) + struct.pack("<III", 0, code, len(stored)) + stored
        self.starts.append(self.state.stat().st_size)
        with self.state.open("ab") as file:
            file.write(entry)

    def stream(self, number: int, text: str) -> None:
        self.record(202, with_id(number, name(text)))

    def topic(
        self, stream: str, number: int, text: str, partitions: int = 1, *, expiry: int = 0, size: int = 0
    ) -> None:
        fields = struct.pack("<IBQQB", partitions, 1, expiry, size, 0)
        self.record(302, with_id(number, named(stream) + fields + name(text)))

    def segment(self, folder: Path, messages: Sequence[Sent], start: int | None = None, *, index: bool = True) -> Path:
        start = messages[0].offset if start is None else start
        content, entries = b"", b""
        for message in messages:
            content += self.message(message)
            entries += struct.pack("<IIQ", message.offset - start, len(content), message.time)
        path = folder / f"{start:020}.log"
        path.write_bytes(content)
        if index:
            path.with_suffix(".index").write_bytes(entries)
        return path

    def message(self, message: Sent) -> bytes:
        payload, headers = self._sealed(message.payload), self._sealed(message.headers)
        head = message.id.to_bytes(16, "little") + struct.pack(
            "<QQQIIQ", message.offset, message.time, message.origin, len(headers), len(payload), 0
        )
        return struct.pack("<Q", xxh(head + payload + headers)) + head + payload + headers

    def offset(self, folder: Path, kind: str, number: int, value: int) -> None:
        (folder / "offsets" / kind).mkdir(parents=True, exist_ok=True)
        (folder / "offsets" / kind / str(number)).write_bytes(struct.pack("<Q", value))


class Modern(Folder):
    """0.9: consensus entries, and batches."""

    def __init__(self, root: Path, *, encrypts: bool = False, first_op: int = 1) -> None:
        super().__init__(root, encrypts=encrypts)
        self.journal = root / "metadata/journal.wal"
        self.journal.parent.mkdir(exist_ok=True)
        self.journal.touch()
        self.op = first_op
        self.starts: list[int] = []
        self.record(1, b"")

    def record(self, operation: int, body: bytes, user_id: int = 0, time: int = CREATED_AT) -> None:
        head = bytearray(256)
        struct.pack_into("<Q", head, 16, xxh(body))
        struct.pack_into("<I", head, 48, 256 + len(body))
        head[60] = 6
        struct.pack_into("<QQQQB", head, 176, self.op, self.op - 1, time, 0, operation)
        struct.pack_into("<I", head, 224, user_id)
        struct.pack_into("<Q", head, 0, xxh(bytes(head)))
        self.starts.append(self.journal.stat().st_size)
        with self.journal.open("ab") as file:
            file.write(bytes(head) + body)
        self.op += 1

    def stream(self, text: str, user_id: int = 0) -> None:
        self.record(128, name(text), user_id)

    def topic(self, stream: str, text: str, partitions: int = 1, options: bytes = b"", user_id: int = 0) -> None:
        request = named(stream) + struct.pack("<I", partitions) + name(text) + options
        derived = option("message_expiry", 12, struct.pack("<Q", 2**64 - 1))
        derived += option("max_topic_size", 12, struct.pack("<Q", 2**64 - 1))
        derived += option("compression_algorithm", 2, b"none")
        assigned = b"".join(struct.pack("<IQ", number, number + 1) for number in range(partitions))
        self.record(64, sized(request) + sized(derived) + struct.pack("<I", partitions) + assigned, user_id)

    def segment(self, folder: Path, runs: Sequence[Sequence[Sent]], start: int | None = None) -> Path:
        """A batch for each run."""
        start = runs[0][0].offset if start is None else start
        content, entries = b"", b""
        for run in runs:
            entries += struct.pack("<QQQ", run[0].offset, run[0].time, len(content))
            content += self.batch(int(folder.name), run)
        path = folder / f"{start:020}.log"
        path.write_bytes(content)
        path.with_suffix(".index").write_bytes(entries)
        return path

    def batch(self, partition_id: int, run: Sequence[Sent]) -> bytes:
        plain = [
            batches.Message(self._sealed(sent.payload), sent.id, self._sealed(sent.headers), sent.origin)
            for sent in run
        ]
        made = batches.build(plain, 0, os.urandom)
        batches.stamp(made, partition_id, run[0].offset, run[0].time, batches.check(made).checksums)
        return bytes(made)

    def offset(self, folder: Path, kind: str, number: int, value: int) -> None:
        (folder / "offsets" / kind).mkdir(parents=True, exist_ok=True)
        content = struct.pack("<Q", value)
        (folder / "offsets" / kind / str(number)).write_bytes(content + struct.pack("<Q", xxh(content)))


def small_classic(root: Path, *, encrypts: bool = False) -> Classic:
    """One topic with a partition of three segments and an empty one, a group, a user, and stored offsets."""
    made = Classic(root, encrypts=encrypts)
    made.stream(0, "shop")
    made.topic("shop", 0, ORDERS, 2)
    made.record(602, with_id(0, named("shop") + named(ORDERS) + name("billing")))
    made.record(33, with_id(1, user_request("alice", permissions=ALL_GLOBAL + b"\0")))
    folder = made.partition(0, 0, 0)
    for first in (0, 10, 20):
        made.segment(folder, numbered(first, 10, CREATED_AT + first))
    made.segment(made.partition(0, 0, 1), [], 0)
    made.offset(folder, "consumers", 7, 11)
    made.offset(folder, "groups", 0, 29)
    return made


def small_modern(root: Path, *, encrypts: bool = False) -> Modern:
    """The same."""
    made = Modern(root, encrypts=encrypts)
    if encrypts:
        made.configure("[system.encryption]\nenabled = true\n")
    made.stream("shop")
    made.topic("shop", ORDERS, 2)
    made.record(139, named("shop") + named(ORDERS) + name("billing"))
    made.record(141, user_request("alice", permissions=ALL_GLOBAL + b"\0"))
    folder = made.partition(0, 0, 0)
    for first in (0, 10, 20):
        made.segment(folder, [numbered(first, 5, CREATED_AT + first), numbered(first + 5, 5, CREATED_AT + first)])
    made.segment(made.partition(0, 0, 1), [], 0)
    made.offset(folder, "consumers", 7, 11)
    made.offset(folder, "groups", 0, 29)
    return made
