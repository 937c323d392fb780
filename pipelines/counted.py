"""Numbers as people say them."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """`1 file`, `1,234 files`, `2 batches`."""
    ending = "" if number == 1 else "es" if noun.endswith(("ch", "s")) else "s"
    return f"{number:,} {noun}{ending}"
