"""Runs an import in the process of the tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from whippet.app.importing.iggy.cipher import cipher_of
from whippet.app.importing.iggy.importer import Root, run
from whippet.app.importing.iggy.report import Report
from whippet.storage.files import Files
from whippet.storage.options import StoreOptions

NOW = 1_800_000_000_000_000
ROOT = Root("iggy", "a root password")
"""The root user of folders that do not have it."""


def imported(
    source: Path,
    target: Path | str,
    *,
    key: str | None = None,
    root: Root = ROOT,
    files: Files | None = None,
    **options: Any,
) -> Report:
    cipher = None if key is None else cipher_of(key)
    chosen = StoreOptions(path=str(target), **options)
    return run(str(source), chosen, lambda: NOW, cipher=cipher, root=root, files=files)
