"""What an import has done, and what it could not do, in plain sentences that name the file and the position."""

from __future__ import annotations

import msgspec

LINES_MAX = 1000
"""Sentences that are kept of each kind. A damaged disk can damage every message."""


class Refused(Exception):
    """The import is not possible. The text is one sentence, and nothing was written."""


class Report(msgspec.Struct):
    """`lost`: data of the source that the target does not have. `notes`: what differs, without a loss."""

    streams: int = 0
    topics: int = 0
    partitions: int = 0
    messages: int = 0
    message_bytes: int = 0
    groups: int = 0
    offsets: int = 0
    users: int = 0
    tokens: int = 0
    lost: list[str] = []
    notes: list[str] = []
    unlisted: int = 0
    """Sentences beyond the limit."""

    def lose(self, sentence: str) -> None:
        self._add(self.lost, sentence)

    def note(self, sentence: str) -> None:
        self._add(self.notes, sentence)

    def _add(self, sentences: list[str], sentence: str) -> None:
        if len(sentences) < LINES_MAX:
            sentences.append(sentence)
        else:
            self.unlisted += 1
