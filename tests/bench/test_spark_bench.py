"""The benchmark of the data source runs and prints the promised figures. How fast the source is, is not tested."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.support.command import measured
from tests.support.lake import need_spark


@pytest.mark.long
def test_every_figure_is_an_object_with_a_positive_value_and_nothing_else_is_printed(tmp_path: Path) -> None:
    need_spark()
    measured("spark", tmp_path, figures=11, has_yardsticks=True)
