"""Segments of Iggy 0.9: batches back to back, in the format that Whippet's logs have (storage/FORMAT.md, section 2).

So whole batches are found, and damage is named, by the code that does this for Whippet's own logs, and batches are
copied as they are. Only those that are encrypted are built anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from whippet.app.importing.iggy.batching import Batch, Message, batched
from whippet.app.importing.iggy.cipher import Cipher, NotDecrypted
from whippet.app.importing.iggy.report import Report
from whippet.app.importing.iggy.source import LogFile
from whippet.storage import batch as batches
from whippet.storage.files import Files
from whippet.storage.index import Index
from whippet.storage.layout import OFFSETS_MAX
from whippet.storage.scan import Window, scan
from whippet.storage.segment import Damage

_INDEX_ENTRY = np.dtype([("offset", "<u8"), ("time", "<u8"), ("position", "<u8")])
"""About the first batch of a write."""


class ModernSegment:
    """Reads one file once. `next_offset` is the offset after the last message."""

    def __init__(
        self, log: LogFile, index: bytes, cipher: Cipher | None, files: Files, partition_id: int, report: Report
    ) -> None:
        self.next_offset = log.start_offset
        self.given_out = _given_out(index, log.start_offset)
        self._log = log
        self._cipher = cipher
        self._files = files
        self._partition_id = partition_id
        self._report = report

    def batches(self, read: Callable[[int], None]) -> Iterator[Batch]:
        """Yields every whole batch. `read` is told how many bytes have been read."""
        log = self._log
        handle = self._files.open_for_reading(log.path)
        try:
            window, index = Window(self._files, handle, log.size), Index()
            ceiling = OFFSETS_MAX if log.ceiling is None else log.ceiling
            found = scan(window, index, log.path, self._partition_id, 0, log.start_offset, ceiling)
            self.next_offset = found.next_offset
            self._report_damage(found.damage, found.end, found.reason)
            for i in range(len(index)):
                if index.is_packed(i):
                    self._report.lose(f"{log.path}: a packed batch at position {index.position(i)}, which Iggy has not")
                    continue
                content = bytearray(window.view(index.position(i), index.length(i)))
                if self._cipher is None:
                    yield Batch(content, index.base_offset(i), index.count(i), index.timestamp(i))
                else:
                    yield from batched(self._decrypted(content), self._partition_id)
                read(index.length(i))
        finally:
            self._files.close(handle)

    def _decrypted(self, content: bytearray) -> Iterator[Message]:
        assert self._cipher is not None
        locked: list[int] = []
        for message in batches.messages(content):
            try:
                payload = self._cipher.decrypt(message.payload)
                headers = self._cipher.decrypt(message.user_headers) if message.user_headers else b""
            except NotDecrypted:
                locked.append(message.offset)
                continue
            if payload:
                yield Message(message.offset, message.timestamp, message.origin_timestamp, message.id, payload, headers)
        if locked:
            self._report.lose(
                f"{self._log.path}: {len(locked)} messages from offset {locked[0]} on cannot be decrypted with this key"
            )

    def _report_damage(self, damage: list[Damage], end: int, reason: str | None) -> None:
        for found in damage:
            self._report.lose(str(found))
        log = self._log
        after = max(self.given_out, self.next_offset) if log.ceiling is None else log.ceiling
        if reason is not None or after > self.next_offset:
            why = reason or "the file ends before " + ("its index" if log.ceiling is None else "the next one begins")
            lost = Damage(log.path, end, log.size - end, self.next_offset, after, why)
            self._report.lose(str(lost))


def decrypts(path: str, size: int, cipher: Cipher, files: Files) -> bool | None:
    """Whether a key is the one of the first message in a file; None if there is no whole message."""
    handle = files.open_for_reading(path)
    try:
        window = Window(files, handle, size)
        head = window.view(batches.HEADER_BYTES, batches.FRAME_BYTES)
        if len(head) < batches.FRAME_BYTES:
            return None
        length = batches.FRAME.unpack(head)[5]
        payload = bytes(window.view(batches.HEADER_BYTES + batches.FRAME_BYTES, length))
    finally:
        files.close(handle)
    try:
        cipher.decrypt(payload)
    except NotDecrypted:
        return None if len(payload) < length else False
    return True


def _given_out(index: bytes, start_offset: int) -> int:
    """The offset after the newest one that an index names. It has an entry for some batches only."""
    whole = len(index) - len(index) % _INDEX_ENTRY.itemsize
    if not whole:
        return start_offset
    offsets = np.frombuffer(index[:whole], _INDEX_ENTRY)["offset"]
    first, last = int(offsets[0]), int(offsets[-1])
    rising = bool((offsets[1:] > offsets[:-1]).all())
    plausible = rising and start_offset <= first and last - start_offset < 2**32
    return last + 1 if plausible else start_offset
