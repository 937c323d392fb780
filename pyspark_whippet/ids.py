"""Derives message ids so that a row written again has the same id: the log keeps the first message and drops the
others.

1. An `id` column is used as it is. For a copy of another topic nothing is better: even a second run of the whole job
   adds nothing.
2. Columns that identify the row (`idColumns`) give H(idNamespace, those columns), regardless of the other columns.
3. Otherwise it is H(writer, batch, task, n, value, headers, key), where n counts the equal rows that the task has seen
   before. It is never a bare row number: if rows came in another order on the replay, some would be lost and others
   doubled. For the count, a fingerprint of each row is kept, and memory must not grow with the rows: every four million
   rows begin a new generation, whose number is part of the ids from the second one on, and counts start over. In a
   larger task, rows that come in another order on a replay may be written twice; none is ever lost.

H is blake2b with 16 bytes, over parts that are prefixed with their lengths. 0 means that there is no id, so it becomes
1.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any
from uuid import UUID

import numpy as np

from pyspark_whippet.batches import Array
from pyspark_whippet.errors import RowError

ID_BYTES = 16
GENERATION_ROWS = 4 * 1024 * 1024
"""They take 32 MiB, and twice as much while they are sorted."""
_COUNT = struct.Struct("<Q")
_UUID = re.compile(r"[0-9a-fA-F]{32}|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", re.ASCII)
_DECIMAL = re.compile(r"[0-9]{1,39}", re.ASCII)


def scope(*parts: str) -> bytes:
    """What all ids of one task have in common."""
    return digest(part.encode() for part in parts)


def digest(parts: Iterable[bytes]) -> bytes:
    return blake2b(b"".join([_COUNT.pack(len(part)) + part for part in parts]), digest_size=ID_BYTES).digest()


class DerivedIds:
    """The ids of a task's rows, by rule 3."""

    def __init__(self, scope: bytes, generation_rows: int = GENERATION_ROWS) -> None:
        self._scope = scope
        self._generation_rows = generation_rows
        self._generation = 0
        self._begin(scope)

    def _begin(self, prefix: bytes) -> None:
        self._prefix = prefix
        # Copying a hash that has started is faster than creating one.
        self._first = blake2b(prefix + _COUNT.pack(0), digest_size=ID_BYTES)
        self._seen = _Fingerprints()

    def for_rows(
        self, payloads: Sequence[bytes], headers: Sequence[bytes] | None, keys: Sequence[bytes | None] | None
    ) -> Array:
        """(n, 16) bytes, big-endian."""
        contents: Sequence[bytes] = payloads
        if headers is not None or keys is not None:
            contents = _row_contents(payloads, headers, keys)
        found, at = [], 0
        while at < len(contents):
            if len(self._seen) == self._generation_rows:
                self._generation += 1
                self._begin(digest((self._scope, b"generation", _COUNT.pack(self._generation))))
            count = min(len(contents) - at, self._generation_rows - len(self._seen))
            found.append(self._of_generation(contents[at : at + count]))
            at += count
        return found[0] if len(found) == 1 else np.concatenate(found) if found else _to_array([])

    def _of_generation(self, contents: Sequence[bytes]) -> Array:
        begun = self._first.copy
        digests: list[bytes] = []
        add = digests.append
        for content in contents:
            identity = begun()
            identity.update(content)
            add(identity.digest())
        fingerprints = np.frombuffer(b"".join(digests), dtype="<u8")[::2]
        counts = self._seen.add(fingerprints)
        for place in () if counts is None else np.flatnonzero(counts).tolist():
            assert counts is not None
            numbered = self._prefix + _COUNT.pack(int(counts[place])) + contents[place]
            digests[place] = blake2b(numbered, digest_size=ID_BYTES).digest()
        return _to_array(digests)


