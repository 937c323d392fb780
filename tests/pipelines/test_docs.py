"""docs/pipelines.md matches the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: install whippet-gateway[spark]")

from whippet.pipelines import docs, pipeline_file
from whippet.pipelines.keys import keys
from whippet.pipelines.sinks import SINKS
from whippet.pipelines.sources import SOURCES
from whippet.pipelines.transforms import TRANSFORMS

ROOT = Path(__file__).parents[2]


def test_the_reference_page_matches_the_keys() -> None:
    on_disk = (ROOT / "docs" / "pipelines.md").read_text()
    assert on_disk == docs.page(), "run `make docs`"


def test_the_example_on_the_reference_page_is_valid() -> None:
    example = re.search(r"^```toml\n(.*?)^```", docs.page(), re.M | re.S)
    assert example
    assert pipeline_file.read(example[1], environ={"PGPASSWORD": "x"}).key == "errors"


def test_every_key_and_every_table_has_a_description() -> None:
    for types in (SOURCES, TRANSFORMS, SINKS):
        for name, table in types.items():
            assert name == table.TYPE
            assert table.__doc__
            assert all(key.meaning for key in keys(table).values())
