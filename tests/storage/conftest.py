"""Fixtures that several files of these tests share."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.storage.support.folders import DamagedFolder, make


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("made") / "data").root


@pytest.fixture
def damaged(made: Path, tmp_path: Path) -> DamagedFolder:
    return DamagedFolder(Path(shutil.copytree(made, tmp_path / "data")))
