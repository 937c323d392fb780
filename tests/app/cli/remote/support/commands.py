"""Calls of `whippet` in this process."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest

from whippet.app.cli.main import main

USER = "iggy"
PASSWORD = "the root's password"


class Ran(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Whippet:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str, code: int = 0) -> Ran:
        """Asserts the exit code, and that a failure is one line."""
        self._capsys.readouterr()
        got = main(list(words))
        ran = Ran(got, *self._capsys.readouterr())
        assert got == code, ran
        if code not in (0, 2):
            assert ran.err.startswith("whippet: "), ran
            assert ran.err.count("\n") == 1, ran
        return ran
