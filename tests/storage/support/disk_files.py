"""The files and folders of the simulated disk (disk.py): what the system shows, and what a power failure may leave."""

from __future__ import annotations

import random
from typing import NamedTuple

SECTOR_BYTES = 512


class Change:
    """A write (`content`) or a truncation (`content` is None) that no sync has made durable."""

    __slots__ = ("content", "position", "state")

    def __init__(self, position: int, content: bytes | None) -> None:
        self.position = position
        self.content = content
        self.state = "dirty"

    def twin(self) -> Change:
        change = Change(self.position, self.content)
        change.state = self.state
        return change

    def apply(self, target: bytearray) -> None:
        if self.content is None:
            resize(target, self.position)
        else:
            put(target, self.position, self.content)


class File:
    """The content as the system shows it. The disk itself has `durable`, and perhaps some of `changes`."""

    __slots__ = ("changes", "content", "durable")

    def __init__(self) -> None:
        self.content = bytearray()
        self.durable = bytearray()
        self.changes: list[Change] = []

    def change(self, position: int, content: bytes | None) -> None:
        change = Change(position, content)
        change.apply(self.content)
        self.changes.append(change)

    def sync(self) -> None:
        for change in self.changes:
            if change.state == "dirty":
                change.state = "synced"
        while self.changes and self.changes[0].state == "synced":
            self.changes.pop(0).apply(self.durable)

    def fail_sync(self) -> None:
        for change in self.changes:
            if change.state == "dirty":
                change.state = "dropped"

    def after_power_cut(self, rng: random.Random) -> bytearray:
        content = bytearray(self.durable)
        for change in self.changes:
            if change.state == "synced":
                change.apply(content)
            else:
                _apply_perhaps(change, content, rng)
        return content


def _apply_perhaps(change: Change, content: bytearray, rng: random.Random) -> None:
    """Applies all of an unsynced change, none of it, or a part."""
    fate = rng.choice(("whole", "whole", "nothing", "nothing", "torn", "length only"))
    if fate == "whole":
        change.apply(content)
    elif change.content is not None and fate == "torn":
        end = change.position + len(change.content)
        boundaries = range(change.position // SECTOR_BYTES + 1, -(-end // SECTOR_BYTES))
        if boundaries:
            kept = rng.choice(boundaries) * SECTOR_BYTES - change.position
            put(content, change.position, change.content[:kept])
    elif change.content is not None and fate == "length only":
        resize(content, max(len(content), change.position + len(change.content)))


def resize(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


def put(content: bytearray, position: int, piece: bytes) -> None:
    if position > len(content):
        resize(content, position)
    content[position : position + len(piece)] = piece


class Folder:
    __slots__ = ("durable", "names")

    def __init__(self) -> None:
        self.names: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}


Node = File | Folder


class Renaming(NamedTuple):
    """Names that change in one step, and what they refer to afterwards (None: nothing). `about` is the renamed node."""

    effects: tuple[tuple[Folder, str, Node | None], ...]
    about: Node

    def twin(self, twins: dict[int, Node]) -> Renaming:
        effects = []
        for above, name, node in self.effects:
            folder = twin_of(above, twins)
            assert isinstance(folder, Folder)
            effects.append((folder, name, None if node is None else twin_of(node, twins)))
        return Renaming(tuple(effects), twin_of(self.about, twins))


def twin_of(node: Node, twins: dict[int, Node]) -> Node:
    """Copies a file, or a folder with everything that is or was in it. Each node is copied once."""
    known = twins.get(id(node))
    if known is not None:
        return known
    if isinstance(node, File):
        file = twins[id(node)] = File()
        file.content, file.durable = bytearray(node.content), bytearray(node.durable)
        file.changes = [change.twin() for change in node.changes]
        return file
    folder = twins[id(node)] = Folder()
    folder.names = {name: twin_of(inner, twins) for name, inner in node.names.items()}
    folder.durable = {name: twin_of(inner, twins) for name, inner in node.durable.items()}
    return folder


def sync_files(folder: Folder) -> None:
    for node in folder.names.values():
        if isinstance(node, Folder):
            sync_files(node)
        else:
            node.sync()


def inside(folder: Folder) -> list[tuple[Folder, str, Node]]:
    """Everything in a folder, deepest first: the order in which a tree is removed."""
    steps: list[tuple[Folder, str, Node]] = []
    for name, node in folder.names.items():
        if isinstance(node, Folder):
            steps += inside(node)
        steps.append((folder, name, node))
    return steps
