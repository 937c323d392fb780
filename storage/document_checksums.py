"""The checksum at the end of a JSON document, as functions over bytes: FORMAT.md, section 6.

A changed letter in a name, or a changed digit, leaves a document that can be decoded. So the last member of every
document tells whether the rest of it is what was written.
"""

from __future__ import annotations

import enum
import re

import xxhash

_ON_A_LINE = b',\n  "xxh3": "'
_COMPACT = b',"xxh3":"'
_DIGITS = 16
_END = re.compile(rb'(?:,\n  "xxh3": "|,"xxh3":")([0-9a-f]{16})"(\s*\}\s*)\Z')
_ENDS = tuple((before, after) for before in (_ON_A_LINE, _COMPACT) for after in (b'"\n}\n', b'"}\n', b'"}', b'"\n}'))
_UNLIKE_MAX = 2
"""An end with no more other bytes than this was that of a document with a checksum."""
_LOOKED_AT = 64


class State(enum.Enum):
    """The outcome of comparing the checksum of a document."""

    INTACT = "intact"
    UNCHECKED = "unchecked"
    """The document has none: an older version has written it, or somebody by hand."""
    CHANGED = "changed"


def with_checksum(document: bytes) -> bytes:
    """A document as it is stored. What is not a JSON object with members stays as it is."""
    brace = document.rstrip()[:-1]
    body = brace.rstrip()
    if not document.rstrip().endswith(b"}") or body.endswith(b"{"):
        return document
    end = document[len(body) :]
    digits = xxhash.xxh3_64_hexdigest(document).encode()
    return body + (_ON_A_LINE if end.startswith(b"\n") else _COMPACT) + digits + b'"' + end


def without_checksum(stored: bytes) -> tuple[bytes, State]:
    """The document as it was before its checksum was added, or as it is if it seems to have none."""
    found = _END.search(stored, max(len(stored) - _LOOKED_AT, 0))
    if found is not None:
        document = stored[: found.start()] + found[2]
        is_intact = xxhash.xxh3_64_hexdigest(document).encode() == found[1]
        return document, State.INTACT if is_intact else State.CHANGED
    resembles = b"xxh3" in stored[-_LOOKED_AT:] or any(_unlike(stored, *end) <= _UNLIKE_MAX for end in _ENDS)
    return stored, State.CHANGED if resembles else State.UNCHECKED


def _unlike(stored: bytes, before: bytes, after: bytes) -> int:
    """Returns how many bytes around the digits are not those of a document with this end."""
    end = stored[-(len(before) + _DIGITS + len(after)) :]
    found = end[: len(before)] + end[-len(after) :]
    return sum(a != b for a, b in zip(found, before + after, strict=False)) + len(before + after) - len(found)
