"""The banner: one line for each thing a person who started the gateway wants to know."""

from __future__ import annotations

import pytest

from whippet.app import banner
from whippet.app.config.formats import Address
from whippet.storage.options import Durability, StoreOptions


def test_every_address_has_a_line_that_can_be_opened() -> None:
    shown = banner.text({"http": Address("127.0.0.1", 3000)}, StoreOptions(path="/data"))
    assert "  http        http://127.0.0.1:3000\n" in shown


def test_the_dashboard_has_a_line_where_there_is_one() -> None:
    at, options = {"https": Address("127.0.0.1", 3000)}, StoreOptions(path="/data")
    assert "  dashboard   https://127.0.0.1:3000/ui\n" in banner.text(at, options, has_dashboard=True)
    assert "dashboard" not in banner.text(at, options)
    assert "dashboard" not in banner.text({"tcp": Address("127.0.0.1", 8090)}, options, has_dashboard=True)


@pytest.mark.parametrize("level", Durability)
def test_every_durability_level_says_what_it_promises(level: Durability) -> None:
    shown = banner.text({}, StoreOptions(path="/data", durability=level))
    assert f"  durability  {level.name.lower()}: {banner.PROMISES[level]}\n" in shown
