"""Formats figures as a table for people, and as JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from whippet.bench.measure import Figure

HEADINGS = ("measure", "value", "unit", "yardstick", "ratio", "target", "met", "note")
LEFT = {"measure", "unit", "target", "met", "note"}


def as_json(figures: Sequence[Figure]) -> str:
    return msgspec.json.format(msgspec.json.encode(figures), indent=2).decode()


def as_table(figures: Sequence[Figure]) -> str:
    lines = [HEADINGS, *map(_cells, figures)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join([*(_line(line, widths) for line in lines), *missed(figures)])


def missed(figures: Sequence[Figure]) -> list[str]:
    """Returns a line for each figure that has not reached its goal: which one it is, and what was measured."""
    return [f"NO: {_explained(figure)}" for figure in figures if figure.met is False]


def _explained(figure: Figure) -> str:
    sign, _, rest = (figure.target or "").partition(" ")
    limit, *of_yardstick = rest.split(" ", 1)
    goal = f"{'less than' if sign == '<' else 'at least'} {limit}"
    if not of_yardstick:
        return f"{figure.name}: the goal is {goal} {figure.unit}, and {_number(figure.value)} were measured"
    if figure.ratio is None:
        return f"{figure.name}: the goal is {goal} of the yardstick, and no yardstick was measured"
    return (
        f"{figure.name}: the goal is {goal} of the yardstick's speed, and {figure.ratio:.2f} was measured "
        f"({_number(figure.value)} {figure.unit}, the yardstick {_number(figure.yardstick or 0)})"
    )


def _cells(figure: Figure) -> tuple[str, ...]:
    return (
        figure.name,
        _number(figure.value),
        figure.unit,
        "" if figure.yardstick is None else _number(figure.yardstick),
        "" if figure.ratio is None else f"{figure.ratio:.2f}",
        figure.target or "",
        "" if figure.met is None else "yes" if figure.met else "NO",
        figure.note,
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:,.3g}"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (
        cell.ljust(width) if heading in LEFT else cell.rjust(width)
        for heading, cell, width in zip(HEADINGS, cells, widths, strict=True)
    )
    return "  ".join(padded).rstrip()
