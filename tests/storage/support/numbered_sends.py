"""Producers and helpers for tests of numbered sends."""

from __future__ import annotations

from pathlib import Path

from tests.storage.support.world import payloads
from whippet.storage.appended import Appended
from whippet.storage.layout import PRODUCERS_FILE
from whippet.storage.partition import Partition
from whippet.storage.producers import Producer


def by(sequence: int, epoch: int = 1, identity: bytes = b"p") -> Producer:
    return Producer(identity, epoch, sequence)


def place(answer: Appended) -> tuple[int, int, int, bool]:
    return answer.base_offset, answer.messages, answer.timestamp, answer.repeated


def files_of(folder: Path, pattern: str = PRODUCERS_FILE) -> list[Path]:
    return sorted(folder.rglob(pattern))


async def contents(partition: Partition) -> list[bytes]:
    return payloads(await partition.read(0, 1000))
