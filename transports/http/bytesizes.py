"""Sizes in bytes as texts with a unit, exact: 1024 is "1 KiB", 1025 is "1.025 KB". Clients take them apart again."""

from __future__ import annotations

UNITS = tuple(
    (f"{letter}{infix}B", factor**power)
    for power, letter in ((6, "E"), (5, "P"), (4, "T"), (3, "G"), (2, "M"), (1, "K"))
    for infix, factor in (("i", 1024), ("", 1000))
)
"""From the largest to the smallest."""


def text(size: int) -> str:
    """In the first unit in which it has at most three decimal places."""
    for name, unit in UNITS:
        if size >= unit and size * 1000 % unit == 0:
            whole, thousandths = divmod(size * 1000 // unit, 1000)
            decimals = f"{thousandths:03}".rstrip("0")
            return f"{whole}.{decimals} {name}" if decimals else f"{whole} {name}"
    return f"{size} B"
