"""Sizes of tests that could run for any length of time: small in `make test`, full in `make test-long`.

Tests with the mark `long` run only with `-m long`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from typing import Any

import pytest


def sized(name: str, usual: int | None, *, long: int, variable: str = "") -> pytest.MarkDecorator:
    """Parametrizes a test with both amounts; without a usual one it runs only in `make test-long`.

    If the environment has the variable, its amount is the only one.
    """
    if variable in os.environ:
        return pytest.mark.parametrize(name, [int(os.environ[variable])])
    short = [] if usual is None else [usual]
    return pytest.mark.parametrize(name, [*short, pytest.param(long, marks=pytest.mark.long)])


def mostly_long(values: Iterable[Any], usual: Collection[Any]) -> list[Any]:
    """Returns values for `parametrize`, of which all but the usual ones run only in `make test-long`."""
    return [value if value in usual else pytest.param(value, marks=pytest.mark.long) for value in values]
