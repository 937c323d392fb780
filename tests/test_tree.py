"""CONTRIBUTING.md promises a newcomer where tests are, how they are named, and what they may import."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
FILES = sorted(TESTS.rglob("*.py"))
TEST_FILES = [path for path in FILES if path.name.startswith("test_")]
OF_NO_FOLDER = {
    "": "what belongs to the repository as a whole",
    "mutants": "`make mutants`, whose own code is there, too",
    "suites": "`make suites`, whose own code is there, too",
    "packaging": "the wheel, and the names in it",
    "sdk": "the official Python SDK, as its users install it",
}
"""Folders of tests that no folder of the code corresponds to."""
NAME_LENGTH_MAX = 90


def named(path: Path) -> str:
    return str(path.relative_to(TESTS))


def imported(tree: ast.Module) -> Iterator[str]:
    """Yields the full names of imported modules, and of what is imported from them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def names_in(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
            yield node.name


def test_every_folder_of_tests_is_named_after_a_folder_of_the_code() -> None:
    folders = {path.parent.relative_to(TESTS) for path in TEST_FILES} - {Path(name) for name in OF_NO_FOLDER}
    assert [str(folder) for folder in sorted(folders) if not (TESTS.parent / folder).is_dir()] == []


@pytest.mark.parametrize("path", TEST_FILES, ids=named)
def test_every_file_of_tests_has_a_docstring(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


@pytest.mark.parametrize("path", FILES, ids=named)
def test_nothing_imports_a_file_of_tests(path: Path) -> None:
    own = [name.split(".") for name in imported(ast.parse(path.read_text())) if name.startswith("tests.")]
    wrong = [parts for parts in own if any(part.startswith("test_") or part == "conftest" for part in parts[1:])]
    assert wrong == [], "what several files of tests need is in the support folder beside them"


@pytest.mark.parametrize("path", TEST_FILES, ids=named)
def test_names_of_tests_are_not_too_long(path: Path) -> None:
    names = list(names_in(ast.parse(path.read_text())))
    assert [name for name in names if name.startswith("test_given_")] == []
    assert [name for name in names if len(name) > NAME_LENGTH_MAX] == []
