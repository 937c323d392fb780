"""A working directory with a `server.toml` and variables that the test chooses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from whippet.app.config import Loaded, load

Start = Callable[..., Loaded]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    def start(toml: str = "", **variables: str) -> Loaded:
        if toml:
            (tmp_path / "server.toml").write_text(toml)
        return load(variables, str(tmp_path))

    return start
