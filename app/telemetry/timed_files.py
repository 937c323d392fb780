"""The file operations of the store, with a timer around those that wait for the disk itself."""

from __future__ import annotations

from time import perf_counter

from whippet.app.telemetry.measurements import Measurements
from whippet.storage.files import Files


class TimedFiles(Files):
    """Failed syncs count too: how long a disk takes to fail is worth knowing."""

    def __init__(self, measurements: Measurements) -> None:
        self._measurements = measurements

    def sync(self, handle: int) -> None:
        began = perf_counter()
        try:
            super().sync(handle)
        finally:
            self._measurements.file_syncs.add(perf_counter() - began)

    def sync_folder(self, path: str) -> None:
        began = perf_counter()
        try:
            super().sync_folder(path)
        finally:
            self._measurements.folder_syncs.add(perf_counter() - began)
