"""Old names of Whippet do not occur in it, and no one is told to install a package that is not ours."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("app", "bench", "certs", "pipelines", "storage", "transports")
TEXTS = {".cfg", ".in", ".md", ".py", ".service", ".sh", ".toml", ".yml", ""}
PLACES = (".ci", *FOLDERS, "deploy", "docs", "pyspark_whippet", "tests", "whippet")

IMPORT = re.compile(rf"^[\s>]*(?:from|import) (?:{'|'.join(FOLDERS)})\b(?! import \*)", re.M)
PROGRAM = re.compile(rf"-m (?:{'|'.join(FOLDERS)})\.")
OLD_MODULES = re.compile(r"\bapp[./](?:pipeline|bench)\b")
SOMEBODY_ELSES = re.compile(r"\bpip3? install\b[^\n`#]*[ '\"](?:whippet)(?=$|[\s'\"`\[=<>~])", re.M)

ALLOWED = {"CHANGELOG.md", "tests/packaging/programs/orders.py", "tests/packaging/test_old_names.py"}
"""The changelog, a program with its own `app`, and this module."""


def texts() -> Iterator[tuple[str, str]]:
    files = [*ROOT.glob("*"), *(path for place in PLACES for path in (ROOT / place).rglob("*"))]
    for path in files:
        name = path.relative_to(ROOT).as_posix()
        if path.is_file() and path.suffix in TEXTS and name not in ALLOWED and not path.name.startswith("."):
            yield name, path.read_text(errors="replace")


@pytest.mark.parametrize("pattern", [IMPORT, PROGRAM, OLD_MODULES, SOMEBODY_ELSES], ids=lambda each: each.pattern)
def test_no_file_contains_an_old_name(pattern: re.Pattern[str]) -> None:
    found = [f"{name}: {match[0].strip()}" for name, text in texts() for match in pattern.finditer(text)]
    assert found == []


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (IMPORT, "from app.client import Client"),
        (IMPORT, "    import storage.batch as batches"),
        (PROGRAM, "python -m app.cli.main serve"),
        (OLD_MODULES, "see app/pipeline/jobs/"),
        (SOMEBODY_ELSES, "pip install whippet"),
        (SOMEBODY_ELSES, "python -m pip install 'whippet[spark]'"),
        (SOMEBODY_ELSES, "pip install --upgrade whippet==1.0"),
    ],
)
def test_an_old_name_would_be_found(pattern: re.Pattern[str], text: str) -> None:
    assert pattern.search(text)


@pytest.mark.parametrize(
    "text", ["pip install .", "pip install dist/whippet_gateway-0.1.0.whl", "from whippet.app import x"]
)
def test_current_names_are_not_reported(text: str) -> None:
    assert not any(pattern.search(text) for pattern in (IMPORT, PROGRAM, OLD_MODULES, SOMEBODY_ELSES))
