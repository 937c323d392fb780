"""Random bytes that are drawn many at a time."""

from __future__ import annotations

import os
import threading
import uuid

import pytest

from whippet.transports import random_pool
from whippet.transports.random_pool import DRAWN_BYTES, PIECE_BYTES, random_bytes, random_uuid


def test_no_piece_is_given_out_twice_by_several_threads() -> None:
    found: list[list[bytes]] = [[] for _ in range(4)]

    def take(pieces: list[bytes]) -> None:
        pieces.extend(random_bytes(PIECE_BYTES) for _ in range(5000))

    threads = [threading.Thread(target=take, args=(pieces,)) for pieces in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    everything = [piece for pieces in found for piece in pieces]
    assert {len(piece) for piece in everything} == {PIECE_BYTES}
    assert len(set(everything)) == len(everything) == 20_000


def test_the_operating_system_is_asked_once_for_many_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def urandom(size: int) -> bytes:
        asked.append(size)
        return os.getrandom(size)

    monkeypatch.setattr(random_pool, "_pieces", [])
    monkeypatch.setattr(os, "urandom", urandom)
    for _ in range(DRAWN_BYTES // PIECE_BYTES + 1):
        random_bytes(PIECE_BYTES)
    assert asked == [DRAWN_BYTES, DRAWN_BYTES]
    assert len(random_bytes(100)) == asked[-1] == 100


def test_the_child_of_a_fork_does_not_give_out_its_parents_pieces() -> None:
    random_bytes(PIECE_BYTES)
    expected = random_pool._pieces[-1]
    readable, writable = os.pipe()
    child = os.fork()
    if not child:
        os.write(writable, random_bytes(PIECE_BYTES))
        os._exit(0)
    os.waitpid(child, 0)
    with os.fdopen(readable, "rb") as pipe:
        os.close(writable)
        assert pipe.read() != expected


def test_uuids_are_random_and_of_version_4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_pool, "_uuids", [])
    found = [random_uuid() for _ in range(3 * DRAWN_BYTES // PIECE_BYTES)]
    assert len(set(found)) == len(found)
    assert {(each.version, each.variant) for each in map(uuid_of, found)} == {(4, uuid.RFC_4122)}
    seen = bytearray(PIECE_BYTES)
    for each in found:
        seen = bytearray(a | b for a, b in zip(seen, each, strict=True))
    assert bytes(seen) == bytes([255] * 6 + [0x4F, 255, 0xBF] + [255] * 7)


def uuid_of(octets: bytes) -> uuid.UUID:
    return uuid.UUID(bytes=octets)
