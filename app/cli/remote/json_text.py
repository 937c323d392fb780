"""JSON for a terminal: in colours, and with what would command the terminal escaped. The JSON stays the same."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

_TOKEN = re.compile(
    r"""(?P<key>"(?:[^"\\]|\\.)*")(?=\s*:)
    | (?P<string>"(?:[^"\\]|\\.)*")
    | (?P<number>-?\d[\d.eE+-]*)
    | (?P<word>true|false|null)
    | (?P<space>\s+)
    | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
STYLES = {"key": "bold blue", "string": "green", "number": "cyan", "word": "magenta"}
"""In the words of rich."""
_CODES = {"key": "1;34", "string": "32", "number": "36", "word": "35"}


def is_json(text: str) -> bool:
    """Returns True for an object or a list. Numbers and words alone are texts like others."""
    if text[:1] not in ("{", "["):
        return False
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return False
    return True


def tokens(text: str, *, keeps_lines: bool = False) -> Iterator[tuple[str, str]]:
    """Yields the parts of a JSON text, each with its kind. Without `keeps_lines`, they are one line."""
    for match in _TOKEN.finditer(text):
        kind, part = str(match.lastgroup), match[0]
        if kind == "space":
            yield kind, part if keeps_lines else " "
        else:
            yield kind, escaped(part)


def escaped(part: str) -> str:
    return part if part.isprintable() else "".join(c if c.isprintable() else _escape(c) for c in part)


def _escape(character: str) -> str:
    octets = character.encode("utf-16-be")
    return "".join(f"\\u{octets[i]:02x}{octets[i + 1]:02x}" for i in range(0, len(octets), 2))


def shown(text: str, *, colours: bool, keeps_lines: bool = False) -> str:
    """Returns a JSON text for a terminal."""
    if not colours:
        return "".join(part for _, part in tokens(text, keeps_lines=keeps_lines))
    return "".join(
        f"\x1b[{_CODES[kind]}m{part}\x1b[0m" if kind in _CODES else part
        for kind, part in tokens(text, keeps_lines=keeps_lines)
    )
