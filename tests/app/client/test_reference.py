"""The reference of the client: up to date, and complete."""

from __future__ import annotations

from pathlib import Path

import pytest

import whippet.client
from whippet.app.client import reference
from whippet.app.client.blocking import public_methods
from whippet.app.client.commands import Commands

PAGE = Path(__file__).parents[3] / "docs" / "python-api.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == reference.page(), "run `make docs`"


@pytest.mark.parametrize("name", ["Client", "Producer", "Consumer", "GroupConsumer", "SyncProducer", "SyncConsumer"])
def test_every_public_method_is_on_the_page(name: str) -> None:
    text = PAGE.read_text()
    _, _, section = text.partition(f"\n## {name}\n")
    section, _, _ = section.partition("\n## ")
    for method in {
        **public_methods(getattr(whippet.client, name)),
        **(public_methods(Commands) if name == "Client" else {}),
    }:
        assert f"{method}(" in section, f"{name}.{method}"
