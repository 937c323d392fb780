"""Kinds of damage to a file, and to a data folder that has an archive."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from tests.storage.support.repairs import (
    Mirrored,
    flipped,
)

Damaging = Callable[[Path], None]


def zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def without_its_middle(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2] + content[len(content) // 2 + 3 :])


def with_more_inside(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:300] + b"inserted" + content[300:])


def with_more_after(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"after the last batch" * 20)


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def garbled(path: Path) -> None:
    path.write_bytes(bytes(octet ^ 0x5A for octet in path.read_bytes()))


KINDS = (zeros, half, without_its_middle, with_more_inside, with_more_after, emptied, garbled, Path.unlink)


def a_changed_batch(folder: Mirrored) -> None:
    log = folder.logs()[0]
    log.write_bytes(flipped(log.read_bytes(), 300, 1))


def bytes_inserted(folder: Mirrored) -> None:
    with_more_inside(folder.logs()[1])


def a_short_last_log(folder: Mirrored) -> None:
    half(folder.logs()[-1])


def a_longer_last_log(folder: Mirrored) -> None:
    with_more_after(folder.logs()[-1])


def a_missing_log(folder: Mirrored) -> None:
    folder.logs()[1].unlink()


def small_files(folder: Mirrored) -> None:
    for name in ("producers", "offsets/consumers/7", folder.logs()[0].name.replace("log", "index")):
        path = folder.partition / name
        path.write_bytes(flipped(path.read_bytes(), 20, 1))
    garbled(folder.data / "streams/0/stream.json")


def a_missing_folder(folder: Mirrored) -> None:
    shutil.rmtree(folder.partition)


def no_format(folder: Mirrored) -> None:
    (folder.data / "FORMAT").unlink()


DAMAGES = (
    a_changed_batch,
    bytes_inserted,
    a_short_last_log,
    a_longer_last_log,
    a_missing_log,
    small_files,
    a_missing_folder,
    no_format,
)
