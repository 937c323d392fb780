"""Documents that a test changes as a program would: with the checksum that belongs to the new content."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from whippet.storage.document_checksums import with_checksum, without_checksum


def content(path: Path) -> Any:
    """A document without its checksum."""
    return json.loads(without_checksum(path.read_bytes())[0])


def change(path: Path, **members: Any) -> None:
    path.write_bytes(with_checksum(json.dumps(content(path) | members).encode()))


def replace_text(path: Path, old: bytes, new: bytes) -> None:
    document = without_checksum(path.read_bytes())[0]
    assert old in document
    path.write_bytes(with_checksum(document.replace(old, new)))
