"""ARCHITECTURE.md: every path that it names exists, and the overview comes first."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "ARCHITECTURE.md").read_text()
FOLDERS = ("app", "bench", "certs", "deploy", "docs", "pipelines", "pyspark_whippet", "storage", "tests", "transports")
PATHS = sorted(set(re.findall(rf"(?<![\w/])(?:{'|'.join(FOLDERS)})/[\w./]*\w", TEXT)))
TREE = re.search(r"^## The tree\n.*?```\n(.*?)```", TEXT, re.MULTILINE | re.DOTALL)


def files_of_the_tree() -> list[tuple[str, str]]:
    """Returns the names of files in the tree of the document, each with the top folder that it must be in."""
    assert TREE
    found: list[tuple[str, str]] = []
    top = ""
    for line in TREE[1].splitlines():
        if folder := re.match(r"(\w+)/", line):
            top = folder[1]
        found += [(top, name) for name in re.findall(r"[\w/]+\.(?:py|js|md)\b", line)]
    return found


@pytest.mark.parametrize("path", PATHS)
def test_every_path_in_the_document_exists(path: str) -> None:
    assert (ROOT / path).exists()


def test_every_file_in_the_tree_exists() -> None:
    missing = [(top, name) for top, name in files_of_the_tree() if not list((ROOT / top).glob(f"**/{name}"))]
    assert missing == []
    assert len(files_of_the_tree()) > 100


def test_the_document_opens_with_the_overview() -> None:
    assert re.findall(r"^## (.*)$", TEXT, re.MULTILINE)[0] == "Overview"
