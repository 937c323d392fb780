"""Bounds of results: how many entries, how many bytes, and what is said about the rest."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from whippet.app.mcp import bounds
from whippet.app.mcp.bounds import FRAME_BYTES, Listing, skipping
from whippet.app.mcp.work import Limits


class Thing(msgspec.Struct, frozen=True):
    name: str
    parts: list[str]


def rendered(entries: list[Any], *, items: int = 100, size: int = 4096, skip: int = 0, **more: Any) -> Any:
    text = bounds.render(Listing("parts", entries, skip, skipping, **more), Limits(items, size))
    assert len(text) <= size
    return json.loads(text)


def test_a_list_that_fits_is_whole_and_belongs_to_its_thing() -> None:
    assert rendered(["a", "b"]) == {"parts": ["a", "b"], "total": 2}
    assert rendered(["a"], of=Thing("t", ["a"])) == {"name": "t", "parts": ["a"], "total": 1}
    assert rendered(["a"], is_whole=False) == {"parts": ["a"]}
    assert rendered([]) == {"parts": [], "total": 0}


def test_what_is_left_out_is_counted() -> None:
    more = "call the tool again with skip=2"
    assert rendered(["a", "b", "c"], items=2)["left_out"] == {"count": 1, "more": more}
    assert rendered(["a", "b"], items=2) == {"parts": ["a", "b"], "total": 2}
    assert rendered(["a", "b", "c"], items=2, skip=2) == {"parts": ["c"], "total": 3}
    assert rendered(["a", "b"], is_whole=False, is_capped=True)["left_out"] == {"more": more}
    assert rendered([], is_whole=False, is_capped=True) == {"parts": []}
    assert rendered(["a"], skip=5) == {"parts": [], "total": 1}


@pytest.mark.parametrize("size", [1024, 1500, 4096])
def test_every_entry_is_in_one_page_or_named_as_too_long(size: int) -> None:
    entries = ["x" * length for length in (1, 5000, 3, 700, 200, 0, 300, 5000, 5000, 2)]
    found: list[Any] = []
    while len(found) < len(entries):
        page = rendered(entries, size=size, skip=len(found))
        assert page["parts"]
        found += page["parts"]
    assert len(found) == len(entries)
    for entry, shown in zip(entries, found, strict=True):
        room = size - FRAME_BYTES - 2
        if shown != entry:
            assert len(entry) + 2 >= room
            assert shown["left_out"].startswith(f"an entry of {len(entry) + 2} bytes")


def test_an_entry_fits_exactly_or_not_at_all() -> None:
    room = 1024 - FRAME_BYTES - len(b"{}")
    assert rendered(["x" * (room - 3)], size=1024)["parts"] == ["x" * (room - 3)]
    assert "left_out" in rendered(["x" * (room - 2)], size=1024)["parts"][0]
