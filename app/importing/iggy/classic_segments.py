"""Segments of Iggy 0.7 and 0.8: messages of a 64-byte header, the payload and the user headers, back to back.

Every message has a checksum, so it is known which ones are whole. After damage, the next message is where the index or
the lengths in the damaged header say; a payload may contain the bytes of messages, so other places are only searched if
neither leads to a whole message.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import xxhash

from whippet.app.importing.iggy.batching import Message
from whippet.app.importing.iggy.cipher import Cipher, NotDecrypted
from whippet.app.importing.iggy.report import Report
from whippet.app.importing.iggy.source import LogFile
from whippet.storage.files import Files
from whippet.storage.layout import OFFSETS_MAX
from whippet.storage.scan import CHUNK_BYTES, Window

HEADER = struct.Struct("<Q16sQQQIIQ")
"""checksum, id, offset, time of appending, origin time, length of the user headers, of the payload, reserved"""
_CHECKED_FROM = 8
_RESERVED_AT = 56
_ZEROS = re.compile(rb"\0{8,}")
_INDEX_ENTRY = np.dtype([("offset", "<u4"), ("end", "<u4"), ("time", "<u8")])
Ends = np.ndarray[Any, np.dtype[np.uint32]]
_JUMP_MAX = 2**32
"""Offsets in one file are not further apart: its index has 32 bits for them."""


class ClassicSegment:
    """Reads one file once. `next_offset` is the offset after the last message, or what the file was expected to
    begin with."""

    def __init__(self, log: LogFile, index: bytes, cipher: Cipher | None, files: Files, report: Report) -> None:
        self.next_offset = log.start_offset
        self._log = log
        self._ends = _ends(index)
        self._cipher = cipher
        self._files = files
        self._report = report
        self._missing = _Counted()
        self._empty = _Counted()
        self._locked = _Counted()

    @property
    def given_out(self) -> int:
        """The offset after the last message that the index knows of."""
        return self._log.start_offset + len(self._ends)

    def messages(self, read: Callable[[int], None]) -> Iterator[Message]:
        """Yields every whole message. `read` is told how many bytes have been read."""
        handle = self._files.open_for_reading(self._log.path)
        try:
            yield from self._messages(Window(self._files, handle, self._log.size), read)
        finally:
            self._files.close(handle)
        self._summarise()

    def _messages(self, window: Window, read: Callable[[int], None]) -> Iterator[Message]:
        position = told = 0
        while position < window.size:
            found = self._at(window, position)
            if isinstance(found, str):
                after = self._next(window, position)
                self._report_damage(window, position, after, found)
                if after is None:
                    break
                position = after
                continue
            message, position = found
            if message.offset > self.next_offset:
                self._missing.add(self.next_offset, message.offset - self.next_offset)
            self.next_offset = message.offset + 1
            if position - told >= CHUNK_BYTES:
                read(position - told)
                told = position
            plain = self._decrypted(message)
            if plain is not None:
                yield plain
        read(window.size - told)

    def _at(self, window: Window, position: int) -> tuple[Message, int] | str:
        """The whole message at a position and where it ends, or why there is none."""
        head = window.view(position, HEADER.size)
        if len(head) < HEADER.size:
            return "the file ends inside the header of a message"
        checksum, identity, offset, timestamp, origin, headers, payload, reserved = HEADER.unpack(head)
        end = position + HEADER.size + headers + payload
        if reserved or end > window.size:
            return "the file ends inside a message" if not reserved else "not a message"
        content = window.view(position, end - position)
        if xxhash.xxh3_64_intdigest(content[_CHECKED_FROM:]) != checksum:
            return "the checksum of a message is wrong"
        ceiling = self._log.ceiling
        if not self.next_offset <= offset < (self.next_offset + _JUMP_MAX if ceiling is None else ceiling):
            return f"a message with offset {offset}, where {self.next_offset} is expected"
        if offset >= OFFSETS_MAX:
            return f"a message with offset {offset}, which no partition reaches"
        body = HEADER.size + payload
        number = int.from_bytes(identity, "little")
        return Message(
            offset, timestamp, origin, number, bytes(content[HEADER.size : body]), bytes(content[body:])
        ), end

    def _decrypted(self, message: Message) -> Message | None:
        """None for a message that cannot be stored."""
        if self._cipher is not None:
            try:
                payload = self._cipher.decrypt(message.payload)
                headers = self._cipher.decrypt(message.user_headers) if message.user_headers else b""
            except NotDecrypted:
                self._locked.add(message.offset)
                return None
            message = message._replace(payload=payload, user_headers=headers)
        if not message.payload:
            self._empty.add(message.offset)
            return None
        return message

    # ----------------------------------------------------------------------------------------------------- after damage

    def _next(self, window: Window, position: int) -> int | None:
        """Where the next whole message begins after damage at a position; None if there is none."""
        for i in range(int(np.searchsorted(self._ends, position, side="right")), len(self._ends)):
            end = int(self._ends[i])
            if end < window.size and self._is_whole(window, end):
                return end
        head = window.view(position, HEADER.size)
        if len(head) == HEADER.size:
            *_, headers, payload, _ = HEADER.unpack(head)
            claimed = position + HEADER.size + int(headers) + int(payload)
            if claimed < window.size and self._is_whole(window, claimed):
                return claimed
        return self._search(window, position + 1)

    def _search(self, window: Window, start: int) -> int | None:
        """Tries every place with eight reserved zeros."""
        while window.size - start >= HEADER.size:
            piece = bytes(window.view(start, CHUNK_BYTES))
            for zeros in _ZEROS.finditer(piece):
                # The checksum in front is not zero, so a message begins before the zeros, however many there are.
                first, last = zeros.start() - _RESERVED_AT, min(zeros.start() - 1, zeros.end() - HEADER.size)
                for at in range(max(first, 0), last + 1):
                    if self._is_plausible(piece, at) and self._is_whole(window, start + at):
                        return start + at
            if start + len(piece) >= window.size:
                return None
            start += len(piece) - HEADER.size
        return None

    def _is_plausible(self, piece: bytes, at: int) -> bool:
        """Spares most candidates the reading of a message."""
        checksum, _, offset, timestamp, *_ = HEADER.unpack_from(piece, at)
        return bool(checksum and timestamp) and self.next_offset <= offset < self.next_offset + _JUMP_MAX

    def _is_whole(self, window: Window, position: int) -> bool:
        return not isinstance(self._at(window, position), str)

    # ----------------------------------------------------------------------------------------------------------- report

    def _report_damage(self, window: Window, position: int, after: int | None, reason: str) -> None:
        length = (window.size if after is None else after) - position
        found = None if after is None else self._at(window, after)
        if found is not None and not isinstance(found, str):
            lost = _offsets(self.next_offset, found[0].offset)
            # It is told here, and need not be told again as a gap.
            self.next_offset = found[0].offset
        elif self._log.ceiling is not None:
            lost = _offsets(self.next_offset, self._log.ceiling)
        elif self.given_out > self.next_offset:
            lost = _offsets(self.next_offset, self.given_out)
        else:
            lost = f"messages from offset {self.next_offset} on may be lost"
        self._report.lose(f"{self._log.path}: {length} bytes at position {position}: {reason}; {lost}")
        if after is None:
            self._missing.is_told = True

    def _summarise(self) -> None:
        log, report = self._log, self._report
        end = max(self.given_out, self.next_offset) if log.ceiling is None else log.ceiling
        if end > self.next_offset and not self._missing.is_told:
            what = "its index ends" if log.ceiling is None else "the next file begins"
            lost = _offsets(self.next_offset, end)
            report.lose(f"{log.path}: the file ends at position {log.size}, before {what}; {lost}")
        if self._missing:
            report.lose(
                f"{log.path}: {self._missing.count} offsets are missing in the file, the first is {self._missing.first}"
            )
        if self._locked:
            report.lose(
                f"{log.path}: {self._locked.count} messages cannot be decrypted with this key, the first has offset "
                f"{self._locked.first}"
            )
        if self._empty:
            report.lose(
                f"{log.path}: {self._empty.count} messages have no payload, which Whippet does not store; the first "
                f"has offset {self._empty.first}"
            )


class _Counted:
    """How many, and the first one."""

    def __init__(self) -> None:
        self.count = 0
        self.first = 0
        self.is_told = False

    def add(self, offset: int, count: int = 1) -> None:
        if not self.count:
            self.first = offset
        self.count += count

    def __bool__(self) -> bool:
        return bool(self.count)


def _offsets(first: int, after: int) -> str:
    if after <= first:
        return "no message is lost"
    if after == first + 1:
        return f"the message with offset {first} is lost"
    return f"{after - first} messages with offsets {first} to {after - 1} are lost"


def _ends(index: bytes) -> Ends:
    """Where the messages of a file end, according to its index; nothing if it is not a complete index. A file may have
    millions of messages, so this stays an array."""
    entries = np.frombuffer(index[: len(index) - len(index) % _INDEX_ENTRY.itemsize], _INDEX_ENTRY)
    ends: Ends = entries["end"].copy()
    offsets = entries["offset"]
    rising = bool((ends[1:] > ends[:-1]).all())
    counting = bool(((offsets == np.arange(len(offsets), dtype=np.uint32)) | (offsets == 0)).all())
    return ends if rising and counting else ends[:0]
