"""The page about errors and log lines is made from the code, and is up to date."""

from __future__ import annotations

import re
from pathlib import Path

from whippet.app import error_pages
from whippet.app.errors import TABLE, Code

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "errors.md").read_text()


def test_the_page_is_up_to_date() -> None:
    assert error_pages.page(ROOT) == PAGE, "run `make docs`"


def test_every_error_is_on_the_page_once() -> None:
    names = re.findall(r"`([a-z0-9_]+)`", PAGE.partition("## Warnings and errors")[0])
    for row in TABLE.values():
        assert names.count(row.name) == 1, row.name


def test_an_error_has_its_status_and_the_number_of_the_binary_protocols() -> None:
    assert (
        f"| {int(Code.DISK_FULL)} ({int(Code.CANNOT_SAVE_MESSAGES_TO_SEGMENT)}) | `disk_full` | 507 | The disk" in PAGE
    )


def test_lines_of_the_log_are_on_the_page_with_places_for_what_varies() -> None:
    assert "| `whippet.app.server` | error | Whippet was ended by an unexpected error; please report it |" in PAGE
    assert "| `whippet.app.housekeeping` | warning | retention: cannot delete segments of .../...: ... |" in PAGE
