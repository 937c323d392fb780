"""How much a test does where it could go on for ever: a little in `make test`, the rest in `make test-long`.

Whatever is marked `long` is left out unless it is asked for, by `-m long`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from typing import Any

import pytest


def sized(name: str, usual: int | None, *, long: int, variable: str = "") -> pytest.MarkDecorator:
    """Parametrizes a test with both amounts; without a usual one it is for `make test-long` alone.

    Where the environment has the variable, its amount is the only one.
    """
    if variable in os.environ:
        return pytest.mark.parametrize(name, [int(os.environ[variable])])
    short = [] if usual is None else [usual]
    return pytest.mark.parametrize(name, [*short, pytest.param(long, marks=pytest.mark.long)])


def mostly_long(values: Iterable[Any], usual: Collection[Any]) -> list[Any]:
    """Values for `parametrize`, of which all but the usual ones are for `make test-long`."""
    return [value if value in usual else pytest.param(value, marks=pytest.mark.long) for value in values]
