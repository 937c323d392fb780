"""Reads objects that a manifest names, and checks that they are what was recorded."""

from __future__ import annotations

from collections.abc import Iterator

import xxhash

from whippet.storage.archive.documents import Blob
from whippet.storage.archive.objects import Objects
from whippet.storage.errors import ArchiveDamaged
from whippet.storage.files import Buffer


def content_of(objects: Objects, path: str, blob: Blob) -> Iterator[Buffer]:
    """The parts of an object. Raises ArchiveDamaged, at the latest after the last part, if it is not what was
    recorded."""
    size = objects.size(path)
    if size != blob.size:
        found = "it is missing" if size is None else f"it has {size} bytes"
        raise ArchiveDamaged(f"{objects.location}/{path} has {blob.size} bytes according to the manifest, but {found}")
    hasher = xxhash.xxh3_64()
    for part in objects.parts(path, size):
        hasher.update(part)
        yield part
    if hasher.hexdigest() != blob.xxh3:
        raise ArchiveDamaged(
            f"{objects.location}/{path} has the checksum {hasher.hexdigest()}, not {blob.xxh3} as in the manifest"
        )
