"""The files of the store, with a watch at what waits for the disk itself. The composition root hands it over."""

from __future__ import annotations

from time import perf_counter

from whippet.app.telemetry.measured import Measured
from whippet.storage.files import Files


class TimedFiles(Files):
    """Syncs that fail count too: how long a disk takes to refuse is worth knowing."""

    def __init__(self, measured: Measured) -> None:
        self._measured = measured

    def sync(self, handle: int) -> None:
        began = perf_counter()
        try:
            super().sync(handle)
        finally:
            self._measured.file_syncs.add(perf_counter() - began)

    def sync_folder(self, path: str) -> None:
        began = perf_counter()
        try:
            super().sync_folder(path)
        finally:
            self._measured.folder_syncs.add(perf_counter() - began)