class _Fingerprints:
    """How often each fingerprint was seen: sorted runs, each at least twice as long as the next."""

    def __init__(self) -> None:
        self._runs: list[Array] = []

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    def add(self, new: Array) -> Array | None:
        """Returns how often each had been seen, equal ones before it in `new` included; None if all are new."""
        run = np.sort(new)
        is_new = not (run[1:] == run[:-1]).any() and not any(_has_any(known, run) for known in self._runs)
        counts = None if is_new else self._counts(new)
        while self._runs and len(self._runs[-1]) < 2 * len(run):
            run = np.concatenate((self._runs.pop(), run))
            run.sort(kind="stable")
        self._runs.append(run)
        return counts

    def _counts(self, new: Array) -> Array:
        order = np.argsort(new, kind="stable")
        run = new[order]
        starts = np.flatnonzero(np.concatenate(([True], run[1:] != run[:-1])))
        before = np.zeros(len(starts), dtype=np.int64)
        for known in self._runs:
            before += np.searchsorted(known, run[starts], "right") - np.searchsorted(known, run[starts], "left")
        counts = np.empty(len(new), dtype=np.int64)
        counts[order] = np.arange(len(run)) + np.repeat(before - starts, np.diff(np.append(starts, len(run))))
        return counts


def _has_any(known: Array, run: Array) -> bool:
    places = np.searchsorted(known, run)
    places[places == len(known)] = 0
    return bool((known[places] == run).any())


def _row_contents(
    payloads: Sequence[bytes], headers: Sequence[bytes] | None, keys: Sequence[bytes | None] | None
) -> list[bytes]:
    contents = []
    for i, payload in enumerate(payloads):
        block, key = headers[i] if headers else b"", (keys[i] if keys else None) or b""
        if block or key:
            # The lengths come last, where a value without headers and key cannot imitate them: they are hashed, too.
            lengths = struct.pack("<QQQ", len(payload), len(block), len(key))
            contents.append(blake2b(b"".join((payload, block, key, lengths))).digest())
        else:
            contents.append(payload)
    return contents


def from_columns(namespace: str, columns: Sequence[Sequence[Any]]) -> Array:
    """Returns ids by rule 2. The type of a value counts: 1 and "1" give different ids."""
    start = namespace.encode()
    return _to_array([digest((start, *map(_value_bytes, row))) for row in zip(*columns, strict=True)])


def _value_bytes(value: Any) -> bytes:
    if value is None:
        return b"n"
    if isinstance(value, bytes | bytearray | memoryview):
        return b"b" + bytes(value)
    if isinstance(value, str):
        return b"s" + value.encode()
    if isinstance(value, bool):
        return b"t" if value else b"f"
    if isinstance(value, int):
        return b"i%d" % value
    return f"{type(value).__name__} {value!r}".encode()


def from_strings(texts: Iterable[str]) -> Array:
    """Each string is a UUID, 32 hexadecimal digits, or a decimal number."""
    return _to_array(list(map(_from_string, texts)))


def _from_string(text: str) -> bytes:
    number = UUID(text).int if _UUID.fullmatch(text) else int(text) if _DECIMAL.fullmatch(text) else -1
    if not 0 < number < 2**128:
        raise RowError(f"column 'id': {text!r} is not a valid id; use a UUID, 32 hexadecimal digits or a number from 1")
    return number.to_bytes(ID_BYTES, "big")


def random(count: int) -> Array:
    """Returns the ids of idMode=none: UUIDs of version 4, like those of the SDKs."""
    found = np.frombuffer(bytearray(os.urandom(ID_BYTES * count)), dtype=np.uint8).reshape(count, ID_BYTES)
    found[:, 6] = found[:, 6] & 0x0F | 0x40
    found[:, 8] = found[:, 8] & 0x3F | 0x80
    return found


def modulo(ids: Array, partitions: int) -> Array:
    """Returns the ids, as numbers, modulo the number of partitions."""
    words = np.ascontiguousarray(ids).view(">u8").astype(np.uint64)
    many = np.uint64(partitions)
    return ((words[:, 0] % many) * np.uint64(2**64 % partitions) + words[:, 1] % many) % many


def _to_array(found: list[bytes]) -> Array:
    if NO_ID in found:
        found = [each if each != NO_ID else ID_1 for each in found]
    return np.frombuffer(b"".join(found), dtype=np.uint8).reshape(-1, ID_BYTES)


NO_ID, ID_1 = bytes(ID_BYTES), (1).to_bytes(ID_BYTES, "big")
