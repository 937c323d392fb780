"""Puts finished folders and documents into their places in the data folder, all or none (FORMAT.md, section 6).

What is put into place has been written and synced in `staging` by a tool that works on the folder while no server runs.
`decide` records what goes where. From then on it is certain: whoever opens the folder next calls `finish`, also after a
crash. Before that, a crash leaves nothing but files in `staging`, which every start empties.
"""

from __future__ import annotations

import msgspec

from whippet.storage.documents import NOT_UNDERSTOOD
from whippet.storage.errors import CatalogueError
from whippet.storage.files import Files, read_all, replace
from whippet.storage.layout import PLACEMENT_FILE, Layout


class Move(msgspec.Struct, frozen=True, array_like=True):
    """One rename. Both paths are relative to the data folder. A document replaces another one, a folder does not."""

    staged: str
    place: str


class Placement(msgspec.Struct, frozen=True):
    """`placement.json`: the renames in their order."""

    moves: tuple[Move, ...]


def decide(files: Files, layout: Layout, moves: list[Move]) -> None:
    """Everything that is moved must be synced. Returns when the decision is on the disk."""
    replace(files, layout.below(PLACEMENT_FILE), msgspec.json.encode(Placement(tuple(moves))) + b"\n")


def finish(files: Files, layout: Layout) -> bool:
    """Carries out a placement that was decided, and returns whether there was one. May be repeated after a crash."""
    path = layout.below(PLACEMENT_FILE)
    if not files.exists(path):
        return False
    try:
        placement = msgspec.json.decode(read_all(files, path), type=Placement)
    except NOT_UNDERSTOOD as error:
        raise CatalogueError(f"{path}: cannot be decoded, so it cannot be carried out: {error}") from error
    parents = set()
    for move in placement.moves:
        staged, place = layout.below(move.staged), layout.below(move.place)
        parents.add(place.rpartition("/")[0])
        if files.exists(staged):
            files.rename(staged, place)
        elif not files.exists(place):
            raise CatalogueError(f"{path}: neither {staged} nor {place} exists; the placement cannot be finished")
    for parent in sorted(parents):
        files.sync_folder(parent)
    files.remove(path)
    files.sync_folder(layout.root)
    return True
